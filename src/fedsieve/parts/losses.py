"""Losses: what a client minimises on its (possibly wrong) labels. One value a sample; targets may be soft.

p = softmax(z), q the target distribution. With a one-hot q every formula is the published one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import kl_div, log_softmax

from fedsieve.core import Batch, Client, Net, Part

PROBABILITY_FLOOR = 1e-7


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """−Σ_c q_c log p_c."""
    return -(target * log_softmax(logits, 1)).sum(1)


def entropy(logits: Tensor) -> Tensor:
    """−Σ_c p_c log p_c, one value a row."""
    log_p = log_softmax(logits, 1)
    return -(log_p.exp() * log_p).sum(1)


def divergence_from_uniform(p: Tensor) -> Tensor:
    """KL(uniform ‖ p̄) = Σ_c 1/C log((1/C) / p̄_c), p̄ the mean prediction of the batch."""
    mean = p.mean(0).clamp_min(PROBABILITY_FLOOR)
    return -mean.log().mean() - math.log(len(mean))


def prior_divergence(logits: Tensor, prior: Tensor) -> Tensor:
    """L_p = Σ_c π_c log(π_c / p̄_c), p̄ the mean prediction of the batch."""
    log_mean = log_softmax(logits, 1).logsumexp(0) - math.log(len(logits))
    return kl_div(log_mean, prior, reduction="sum")


def symmetric_cross_entropy(logits: Tensor, target: Tensor, alpha: float, beta: float, floor: float) -> Tensor:
    """α CE + β RCE, RCE = −Σ_c p_c log q_c with log 0 := log `floor`; −A (1 − p_ỹ) for a one-hot target."""
    p = log_softmax(logits, 1).exp().clamp(PROBABILITY_FLOOR, 1.0)
    reverse = -(p * target.clamp_min(floor).log()).sum(1)
    return alpha * cross_entropy(logits, target) + beta * reverse


def generalised_cross_entropy(logits: Tensor, target: Tensor, q: float, floor: float = PROBABILITY_FLOOR) -> Tensor:
    """Σ_c target_c (1 − p_c^q) / q: cross entropy as q → 0, mean absolute error (halved) at q = 1.

    Below `floor` a probability counts as that, and has no gradient.
    """
    if q == 0:
        return cross_entropy(logits, target)
    log_p = log_softmax(logits, 1).clamp_min(math.log(floor))
    return (target * -torch.expm1(q * log_p) / q).sum(1)


def mean_absolute_error(logits: Tensor, target: Tensor) -> Tensor:
    """1 − p_ỹ, half the L1 distance between p and a one-hot target."""
    return (target * (1.0 - logits.softmax(1))).sum(1)


def clipped_logits(logits: Tensor, tau: float) -> Tensor:
    """z · min(1, τ / ‖z‖₂); the arg max is unchanged."""
    norm: Tensor = logits.norm(dim=1, keepdim=True)
    return logits * (tau / norm.clamp_min(1e-12)).clamp_max(1.0)


@dataclass(frozen=True, kw_only=True)
class CrossEntropy(Part):
    """The default loss."""

    labels = True

    def loss(self, c: Client, net: Net, batch: Batch) -> Tensor:
        return cross_entropy(net.logits(batch), net.target(batch))


@dataclass(frozen=True, kw_only=True)
class SymmetricCrossEntropy(Part):
    """Cross entropy plus its reverse, which bounds what a wrong label can cost (Wang et al. 2019)."""

    alpha: Annotated[float, Field(ge=0)] = 0.1
    """Weight of the cross entropy."""
    beta: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the reverse cross entropy."""
    floor: Annotated[float, Field(gt=0, lt=1)] = 1e-4
    """Target probabilities below this are raised to it: log 0 becomes log(floor), −9.21 by default."""
    labels = True

    def loss(self, c: Client, net: Net, batch: Batch) -> Tensor:
        return symmetric_cross_entropy(net.logits(batch), net.target(batch), self.alpha, self.beta, self.floor)


@dataclass(frozen=True, kw_only=True)
class GeneralisedCrossEntropy(Part):
    """Between cross entropy and mean absolute error (Zhang & Sabuncu 2018)."""

    q: Annotated[float, Field(ge=0, le=1)] = 0.7
    """0 is cross entropy, 1 is mean absolute error."""
    labels = True

    def loss(self, c: Client, net: Net, batch: Batch) -> Tensor:
        return generalised_cross_entropy(net.logits(batch), net.target(batch), self.q)


@dataclass(frozen=True, kw_only=True)
class MeanAbsoluteError(Part):
    """1 − p of the label (Ghosh et al. 2017)."""

    labels = True

    def loss(self, c: Client, net: Net, batch: Batch) -> Tensor:
        return mean_absolute_error(net.logits(batch), net.target(batch))


@dataclass(frozen=True, kw_only=True)
class ClippedLogits(Part):
    """Cross entropy on logits whose norm is clipped while training (Wei et al. 2023)."""

    tau: Annotated[float, Field(gt=0)] = 1.0
    """The largest norm of the logits."""
    labels = True

    def loss(self, c: Client, net: Net, batch: Batch) -> Tensor:
        return cross_entropy(clipped_logits(net.logits(batch), self.tau), net.target(batch))


@dataclass(frozen=True, kw_only=True)
class AdjustedLogits(Part):
    """Cross entropy on z + τ log π, π the frequencies of the client's labels as they stand (Menon et al. 2021)."""

    tau: Annotated[float, Field(ge=0)] = 1.0
    """Strength of the adjustment; 0 is cross entropy."""
    smoothing: Annotated[float, Field(gt=0)] = 1e-8
    """Added to each class count, so that absent classes give no infinities: π = (count + ε) / (n + C ε)."""
    labels = True

    def start(self, c: Client) -> None:
        counts = c.labels.target[c.labels.labelled_rows()].sum(0) + self.smoothing
        c.scratch(self)["log_prior"] = (counts / counts.sum()).log().to(c.nets[0].device)

    def loss(self, c: Client, net: Net, batch: Batch) -> Tensor:
        adjusted = net.logits(batch) + self.tau * c.scratch(self)["log_prior"]
        return cross_entropy(adjusted, net.target(batch))
