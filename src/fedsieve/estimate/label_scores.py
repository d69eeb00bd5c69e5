"""From the probabilities that labels are right to flags, shares of wrong labels and where to look first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
BINS = 1000
"""Of the histogram of doubts that travels."""
SHARPER = 1.5
"""By how much the scores may be too sure or too unsure (a factor of their log-odds), for the interval of a share."""
FIRST = 50
"""Rows that a person may look at in one sitting."""


def doubt_sums(score: Array) -> Array:
    """(2, BINS): how many rows have a doubt (1 - score) in each bin, and the sum of their doubts."""
    doubt = 1.0 - score
    place = np.minimum((doubt * BINS).astype(np.int64), BINS - 1)
    return np.stack([np.bincount(place, minlength=BINS), np.bincount(place, doubt, minlength=BINS)]).astype(np.float64)


@dataclass(frozen=True)
class Rule:
    """Which labels are flagged: those that are doubted as much as this."""

    threshold: float
    """Doubt from which a label is flagged; above 1 flags none."""
    precision: float
    """Expected share of wrong labels among the flagged ones; 1 where none is."""


def rule(told: Array, precision: float | None = None) -> Rule:
    """Without `precision` the expected F1 is as large as it can be; with it, as many rows as keep that precision."""
    counts, doubts = (each[::-1].cumsum() for each in told)
    if precision is None:
        worth = 2 * doubts / np.maximum(counts + doubts[-1], 1e-300)
        best = int(worth.argmax()) if doubts[-1] > 0 else -1
    else:
        enough = np.flatnonzero((counts > 0) & (doubts >= precision * counts))
        best = int(enough[-1]) if len(enough) else -1
    if best < 0 or counts[best] == 0:
        return Rule(2.0, 1.0)
    return Rule((BINS - 1 - best) / BINS, float(doubts[best] / counts[best]))


def flags(score: Array, rule: Rule) -> NDArray[np.bool_]:
    """By the same bins as the rule was made of; what nobody judged is not flagged."""
    doubt = np.where(np.isnan(score), -1.0, 1.0 - score)
    flagged: NDArray[np.bool_] = np.floor(np.minimum(doubt, 1 - 0.5 / BINS) * BINS) >= round(rule.threshold * BINS)
    return flagged


@dataclass(frozen=True)
class Wrong:
    """The share of an owner's labels that are wrong, as far as scores tell."""

    share: float
    low: float
    high: float


def wrong(score: ArrayLike) -> Wrong:
    """The mean doubt, and an interval for it.

    Its width has two sources: chance, as if each label were wrong independently with its probability (two standard
    deviations), and scores that are all a little too sure or too unsure.
    """
    known = np.asarray(score, np.float64)
    known = known[~np.isnan(known)]
    if not len(known):
        return Wrong(0.0, 0.0, 1.0)
    odds = np.log(np.clip(1 - known, 1e-9, 1)) - np.log(np.clip(known, 1e-9, 1))
    shares = [float((1 / (1 + np.exp(-factor * odds))).mean()) for factor in (1 / SHARPER, 1.0, SHARPER)]
    chance = 2 * float(np.sqrt((known * (1 - known)).sum())) / len(known)
    share = float((1 - known).mean())
    return Wrong(share, max(0.0, min(shares) - chance), min(1.0, max(shares) + chance))


@dataclass(frozen=True)
class Budget:
    """What a person finds who looks at so many rows, the most doubtful first."""

    rows: int
    wrong: float


def budget(score: ArrayLike, most: int = FIRST) -> Budget:
    known = np.sort(np.asarray(score, np.float64))
    first = known[~np.isnan(known)][:most]
    return Budget(len(first), float((1 - first).sum()))
