"""MixUp: samples and their targets as convex combinations of two (Zhang et al., ICLR 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedsieve.core import Batch, Client, Net, Part
from fedsieve.parts.losses import cross_entropy


def mixing_weight(alpha: float, generator: torch.Generator) -> float:
    """λ ~ Beta(α, α). PyTorch's Beta follows no generator, so NumPy draws, seeded from the stream."""
    seed = int(torch.randint(2**62, (), generator=generator))
    return float(np.random.default_rng(seed).beta(alpha, alpha))


def mixup(x: Tensor, target: Tensor, weight: float, partner: Tensor) -> tuple[Tensor, Tensor]:
    """λ x + (1 − λ) x[partner], and the targets alike."""
    return x.lerp(x[partner], 1.0 - weight), target.lerp(target[partner], 1.0 - weight)


@dataclass(frozen=True, kw_only=True)
class MixUp(Part):
    """Cross entropy of a batch mixed with itself in another order, one λ a batch."""

    alpha: Annotated[float, Field(ge=0)] = 1.0
    """MixUp's λ ~ Beta(α, α); 0 mixes nothing."""

    labels = True

    def loss(self, c: Client, net: Net, batch: Batch) -> Tensor:
        return cross_entropy(*self.mix(c, net, batch))

    def mix(self, c: Client, net: Net, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits and targets of the mixed batch."""
        if not self.alpha:
            return net.logits(batch), net.target(batch)
        draw = c.rng(self, "mix", net.index, c.epoch, int(batch.rows[0]))
        weight = mixing_weight(self.alpha, draw)
        x, target = mixup(batch.images(), net.target(batch), weight, torch.randperm(len(batch), generator=draw))
        return net.module(x).float(), target
