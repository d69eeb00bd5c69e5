"""From a source to a federation: hold out, split over the clients, spoil labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from fedsieve.base.errors import ConfigError, DataError
from fedsieve.base.options import build
from fedsieve.base.rng import numpy_rng
from fedsieve.data.class_noise import ClassDependent, ClassIndependent
from fedsieve.data.dealing import even_order, spread_order
from fedsieve.data.federation import SHARED, UNLABELLED, Federation, Holding, ServerOptions
from fedsieve.data.instance_noise import InstanceSoft
from fedsieve.data.moments import moments
from fedsieve.data.noise import NOISES, Noise, Owned, Rates, corrupt
from fedsieve.data.partition import Group, Iid, Natural, Partition, Pool, Quantity, Split
from fedsieve.data.sources import Source
from fedsieve.data.truth import GroundTruth

LABEL_BLIND = (Iid, Quantity, Natural, Group)
"""Partitions that never look at labels."""
TASK_NOISES = (ClassDependent, ClassIndependent)
"""Noise towards the classes of another task; the server has none, so its labels go wrong symmetrically."""


NEED_LABELS = ("clean", "noisy", "validation")
"""What is held out with its labels."""


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

    Without `client_labels` the clients get none, and theirs are not spoilt; the server's sets keep theirs.
    """

    def rng(*purpose: int | str) -> np.random.Generator:
        return numpy_rng(seed, "federation", *purpose)

    basis = _Basis.of(source, noise)
    notes = list(basis.notes)
    held, rest = _hold_out(source, basis.labels, server, validation, rng("hold-out"))
    if isinstance(partition, Natural) and source.owners is not None:
        clients = _natural_clients(source, rest, clients, notes)
    parts = _dealt(source, basis, partition, rest, clients, rng("partition"))
    rows = tuple(rest[part] for part in parts.rows)
    tasks = _tasks(parts)
    of_clients = [basis.owned(part, k, tasks[k] if tasks else None) for k, part in enumerate(rows)]
    outcome = corrupt(noise, rates, of_clients, source.n_classes, rng) if client_labels else None
    holdings = _holdings(basis, server, held, clients, rng, notes)
    given = outcome.given if outcome else [np.full(len(part), UNLABELLED, np.int64) for part in rows]
    mean, std = moments(source.images, rest)
    notes += [*parts.notes, *_remarks(given, source)]
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
        origins=source.origins,
        texts=source.texts,
        test_texts=source.test_texts,
        text_form=source.text_form,
        reading=source.reading,
        notes=tuple(notes),
    )
    truth = basis.truth
    ground = GroundTruth(
        labels=None if truth is None else tuple(truth[part] for part in rows),
        test=source.test_labels,
        validation=(basis.labels if truth is None else truth)[held["validation"]],
        nominal=outcome.nominal if outcome and (basis.simulated or source.trusted) else None,
        server={} if truth is None else {n: truth[h.rows] for n, h in holdings.items() if h.labels is not None},
    )
    return federation, ground


@dataclass(frozen=True)
class _Basis:
    """What labels are made from.

    A simulation spoils the true labels, or those delivered where the truth is unknown; without one, the labels are
    what the clients delivered.
    """

    source: Source
    noise: Noise
    simulated: bool
    labels: np.ndarray
    """Before noise."""
    truth: np.ndarray | None
    soft: np.ndarray | None
    notes: tuple[str, ...]

    @staticmethod
    def of(source: Source, noise: Noise) -> _Basis:
        simulated = not isinstance(noise, NOISES["none"])
        if simulated and not _labelled(source.labels).all():
            raise DataError(
                "FS307",
                f"the key noise spoils labels, and some rows of {source.name} have none. Leave it out; server.noise is "
                "that of the server's labels",
            )
        labels = source.true if simulated and source.true is not None else source.labels
        notes = source.notes
        if simulated and source.true is None:
            notes = (*notes, "the delivered labels are taken as right: noise is added to them")
        soft = noise.read(len(labels), source.n_classes) if isinstance(noise, InstanceSoft) else None
        return _Basis(source, noise, simulated, labels, labels if simulated else source.true, soft, notes)

    def owned(self, part: np.ndarray, client: int, task: tuple[int, ...] | None = None) -> Owned:
        """Some rows as noise may see them."""
        return Owned(
            labels=self.labels[part],
            client=client,
            task=task,
            rows=part,
            features=_as_features(self.source.images[part]) if self.noise.needs_features else None,
            soft=self.soft[part] if self.soft is not None else None,
        )

    def at_server(self, server: ServerOptions) -> Noise:
        """The noise of the server's own labels."""
        if server.noise is not None:
            made: Noise = build(NOISES[server.noise], server.noise_options, "server.noise_options")
            return made
        if server.noise_options:
            raise ConfigError("FS002", "server.noise_options are those of server.noise, which is not set. Set it too")
        return self.noise if self.simulated and not isinstance(self.noise, TASK_NOISES) else NOISES["symmetric"]()


def _dealt(
    source: Source, basis: _Basis, partition: Partition, rest: np.ndarray, clients: int, rng: np.random.Generator
) -> Split:
    """The rows that are left, over the clients."""
    if len(rest) < clients:
        raise DataError(
            "FS308",
            f"{len(_training_rows(source))} training samples leave {len(rest)} for {clients} clients after the "
            "server's share and the validation split. Lower server.*, validation or clients",
        )
    if not isinstance(partition, LABEL_BLIND) and not _labelled(basis.labels[rest]).all():
        raise DataError(
            "FS305",
            f"some rows of {source.name} have no label, by which the partition would divide them. "
            "Set partition=iid, quantity, natural or group",
        )
    owners = source.groups if isinstance(partition, Group) and source.groups is not None else source.owners
    pool = Pool(basis.labels[rest], source.n_classes, None if owners is None else owners[rest])
    return partition(pool, clients, rng)


def _tasks(parts: Split) -> tuple[tuple[int, ...], ...] | None:
    """Per client, the classes of its task."""
    if parts.tasks is None or parts.task_classes is None:
        return None
    return tuple(tuple(parts.task_classes[task]) for task in parts.tasks)


def _holdings(
    basis: _Basis,
    server: ServerOptions,
    held: Mapping[str, np.ndarray],
    clients: int,
    rng: Callable[..., np.random.Generator],
    notes: list[str],
) -> dict[str, Holding]:
    """The server's own sets, with the labels that it has of them."""
    holdings = {name: Holding(part) for name, part in held.items() if len(part) and name != "validation"}
    if "clean" in holdings:
        holdings["clean"] = _clean(basis, server, held["clean"], clients, rng, notes)
    if server.unlabelled_from == SHARED and "clean" in holdings:
        holdings["unlabelled"] = Holding(held["clean"])
    if "noisy" in holdings:
        mine = basis.owned(held["noisy"], clients)
        spoilt = basis.at_server(server)(mine, server.noisy_rate, basis.source.n_classes, rng("noise", "server"))
        holdings["noisy"] = Holding(held["noisy"], spoilt)
    return holdings


def _clean(
    basis: _Basis,
    server: ServerOptions,
    rows: np.ndarray,
    clients: int,
    rng: Callable[..., np.random.Generator],
    notes: list[str],
) -> Holding:
    """Rows with their true labels, some of them wrong on purpose if asked for."""
    if basis.truth is None:
        raise DataError(
            "FS307",
            f"server.clean={server.amount('clean'):g}: nobody knows which labels of {basis.source.name} are right. "
            "Add true labels to the data, give verified samples as server.clean=FILE, or drop server.clean",
        )
    right = basis.truth[rows]
    if not server.clean_noise:
        return Holding(rows, right)
    mine = replace(basis.owned(rows, clients), labels=right)
    spoilt = basis.at_server(server)(mine, server.clean_noise, basis.source.n_classes, rng("noise", "server", "clean"))
    notes.append(f"{int((spoilt != right).sum())} of the server's {len(right)} clean labels are wrong on purpose")
    return Holding(rows, spoilt)


def _labelled(labels: np.ndarray) -> np.ndarray:
    """Which rows have a label."""
    there: np.ndarray = labels != UNLABELLED
    return there


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
    """Disjoint subsets of the training rows, the classes in proportion or even, and the rows that are left."""
    usable = _training_rows(source)
    total = len(usable)
    wanted = {name: server.amount(name) for name in ("unlabelled", "clean", "noisy", "public")}
    counts = {n: round(a * total) if 0 < a < 1 else int(a) for n, a in (wanted | {"validation": validation}).items()}
    if sum(counts.values()) > total:
        asked = ", ".join(f"{name} {count}" for name, count in counts.items() if count)
        raise DataError("FS308", f"{asked}: more than the {total} training samples. Lower server.* or validation")
    dealt = usable[spread_order(labels[usable], rng)]
    held = {}
    for name, count in counts.items():
        even = server.balanced and name != "validation"
        order = even_order(labels[dealt]) if even else np.arange(len(dealt))
        if name in NEED_LABELS:
            order = order[_labelled(labels[dealt[order]])]
        if len(order) < count:
            raise DataError(
                "FS308", f"{name} {count}: only {len(order)} rows of {source.name} have a label for it. Lower it"
            )
        taken = order[:count]
        held[name] = np.sort(dealt[taken])
        dealt = np.delete(dealt, taken)
    return held, np.sort(dealt)


def _as_features(images: np.ndarray) -> np.ndarray:
    flat = images.reshape(len(images), -1).astype(np.float32)
    return flat / 255.0 if images.dtype == np.uint8 else flat


def _remarks(given: list[np.ndarray], source: Source) -> list[str]:
    """What somebody should know before trusting a result on this split."""
    notes = []
    there = set(np.concatenate(given).tolist()) - {UNLABELLED} if given else set()
    absent = [name for c, name in enumerate(source.class_names) if c not in there]
    if not there:
        notes.append("the clients have no labels")
    elif absent:
        notes.append(f"classes that no client has: {', '.join(absent)}")
    return notes
