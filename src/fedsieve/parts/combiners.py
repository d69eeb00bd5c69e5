"""How reported models become the group's next model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedsieve.core.aggregate import RunningMean, written
from fedsieve.core.server import Models, Server
from fedsieve.core.types import Ups, Weights
from fedsieve.options import Choice


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
        return written(s, mean.result())


@dataclass(frozen=True, kw_only=True)
class Median(Choice):
    """The median of each coordinate; ignores the weights."""

    weighted: ClassVar[bool] = False
    streams: ClassVar[bool] = False

    def __call__(self, s: Server, models: Models, ups: Ups, w: Weights) -> Models:
        reported = [up.models for up in ups.values() if up.models is not None]
        return written(s, tuple(torch.stack(each).quantile(0.5, dim=0) for each in zip(*reported, strict=True)))
