"""Passes over some rows besides local training: one that trains, one that only looks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedsieve.core.client import Client
from fedsieve.core.layout import Names
from fedsieve.core.local_training import Stepper, open_sections
from fedsieve.core.net import Batch, Net
from fedsieve.core.plan import Fit
from fedsieve.data.samples import EVALUATION_BATCH


def train_on(
    c: Client,
    net: Net,
    rows: Tensor,
    loss: Callable[[Tensor], Tensor],
    order: torch.Generator,
    *,
    fit: Fit | None = None,
    sections: Names | None = None,
    fresh: bool = False,
) -> None:
    """One pass of a net over these rows in this order's shuffle, a step a batch by the mean of `loss(rows)`.

    Steps are those of local training unless `fit` says otherwise. `sections` trains some of the model alone; `fresh`
    takes a new optimiser for every batch, so that its moments never build up.
    """
    fit = c.fit if fit is None else fit
    names = c.sections if sections is None else sections
    was_training = net.module.training
    net.module.train()
    open_sections([net], names)
    step = Stepper([net], fit, c.lr, names)
    with torch.enable_grad():
        for some in torch.split(rows[torch.randperm(len(rows), generator=order)], fit.batch):
            with step.autocast():
                value = loss(some).mean()
            step.zero_grad([net])
            value.backward()  # type: ignore[no-untyped-call]
            net.forget()
            step([net])
            if fresh:
                step = Stepper([net], fit, c.lr, names)
    open_sections([net], c.sections)
    net.module.train(was_training)


@torch.no_grad()
def mean_loss(c: Client, net: Net) -> float:
    """The mean of the stage's loss over the rows the client trains on, without augmentation and in evaluation mode."""
    (part,) = c.plan.hooks[c.stage].loss
    rows, total = net.labels.training_rows(), 0.0
    with net.evaluating():
        for some in torch.split(rows, EVALUATION_BATCH):
            total += len(some) * float(part.loss(c, net, Batch(some, lambda r, _: c.samples.view(r))).mean())
    net.forget()
    return total / len(rows)
