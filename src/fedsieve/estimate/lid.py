"""Local intrinsic dimension by maximum likelihood: in how many directions the neighbours of a point lie.

A network that learns wrong labels by heart spreads its outputs over more directions, so FedCorr scores a client by the
mean over its own softmax outputs. The estimate -(mean of log(r_i / r_k))^-1 over the k nearest neighbours exceeds the
dimension by a factor of k / (k - 2) on average, which is 1.11 for k = 20.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

CELLS = 4_000_000
"""Distances held at once: 32 MB, whatever the number of points."""
SMALLEST_RATIO = 1e-12
"""What a duplicate counts for: a point amid its duplicates has a dimension near 0."""
LARGEST_PER_COLUMN = 10.0
"""No estimate exceeds this times the columns: neighbours at one and the same distance have no finite one."""
PUBLISHED_EPSILON = 1e-6
MOST_DIMENSIONS = 1e7
"""No estimate is larger, not even by the published formula, where equal distances make millions."""


def local_dimensions(points: ArrayLike, k: int = 20, published: bool = False) -> Array:
    """(n,) estimates, each from the k nearest other points, or from all others if there are fewer.

    Always finite: duplicates alone give 0, and so do fewer than two neighbours, which tell nothing. `published` is the
    formula of FedCorr's code, -k / (sum of log(r_i / (r_k + 1e-6)) + 1e-6) on single-precision points, with k even
    where there are fewer neighbours: one duplicate makes 0, equal distances make millions, which rule a client's mean.
    """
    if k < 2:
        raise ValueError(f"the dimension needs k of at least 2 neighbours, not {k}")
    x = np.asarray(points, np.float32 if published else np.float64).astype(np.float64)
    if x.ndim != 2:
        raise ValueError(f"the points must have 2 dimensions, not {x.ndim}")
    if not np.isfinite(x).all():
        raise ValueError("the points hold NaN or infinity")
    neighbours = min(k, len(x) - 1)
    if neighbours < 2:
        return np.zeros(len(x))
    blocks = _nearest_distances(x, neighbours)
    if published:
        return np.concatenate([_published(nearest, k) for nearest in blocks])
    return np.concatenate([_guarded(nearest, LARGEST_PER_COLUMN * x.shape[1]) for nearest in blocks])


def _guarded(nearest: Array, largest: float) -> Array:
    neighbours, furthest = nearest.shape[1], nearest[:, -1:]
    ratios = np.divide(nearest, furthest, out=np.ones_like(nearest), where=furthest > 0)
    spread = -np.log(np.maximum(ratios, SMALLEST_RATIO)).sum(axis=1)
    estimates: Array = neighbours / np.maximum(spread, neighbours / largest)
    return np.where(furthest[:, 0] > 0, estimates, 0.0)


def _published(nearest: Array, k: int) -> Array:
    apart = nearest[:, 0] > 0  # the logarithm of a zero distance is -infinity, and -k divided by it 0
    ratios = nearest[apart] / (nearest[apart, -1:] + PUBLISHED_EPSILON)
    estimates = np.zeros(len(nearest))
    estimates[apart] = -k / (np.log(ratios).sum(axis=1) + PUBLISHED_EPSILON)
    return estimates


def _nearest_distances(x: Array, neighbours: int) -> Iterator[Array]:
    """Ascending distances to the nearest other points, a block of rows at a time.

    From differences, not from inner products, which lose the small distances between confident outputs.
    """
    from scipy.spatial.distance import cdist  # slow to load, and only some methods need it

    block = max(1, CELLS // len(x))
    for start in range(0, len(x), block):
        distances = cdist(x[start : start + block], x)
        rows = np.arange(len(distances))
        distances[rows, start + rows] = np.inf  # the point itself, and not a duplicate in its place
        distances.partition(neighbours - 1, axis=1)
        yield np.sort(distances[:, :neighbours], axis=1)
