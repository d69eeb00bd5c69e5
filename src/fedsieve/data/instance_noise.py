"""Noise that depends on the single sample: on how it looks, on a helper model's doubt, or on what people answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field

from fedsieve.base.array_files import BROKEN
from fedsieve.base.errors import ConfigError, DataError, nearest
from fedsieve.data.dealing import whole_part
from fedsieve.data.noise_base import ClientwiseNoise, Flip, Noise, Owned, require_two_classes
from fedsieve.data.rates import Rates
from fedsieve.data.sources.limits import MAX_GB, check_arrays, regular

CLEAN_KEYS = ("clean_label", "clean")
NEVER = 1e-12
FileName = Annotated[str, BeforeValidator(lambda name: fspath(name) if isinstance(name, PathLike) else name)]
"""Text, so that settings can be written down; a Path is taken too."""


@dataclass(frozen=True, kw_only=True)
class InstanceSoft(ClientwiseNoise):
    """Samples a helper model doubts are mislabelled first, as the class it takes them for (FedNoRo)."""

    needs_soft: ClassVar[bool] = True

    soft: FileName | None = None
    """An .npy file with the soft labels of every row of the data: N x classes."""

    def read(self, rows: int, n_classes: int) -> NDArray[np.floating]:
        """The soft labels of all rows, mapped; clients take their own out of them."""
        if self.soft is None:
            raise ConfigError("FS002", "noise=instance-soft needs a file of soft labels. Give noise.soft")
        try:
            regular(Path(self.soft).expanduser(), "Check noise.soft")
            soft: NDArray[np.floating] = np.load(Path(self.soft).expanduser(), mmap_mode="r", allow_pickle=False)
        except BROKEN as problem:
            raise DataError(
                "FS302", f"{self.soft}: cannot be read ({problem}). Write an array of floats with numpy.save"
            ) from None
        if not isinstance(soft, np.ndarray) or soft.dtype.kind != "f" or soft.shape != (rows, n_classes):
            shape = getattr(soft, "shape", "several arrays")
            raise DataError(
                "FS309", f"{self.soft}: holds {shape}, not floats of {rows} x {n_classes}. Give one row for each sample"
            )
        broken = np.flatnonzero(~np.isfinite(soft).all(axis=1))
        if len(broken):
            raise DataError("FS304", f"{self.soft}: row {broken[0]} holds NaN or infinity. Compute it again")
        return soft

    def flip(self, owned: Owned, rate: float, n_classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
        require_two_classes(n_classes, "instance-soft")
        labels, n = owned.labels, len(owned.labels)
        if owned.soft is None or owned.soft.shape != (n, n_classes):
            raise ConfigError(
                "FS002",
                f"noise=instance-soft needs soft labels of {n} x {n_classes} at client {owned.client}. "
                "Give a helper model's soft labels",
            )
        doubt = np.maximum(1.0 - owned.soft[np.arange(n), labels], NEVER)
        # The k largest of log w + Gumbel noise are k draws without replacement with probability proportional to w.
        chosen = np.argsort(-(np.log(doubt) + rng.gumbel(size=n)))[: whole_part(rate, n)]
        others = np.maximum(owned.soft[chosen].astype(np.float64), NEVER)
        others[np.arange(len(chosen)), labels[chosen]] = 0.0
        given = labels.copy()
        given[chosen] = _draw(others, rng)
        return given


@dataclass(frozen=True, kw_only=True)
class InstancePart(Noise):
    """How a sample looks decides how likely it is mislabelled and as what (part-dependent noise, Xia et al. 2020)."""

    needs_features: ClassVar[bool] = True

    spread: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Standard deviation of a sample's own rate around the client's; a client of rate 0 stays clean all the same."""

    def for_clients(self, owned: Sequence[Owned], n_classes: int, rng: np.random.Generator) -> Sequence[Flip]:
        return [partial(self._flip, others) for others in confusions(owned, n_classes, rng)]

    def _flip(
        self,
        others: NDArray[np.float64],
        owned: Owned,
        rate: float,
        n_classes: int,
        rng: np.random.Generator,
    ) -> NDArray[np.int64]:
        own_rates = truncated_normal(rate, self.spread, len(owned.labels), rng)
        wrong = np.flatnonzero(rng.random(len(owned.labels)) < own_rates) if rate > 0 else np.empty(0, np.int64)
        given = owned.labels.copy()
        given[wrong] = _draw(others[wrong], rng)
        return given


@dataclass(frozen=True, kw_only=True)
class Human(Noise):
    """Labels that people gave, as in CIFAR-N; rates do not apply."""

    file: FileName | None = None
    """A .npz file (or structured .npy) with the clean labels and those of people, in the order of the data."""
    key: str = "worse_label"
    """Which labels to take, such as worse_label, aggre_label, random_label1 or noisy_label (or worse, aggre, ...)."""

    def nominal(self, rates: Rates, clients: int, rng: np.random.Generator) -> NDArray[np.float64]:
        return np.full(clients, np.nan)

    def for_clients(self, owned: Sequence[Owned], n_classes: int, rng: np.random.Generator) -> Sequence[Flip]:
        if self.file is None:
            raise ConfigError("FS002", "noise=human needs a file of labels. Give noise.file")
        return [partial(self._flip, *read_human_labels(Path(self.file), self.key))] * len(owned)

    def _flip(
        self,
        clean: NDArray[np.int64],
        human: NDArray[np.int64],
        owned: Owned,
        rate: float,
        n_classes: int,
        rng: np.random.Generator,
    ) -> NDArray[np.int64]:
        if owned.rows is None:
            raise ConfigError("FS002", "noise=human needs the row numbers of the source. Use data read from one source")
        last = owned.rows.max(initial=-1)
        if last >= len(clean):
            raise DataError(
                "FS303",
                f"{self.file}: has {len(clean)} rows, but the data have row {last}. Give the labels of these data",
            )
        differ = np.flatnonzero(clean[owned.rows] != owned.labels)
        if len(differ):
            row = owned.rows[differ[0]]
            raise DataError(
                "FS303",
                f"{self.file}: row {row} has clean label {clean[row]}, but the data say {owned.labels[differ[0]]}. "
                "Give a file in the order of these data",
            )
        given = human[owned.rows]
        if len(given) and not 0 <= given.min() <= given.max() < n_classes:
            raise DataError(
                "FS303", f"{self.file}: {self.key} has labels outside 0 to {n_classes - 1}. Give another noise.key"
            )
        return given


def read_human_labels(file: Path, key: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The clean labels and those under the key; nothing in the file is executed."""
    try:
        arrays = _arrays(file.expanduser())
    except BROKEN as problem:
        raise DataError(
            "FS303", f"{file}: cannot be read ({problem}). Save the label arrays with numpy.savez and give that file"
        ) from None
    clean = next((name for name in CLEAN_KEYS if name in arrays), None)
    if clean is None:
        raise DataError(
            "FS303",
            f"{file}: no clean labels to check the order with. Save them as clean_label beside the others",
        )
    found = next((name for name in (key, _other_spelling(key)) if name in arrays), None)
    if found is None:
        raise ConfigError("FS002", f"noise.key={key}: not in {file}. {nearest(key, set(arrays) - {clean})}")
    labels = arrays[clean].astype(np.int64), arrays[found].astype(np.int64)
    if labels[0].ndim != 1 or labels[0].shape != labels[1].shape:
        raise DataError(
            "FS303",
            f"{file}: {clean} and {found} have shapes {labels[0].shape} and {labels[1].shape}. Give one label a row",
        )
    return labels


def confusions(owned: Sequence[Owned], n_classes: int, rng: np.random.Generator) -> list[NDArray[np.float64]]:
    """For each sample the probabilities of the wrong classes: softmax of x W_y without y, W_y ~ N(0, 1).

    All clients share W_y; class after class, so that one W_y at a time is in memory.
    """
    require_two_classes(n_classes, "instance-part")
    features = [_features(one) for one in owned]
    scores = [np.zeros((len(one.labels), n_classes)) for one in owned]
    order = [np.argsort(one.labels, kind="stable") for one in owned]
    ends = [np.cumsum(np.bincount(one.labels, minlength=n_classes)) for one in owned]
    width = max((x.shape[1] for x in features), default=0)
    for c in range(n_classes):
        weights = rng.standard_normal((width, n_classes), dtype=np.float32)
        for x, score, rows, end in zip(features, scores, order, ends, strict=True):
            of_class = rows[end[c - 1] if c else 0 : end[c]]
            score[of_class] = x[of_class] @ weights
            score[of_class, c] = -np.inf
    return [softmax(score) for score in scores]


def softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Row by row."""
    powers: NDArray[np.float64] = np.exp(scores - scores.max(axis=1, keepdims=True))
    powers /= powers.sum(axis=1, keepdims=True)
    return powers


def truncated_normal(mean: float, spread: float, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Normal draws kept to [0, 1], by inversion."""
    from scipy.special import ndtr, ndtri  # slow to load, and only this noise needs it

    if spread == 0:
        return np.full(n, mean)
    low, high = ndtr((0.0 - mean) / spread), ndtr((1.0 - mean) / spread)
    draws: NDArray[np.float64] = ndtri(rng.uniform(low, high, n))
    return np.clip(mean + spread * draws, 0.0, 1.0)


def _features(owned: Owned) -> NDArray[np.float32]:
    if owned.features is None:
        raise ConfigError(
            "FS002", f"noise=instance-part needs the features of client {owned.client}. Use data with images"
        )
    return owned.features


def _draw(weights: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.int64]:
    """One column of each row, with probability proportional to its weight."""
    steps = np.cumsum(weights, axis=1)
    columns: NDArray[np.int64] = np.sum(rng.random((len(steps), 1)) * steps[:, -1:] >= steps[:, :-1], axis=1)
    return columns


def _arrays(file: Path) -> dict[str, NDArray[Any]]:
    """The named arrays of an .npz file, or the fields of a structured .npy file."""
    check_arrays(file, MAX_GB)
    stored = np.load(file, allow_pickle=False)
    if isinstance(stored, np.ndarray):
        return {name: stored[name] for name in stored.dtype.names or ()}
    with stored:
        return dict(stored)


def _other_spelling(key: str) -> str:
    """`random_label1` for `random1` and the other way round."""
    stem, digit = (key[:-1], key[-1]) if key[-1:].isdigit() else (key, "")
    return f"{stem.removesuffix('_label')}{digit}" if stem.endswith("_label") else f"{stem}_label{digit}"
