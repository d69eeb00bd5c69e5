"""The samples that are most like one, of a class, and believed to be labelled rightly."""

from __future__ import annotations

import numpy as np
import torch

from fedsieve.data.samples import Preprocess, Samples
from fedsieve.parts.frozen import frozen_features
from fedsieve.review.material import Material

SHOWN = 6


class Evidence:
    """Frozen features of one owner's rows, brought to length one; made once."""

    def __init__(self, material: Material) -> None:
        samples = np.array(material.samples)  # in memory, and ours
        channels = samples.shape[-1]
        plain = Preprocess([0.0] * channels, [1.0] * channels, "none", torch.device("cpu"))
        features = frozen_features(Samples(torch.from_numpy(samples), torch.arange(len(samples)), plain))
        if material.kind == "table":  # columns have units of their own
            spread = features.std(axis=0)
            features = (features - features.mean(axis=0)) / np.where(spread < 1e-4, 1.0, spread)
        length = np.linalg.norm(features, axis=1, keepdims=True)
        self._unit = features / np.where(length > 0, length, 1.0)

    def nearest(self, row: int, label: int, believed: np.ndarray, most: int = SHOWN) -> list[int]:
        """The rows believed to be of this class that are most like the row, the most alike first.

        `believed` is the class of each row that is believed right, and negative for the others.
        """
        there = np.flatnonzero(believed == label)
        there = there[there != row]
        alike = self._unit[there] @ self._unit[row]
        found: list[int] = there[np.argsort(-alike, kind="stable")[:most]].tolist()
        return found
