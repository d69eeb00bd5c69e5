"""DivideMix: two nets tell each other which labels to believe; the others are guessed (Li et al., ICLR 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedsieve.core import Batch, Client, Labels, Method, Net, Ramp, Role, Stage
from fedsieve.parts.losses import cross_entropy, divergence_from_uniform
from fedsieve.parts.mixup import mixing_weight, mixup
from fedsieve.parts.selection import LossMixture, in_warmup, warmup_rounds

VIEWS = ("train", "train#2")
"""Two draws of the experiment's augmentation for each labelled sample."""
UNLABELLED_VIEWS = ("train#3", "train#4")
"""And two for each unlabelled one, from streams of their own."""


def sharpen(p: Tensor, temperature: float) -> Tensor:
    """p_c^{1/T} / Σ_c p_c^{1/T}; divided by the largest first, so that no row becomes 0 / 0."""
    raised = (p / p.amax(1, keepdim=True)) ** (1.0 / temperature)
    return raised / raised.sum(1, keepdim=True)


def mixmatch_loss(logits: Tensor, target: Tensor, labelled: int, lambda_u: float, prior: float) -> Tensor:
    """CE of the first `labelled` rows + λ_u MSE of the others + the prior's divergence over all.

    The squared error is the mean over rows and classes, to which the published λ_u belongs.
    """
    p = logits.softmax(1)
    loss = cross_entropy(logits[:labelled], target[:labelled]).mean() + prior * divergence_from_uniform(p)
    if labelled < len(logits):
        loss = loss + lambda_u * (p[labelled:] - target[labelled:]).square().mean()
    return loss


@torch.no_grad()
def guess(nets: Sequence[Net], views: Sequence[Tensor]) -> Tensor:
    """The mean prediction of some nets over some views, in evaluation mode: running statistics stay as they are."""
    predictions = []
    for net in nets:
        with net.evaluating():
            predictions += net.module(torch.cat(list(views))).float().softmax(1).chunk(len(views))
    return torch.stack(predictions).mean(0)


@dataclass(frozen=True, kw_only=True)
class DivideMix(LossMixture):
    """Each net's losses divide the samples for its peer: likely labels are refined, the others are guessed by both.

    Where the paper is silent: losses and guesses are taken in evaluation mode, losses without augmentation; unlabelled
    rows are drawn anew for each step, as many as there are labelled ones or as the client has; a net none of whose
    samples look clean trains on all given labels by cross entropy, one with clean samples only has no squared error.
    """

    warmup: Annotated[int, Field(ge=0)] | None = None
    """Rounds of cross entropy on both nets at the start; a fifth of the rounds if not given."""
    threshold: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """A label is believed if it is clean with more than this probability."""
    temperature: Annotated[float, Field(gt=0)] = 0.5
    """T of the sharpening; smaller is sharper."""
    lambda_u: Annotated[float, Field(ge=0)] = 25.0
    """Weight of the squared error on unlabelled samples, once it is fully there."""
    ramp: Annotated[int, Field(ge=0)] = 16
    """Rounds after the warm-up over which that weight rises from 0."""
    alpha: Annotated[float, Field(gt=0)] = 4.0
    """MixUp's λ ~ Beta(α, α)."""
    prior: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the term that spreads predictions evenly over the classes."""

    every = "epoch"
    labels = True
    nets = 2

    def relabel(self, c: Client, net: Net, labels: Labels) -> Labels:
        """Co-divide: the peer's losses say which of the rows in play keep their label."""
        if in_warmup(*c.clock(self), self.warmup):
            return labels
        rows = c.labels.labelled_rows()
        rows = rows[labels.weight[rows] > 0]
        if not len(rows):
            return labels
        clean = self.clean_probability(c.logits(c.nets[1 - net.index], rows), labels.target[rows])
        role = labels.role.clone()
        role[rows] = torch.where(clean > self.threshold, Role.LABELLED, Role.UNLABELLED).to(role.dtype)
        return labels.replace(role=role).rate(rows, clean)

    def loss(self, c: Client, net: Net, batch: Batch) -> Tensor:
        """MixMatch on labelled rows and as many unlabelled ones."""
        believed = bool((net.labels.role[batch.rows] == Role.LABELLED).all())
        if in_warmup(*c.clock(self), self.warmup) or not believed:
            return cross_entropy(net.logits(batch), net.target(batch))
        draw = c.rng(self, "step", net.index, c.epoch, int(batch.rows[0]))
        images = [batch.images(view) for view in VIEWS]
        targets = [self.refine(net, batch, images)] * len(VIEWS)
        rows = unlabelled_rows(net.labels, len(batch), draw)
        if len(rows):
            others = c.batch(rows, net.index)
            views = [others.images(view) for view in UNLABELLED_VIEWS]
            images += views
            targets += [sharpen(guess(c.nets, views), self.temperature)] * len(views)  # co-guessing
        weight = mixing_weight(self.alpha, draw)
        x, target = torch.cat(images), torch.cat(targets)
        x, target = mixup(x, target, max(weight, 1.0 - weight), torch.randperm(len(x), generator=draw))
        logits: Tensor = net.module(x).float()
        return mixmatch_loss(logits, target, len(VIEWS) * len(batch), self.weight_now(*c.clock(self)), self.prior)

    def refine(self, net: Net, batch: Batch, views: Sequence[Tensor]) -> Tensor:
        """Co-refinement: sharpen(w y + (1 − w) p), w the peer's trust in the label, p the net's own mean prediction."""
        w = net.labels.score[batch.rows].to(net.device)[:, None]
        return sharpen(w * net.target(batch) + (1.0 - w) * guess([net], views), self.temperature)

    def weight_now(self, t: int, rounds: int) -> float:
        """λ_u(t): from 0 in the first round after the warm-up, in a straight line."""
        return Ramp(0.0, self.lambda_u, self.ramp)(t - warmup_rounds(rounds, self.warmup))


def unlabelled_rows(labels: Labels, count: int, generator: torch.Generator) -> Tensor:
    """Up to `count` of the rows whose label is not believed, without repetition."""
    pool = ((labels.role == Role.UNLABELLED) & (labels.weight > 0)).nonzero().flatten()
    return pool[torch.randperm(len(pool), generator=generator)[:count]]


def dividemix(mix: DivideMix) -> Method:
    """DivideMix on two global models, each averaged as in FedAvg; net 0 is the one that is tested and saved first."""
    return Method("dividemix", (Stage(parts=(mix,)),), nets=2, turns="alternate")
