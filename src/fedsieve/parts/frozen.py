"""Features that no training changes: of a client's images, or of the server's own."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from fedsieve.data.features import FeatureMap, feature_map, features_of
from fedsieve.data.features.hog import Hog
from fedsieve.data.samples import Samples

AUTO = "auto"
"""HOG where images are large enough for it, otherwise the pixels; tables as they are."""
QUICK = ("hog", "pixels")
"""Faster to compute again than to read from disk."""


def frozen_features(samples: Samples, name: str = AUTO, size: int | None = None) -> np.ndarray:
    """(n, d) in float32; those of slow maps are kept in the cache folder."""
    stored = samples.stored().cpu().numpy()
    if stored.ndim == 2:
        return stored.astype(np.float32)
    if name == AUTO:
        smallest = Hog().cell * Hog().block
        name = "hog" if min(stored.shape[1:3]) >= smallest else "pixels"
    chosen = _map(name, size)
    if not len(stored):
        return chosen(np.zeros((1, *stored.shape[1:]), np.uint8))[:0]
    return chosen(stored) if name in QUICK else np.asarray(features_of(stored, chosen))


@lru_cache(maxsize=2)
def _map(name: str, size: int | None) -> FeatureMap:
    """Loaded once a process."""
    return feature_map(name, size)
