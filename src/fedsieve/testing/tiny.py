"""A made-up federation, small enough to train on in a blink."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from fedsieve.base.rng import numpy_rng
from fedsieve.data.federation import UNLABELLED, Federation, Holding

CLASSES = 4
SIDE = 12


def tiny_federation(rows: int = 24, *, degenerate: bool = False, seed: int = 0) -> Federation:
    """Four classes of striped images at four clients, a third of the labels wrong, and some data at the server.

    `degenerate` adds clients that are empty, hold one sample, one class, only wrong labels, or constant images.
    """
    rng = numpy_rng(seed, "tiny federation")

    def stripes(labels: np.ndarray) -> np.ndarray:
        phase = np.arange(SIDE)[None, :, None] * (1 + labels[:, None, None])
        pattern = 127 + 80 * np.sin(phase * 2 * np.pi / SIDE)
        noisy = pattern + rng.normal(0, 30, (len(labels), SIDE, SIDE))
        images: np.ndarray = np.clip(noisy, 0, 255).astype(np.uint8)[..., None]
        return images

    sizes = [rows] * 4 + ([0, 1, rows, rows, rows] if degenerate else [])
    true = [rng.integers(0, CLASSES, size) for size in sizes]
    given = [np.where(rng.random(len(t)) < 1 / 3, rng.integers(0, CLASSES, len(t)), t) for t in true]
    if degenerate:
        true[6][:], given[6][:] = 1, 1
        given[7] = (true[7] + 1) % CLASSES
    server = rng.integers(0, CLASSES, (4, 16))
    test = rng.integers(0, CLASSES, 40)
    images = stripes(np.concatenate([*true, *server]))
    ends = np.cumsum([0, *sizes, 16, 16, 16, 16])
    spans = [np.arange(a, b) for a, b in pairwise(ends)]
    if degenerate:
        images[spans[8]] = 128
    unlabelled, clean, noisy, public = spans[-4:]
    return Federation(
        images=images,
        test_images=stripes(test),
        rows=tuple(spans[:-4]),
        given=tuple(given),
        server={
            "unlabelled": Holding(unlabelled),
            "clean": Holding(clean, server[1]),
            "noisy": Holding(noisy, (server[2] + (rng.random(16) < 0.3)) % CLASSES),
            "public": Holding(public),
        },
        validation=np.empty(0, np.int64),
        class_names=tuple(str(c) for c in range(CLASSES)),
        mean=(0.5,),
        std=(0.25,),
        data="tiny",
        served=tuple(t == g for t, g in zip(true, given, strict=True)),
    )


def without_labels(federation: Federation) -> Federation:
    """The same samples at clients that have no labels."""
    return replace(federation, given=tuple(np.full_like(given, UNLABELLED) for given in federation.given))


class Trap:
    """Stands in for the truth; whoever touches it is found."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"the ground truth was touched ({name})")

    def __getitem__(self, key: object) -> Any:
        raise AssertionError("the ground truth was touched")
