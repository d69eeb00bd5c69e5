"""What methods that pick clean samples share: warm-up, small losses, histories, and the mixture on losses."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedsieve.core import Part
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


def in_warmup(t: int, rounds: int, warmup: int | None) -> bool:
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


def enqueue(past: Tensor | None, newest: Tensor, length: int) -> Tensor:
    """The newest entry behind the past ones, of which the last `length` stay; there are no empty slots."""
    entries = newest[None] if past is None else torch.cat([past, newest[None]])
    return entries[-length:]


def min_max(values: Tensor) -> Tensor:
    """Scaled to [0, 1]; equal values become 0."""
    spread = values.max() - values.min()
    return (values - values.min()) / spread if spread > 0 else torch.zeros_like(values)


def lower_hump(values: Tensor, mixture: GaussianMixture1D, *, guard: bool) -> Tensor:
    """Posterior of the lower component of a mixture of two; with the guard all belong to it where the means are close.

    Of few or equal values, which the mixture does not split, all belong to it too.
    """
    x = values.numpy()
    if mixture.fit(x).split_ and guard and mixture.separation() < SEPARATED:
        return torch.ones(len(x), dtype=torch.float64)
    return torch.from_numpy(mixture.predict_proba(x)[:, 0])


def sure_predictions(logits: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """The predicted class of each row, and whether its probability exceeds the threshold."""
    probability, predicted = logits.softmax(1).max(1)
    return predicted, probability > threshold


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
    return lower_hump(min_max(losses), GaussianMixture1D(tol, max_iter), guard=False).float()


@dataclass(frozen=True, kw_only=True)
class LossMixture(Part):
    """What a part is that tells clean labels by a mixture on its losses."""

    guard: bool = False
    """Believe every label where the losses form one hump and the model predicts most of them; off in the paper."""
    tol: Annotated[float, Field(gt=0)] = 1e-2
    """The mixture is fitted until its mean log-likelihood rises by less (authors' code)."""
    max_iter: Annotated[int, Field(ge=1)] = 100
    """Iterations of that fit at most (authors' code)."""

    def clean_probability(self, logits: Tensor, target: Tensor) -> Tensor:
        return clean_probability(logits, target, guard=self.guard, tol=self.tol, max_iter=self.max_iter)
