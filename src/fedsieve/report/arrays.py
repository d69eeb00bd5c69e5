"""What a run's folder holds as arrays: exhibits of parts, samples of suspicious labels, and what a watched run shows.

Each is checked on the way; ValueError, or what NumPy raises, for what a run would not have written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.cluster.hierarchy import is_valid_linkage

from fedsieve.evaluate.schema import MOST_BYTES, MOST_OWNERS, MOST_SHOWN

Arrays = Mapping[str, np.ndarray]
KINDS = {"clients": (1, False), "pairs": (2, True), "confusions": (3, True), "tree": (2, False)}
"""Axes of an exhibit's values, and whether the last two are alike."""


@dataclass(frozen=True)
class Exhibit:
    """One picture of exhibits.npz: its kind says what the axes of `values` are, the first one being `clients`."""

    part: str
    kind: str
    title: str
    values: np.ndarray
    clients: tuple[int, ...]


@dataclass(frozen=True)
class Sample:
    """One sample of suspects.npz: a small picture, or the values of a row in words."""

    values: str
    image: np.ndarray | None


@dataclass(frozen=True)
class FeatureMap:
    """Rows of the clients as points: `how` says what made them, `wrong` whether the given label is."""

    how: str
    points: np.ndarray
    true: np.ndarray
    wrong: np.ndarray


@dataclass(frozen=True)
class Neighbours:
    """Rows of images: a sample of a client, the `near` nearest to it, and others of its batch."""

    part: str
    near: int
    clients: np.ndarray
    images: np.ndarray
    given: np.ndarray
    true: np.ndarray


@dataclass(frozen=True)
class Inside:
    """inside.npz."""

    map: FeatureMap | None
    neighbours: tuple[Neighbours, ...]


def exhibits_of(arrays: Arrays) -> tuple[Exhibit, ...]:
    return tuple(
        _exhibit(what, arrays[f"{i}"], arrays[f"{i}/clients"])
        for i, what in enumerate(json.loads(str(arrays["index"])))
    )


def suspects_of(arrays: Arrays) -> dict[tuple[str, str], Sample]:
    index, images = json.loads(str(arrays["index"])), arrays.get("images")
    sound = all(isinstance(what[key], str) for what in index for key in ("owner", "where", "values"))
    if images is not None:
        sound = sound and images.dtype == np.uint8 and images.ndim == 4 and 0 < images.nbytes <= MOST_BYTES
        sound = sound and len(images) == len(index)
    if not sound or len(index) > MOST_OWNERS * MOST_SHOWN:
        raise ValueError("suspects are not as they are written")
    shown = [None] * len(index) if images is None else list(images)
    return {(s["owner"], s["where"]): Sample(s["values"], image) for s, image in zip(index, shown, strict=True)}


def inside_of(arrays: Arrays) -> Inside:
    index = json.loads(str(arrays["index"]))
    found = None
    if index["map"] is not None:
        found = _map(index["map"], *(arrays[f"map/{name}"] for name in ("points", "true", "wrong")))
    names = ("clients", "images", "given", "true")
    return Inside(
        found,
        tuple(
            _neighbours(what, *(arrays[f"neighbours/{i}/{name}"] for name in names))
            for i, what in enumerate(index["neighbours"])
        ),
    )


def _exhibit(what: Any, values: np.ndarray, clients: np.ndarray) -> Exhibit:
    """ValueError for what a run would not have written."""
    axes, square = KINDS.get(what["kind"], (0, False))
    leaves = len(values) + 1 if what["kind"] == "tree" else len(values)
    sound = (
        all(isinstance(what[key], str) for key in ("part", "title"))
        and values.ndim == axes
        and values.dtype.kind == "f"
        and (not square or values.shape[-1] == values.shape[-2])
        and clients.shape == (leaves,)
        and clients.dtype.kind in "iu"
        and not (clients < 0).any()
        and (what["kind"] != "tree" or is_valid_linkage(values.astype(np.float64)))
    )
    if not sound:
        raise ValueError("an exhibit is not of its kind")
    return Exhibit(what["part"], what["kind"], what["title"], values, tuple(clients.tolist()))


def _map(how: Any, points: np.ndarray, true: np.ndarray, wrong: np.ndarray) -> FeatureMap:
    sound = (
        isinstance(how, str)
        and points.dtype.kind == "f"
        and points.shape == (len(true), 2)
        and bool(np.isfinite(points).all())
        and _are_classes(true, (len(true),))
        and wrong.shape == true.shape
        and wrong.dtype == bool
    )
    if not sound:
        raise ValueError("the map is none")
    return FeatureMap(how, points, true, wrong)


def _neighbours(what: Any, clients: np.ndarray, images: np.ndarray, given: np.ndarray, true: np.ndarray) -> Neighbours:
    part, near = what["part"], what["near"]
    sound = (
        isinstance(part, str)
        and type(near) is int
        and images.ndim == 5
        and images.dtype == np.uint8
        and images.size > 0
        and 0 < near < images.shape[1]
        and _are_classes(clients, images.shape[:1])
        and _are_classes(given + 1, images.shape[:2])  # some rows may have no label
        and _are_classes(true, images.shape[:2])
    )
    if not sound:
        raise ValueError("the neighbours are none")
    return Neighbours(part, near, clients, images, given, true)


def _are_classes(values: np.ndarray, shape: tuple[int, ...]) -> bool:
    """Whether these are numbers of classes, or of clients."""
    return values.shape == shape and values.dtype.kind in "iu" and not (values < 0).any()
