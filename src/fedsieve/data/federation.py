"""The data as split: what each client holds, what the server holds, and the test images.

Built once from the settings and hashed, so that every method sees the same labels. True labels are not in here: they
go to a `GroundTruth` that only the evaluator receives.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from fedsieve.data.noise import NOISES, Noise, Owned, Rates, corrupt
from fedsieve.data.partition import Partition, Pool
from fedsieve.data.sources import Source
from fedsieve.errors import DataError
from fedsieve.evaluate.truth import GroundTruth
from fedsieve.options import Choice
from fedsieve.runtime.rng import numpy_rng

Amount = Annotated[float, Field(ge=0)]
HASHED_WHOLE = 2 << 30
"""Images beyond this many bytes are hashed by a sample of rows."""


@dataclass(frozen=True, kw_only=True)
class ServerOptions(Choice):
    """What the server holds itself, taken from the training set before it is split; never from the test set."""

    unlabelled: Amount = 0
    """Images without labels at the server: a number, or a fraction of the training set if below 1."""
    clean: Amount = 0
    """Correctly labelled samples at the server: a number, or a fraction."""
    noisy: Amount = 0
    """Samples at the server whose labels are partly wrong: a number, or a fraction."""
    noisy_rate: Annotated[float, Field(ge=0, le=1)] = 0.2
    """How many of `server.noisy` are wrong; the kind of noise is that of the clients (symmetric if they have none)."""
    public: Amount = 0
    """Images without labels that the clients hold too: a number, or a fraction."""


@dataclass(frozen=True)
class Holding:
    """Some of the server's own samples: row numbers, and labels where it has them."""

    rows: np.ndarray
    labels: np.ndarray | None = None


@dataclass(frozen=True)
class Federation:
    images: np.ndarray
    """All training samples: N x H x W x channels in uint8, or a float32 table."""
    test_images: np.ndarray
    rows: tuple[np.ndarray, ...]
    """Per client, its rows of `images`."""
    given: tuple[np.ndarray, ...]
    """Per client, the labels as delivered."""
    server: Mapping[str, Holding]
    """By name: unlabelled, clean, noisy, public. Empty ones are left out."""
    validation: np.ndarray
    """Rows of `images` kept for tuning."""
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    data: str = ""
    tasks: tuple[tuple[int, ...], ...] | None = None
    """Per client, the classes of its task, where the partition has tasks."""
    served: tuple[np.ndarray, ...] | None = None
    """Which rows are rightly labelled: filled by the evaluator for upper bounds, for no other method."""
    notes: tuple[str, ...] = field(default=(), compare=False)

    @property
    def clients(self) -> int:
        return len(self.rows)

    @property
    def n_classes(self) -> int:
        return len(self.class_names)

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """(channels, height, width), or (features,)."""
        shape = self.images.shape[1:]
        return (shape[2], shape[0], shape[1]) if len(shape) == 3 else tuple(shape)

    def class_counts(self) -> np.ndarray:
        """Clients x classes, by given label."""
        return np.array([np.bincount(g[g >= 0], minlength=self.n_classes) for g in self.given], np.int64)

    @cached_property
    def hash(self) -> str:
        """Of everything that training or testing sees; equal hashes mean comparable results."""
        digest = hashlib.sha256()
        for array in (self.images, self.test_images):
            sample = array if array.nbytes <= HASHED_WHOLE else array[:: max(1, len(array) // 1000)]
            digest.update(f"{array.shape}{array.dtype}".encode())
            digest.update(np.ascontiguousarray(sample).data)
        for rows, given in zip(self.rows, self.given, strict=True):
            digest.update(len(rows).to_bytes(8, "little") + rows.tobytes() + given.tobytes())
        for name, holding in sorted(self.server.items()):
            digest.update(name.encode() + holding.rows.tobytes())
            digest.update(b"" if holding.labels is None else holding.labels.tobytes())
        digest.update(self.validation.tobytes())
        digest.update(repr((self.class_names, self.mean, self.std, self.tasks)).encode())
        return digest.hexdigest()

    def serving(self, masks: tuple[np.ndarray, ...]) -> Federation:
        """The same federation with the evaluator's masks: see `served`."""
        return replace(self, served=masks)


def split(
    source: Source,
    *,
    clients: int,
    partition: Partition,
    noise: Noise,
    rates: Rates,
    server: ServerOptions,
    validation: float,
    seed: int,
) -> tuple[Federation, GroundTruth]:
    """Hold out, split, then spoil labels, in this order, each from its own stream of the seed."""

    def rng(*purpose: int | str) -> np.random.Generator:
        return numpy_rng(seed, "federation", *purpose)

    held, rest = _hold_out(source, server, validation, rng("hold-out"))
    if len(rest) < clients:
        raise DataError(
            "FS308",
            f"{len(source.labels)} training samples leave {len(rest)} for {clients} clients after the server's share "
            "and the validation split. Lower server.*, validation or clients",
        )
    parts = partition(Pool(source.labels[rest], source.n_classes), clients, rng("partition"))
    rows = tuple(rest[part] for part in parts.rows)
    tasks = None
    if parts.tasks is not None and parts.task_classes is not None:
        tasks = tuple(tuple(parts.task_classes[task]) for task in parts.tasks)
    owned = [
        Owned(
            labels=source.labels[part],
            client=k,
            task=tasks[k] if tasks else None,
            rows=part,
            features=_as_features(source.images[part]) if noise.needs_features else None,
        )
        for k, part in enumerate(rows)
    ]
    outcome = corrupt(noise, rates, owned, source.n_classes, rng)
    holdings = {name: Holding(part) for name, part in held.items() if len(part) and name != "validation"}
    if "clean" in holdings:
        holdings["clean"] = Holding(held["clean"], source.labels[held["clean"]])
    if "noisy" in holdings:
        spoiler = NOISES["symmetric"]() if isinstance(noise, NOISES["none"]) else noise
        mine = Owned(labels=source.labels[held["noisy"]], client=clients, rows=held["noisy"])
        labels = spoiler(mine, server.noisy_rate, source.n_classes, rng("noise", "server"))
        holdings["noisy"] = Holding(held["noisy"], labels)
    mean, std = _moments(source.images, rest)
    notes = [*parts.notes, *_remarks(rows, outcome.given, source)]
    federation = Federation(
        images=source.images,
        test_images=source.test_images,
        rows=rows,
        given=tuple(outcome.given),
        server=holdings,
        validation=held["validation"],
        class_names=source.class_names,
        mean=mean,
        std=std,
        data=source.name,
        tasks=tasks,
        notes=tuple(notes),
    )
    truth = GroundTruth(
        labels=tuple(source.labels[part] for part in rows),
        test=source.test_labels,
        validation=source.labels[held["validation"]],
        nominal=outcome.nominal,
    )
    return federation, truth


def _hold_out(
    source: Source, server: ServerOptions, validation: float, rng: np.random.Generator
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Disjoint, class-proportional subsets of the training rows, and the rows that are left."""
    total = len(source.labels)
    wanted = {name: getattr(server, name) for name in ("unlabelled", "clean", "noisy", "public")}
    counts = {n: round(a * total) if 0 < a < 1 else int(a) for n, a in (wanted | {"validation": validation}).items()}
    if sum(counts.values()) > total:
        asked = ", ".join(f"{name} {count}" for name, count in counts.items() if count)
        raise DataError("FS308", f"{asked}: more than the {total} training samples. Lower server.* or validation")
    # Dealing the rows class by class, each class in random order, makes every run of consecutive rows proportional.
    order = rng.permutation(total)
    within = np.empty(total)
    for c in range(source.n_classes):
        mine = order[source.labels[order] == c]
        within[mine] = (np.arange(len(mine)) + rng.random()) / max(len(mine), 1)
    dealt = np.argsort(within, kind="stable")
    held, at = {}, 0
    for name, count in counts.items():
        held[name] = np.sort(dealt[at : at + count])
        at += count
    return held, np.sort(dealt[at:])


def _moments(images: np.ndarray, rows: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel (in 0..1 for images) or per feature, of at most 10,000 clients' rows."""
    sample = images[rows[:: max(1, len(rows) // 10_000)]]
    flat = sample.reshape(-1, sample.shape[-1]).astype(np.float64)
    scale = 255.0 if images.dtype == np.uint8 else 1.0
    mean, std = flat.mean(axis=0) / scale, flat.std(axis=0) / scale
    return _rounded(mean), _rounded(np.where(std < 1e-4, 1.0, std))


def _rounded(values: np.ndarray) -> tuple[float, ...]:
    return tuple(round(float(value), 4) for value in values)


def _as_features(images: np.ndarray) -> np.ndarray:
    flat = images.reshape(len(images), -1).astype(np.float32)
    return flat / 255.0 if images.dtype == np.uint8 else flat


def _remarks(rows: tuple[np.ndarray, ...], given: list[np.ndarray], source: Source) -> list[str]:
    """What somebody should know before trusting a result on this split."""
    notes = []
    empty = [k for k, part in enumerate(rows) if not len(part)]
    if empty:
        notes.append(f"clients without samples: {', '.join(map(str, empty))}")
    there = set(np.concatenate(given).tolist()) if given else set()
    absent = [name for c, name in enumerate(source.class_names) if c not in there]
    if absent:
        notes.append(f"classes that no client has: {', '.join(absent)}")
    return notes


def describe(federation: Federation, truth: GroundTruth | None) -> dict[str, Any]:
    """The federation as `federation.json` shows it; the noise is known only with the truth."""
    counts = federation.class_counts()
    clients: list[dict[str, Any]] = []
    transitions = np.zeros((federation.n_classes, federation.n_classes), np.int64)
    for k, given in enumerate(federation.given):
        correct = truth.correct(k, given) if truth else None
        nominal = truth.nominal[k] if truth is not None and truth.nominal is not None else np.nan
        clients.append(
            {
                "client": k,
                "rows": len(given),
                "classes": counts[k].tolist(),
                "noise_nominal": None if np.isnan(nominal) else round(float(nominal), 6),
                "noise_realised": None if correct is None or not len(given) else round(float(1 - correct.mean()), 6),
                "task": list(federation.tasks[k]) if federation.tasks else None,
            }
        )
        if truth is not None and truth.labels is not None:
            np.add.at(transitions, (truth.labels[k], given), 1)
    return {
        "hash": federation.hash,
        "data": federation.data,
        "n_classes": federation.n_classes,
        "class_names": list(federation.class_names),
        "image_shape": list(federation.images.shape[1:]),
        "mean": list(federation.mean),
        "std": list(federation.std),
        "test": len(federation.test_images),
        "validation": len(federation.validation),
        "server": {name: len(holding.rows) for name, holding in federation.server.items()},
        "notes": list(federation.notes),
        "clients": clients,
        "transitions": transitions.tolist() if truth is not None and truth.labels is not None else None,
    }
