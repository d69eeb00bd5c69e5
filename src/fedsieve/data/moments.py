"""Mean and spread of samples, by which all of them are scaled."""

from __future__ import annotations

import numpy as np

MOMENT_BYTES = 4 << 20
"""Images that are looked at together for their mean."""


def moments(images: np.ndarray, rows: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel (in 0..1 for images) or per feature, of about 10,000 clients' rows."""
    sample = rows[:: max(1, len(rows) // 10_000)]
    if images.dtype == np.uint8:
        mean, std = _pixel_moments(images, sample)
    else:
        table = images[sample].astype(np.float64)
        mean, std = table.mean(axis=0), table.std(axis=0)
    return _rounded(mean), _rounded(np.where(std < 1e-4, 1.0, std))


def _pixel_moments(images: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """From counts of the 256 values, a few images at a time: they may not fit into memory together."""
    channels = images.shape[-1]
    counts = np.zeros((channels, 256), np.int64)
    step = max(1, MOMENT_BYTES // max(1, images[0].nbytes))
    for start in range(0, len(rows), step):
        pixels = images[rows[start : start + step]].reshape(-1, channels)
        for channel in range(channels):
            counts[channel] += np.bincount(pixels[:, channel], minlength=256)
    values = np.arange(256) / 255.0
    share = counts / counts.sum(axis=1, keepdims=True)
    mean = share @ values
    return mean, np.sqrt((share * (values - mean[:, None]) ** 2).sum(axis=1))


def _rounded(values: np.ndarray) -> tuple[float, ...]:
    return tuple(round(float(value), 4) for value in values)
