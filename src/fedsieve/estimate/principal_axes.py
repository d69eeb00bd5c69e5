"""Principal axes of data that nobody holds together, from sums that add up over their owners.

An owner tells the number of its rows, their sum, and the product of its second moment with a matrix of random signs
that everybody draws alike. From the total of these the leading axes of all data follow (Nystroem's approximation).
Where the features are few the signs give way to the unit matrix, and the axes are exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedsieve.base.rng import numpy_rng

Array = NDArray[np.float64]
SURPLUS = 1.5
"""Columns that are tried for each axis that is wanted."""
FLAT = 1e-7
"""Share of a column's mean square below which it has no variance: single precision on the way."""
NARROWEST = 1e-5
"""Share of the widest axis below which there is none. Where rows are fewer than features, or columns depend on each
other, rounding of the sums looks like axes of up to 2e-7, and bringing these to one variance would make noise of it."""
FARTHEST = 10.0
"""Standard deviations beyond which a coordinate is cut, so that no row weighs more than a hundred others."""


def columns_for(width: int, axes: int) -> int:
    """How many columns the matrix of signs has; as many as there are features where that is hardly more."""
    return min(width, int(SURPLUS * axes))


def signs(width: int, columns: int, key: int) -> Array:
    """(d, k), the same at everybody who knows the key."""
    if columns == width:
        return np.eye(width)
    drawn = numpy_rng(key, "signs", width, columns).integers(0, 2, (width, columns))
    found: Array = (2.0 * drawn - 1.0) / np.sqrt(width)
    return found


@dataclass(frozen=True)
class Spread:
    """What is told of one owner's features, or their total."""

    count: float
    total: Array
    """(d,)"""
    sketch: Array
    """(d, k), the second moment times the signs."""

    def plus(self, more: Spread) -> Spread:
        """The total with others."""
        return Spread(self.count + more.count, self.total + more.total, self.sketch + more.sketch)


def spread(features: Array, columns: int, key: int) -> Spread:
    """Of these rows."""
    return Spread(
        float(len(features)),
        features.sum(axis=0),
        features.T @ (features @ signs(features.shape[1], columns, key)),
    )


@dataclass(frozen=True)
class Axes:
    mean: Array
    """(d,)"""
    basis: Array
    """(d, q): coordinates along it have the variance one."""


def axes_of(told: Spread, most: int, key: int) -> Axes:
    """At most so many axes of all rows, the widest first.

    Few features are brought to one variance each beforehand, for the columns of a table have units of their own.
    """
    width, columns = told.sketch.shape
    count = max(told.count, 1.0)
    mean = told.total / count
    drawn = signs(width, columns, key)
    sketch = told.sketch / count - np.outer(mean, mean @ drawn)
    if columns == width:
        variance = np.diagonal(sketch)
        scale = np.sqrt(np.where(variance > FLAT * np.maximum(mean**2, 1e-30), variance, np.inf))
        values, vectors = np.linalg.eigh((sketch + sketch.T) / 2 / np.outer(scale, scale))
        vectors = vectors / scale[:, None]
    else:
        values, vectors = _nystroem(sketch, drawn)
    order = np.argsort(values)[::-1][:most]
    order = order[values[order] > NARROWEST * max(float(values.max(initial=0.0)), 1e-30)]
    if not len(order):  # all rows are equal, and one axis of zeros says so
        return Axes(mean, np.zeros((width, 1)))
    return Axes(mean, vectors[:, order] / np.sqrt(values[order]))


def coordinates(features: Array, axes: Axes) -> Array:
    """(n, q), cut where they are far out."""
    return np.clip((features - axes.mean) @ axes.basis, -FARTHEST, FARTHEST)


def _nystroem(sketch: Array, drawn: Array) -> tuple[Array, Array]:
    """Eigenvalues and eigenvectors of S = (AD)(D'AD)^-1(AD)', which stands for A; shifted a little to be invertible."""
    shift = FLAT * float(np.linalg.norm(sketch))
    shifted = sketch + shift * drawn
    core = drawn.T @ shifted
    values, vectors = np.linalg.eigh((core + core.T) / 2)
    roots = np.sqrt(np.maximum(values, max(shift, 1e-30)))
    left, singular, _ = np.linalg.svd(shifted @ (vectors / roots), full_matrices=False)
    return np.maximum(singular**2 - shift, 0.0), left
