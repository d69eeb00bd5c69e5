"""MixUp: samples and their targets as convex combinations of two (Zhang et al., ICLR 2018)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def mixing_weight(alpha: float, generator: torch.Generator) -> float:
    """λ ~ Beta(α, α). PyTorch's Beta follows no generator, so NumPy draws, seeded from the stream."""
    seed = int(torch.randint(2**62, (), generator=generator))
    return float(np.random.default_rng(seed).beta(alpha, alpha))


def mixup(x: Tensor, target: Tensor, weight: float, partner: Tensor) -> tuple[Tensor, Tensor]:
    """λ x + (1 − λ) x[partner], and the targets alike."""
    return x.lerp(x[partner], 1.0 - weight), target.lerp(target[partner], 1.0 - weight)
