"""Running statistics that are measured anew instead of followed (static BatchNorm; Diao et al., ICLR 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from fedsieve.core import Client, Part, Payload

TRACKING = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@dataclass(frozen=True, kw_only=True)
class StaticNorm(Part):
    """A part of training at the server: when it is done, running statistics are the plain mean over all batches of the
    server's samples, unaugmented, as the trained model has them. Layers that track none are left as they are."""

    sbn: Literal["off", "server"] = "server"
    """Where running statistics come from: the server's samples, anew each round, or (off) they are averaged."""

    def finish(self, c: Client) -> Payload:
        for net in c.nets if self.sbn == "server" else ():
            layers = [layer for layer in net.module.modules() if isinstance(layer, TRACKING)]
            usual = [layer.momentum for layer in layers]
            for layer in layers:
                layer.reset_running_stats()
                layer.momentum = None  # PyTorch's word for the mean of all batches
            with torch.no_grad():
                for batch in c.batches([net], c.plan.smallest_batch):
                    net.features(batch, "clean")
            for layer, momentum in zip(layers, usual, strict=True):
                layer.momentum = momentum
            net.forget()
        return {}
