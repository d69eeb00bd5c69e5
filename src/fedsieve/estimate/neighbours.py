"""What a point's nearest neighbours say of its label, and which points are nearly the same but labelled otherwise.

Wrong labels are scattered among right ones where features tell classes apart, so most neighbours of a point bear the
class that it should have. How often they outvote a label estimates how many labels are wrong.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Numbers = NDArray[np.int64]

CELLS = 4_000_000
"""Distances held at once: 32 MB, whatever the number of points."""
DIGITS = 9
"""Squared distances are compared to so many digits of the points' spread: rounding decides no tie."""
NEAR = 0.3
"""Of the median distance to the nearest point: what is nearer is nearly the same."""


def nearest(points: ArrayLike, k: int = 10, with_self: bool = False) -> Numbers:
    """(n, k) the k nearest points of each, nearest first, by Euclidean distance; of equally near ones the first.

    The point itself is not among them, or comes first (`with_self`). With fewer points all of them are neighbours.
    """
    if k < 1:
        raise ValueError(f"a vote needs k of at least 1 neighbour, not {k}")
    x = _checked(points)
    count = min(k, len(x) - (not with_self))
    if count < 1:
        return np.zeros((len(x), 0), np.int64)
    found = np.empty((len(x), count), np.int64)
    for some, squared in _distances(x, to_itself=-np.inf if with_self else np.inf):
        found[some] = _smallest(squared, count)
    return found


def twins(points: ArrayLike, labels: ArrayLike, near: float = NEAR) -> Numbers:
    """(n,) for each point the nearest one that bears another label, if it is nearly the same; -1 if it is not.

    Nearly the same is nearer than `near` times the median distance of points to their nearest one, so that it means
    the same in any space. At least one label of such a pair is wrong.
    """
    x, given = _checked(points), np.asarray(labels, np.int64)
    if len(given) != len(x):
        raise ValueError(f"{len(given)} labels for {len(x)} points")
    found, apart, closest = np.full(len(x), -1), np.full(len(x), np.inf), np.full(len(x), np.inf)
    if len(x) < 2:
        return found
    for some, squared in _distances(x, to_itself=np.inf):
        closest[some] = squared.min(axis=1)
        squared[given[some, None] == given] = np.inf
        found[some] = squared.argmin(axis=1)
        apart[some] = squared.min(axis=1)
    return np.where(apart <= near**2 * np.median(closest), found, -1)


def _checked(points: ArrayLike) -> Array:
    x = np.asarray(points, np.float64)
    if x.ndim != 2:
        raise ValueError(f"the points must have 2 dimensions, not {x.ndim}")
    if not np.isfinite(x).all():
        raise ValueError("the points hold NaN or infinity")
    return x


def _distances(points: Array, to_itself: float) -> Iterator[tuple[slice, Array]]:
    """Some points after the others: which, and their squared distances to all, in units of the points' spread."""
    x = points - points.mean(axis=0)  # small numbers lose fewer digits in the products
    lengths = (x**2).sum(axis=1)
    spread = lengths.mean() or 1.0
    block = max(1, CELLS // len(x))
    for start in range(0, len(x), block):
        some = slice(start, start + block)
        squared = lengths[some, None] + lengths - 2.0 * (x[some] @ x.T)  # |a - b|² = |a|² + |b|² - 2⟨a, b⟩
        squared = np.round(squared / spread, DIGITS)
        rows = np.arange(len(squared))
        squared[rows, start + rows] = to_itself
        yield some, squared


def _smallest(table: Array, count: int) -> Numbers:
    """(n, count) the places of each row's smallest numbers in their order, of equals the first."""
    bar = np.partition(table, count - 1, axis=1)[:, count - 1 : count]
    below, equal = table < bar, table == bar
    taken = below | (equal & (equal.cumsum(axis=1) <= count - below.sum(axis=1, keepdims=True)))
    places = taken.nonzero()[1].reshape(len(table), count)
    order = np.take_along_axis(table, places, axis=1).argsort(axis=1, kind="stable")
    return np.take_along_axis(places, order, axis=1)


def votes(labels: ArrayLike, near: Numbers, n_classes: int) -> Array:
    """(n, C) the share of each point's neighbours that bear each class; all 0 where there is no neighbour."""
    given = np.asarray(labels, np.int64)
    if len(given) != len(near):
        raise ValueError(f"{len(given)} labels for {len(near)} points")
    if len(given) and not 0 <= int(given.min()) <= int(given.max()) < n_classes:
        raise ValueError(f"the labels reach from {given.min()} to {given.max()}, not 0 to {n_classes - 1}")
    shares: Array = np.zeros((len(given), n_classes))
    np.add.at(shares, (np.arange(len(given))[:, None], given[near]), 1.0)
    shares /= max(near.shape[1], 1)
    return shares


def elected(labels: ArrayLike, shares: Array) -> Numbers:
    """(n,) the class with the most votes, of equals the smallest; the label itself where nobody voted."""
    winners: Numbers = np.where(shares.any(axis=1), shares.argmax(axis=1), np.asarray(labels, np.int64))
    return winners


def share_outvoted(labels: ArrayLike, shares: Array) -> float:
    """Of all labels, the share that is not the class with the most votes; 0 where there is no label."""
    given = np.asarray(labels, np.int64)
    return float((elected(given, shares) != given).mean()) if len(given) else 0.0
