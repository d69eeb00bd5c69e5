"""What a part with frozen neighbourhoods finds: some samples, their nearest within a batch of their owner, and others.

Images of clients are looked at here, so this is for runs whose data are all on this machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from fedsieve.base.rng import numpy_rng
from fedsieve.core.plan import Plan
from fedsieve.data.federation import Federation
from fedsieve.data.samples import Preprocess, Samples
from fedsieve.data.truth import GroundTruth
from fedsieve.parts.frozen import Retrieves

LARGEST_SIDE = 64
"""Pixels of a shown image; larger ones are shrunk by a whole number."""
ANCHORS, MOST_NEAR, OTHERS = 6, 6, 3
"""Samples that are shown, and of each how many neighbours at most and how many others of its batch."""


@dataclass(frozen=True)
class Retrieved:
    """Rows of images: a sample, its neighbours from the nearest on, and others of the batch."""

    part: str
    near: int
    clients: np.ndarray
    images: np.ndarray
    given: np.ndarray
    true: np.ndarray


class _Line(NamedTuple):
    """Rows of a client."""

    client: int
    anchor: np.ndarray
    near: np.ndarray
    others: np.ndarray

    def shown(self, near: int, others: int) -> np.ndarray:
        return np.concatenate([self.anchor, self.near[:near], self.others[:others]])


def retrieved(plan: Plan, federation: Federation, truth: GroundTruth) -> Iterator[Retrieved]:
    """For each part of the run that retrieves neighbours, where samples are images."""
    parts = {part.name: part for stage in plan.stages for part in stage.parts if isinstance(part, Retrieves)}
    able = [k for k, rows in enumerate(federation.rows) if len(rows) > 1 and plan.fit.batch > 1]
    if federation.images.ndim != 4 or truth.labels is None or not able:
        return
    images = torch.from_numpy(federation.images)
    preprocess = Preprocess(federation.mean, federation.std, plan.fit.augment, plan.device)
    for name, part in parts.items():
        lines = []
        for number in range(ANCHORS):
            client = able[number * len(able) // ANCHORS]
            samples = Samples(images, torch.from_numpy(federation.rows[client]), preprocess)
            batch = numpy_rng(plan.seed, "watch", client).permutation(len(samples))[: plan.fit.batch]
            found = part.retrieve(samples, torch.from_numpy(batch)).numpy()
            lines.append(_line(client, batch, found, number % len(batch)))
        near = min(MOST_NEAR, *(len(line.near) for line in lines))
        others = min(OTHERS, *(len(line.others) for line in lines))
        chosen = [(line.client, line.shown(near, others)) for line in lines]
        yield Retrieved(
            part=name,
            near=near,
            clients=np.array([client for client, _ in chosen]),
            images=np.stack([small(federation.images[federation.rows[client][rows]]) for client, rows in chosen]),
            given=np.stack([federation.given[client][rows] for client, rows in chosen]),
            true=np.stack([truth.labels[client][rows] for client, rows in chosen]),
        )


def _line(client: int, batch: np.ndarray, found: np.ndarray, place: int) -> _Line:
    """The sample at a place of a batch, its neighbours, and all that are neither."""
    rest = np.setdiff1d(np.arange(len(batch)), [place, *found[place]])
    return _Line(client, batch[[place]], batch[found[place]], batch[rest])


def small(images: np.ndarray) -> np.ndarray:
    """Images (n, H, W, channels) by the means of squares of pixels; what is left at the edges is cut off."""
    n, height, width, channels = images.shape
    step = min(-(-max(height, width) // LARGEST_SIDE), height, width)
    high, wide = height // step, width // step
    squares = images[:, : high * step, : wide * step].reshape(n, high, step, wide, step, channels)
    means: np.ndarray = squares.mean(axis=(2, 4)).round().astype(np.uint8)
    return means
