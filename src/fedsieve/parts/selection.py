"""What methods that pick clean samples share: losses, their scale, and the mixture that tells low from high."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedsieve.estimate.gmm1d import GaussianMixture1D
from fedsieve.parts.losses import cross_entropy

SEPARATED = 2.0
"""Pooled standard deviations between two means below which the guard sees one hump."""


def warmup_rounds(rounds: int, warmup: int | None) -> int:
    """How long a stage of so many rounds warms up: `warmup` rounds, or a fifth of the stage if not given."""
    return math.ceil(0.2 * rounds) if warmup is None else warmup


def warming(t: int, rounds: int, warmup: int | None) -> bool:
    """Whether round t of a stage is still plain training."""
    return t < warmup_rounds(rounds, warmup)


def min_max(values: Tensor) -> Tensor:
    """Scaled to [0, 1]; equal values become 0."""
    spread = values.max() - values.min()
    return (values - values.min()) / spread if spread > 0 else torch.zeros_like(values)


def clean_probability(logits: Tensor, target: Tensor, *, guard: bool = False) -> Tensor:
    """Posterior of the small-loss component of a two-component mixture on the min-max scaled losses.

    Tiny clients and equal losses are all clean; with the guard so are losses that form one hump, which a mixture would
    still cut in two.
    """
    losses = min_max(cross_entropy(logits.float(), target)).cpu()
    mixture = GaussianMixture1D().fit(losses.numpy())
    if guard and mixture.separation() < SEPARATED:
        return torch.ones(len(losses))
    return torch.from_numpy(mixture.predict_proba(losses.numpy())[:, 0]).float()
