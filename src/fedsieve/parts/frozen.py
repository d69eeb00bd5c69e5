"""Features that no training changes: of a client's images or of the server's own, as stored or in an augmented view."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import Annotated, Protocol, runtime_checkable
from weakref import ref

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from fedsieve.core import Batch, SideHead
from fedsieve.data.features import FeatureMap, feature_map, features_of
from fedsieve.data.features.hog import Hog
from fedsieve.data.samples import Samples

AUTO = "auto"
"""HOG where images are large enough for it, otherwise the pixels; tables as they are."""
MODEL = "model"
"""No frozen map: the features of the federated model as it stands, for parts that take them."""
QUICK = ("hog", "pixels")
"""Faster to compute again than to read from disk."""


class Recent:
    """Features of the samples last looked at in this process, up to so many bytes.

    A client comes back every few rounds, and even to find them on disk takes a fair part of a local epoch.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: OrderedDict[tuple[object, ...], tuple[ref[Tensor], np.ndarray]] = OrderedDict()

    def get(self, samples: Samples, what: tuple[object, ...], make: Callable[[], np.ndarray]) -> np.ndarray:
        store, rows = samples.origin
        key = (id(store), rows, *what)
        found = self._held.pop(key, None)
        features = make() if found is None or found[0]() is not store else found[1]
        self._held[key] = ref(store), features
        while len(self._held) > 1 and sum(each.nbytes for _, each in self._held.values()) > self._most:
            self._held.popitem(last=False)
        return features


_RECENT = Recent(most=2**29)


def frozen_features(samples: Samples, name: str = AUTO, size: int | None = None) -> np.ndarray:
    """(n, d) in float32; those of slow maps are kept in the cache folder."""
    return _RECENT.get(samples, (name, size), lambda: _computed(samples, name, size))


def _computed(samples: Samples, name: str, size: int | None) -> np.ndarray:
    stored = samples.stored().cpu().numpy()
    if stored.ndim == 2:
        return stored.astype(np.float32)
    name = _chosen(name, stored.shape)
    chosen = _map(name, size)
    if not len(stored):
        return chosen(np.zeros((1, *stored.shape[1:]), np.uint8))[:0]
    return chosen(stored) if name in QUICK else np.asarray(features_of(stored, chosen))


def frozen_width(shape: tuple[int, ...], name: str = AUTO, size: int | None = None) -> int:
    """d, how many features a sample of this shape has: (channels, height, width), or (columns,) of a table."""
    if len(shape) == 1:
        return shape[0]
    channels, height, width = shape
    blank = np.zeros((1, height, width, channels), np.uint8)
    return int(_map(_chosen(name, blank.shape), size)(blank).shape[1])


@dataclass(frozen=True, kw_only=True)
class FrozenHead(SideHead):
    """A head, linear if nothing else is said, that returns as many numbers as an encoder has features."""

    layers: Annotated[int, Field(ge=1, le=8)] = 1
    """Linear layers of the head; one is a linear map."""
    features: str = AUTO
    """The frozen encoder."""
    size: int | None = None
    """Side to which images are brought for it."""

    def filled(self, shape: tuple[int, ...]) -> SideHead:
        options = {each.name: getattr(self, each.name) for each in fields(SideHead)}
        return SideHead(**options | {"width": frozen_width(shape, self.features, self.size)})


def nearest_rows(reference: Tensor, k: int) -> Tensor:
    """(m, K) for each row the K nearest others, by the distance of features brought to length one; the smaller number
    where two are as near. K is cut to the rows there are."""
    return nearest(cosines(reference), k)


def cosines(reference: Tensor) -> Tensor:
    """(m, m) of the rows with each other: |a − b|² = 2 − 2⟨a, b⟩ between vectors of length one."""
    unit = normalize(reference, dim=1)
    return unit @ unit.T


def nearest(likeness: Tensor, k: int) -> Tensor:
    """(m, K) for each row the K others that are most alike, the smaller number where two are as alike."""
    others = likeness.clone().fill_diagonal_(-torch.inf)
    return others.sort(dim=1, descending=True, stable=True).indices[:, : min(k, len(likeness) - 1)]


@runtime_checkable
class Retrieves(Protocol):
    """A part whose client half draws on neighbours in a frozen space; what it finds can be shown."""

    def retrieve(self, samples: Samples, rows: Tensor) -> Tensor:
        """(m, K): where among these m rows of a client, as one batch, the nearest others of each are, nearest first."""


class FrozenViews:
    """The features of some samples, and of batches of them in any view: `train`, `train#2`, or an augmentation by name.

    A feature map takes images of 256 levels. So what a view shows is brought back to them: the standardisation that
    nets need is undone and the result rounded. The draws are those that the net sees in the same view.
    """

    def __init__(self, samples: Samples, name: str = AUTO, size: int | None = None) -> None:
        self._samples = samples
        self._name, self._size = name, size

    @cached_property
    def stored(self) -> Tensor:
        """(n, d), of all samples as they are stored."""
        return torch.from_numpy(frozen_features(self._samples, self._name, self._size))

    @torch.no_grad()
    def of(self, batch: Batch, view: str = "train") -> Tensor:
        """(B, d), computed once per batch and view; of the view `clean`, and of tables, those of the stored samples."""
        if view == "clean" or not self._samples.are_images:
            return self.stored[batch.rows]
        return batch.once(("frozen", self._name, self._size, view), lambda: self._shown(batch, view))

    @torch.no_grad()
    def alike(self, batch: Batch, view: str = "train") -> Tensor:
        """(B, B) cosines within a batch; of stored samples they are kept for all pairs, where that takes no more room
        than the features do."""
        if (view == "clean" or not self._samples.are_images) and len(self.stored) <= self.stored.shape[1]:
            return self._pairs[batch.rows][:, batch.rows]
        return cosines(self.of(batch, view))

    @cached_property
    def _pairs(self) -> Tensor:
        what = (self._name, self._size, "pairs")
        return torch.from_numpy(_RECENT.get(self._samples, what, lambda: cosines(self.stored).numpy()))

    def _shown(self, batch: Batch, view: str) -> Tensor:
        images = batch.images(view)
        shown = self._samples.as_stored(images).cpu().numpy()
        features = _map(_chosen(self._name, shown.shape), self._size)(shown)
        return torch.from_numpy(np.ascontiguousarray(features)).to(images.device)


def _chosen(name: str, shape: tuple[int, ...]) -> str:
    """The map that a name stands for, on images of this shape."""
    if name != AUTO:
        return name
    return "hog" if Hog().fits(shape) else "pixels"


@lru_cache(maxsize=2)
def _map(name: str, size: int | None) -> FeatureMap:
    """Loaded once a process."""
    return feature_map(name, size)
