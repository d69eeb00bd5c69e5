"""FedDiv: one noise filter is learnt by all clients together (Li et al., AAAI 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from torch import Tensor

from fedsieve.base.options import Choice
from fedsieve.core import Batch, Client, Method, Net, Stage, Sweep
from fedsieve.methods.feddiv_filter import SharedFilter
from fedsieve.methods.feddiv_published import PublishedFilter
from fedsieve.parts.losses import cross_entropy, divergence_from_uniform
from fedsieve.parts.mixup import MixUp
from fedsieve.parts.published import vary

LAPS = (1, 5)
"""Fewest and most iterations of the warm-up; five is the paper's number for CIFAR-10."""


@dataclass(frozen=True, kw_only=True)
class EvenMixUp(MixUp):
    """MixUp, and a term that spreads the batch's predictions evenly over the classes."""

    eta: Annotated[float, Field(ge=0)] = 1.0
    """Weight of that term: 1 where clients hold different classes, 0 where they hold the same."""

    def loss(self, c: Client, net: Net, batch: Batch) -> Tensor:
        logits, target = self.mix(c, net, batch)
        return cross_entropy(logits, target) + self.eta * divergence_from_uniform(logits.float().softmax(1))


@dataclass(frozen=True, kw_only=True)
class Source(Choice):
    """Whom to follow where paper and code differ."""

    published: bool = False
    """Do as the authors' code does where it departs from the paper."""


def feddiv(filter: SharedFilter, source: Source, mix: EvenMixUp) -> Method:
    """FedDiv: MixUp on all samples, then on those that the shared filter finds clean or that can be relabelled."""
    given = filter.iterations
    laps, fraction = (LAPS, 0.2) if given is None else ((given, given), None)
    warm = Stage("warm", parts=(MixUp(alpha=mix.alpha),), sampler=Sweep(size=1), laps=laps, fraction=fraction)
    followed = vary(filter, PublishedFilter) if source.published else filter
    return Method("feddiv", (warm, Stage(parts=(followed, mix))))
