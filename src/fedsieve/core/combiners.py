"""How reported models become the group's next model.

The mean follows the weights. The others are for those who fear reports made to harm: they count every report alike,
and bear up to so many that say anything at all. They are no cure for label noise: wrong labels are honest reports.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedsieve.base.options import Choice
from fedsieve.core.aggregate import RunningMean, write_sections
from fedsieve.core.server import Models, Server
from fedsieve.core.types import Ups, Weights

ROUNDING = 1e-9
"""Keeps 0.1 · 30 from counting as more than three."""
BLOCK = 1 << 22
"""Numbers of the reports' coordinates that are sorted at once."""


@dataclass(frozen=True, kw_only=True)
class Mean(Choice):
    """Σ_k a_k w_k with a_k = weight / sum of weights (FedAvg)."""

    weighted: ClassVar[bool] = True
    streams: ClassVar[bool] = True

    def __call__(self, s: Server, models: Models, ups: Ups, w: Weights) -> Models:
        mean = RunningMean()
        for client, up in ups.items():
            if w[client] > 0 and up.models is not None:
                mean.add(up.models, w[client])
        return write_sections(s, mean.result())


@dataclass(frozen=True, kw_only=True)
class Unweighted(Choice):
    """Looks at single reports and counts them alike."""

    weighted: ClassVar[bool] = False
    streams: ClassVar[bool] = False

    def __call__(self, s: Server, models: Models, ups: Ups, w: Weights) -> Models:
        reported = [up.models for up in ups.values() if up.models is not None]
        return write_sections(s, self.combine(reported))

    def combine(self, reported: list[Models]) -> Models:
        """One model for each net from those of all clients."""
        raise NotImplementedError


def by_coordinate(reported: list[Models], rule: Callable[[Tensor], Tensor]) -> Models:
    """For each net the rule, from (reports, coordinates) to (coordinates,), on a block of coordinates at a time."""
    nets = []
    for each in zip(*reported, strict=True):
        pieces = zip(*(torch.split(net, max(1, BLOCK // len(each))) for net in each), strict=True)
        nets.append(torch.cat([rule(torch.stack(piece)).float() for piece in pieces]))
    return tuple(nets)


@dataclass(frozen=True, kw_only=True)
class Median(Unweighted):
    """The median of each coordinate (Yin et al. 2018)."""

    def combine(self, reported: list[Models]) -> Models:
        return by_coordinate(reported, lambda values: values.quantile(0.5, dim=0))


@dataclass(frozen=True, kw_only=True)
class TrimmedMean(Unweighted):
    """Of each coordinate the mean without the largest and the smallest values (Yin et al. 2018)."""

    trim: Annotated[float, Field(ge=0, lt=0.5)] = 0.1
    """Share of the reports, rounded up, that is left out at each end; one value always stays."""

    def combine(self, reported: list[Models]) -> Models:
        reports = len(reported)
        out = min(ceil(self.trim * reports - ROUNDING), (reports - 1) // 2)
        return by_coordinate(reported, lambda values: values.sort(0).values[out : reports - out].double().mean(0))


@dataclass(frozen=True, kw_only=True)
class Krum(Unweighted):
    """The reports that lie closest to their nearest neighbours (Blanchard et al. 2017): one, or the mean of several."""

    faulty: Annotated[int, Field(ge=0)] | None = None
    """f: reports that may be anything; as many as Krum bears, (reports − 3) / 2, if not given or where it is more."""
    keep: Annotated[int, Field(ge=1)] = 1
    """m: how many of the best are averaged; more than one is Multi-Krum."""

    def combine(self, reported: list[Models]) -> Models:
        scores = self.scores(torch.stack([torch.cat(models) for models in reported]).double())
        best = scores.argsort(stable=True)[: self.keep].sort().values.tolist()
        mean = RunningMean()
        for k in best:
            mean.add(reported[k], 1.0)
        return mean.result()

    def scores(self, vectors: Tensor) -> Tensor:
        """Σ of the squared distances to the n − f − 2 nearest others."""
        reports = len(vectors)
        bears = max(0, (reports - 3) // 2)
        faulty = bears if self.faulty is None else min(self.faulty, bears)
        squares = torch.stack([(vectors - each).square().sum(1) for each in vectors])
        squares.fill_diagonal_(torch.inf)
        nearest = max(1, reports - faulty - 2) if reports > 1 else 0
        return squares.sort(1).values[:, :nearest].sum(1)


@dataclass(frozen=True, kw_only=True)
class GeometricMedian(Unweighted):
    """The point with the smallest sum of distances to all reports, by Weiszfeld steps (Pillutla et al. 2022)."""

    iterations: Annotated[int, Field(ge=1)] = 100
    """Steps at most."""
    tolerance: Annotated[float, Field(gt=0)] = 1e-6
    """The steps end when the sum of distances falls by a smaller share."""
    smoothing: Annotated[float, Field(gt=0)] = 1e-6
    """Distances below this count as this, so that a step that hits a report can be taken."""

    def combine(self, reported: list[Models]) -> Models:
        vectors = torch.stack([torch.cat(models) for models in reported]).double()
        middle = self.middle(vectors).float()
        return torch.split(middle, [len(net) for net in reported[0]])

    def middle(self, vectors: Tensor) -> Tensor:
        """z ← Σ β_k w_k / Σ β_k with β_k = 1 / max(ν, ‖z − w_k‖), from the mean on."""
        z = vectors.mean(0)
        distances = (vectors - z).norm(dim=1)
        for _ in range(self.iterations):
            pull = 1.0 / distances.clamp_min(self.smoothing)
            z = pull @ vectors / pull.sum()
            before, distances = distances.sum(), (vectors - z).norm(dim=1)
            if float(before - distances.sum()) <= self.tolerance * float(before):
                break
        return z


COMBINERS: dict[str, type[Mean] | type[Unweighted]] = {
    "mean": Mean,
    "median": Median,
    "trimmed-mean": TrimmedMean,
    "krum": Krum,
    "geometric-median": GeometricMedian,
}
