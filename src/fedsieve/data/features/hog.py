"""Histograms of oriented gradients (Dalal and Triggs 2005), many images at a time.

The differences of bytes are whole numbers from -255 to 255, so the angle and the length of every possible gradient
stand in tables that are computed once: no arctangent and no root per pixel.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from fedsieve.base.errors import ConfigError, DataError
from fedsieve.data.features.base import check_images, hash_of

STEPS = 511
"""Possible differences of two bytes."""
EPS = 1e-5
CLIP = 0.2
"""L2-Hys: what a normalised histogram is cut at before it is normalised again."""
PIXELS_AT_ONCE = 1 << 17
"""Few enough for the tables and the images in work to stay in a processor's cache."""


def hog(images: np.ndarray, orientations: int = 9, cell: int = 8, block: int = 2) -> np.ndarray:
    """(n, d) in float32, from uint8 images n x H x W x channels.

    Unsigned gradients, `cell` x `cell` pixels a histogram, `block` x `block` cells normalised together (L2-Hys), blocks
    one cell apart; in colour images each pixel takes the channel whose gradient is longest. Pixels beyond the last
    whole cell are left out. The order of the numbers is that of scikit-image: block row, block column, cell row, cell
    column, orientation.
    """
    check_images(images, "hog")
    if min(orientations, cell, block) < 1 or orientations > 255:
        raise ConfigError(
            "FS002",
            f"hog: orientations={orientations} cell={cell} block={block}. Give numbers from 1, orientations to 255",
        )
    n, height, width, channels = images.shape
    rows, columns = height // cell, width // cell
    if min(rows, columns) < block or not channels:
        raise DataError(
            "FS309",
            f"hog needs images of {cell * block} x {cell * block} at least, these are {height} x {width} x {channels}. "
            "Take larger images or smaller cells",
        )
    size = (rows - block + 1) * (columns - block + 1) * block * block * orientations
    features = np.empty((n, size), np.float32)
    step = max(1, PIXELS_AT_ONCE // (height * width))
    for start in range(0, n, step):
        some = images[start : start + step]
        cells = _cell_histograms(some, orientations, cell)
        features[start : start + step] = _normalised_blocks(cells, block).reshape(len(some), -1)
    return features


@dataclass(frozen=True)
class Hog:
    """HOG as a feature map."""

    orientations: int = 9
    cell: int = 8
    block: int = 2
    name: str = "hog"

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether images of this shape (n, H, W, channels) are large enough for one block."""
        return min(shape[1:3]) >= self.cell * self.block

    @property
    def key(self) -> str:
        return hash_of(*(f"{field.name}={getattr(self, field.name)}" for field in fields(self)))

    def __call__(self, images: np.ndarray) -> np.ndarray:
        return hog(images, self.orientations, self.cell, self.block)


def _cell_histograms(images: np.ndarray, orientations: int, cell: int) -> np.ndarray:
    """(n, cell rows, cell columns, orientations): the mean gradient length in each direction."""
    n, height, width, _ = images.shape
    rows, columns = height // cell, width // cell
    ranks, lengths = _lengths()
    gradient = _longest_gradient(images, ranks)[:, : rows * cell, : columns * cell]
    first_bin = np.arange(n * rows * columns).reshape(n, rows, 1, columns, 1) * orientations
    bins = first_bin + _orientation_bins(orientations)[gradient].reshape(n, rows, cell, columns, cell)
    weights = lengths[ranks[gradient]]
    sums = np.bincount(bins.reshape(-1), weights.reshape(-1), minlength=n * rows * columns * orientations)
    return sums.reshape(n, rows, columns, orientations) / (cell * cell)


def _longest_gradient(images: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """(n, H, W): the place in the tables of each pixel's gradient, in the first channel where it is longest."""
    channels = np.moveaxis(images, -1, 0)
    best = _gradient(channels[0])
    if len(channels) == 1:
        return best
    length = ranks[best]
    for channel in channels[1:]:
        other = _gradient(channel)
        other_length = ranks[other]
        longer = other_length > length
        np.copyto(best, other, where=longer)
        np.copyto(length, other_length, where=longer)
    return best


def _gradient(channel: np.ndarray) -> np.ndarray:
    """(n, H, W) bytes to places in the tables; there is no gradient across the border."""
    values = channel.astype(np.int32)
    place = np.full(values.shape, _place(0, 0), np.int32)
    place[:, 1:-1] += STEPS * (values[:, 2:] - values[:, :-2])
    place[:, :, 1:-1] += values[:, :, 2:] - values[:, :, :-2]
    return place


def _place(down: int, right: int) -> int:
    return (down + 255) * STEPS + right + 255


@cache
def _components() -> tuple[np.ndarray, np.ndarray]:
    """Every gradient: its parts downwards and to the right, in the order of the tables."""
    down, right = np.divmod(np.arange(STEPS * STEPS), STEPS)
    return down - 255.0, right - 255.0


@cache
def _lengths() -> tuple[np.ndarray, np.ndarray]:
    """Per gradient the rank of its length, and the lengths by rank: ranks compare as exactly as the numbers do."""
    lengths, ranks = np.unique(np.hypot(*_components()), return_inverse=True)
    return ranks.astype(np.int32), lengths


@cache
def _orientation_bins(orientations: int) -> np.ndarray:
    """Per gradient the number of its direction in 0..180 degrees."""
    angle = np.rad2deg(np.arctan2(*_components())) % 180
    bins: np.ndarray = np.minimum(angle // (180.0 / orientations), orientations - 1).astype(np.uint8)
    return bins


def _normalised_blocks(cells: np.ndarray, block: int) -> np.ndarray:
    """(n, block rows, block columns, block, block, orientations)"""
    windows = sliding_window_view(cells, (block, block), axis=(1, 2))
    blocks = np.moveaxis(windows, 3, -1)
    clipped = np.minimum(_normalised(blocks), CLIP)
    return _normalised(clipped)


def _normalised(blocks: np.ndarray) -> np.ndarray:
    energy = np.einsum("nrcijo,nrcijo->nrc", blocks, blocks)
    out: np.ndarray = blocks / np.sqrt(energy + EPS**2)[..., None, None, None]
    return out
