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

from fedsieve.base.errors import DataError
from fedsieve.base.options import Choice
from fedsieve.base.rng import numpy_rng
from fedsieve.data.class_noise import ClassDependent, ClassIndependent
from fedsieve.data.dealing import spread_order
from fedsieve.data.instance_noise import InstanceSoft
from fedsieve.data.noise import NOISES, Noise, Owned, Rates, corrupt
from fedsieve.data.partition import Group, Natural, Partition, Pool
from fedsieve.data.sources import Source
from fedsieve.data.truth import GroundTruth

Amount = Annotated[float, Field(ge=0)]
HASHED_WHOLE = 2 << 30
"""Images beyond this many bytes are hashed by a sample of rows."""
MOMENT_BYTES = 4 << 20
"""Images that are looked at together for their mean."""
UNLABELLED = -1
"""Stands for the label of a row that has none."""
SHARED = "clean"
"""Methods that read the labels of the server's set and methods that do not can then be compared on one split."""
TASK_NOISES = (ClassDependent, ClassIndependent)
"""Noise towards the classes of another task; the server has none, so its labels go wrong symmetrically."""


@dataclass(frozen=True, kw_only=True)
class ServerOptions(Choice):
    """What the server holds itself, taken from the training set before it is split; never from the test set."""

    unlabelled: Amount = 0
    """Images without labels at the server: a number, or a fraction of the training set if below 1."""
    unlabelled_from: str | None = None
    """Where they come from: the training set if not given, `clean` (those of `server.clean`, without their labels),
    another data set by name or path, or `generated` ones."""
    clean: Amount = 0
    """Correctly labelled samples at the server: a number, or a fraction."""
    clean_noise: Annotated[float, Field(ge=0, le=1)] = 0.0
    """How many of `server.clean` are wrong after all, to see what a method makes of it; the noise as below."""
    noisy: Amount = 0
    """Samples at the server whose labels are partly wrong: a number, or a fraction."""
    noisy_rate: Annotated[float, Field(ge=0, le=1)] = 0.2
    """How many of `server.noisy` are wrong; the noise is the clients', or symmetric if they have none or tasks."""
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
    """Per client, the labels as delivered; -1 where there is none."""
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
    declared: tuple[int, ...] | None = field(default=None, compare=False)
    """Per client, how many labels it says to have, where `given` does not show them."""
    client_names: tuple[str, ...] | None = field(default=None, compare=False)
    """Per client, its name, where clients are those of the data."""
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

    def labelled_counts(self) -> list[int]:
        """Per client, how many of its rows have a label."""
        return [int((g >= 0).sum()) for g in self.given] if self.declared is None else list(self.declared)

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
    client_labels: bool = True,
) -> tuple[Federation, GroundTruth]:
    """Hold out, split, then spoil labels, in this order, each from its own stream of the seed.

    A simulation spoils the true labels, or those delivered where the truth is unknown; without one, the labels are
    what the clients delivered. Without `client_labels` these are taken from the clients; the server's sets keep theirs.
    """

    def rng(*purpose: int | str) -> np.random.Generator:
        return numpy_rng(seed, "federation", *purpose)

    simulated = not isinstance(noise, NOISES["none"])
    labels = source.true if simulated and source.true is not None else source.labels
    truth = labels if simulated else source.true
    notes = list(source.notes)
    if simulated and source.true is None:
        notes.append("the delivered labels are taken as right: noise is added to them")
    held, rest = _hold_out(source, labels, server, validation, rng("hold-out"))
    if isinstance(partition, Natural) and source.owners is not None:
        clients = _natural_clients(source, rest, clients, notes)
    if len(rest) < clients:
        raise DataError(
            "FS308",
            f"{len(_training_rows(source))} training samples leave {len(rest)} for {clients} clients after the "
            "server's share and the validation split. Lower server.*, validation or clients",
        )
    owners = source.groups if isinstance(partition, Group) and source.groups is not None else source.owners
    pool = Pool(labels[rest], source.n_classes, None if owners is None else owners[rest])
    parts = partition(pool, clients, rng("partition"))
    rows = tuple(rest[part] for part in parts.rows)
    tasks = None
    if parts.tasks is not None and parts.task_classes is not None:
        tasks = tuple(tuple(parts.task_classes[task]) for task in parts.tasks)
    soft = noise.read(len(labels), source.n_classes) if isinstance(noise, InstanceSoft) else None

    def owned(part: np.ndarray, client: int, task: tuple[int, ...] | None = None) -> Owned:
        return Owned(
            labels=labels[part],
            client=client,
            task=task,
            rows=part,
            features=_as_features(source.images[part]) if noise.needs_features else None,
            soft=soft[part] if soft is not None else None,
        )

    of_clients = [owned(part, k, tasks[k] if tasks else None) for k, part in enumerate(rows)]
    outcome = corrupt(noise, rates, of_clients, source.n_classes, rng)
    at_server = noise if simulated and not isinstance(noise, TASK_NOISES) else NOISES["symmetric"]()
    holdings = {name: Holding(part) for name, part in held.items() if len(part) and name != "validation"}
    if "clean" in holdings:
        if truth is None:
            raise DataError(
                "FS307",
                f"server.clean={server.clean:g}: nobody knows which labels of {source.name} are right. "
                "Add true labels to the data, or drop server.clean",
            )
        right = truth[held["clean"]]
        holdings["clean"] = Holding(held["clean"], right)
        if server.clean_noise:
            mine = replace(owned(held["clean"], clients), labels=right)
            spoilt = at_server(mine, server.clean_noise, source.n_classes, rng("noise", "server", "clean"))
            holdings["clean"] = Holding(held["clean"], spoilt)
            notes.append(
                f"{int((spoilt != right).sum())} of the server's {len(right)} clean labels are wrong on purpose"
            )
    if server.unlabelled_from == SHARED and "clean" in holdings:
        holdings["unlabelled"] = Holding(held["clean"])
    if "noisy" in holdings:
        mine = owned(held["noisy"], clients)
        spoilt = at_server(mine, server.noisy_rate, source.n_classes, rng("noise", "server"))
        holdings["noisy"] = Holding(held["noisy"], spoilt)
    given = outcome.given if client_labels else [np.full(len(part), UNLABELLED, np.int64) for part in rows]
    mean, std = _moments(source.images, rest)
    notes += [*parts.notes, *_remarks(rows, given, source)]
    federation = Federation(
        images=source.images,
        test_images=source.test_images,
        rows=rows,
        given=tuple(given),
        server=holdings,
        validation=held["validation"],
        class_names=source.class_names,
        mean=mean,
        std=std,
        data=source.name,
        tasks=tasks,
        client_names=source.owner_names if isinstance(partition, Natural) else None,
        notes=tuple(notes),
    )
    ground = GroundTruth(
        labels=None if truth is None else tuple(truth[part] for part in rows),
        test=source.test_labels,
        validation=(labels if truth is None else truth)[held["validation"]],
        nominal=outcome.nominal if client_labels and (simulated or source.trusted) else None,
    )
    return federation, ground


def _training_rows(source: Source) -> np.ndarray:
    return np.arange(len(source.labels)) if source.rows is None else source.rows


def _natural_clients(source: Source, rest: np.ndarray, clients: int, notes: list[str]) -> int:
    """The number of clients that the data name, all of which must have rows left."""
    assert source.owners is not None
    sizes = np.bincount(source.owners[rest], minlength=len(source.owner_names))
    empty = [name for name, size in zip(source.owner_names, sizes, strict=True) if not size]
    if empty:
        raise DataError(
            "FS307",
            f"client {empty[0]} has no rows left for training. Lower server.*, validation or data.test_fraction, "
            "or leave the client out",
        )
    found = len(source.owner_names)
    if found != clients:
        notes.append(f"clients={clients} does not apply: the data name {found} clients (partition=natural)")
    return found


def _hold_out(
    source: Source, labels: np.ndarray, server: ServerOptions, validation: float, rng: np.random.Generator
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Disjoint, class-proportional subsets of the training rows, and the rows that are left."""
    usable = _training_rows(source)
    total = len(usable)
    wanted = {name: getattr(server, name) for name in ("unlabelled", "clean", "noisy", "public")}
    if server.unlabelled_from:
        wanted["unlabelled"] = 0
    counts = {n: round(a * total) if 0 < a < 1 else int(a) for n, a in (wanted | {"validation": validation}).items()}
    if sum(counts.values()) > total:
        asked = ", ".join(f"{name} {count}" for name, count in counts.items() if count)
        raise DataError("FS308", f"{asked}: more than the {total} training samples. Lower server.* or validation")
    dealt = usable[spread_order(labels[usable], rng)]
    held, at = {}, 0
    for name, count in counts.items():
        held[name] = np.sort(dealt[at : at + count])
        at += count
    return held, np.sort(dealt[at:])


def _moments(images: np.ndarray, rows: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
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


def _as_features(images: np.ndarray) -> np.ndarray:
    flat = images.reshape(len(images), -1).astype(np.float32)
    return flat / 255.0 if images.dtype == np.uint8 else flat


def _remarks(rows: tuple[np.ndarray, ...], given: list[np.ndarray], source: Source) -> list[str]:
    """What somebody should know before trusting a result on this split."""
    notes = []
    empty = [k for k, part in enumerate(rows) if not len(part)]
    if empty:
        notes.append(f"clients without samples: {', '.join(map(str, empty))}")
    there = set(np.concatenate(given).tolist()) - {UNLABELLED} if given else set()
    absent = [name for c, name in enumerate(source.class_names) if c not in there]
    if not there:
        notes.append("the clients have no labels")
    elif absent:
        notes.append(f"classes that no client has: {', '.join(absent)}")
    return notes


def describe(federation: Federation, truth: GroundTruth | None) -> dict[str, Any]:
    """The federation as `federation.json` shows it; the noise is known only with the truth."""
    counts, labelled_counts = federation.class_counts(), federation.labelled_counts()
    clients: list[dict[str, Any]] = []
    transitions = np.zeros((federation.n_classes, federation.n_classes), np.int64)
    for k, given in enumerate(federation.given):
        realised = truth.noise(k, given) if truth else None
        nominal = truth.nominal[k] if truth is not None and truth.nominal is not None else np.nan
        labelled = given >= 0
        clients.append(
            {
                "client": k,
                "name": federation.client_names[k] if federation.client_names else None,
                "rows": len(given),
                "labelled": labelled_counts[k],
                "classes": counts[k].tolist(),
                "noise_nominal": None if np.isnan(nominal) else round(float(nominal), 6),
                "noise_realised": None if realised is None else round(realised, 6),
                "task": list(federation.tasks[k]) if federation.tasks else None,
            }
        )
        if truth is not None and truth.labels is not None:
            np.add.at(transitions, (truth.labels[k][labelled], given[labelled]), 1)
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
        "transitions": transitions.tolist() if transitions.any() else None,
    }
