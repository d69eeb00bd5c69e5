"""Rows whose labels somebody verified, with the one who adds up: they count in the sums, and say how far to go by them.

A row of an owner, whose label may be wrong, tells less of its class than one of these, by a factor that nobody knows
beforehand. So several are tried, on one verified row by what all other folds say, and the likeliest is taken. So is
the temperature, which labels that may be wrong can only guess at. Nothing more is asked of the owners for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsieve.estimate.cross_fitting import UNKNOWN, Discriminants, Moments, deal, discriminants, moments
from fedsieve.estimate.label_noise import TEMPERATURES
from fedsieve.estimate.principal_axes import Axes, Spread, columns_for, coordinates, spread

if TYPE_CHECKING:
    from fedsieve.estimate.label_audit import Design

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
WEIGHTS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Tried: how many rows of owners a verified one counts for."""
FEWEST = 10
"""Rows a class, in the mean of all classes, from which they decide. Fewer count as rows of owners do."""


class Learnt(NamedTuple):
    """What judges rows, and how."""

    found: Discriminants
    evidence: Array | None = None
    """(G,) for each temperature how likely right labels are; None where none are known."""


@dataclass(frozen=True)
class Verified:
    features: NDArray[np.float32]
    """(m, d)"""
    labels: Integers
    """(m,)"""
    dealt_by: NDArray[np.generic] | None = None
    """(m, ...) what rows are, which decides on their folds; None takes their features."""

    @property
    def width(self) -> int:
        """How many features rows have; those of owners must have as many."""
        return int(self.features.shape[1])

    def spread(self, design: Design) -> Spread:
        x = self.features.astype(np.float64)
        return spread(x, columns_for(self.width, design.dims), design.key)

    def learnt(self, told: Moments, axes: Axes, design: Design) -> Learnt:
        """From the owners' total and these rows."""
        x = coordinates(self.features.astype(np.float64), axes)
        content = self.features if self.dealt_by is None else self.dealt_by
        dealt = deal(content, self.labels, design.folds, 1, design.key)
        own = moments(x, self.labels, dealt, design.folds, design.n_classes)
        if len(x) < FEWEST * design.n_classes:
            return Learnt(discriminants(told.plus(own)))
        tried = [discriminants(told.plus(own, weight)) for weight in WEIGHTS]
        evidence = [evidence_of(each(x, dealt.fold), self.labels) for each in tried]
        best = int(np.argmax([each.max() for each in evidence]))
        return Learnt(tried[best], evidence[best])


def evidence_of(likelihood: Array, labels: Integers) -> Array:
    """(G,): sum over rows of log p(y_i), p(c) ∝ exp(t l_ic) times how frequent c is among these labels, for each t.

    Rows of a class that no discriminant knows say nothing.
    """
    classes = likelihood.shape[1]
    frequency = (np.bincount(labels, minlength=classes) + 1) / (len(labels) + classes)
    known = likelihood[np.arange(len(labels)), labels] > UNKNOWN / 2
    scaled = TEMPERATURES[:, None, None] * likelihood[known] + np.log(frequency)  # (G, m, C)
    highest = scaled.max(axis=2)
    total = highest + np.log(np.exp(scaled - highest[..., None]).sum(axis=2))
    found: Array = (scaled[:, np.arange(int(known.sum())), labels[known]] - total).sum(axis=1)
    return found
