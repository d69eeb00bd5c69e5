"""Joint optimisation of the model and of the labels (Tanaka et al., CVPR 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedsieve.core import Batch, Client, Labels, Method, Net, Part, Payload, Stage
from fedsieve.parts.losses import cross_entropy, entropy, prior_divergence
from fedsieve.parts.selection import enqueue, in_warmup


def mean_target(outputs: Tensor) -> Tensor:
    """The mean of the (slots, n, C) softmax outputs seen so far, each row with sum one."""
    mean = outputs.mean(0)
    return mean / mean.sum(1, keepdim=True)


@dataclass(frozen=True, kw_only=True)
class JointTargets(Part):
    """After the warm-up each sample is trained towards the mean of its last softmax outputs.

    Where the sources are silent: outputs are recorded at the end of every local epoch, warm-up included, in one more
    pass without augmentation and in evaluation mode; before the queue is full the mean is over what is there. The prior
    and the entropy term count from the first round. A label's score is the probability that the mean gives it.
    """

    alpha: Annotated[float, Field(ge=0)] = 1.2
    """Weight of the prior term, which keeps predictions from falling into one class."""
    beta: Annotated[float, Field(ge=0)] = 0.8
    """Weight of the entropy, which keeps each prediction decided."""
    history: Annotated[int, Field(ge=1)] = 15
    """Epochs whose outputs a client keeps of each sample."""
    prior: Literal["uniform", "local"] = "uniform"
    """Class frequencies the mean prediction is drawn to: equal, or those of the client's given labels."""
    warmup: Annotated[int, Field(ge=0)] | None = None
    """Rounds that train towards the given labels; a fifth of the rounds if not given."""
    corrects = True
    keeps = {"outputs": ("<=history", "n", "C")}
    labels = True
    nets = 1
    every = "epoch"

    def start(self, c: Client) -> None:
        counts = c.labels.target.sum(0)
        if self.prior == "uniform" or not counts.any():
            counts = torch.ones(c.n_classes)
        c.scratch(self)["prior"] = (counts / counts.sum()).to(c.nets[0].device)

    def relabel(self, c: Client, net: Net, labels: Labels) -> Labels:
        if c.epoch:
            self.record(c, net)
        outputs = c.keep(self).get("outputs")
        if outputs is None:
            return labels
        target = mean_target(outputs)
        scored = labels.replace(score=(target * c.labels.target).sum(1))
        return scored if in_warmup(*c.clock(self), self.warmup) else scored.towards(target)

    def loss(self, c: Client, net: Net, batch: Batch) -> Tensor:
        logits = net.logits(batch)
        divergence = prior_divergence(logits, c.scratch(self)["prior"])
        return cross_entropy(logits, net.target(batch)) + self.alpha * divergence + self.beta * entropy(logits)

    def finish(self, c: Client) -> Payload:
        if c.fit.epochs:
            self.record(c, c.nets[0])
        return {}

    def record(self, c: Client, net: Net) -> None:
        kept = c.keep(self)
        kept["outputs"] = enqueue(kept.get("outputs"), c.logits(net).softmax(1), self.history)


def joint(targets: JointTargets) -> Method:
    """Joint optimisation at every client, FedAvg between them."""
    return Method("joint", (Stage(parts=(targets,)),))
