"""A net whose last layer learns the client's labels, while its features stay as they came."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedsieve.core import Client, Net, train_on
from fedsieve.parts.losses import cross_entropy


def tune_head(c: Client, net: Net, rows: Tensor, target: Tensor, order: torch.Generator) -> Tensor:
    """Logits of all samples after one epoch of the head alone on these rows; features are computed once.

    Plain SGD with the experiment's learning rate and momentum, whatever the client itself trains with.
    """
    head, features, target = net.module.head, c.outputs(net).features, target.to(net.device)
    plain = replace(c.fit, optimizer="sgd", weight_decay=0.0, clip=0.0, precision="fp32")

    def loss(some: Tensor) -> Tensor:
        return cross_entropy(head(features[some]), target[some])  # type: ignore[operator]  # every model has it

    train_on(c, net, rows, loss, order, fit=plain, sections=("head",))
    with torch.no_grad():
        logits: Tensor = head(features)  # type: ignore[operator]
    return logits
