"""What methods that pick clean samples share: warm-up, small losses, histories, and the mixture on losses."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedsieve.estimate.gmm1d import GaussianMixture1D
from fedsieve.parts.losses import cross_entropy

SEPARATED = 2.0
"""Pooled standard deviations between two means below which the guard sees one hump."""
ROUNDING = 1e-9
"""Keeps (1 − 0.9) · 10 from counting as less than one row."""


def warmup_rounds(rounds: int, warmup: int | None) -> int:
    """How long a stage of so many rounds warms up: `warmup` rounds, or a fifth of the stage if not given."""
    return math.ceil(0.2 * rounds) if warmup is None else warmup


def warming(t: int, rounds: int, warmup: int | None) -> bool:
    """Whether round t of a stage is still plain training."""
    return t < warmup_rounds(rounds, warmup)


def smallest(losses: Tensor, count: int) -> Tensor:
    """A mask of the rows with the `count` smallest losses; of equal ones the first."""
    mask = torch.zeros_like(losses, dtype=torch.bool)
    mask[losses.argsort(stable=True)[:count]] = True
    return mask


def mean_of(chosen: Tensor, losses: Tensor, weight: Tensor) -> Tensor:
    """The weighted mean over the chosen rows alone; the others get no gradient."""
    return (losses[chosen] * weight[chosen]).sum() / weight[chosen].sum()


def rows_kept(rows: int, forget: float) -> int:
    """⌊(1 − r) B⌋ rows of a batch, but at least one."""
    return max(1, int((1.0 - forget) * rows + ROUNDING))


def queued(past: Tensor | None, newest: Tensor, length: int) -> Tensor:
    """The newest entry behind the past ones, of which the last `length` stay; there are no empty slots."""
    entries = newest[None] if past is None else torch.cat([past, newest[None]])
    return entries[-length:]


def min_max(values: Tensor) -> Tensor:
    """Scaled to [0, 1]; equal values become 0."""
    spread = values.max() - values.min()
    return (values - values.min()) / spread if spread > 0 else torch.zeros_like(values)


def clean_probability(logits: Tensor, target: Tensor, *, guard: bool = False) -> Tensor:
    """Posterior of the small-loss component of a two-component mixture on the min-max scaled losses.

    Tiny clients and equal losses are all clean; with the guard so are losses that form one hump, which a mixture would
    still cut in two.
    """
    losses = min_max(cross_entropy(logits.float().cpu(), target.cpu()))
    mixture = GaussianMixture1D().fit(losses.numpy())
    if guard and mixture.separation() < SEPARATED:
        return torch.ones(len(losses))
    return torch.from_numpy(mixture.predict_proba(losses.numpy())[:, 0]).float()
