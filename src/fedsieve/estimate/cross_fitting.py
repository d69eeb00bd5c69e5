"""Linear discriminants that score each row without its own label, from sums that add up over the owners of the rows.

Rows are dealt into folds. The discriminant of a fold comes from the class counts, the class sums and the second moment
of all other folds, whoever holds their rows. So no label takes part in its own judgement.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
SHRINKAGE = 0.3
"""How far the common covariance is drawn towards its diagonal."""
FLAT = 1e-6
"""Share of the largest variance below which no direction is taken to have less."""
UNKNOWN = -1e30
"""Log-likelihood of a class of which the other folds have no row. Not minus infinity, which times 0 is NaN."""


@dataclass(frozen=True)
class Dealt:
    """Where each row of an owner belongs."""

    fold: Integers
    told: NDArray[np.bool_]
    """Whether its class has rows enough here to be told of."""


def deal(content: NDArray[Any], labels: Integers, folds: int, smallest: int, key: int) -> Dealt:
    """An owner's rows in folds, class by class, so that every fold it tells of has `smallest` different rows at least.

    The order is that of a keyed hash of what rows hold: equal rows meet in one fold, wherever they stand in the table.
    A class with fewer different rows is told of in no fold.
    """
    names = np.array([_hash(row, key) for row in np.ascontiguousarray(content, np.float32)], np.uint64)
    fold, told = np.zeros(len(labels), np.int64), np.zeros(len(labels), bool)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        different, place = np.unique(names[rows], return_inverse=True)
        used = min(folds, len(different) // smallest)
        if used:
            first = int(different[0] % np.uint64(folds))
            fold[rows] = (first + place % used) % folds
            told[rows] = True
    return Dealt(fold, told)


def _hash(row: NDArray[np.float32], key: int) -> int:
    return int.from_bytes(blake2b(row.tobytes(), digest_size=8, key=key.to_bytes(8, "little")).digest(), "little")


@dataclass(frozen=True)
class Moments:
    """Sums of an owner's rows, or their total, fold by fold."""

    counts: Array
    """(F, C)"""
    sums: Array
    """(F, C, q)"""
    second: Array
    """(F, q, q)"""

    def plus(self, more: Moments, weight: float = 1.0) -> Moments:
        """The total with others, whose rows count so many times."""
        return Moments(
            self.counts + weight * more.counts, self.sums + weight * more.sums, self.second + weight * more.second
        )


def moments(x: Array, labels: Integers, dealt: Dealt, folds: int, n_classes: int) -> Moments:
    """Of the rows that may be told of."""
    member = np.eye(n_classes)[labels]
    parts = [np.flatnonzero(dealt.told & (dealt.fold == f)) for f in range(folds)]
    return Moments(
        np.stack([member[rows].sum(axis=0) for rows in parts]),
        np.stack([member[rows].T @ x[rows] for rows in parts]),
        np.stack([x[rows].T @ x[rows] for rows in parts]),
    )


@dataclass(frozen=True)
class Discriminants:
    """One linear discriminant a fold: log-likelihoods of the classes but for what all of them share."""

    weights: Array
    """(F, C, q)"""
    offsets: Array
    """(F, C), `UNKNOWN` of a class that the other folds lack."""

    def __call__(self, x: Array, fold: Integers) -> Array:
        """(n, C), each row by the discriminant that has not seen it."""
        found = np.empty((len(x), self.offsets.shape[1]))
        for f, (weights, offsets) in enumerate(zip(self.weights, self.offsets, strict=True)):
            rows = fold == f
            found[rows] = x[rows] @ weights.T + offsets
        return found


def discriminants(told: Moments, shrinkage: float = SHRINKAGE) -> Discriminants:
    """x | c ~ N(mu_c, Sigma): of each fold by all others; with a single fold by that one."""
    fitted = [
        _discriminant(_without(told.counts, f), _without(told.sums, f), _without(told.second, f), shrinkage)
        for f in range(len(told.counts))
    ]
    return Discriminants(np.stack([weights for weights, _ in fitted]), np.stack([offsets for _, offsets in fitted]))


def _without(sums: Array, fold: int) -> Array:
    total: Array = sums.sum(axis=0)
    return total if len(sums) == 1 else total - sums[fold]


def _discriminant(counts: Array, sums: Array, second: Array, shrinkage: float) -> tuple[Array, Array]:
    """Sigma^-1 mu_c and -1/2 mu_c' Sigma^-1 mu_c, Sigma within classes and shrunk towards its diagonal."""
    known = counts > 0.5
    means = sums / np.where(known, counts, 1.0)[:, None]
    within = (second - (means * counts[:, None]).T @ means) / max(float(counts.sum()), 1.0)
    shrunk = (1 - shrinkage) * (within + within.T) / 2 + shrinkage * np.diag(np.diagonal(within))
    values, vectors = np.linalg.eigh(shrunk)
    values = np.maximum(values, FLAT * max(float(values.max()), FLAT))  # sums that no rows have must not divide by 0
    weights = (means @ vectors / values) @ vectors.T
    return np.where(known[:, None], weights, 0.0), np.where(known, -0.5 * (weights * means).sum(axis=1), UNKNOWN)
