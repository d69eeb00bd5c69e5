"""FedNoRo: noisy clients are found by their class losses, then distil and weigh less (Wu et al., IJCAI 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import log_softmax

from fedsieve.core import Batch, Client, Method, Net, Payload, Server, Stage, rise
from fedsieve.parts.losses import AdjustedLogits
from fedsieve.parts.noisy_clients import ClassLossDetector, DistanceAware, noisy_clients

RISE = 39 / 90
"""Share of the last stage over which λ rises: rounds 10 to 49 of 100, the first ten of which warm up."""


def divergence(teacher: Tensor, student: Tensor, classes: Tensor) -> Tensor:
    """KL(softmax(teacher) ‖ softmax(student)), one value a row; only the terms of these classes (a mask)."""
    log_q, log_p = log_softmax(teacher, 1), log_softmax(student, 1)
    return (log_q.exp() * (log_q - log_p))[:, classes].sum(1)


@dataclass(frozen=True, kw_only=True)
class DistilNoisy(AdjustedLogits):
    """Logit-adjusted cross entropy; at noisy clients it gives way to what the received model says.

    Where the paper is silent: the received model sees the same augmented images, in evaluation mode.
    """

    distil: Annotated[float, Field(ge=0, le=1)] = 0.8
    """λ: weight of the received model against the labels at a noisy client, once it is fully there."""
    ramp: Annotated[int, Field(ge=1)] | None = None
    """Rounds over which λ rises; 39/90 of the last stage if not given, as in rounds 10 to 49 of 100."""
    temperature: Annotated[float, Field(gt=0)] = 0.8
    """Divides the received model's logits; below 1 sharpens."""
    mask: bool = True
    """Leave out what the received model says of classes that the client has no sample of (authors' code)."""

    down = {"noisy": ()}
    needs = frozenset({"clean"})
    combined = True

    def brief(self, s: Server, client: int) -> Payload:
        return {"noisy": client in noisy_clients(s)}

    def start(self, c: Client) -> None:
        super().start(c)
        note = c.scratch(self)
        note["lambda"] = self.weight_now(*c.clock(self)) if c.brief(self).flag("noisy") else 0.0
        present = c.labels.target[c.labels.labelled_rows()].sum(0) > 0
        note["classes"] = (present if self.mask else torch.ones_like(present)).to(c.nets[0].device)
        note["teachers"] = [c.borrow(net.received) for net in c.nets] if note["lambda"] else []

    def weight_now(self, t: int, rounds: int) -> float:
        over = max(1, round(RISE * rounds)) if self.ramp is None else self.ramp
        return self.distil * rise(t, over)

    def loss(self, c: Client, net: Net, batch: Batch) -> Tensor:
        """λ KL(softmax(z_global / T) ‖ softmax(z + log π)) + (1 − λ) CE(z + log π, y); λ = 0 at clean clients."""
        hard = super().loss(c, net, batch)
        note = c.scratch(self)
        share: float = note["lambda"]
        if not share:
            return hard
        with torch.no_grad():
            teacher = note["teachers"][net.index].logits(batch) / self.temperature
        soft = divergence(teacher, net.logits(batch) + self.tau * note["log_prior"], note["classes"])
        return share * soft + (1.0 - share) * hard


def fednoro(detector: ClassLossDetector, loss: DistilNoisy, distances: DistanceAware) -> Method:
    """FedNoRo: logit-adjusted FedAvg; one question to every client; then distillation and distance-aware averaging."""
    adjusted = AdjustedLogits(tau=loss.tau, smoothing=loss.smoothing)
    return Method(
        "fednoro",
        (
            Stage("warm", detector.warm, fraction=0.1, parts=(adjusted,)),
            Stage("detect", 0, parts=(detector,)),
            Stage("robust", parts=(loss, distances)),
        ),
    )
