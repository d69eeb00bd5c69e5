"""What methods that pick clean samples share: warm-up, small losses, histories, and the mixture on losses."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedsieve.estimate.gmm1d import GaussianMixture1D
from fedsieve.parts.losses import cross_entropy

SEPARATED = 2.0
"""Pooled standard deviations between two means below which the guard sees one hump."""
OUTLYING = 0.99
"""Larger losses than those of this share count, with the guard, as the largest of it."""
ROUNDING = 1e-9
"""Keeps (1 − 0.9) · 10 from counting as less than one row."""


def warmup_rounds(rounds: int, warmup: int | None) -> int:
    """How long a part of so many rounds warms up: `warmup` rounds, or a fifth of them if not given."""
    return math.ceil(0.2 * rounds) if warmup is None else warmup


def warming(t: int, rounds: int, warmup: int | None) -> bool:
    """Whether round t of a part is still plain training; see `Plan.clock`."""
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


def one_hump(logits: Tensor, target: Tensor) -> bool:
    """Whether a model finds the labels of a client alike, and most of them right.

    Judged by the log-odds of the labels, for losses have a long tail that a mixture takes for a component. One hump of
    wrong labels looks like one of right ones, so the model must also predict more than half of them.
    """
    odds = (logits.softmax(1) * target).sum(1).logit(eps=1e-6)
    agree = (logits.argmax(1) == target.argmax(1)).float().mean()
    return float(agree) > 0.5 and GaussianMixture1D().fit(odds.numpy()).separation() < SEPARATED


def clean_probability(
    logits: Tensor, target: Tensor, *, guard: bool = False, tol: float = 1e-2, max_iter: int = 100
) -> Tensor:
    """Posterior of the small-loss component of a two-component mixture on the min-max scaled losses.

    Tiny clients and equal losses are all clean. With the guard so are labels of which a mixture would cut one hump in
    two, and a few outliers do not squeeze the other losses together.
    """
    logits, target = logits.float().cpu(), target.cpu()
    losses = cross_entropy(logits, target)
    if guard:
        if one_hump(logits, target):
            return torch.ones(len(losses))
        losses = losses.clamp_max(losses.quantile(OUTLYING))
    x = min_max(losses).numpy()
    return torch.from_numpy(GaussianMixture1D(tol, max_iter).fit(x).predict_proba(x)[:, 0]).float()
