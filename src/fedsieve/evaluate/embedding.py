"""A map of features in two dimensions, for people to look at."""

from __future__ import annotations

import numpy as np
from torch import Tensor

MOST_MAPPED = 1_000
"""Most rows of a map; its time grows faster than their number."""
FEWEST = 8
"""Rows for which a neighbourhood means something; fewer are drawn by their principal components."""
COMPONENTS, PERPLEXITY, STEPS = 50, 30.0, 500


def flat_map(features: Tensor) -> tuple[np.ndarray, str]:
    """(n, 2) and the name of what made it: t-SNE of the first 50 principal components, begun at the first two.

    Nothing is drawn at random, and one thread computes it, so that the same features give the same map.
    """
    x = principal_components(features.double().numpy(), COMPONENTS)
    spread = float(x[:, :1].std()) if len(x) else 0.0
    if len(x) < FEWEST or x.shape[1] < 2 or spread == 0.0:
        return np.pad(x[:, :2], ((0, 0), (0, max(0, 2 - x.shape[1])))).astype(np.float32), "principal components"
    from sklearn.manifold import TSNE  # slow to load, and few runs are watched
    from threadpoolctl import threadpool_limits

    method = TSNE(
        init=(x[:, :2] / spread * 1e-4).astype(np.float32),  # as small as its authors begin
        perplexity=min(PERPLEXITY, (len(x) - 1) / 3),
        max_iter=STEPS,
        random_state=0,
    )
    with threadpool_limits(1):
        points: np.ndarray = method.fit_transform(x)
    return points.astype(np.float32), "t-SNE"


def principal_components(x: np.ndarray, count: int) -> np.ndarray:
    """Coordinates along the axes of greatest variance; the sign of each axis is such that its largest one is positive.

    There are at most as many as rows or columns.
    """
    centred = x - x.mean(axis=0) if len(x) else x
    u, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    scores = (u * sizes)[:, :count]
    largest = np.abs(scores).argmax(axis=0) if len(scores) else np.zeros(0, int)
    turned: np.ndarray = scores * np.where(scores[largest, np.arange(scores.shape[1])] < 0, -1.0, 1.0)
    return turned
