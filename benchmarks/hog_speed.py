"""HOG of 1,000 colour images of 32 x 32, here and with scikit-image, on one thread.

Both in one process, in turns; the best time of each counts. Also asserted: the numbers agree within 1e-5.
Goal: at least 5 times as fast.

    OMP_NUM_THREADS=1 python benchmarks/hog_speed.py [--data cifar10] [--turns 5]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from importlib.metadata import version

import numpy as np
from header import header
from skimage.feature import hog as reference

from fedsieve.data.features import hog
from fedsieve.data.sources import load_source

IMAGES = 1000


def images_of(data: str | None) -> np.ndarray:
    if data is not None:
        return load_source(data).images[:IMAGES]
    return np.random.default_rng(0).integers(0, 256, (IMAGES, 32, 32, 3), dtype=np.uint8)


def timed(work: Callable[[], np.ndarray]) -> tuple[float, np.ndarray]:
    begun = time.perf_counter()
    result = work()
    return time.perf_counter() - begun, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="a data set of the cache folder; random images if not given")
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    images = images_of(options.data)
    header(f"HOG of {len(images)} images {images.shape[1:]}", f"scikit-image {version('scikit-image')}")

    def theirs() -> np.ndarray:
        settings = {"orientations": 9, "pixels_per_cell": (8, 8), "cells_per_block": (2, 2), "block_norm": "L2-Hys"}
        return np.stack([reference(image, channel_axis=-1, **settings) for image in images])

    hog(images[:1])  # the tables
    seconds: dict[str, list[float]] = {"fedsieve": [], "scikit-image": []}
    for _ in range(options.turns):
        ours, found = timed(lambda: hog(images))
        taken, expected = timed(theirs)
        seconds["fedsieve"].append(ours)
        seconds["scikit-image"].append(taken)
    difference = float(np.abs(found - expected).max())
    assert difference < 1e-5, f"the features differ by {difference}"
    best = {name: min(times) for name, times in seconds.items()}
    for name, value in best.items():
        print(f"{name}: {1000 * value:.1f} ms")
    print(f"largest difference: {difference:.1e}")
    print(f"ratio: {best['scikit-image'] / best['fedsieve']:.1f} (goal: at least 5)")


if __name__ == "__main__":
    main()
