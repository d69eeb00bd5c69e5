"""What a feature map is, and what they share."""

from __future__ import annotations

import hashlib
from typing import Protocol

import numpy as np

from fedsieve.base.errors import ConfigError, DataError


class FeatureMap(Protocol):
    """From images to rows of numbers, always the same for the same images."""

    @property
    def name(self) -> str:
        """What a person calls it."""

    @property
    def key(self) -> str:
        """A hash of everything that decides the features: kind, settings, weights."""

    def __call__(self, images: np.ndarray) -> np.ndarray:
        """(n, d) in float32, from uint8 images n x H x W x channels."""


def hash_of(*contents: str | bytes | memoryview) -> str:
    """Of several things in their order; where one ends matters."""
    digest = hashlib.blake2b(digest_size=16)
    for content in contents:
        raw = content.encode() if isinstance(content, str) else content
        digest.update(len(raw).to_bytes(8, "little"))
        digest.update(raw)
    return digest.hexdigest()


def bytes_of(array: np.ndarray) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def check_images(images: np.ndarray, what: str) -> None:
    if images.dtype != np.uint8 or images.ndim != 4:
        raise DataError(
            "FS302", f"{what} takes uint8 images N x H x W x channels, not {images.dtype} of shape {images.shape}"
        )


def refuse_size(size: int | None, what: str, why: str) -> None:
    """FS002 for a size that would silently be ignored."""
    if size is not None:
        raise ConfigError("FS002", f"size={size} has no effect on {what}: {why}. Remove it")
