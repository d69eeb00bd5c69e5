"""The images themselves as features."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsieve.data.features.base import check_images, hash_of


@dataclass(frozen=True)
class Pixels:
    """Each image as one row of numbers from 0 to 1."""

    name: str = "pixels"

    @property
    def key(self) -> str:
        return hash_of("pixels")

    def __call__(self, images: np.ndarray) -> np.ndarray:
        check_images(images, self.name)
        return images.reshape(len(images), -1).astype(np.float32) / np.float32(255)
