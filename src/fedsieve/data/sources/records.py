"""What is written about each row of real data (label, client, truth, split), checked, and turned into a source.

Image folders, CSV files and Hugging Face data sets differ in where this stands; what it means is the same for all.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedsieve.base.errors import DataError, nearest
from fedsieve.base.rng import numpy_rng
from fedsieve.data.dealing import spread_order, whole_part
from fedsieve.data.federation import UNLABELLED
from fedsieve.data.origins import Origins
from fedsieve.data.sources.base import UNTESTED, Source, require_classes
from fedsieve.data.sources.limits import check_classes

Names = Sequence[str]
MISSING = frozenset({"", "nan", "<na>", "nat"})
"""Cells that hold nothing."""


@dataclass(frozen=True)
class Records:
    """One entry a row, in the order of the samples."""

    origin: str
    """The file or folder that errors name."""
    place: Callable[[int], str]
    """Where a row stands, as a person would look for it."""
    origins: Origins
    """Where a row came from, in few words: what `labels.csv` says."""
    labels: Names
    clients: Names | None = None
    true: Names | None = None
    """True labels; "" where unknown."""
    groups: Names | None = None
    test: np.ndarray | None = None
    """Which rows are for testing; None where the data do not say."""
    class_names: tuple[str, ...] | None = None
    """Fixes the classes and their order; otherwise they are those that occur, sorted."""
    texts: Names | None = None
    """What the samples say, where they are texts."""
    may_lack_labels: bool = False
    """Whether rows for training may be without a label, which is then empty."""
    notes: tuple[str, ...] = ()

    def where(self, row: int) -> str:
        """The client, if any, and the place of a row."""
        client = f"client {self.clients[row]}, " if self.clients is not None and self.clients[row] else ""
        return f"{self.origin}: {client}{self.place(row)}"

    def in_order(self, order: np.ndarray) -> Records:
        """The same rows in another order; places stay where they are."""

        def picked(names: Names | None) -> Names | None:
            return None if names is None else [names[i] for i in order]

        place = self.place
        return replace(
            self,
            place=lambda row: place(int(order[row])),
            origins=self.origins.picked(order),
            labels=[self.labels[i] for i in order],
            clients=picked(self.clients),
            true=picked(self.true),
            groups=picked(self.groups),
            texts=picked(self.texts),
            test=None if self.test is None else self.test[order],
        )


@dataclass(frozen=True)
class Store:
    """The samples of records whose training rows come first."""

    samples: np.ndarray
    """Those for training; all of them where the records do not say what is for testing."""
    test: np.ndarray | None
    digests: np.ndarray
    """One number for the content of each row, test rows included."""
    take: Callable[[np.ndarray], np.ndarray]
    """A copy of some rows of `samples`."""
    reading: Mapping[str, Any] = field(default_factory=dict)
    """As that of a source."""
    notes: tuple[str, ...] = ()


def table_store(samples: np.ndarray, records: Records) -> Store:
    """A store of an array in memory."""
    n_train = len(samples) if records.test is None else int((~records.test).sum())
    train = samples[:n_train]
    test = None if records.test is None else samples[n_train:]
    return Store(train, test, digests(samples), lambda rows: train[rows])


def training_first(records: Records) -> np.ndarray:
    """The order in which training rows come before test rows, so that each set is one block of memory."""
    if records.test is None:
        return np.arange(len(records.labels))
    return np.argsort(records.test, kind="stable")


def check_records(records: Records, max_classes: int) -> tuple[str, ...]:
    """The class names; refuses empty or unknown labels, too many of them, and rows without a client."""
    if not len(records.labels):
        raise DataError("FS307", f"{records.origin}: holds no rows. Give at least one sample a class")
    train = [row for row in range(len(records.labels)) if records.test is None or not records.test[row]]
    if not train:
        raise DataError("FS307", f"{records.origin}: every row is for testing. Mark some as train")
    for row in train:
        if records.clients is not None and is_missing(records.clients[row]):
            said = f" ({records.clients[row]})" if records.clients[row] else ""
            raise DataError("FS307", f"{records.where(row)} names no client{said}. Fill it in, or drop the column")
    lacks = [is_missing(label) for label in records.labels]
    found = {label for label, none in zip(records.labels, lacks, strict=True) if not none}
    found |= set(filter(None, records.true or ()))
    check_classes(len(records.class_names or found), f"{records.origin}: has", max_classes)
    known = None if records.class_names is None else dict.fromkeys(records.class_names)
    optional = set(train) if records.may_lack_labels else set()
    for row, label in enumerate(records.labels):
        if lacks[row] and row in optional:
            continue
        if lacks[row]:
            said = f" ({label})" if label else ""
            raise DataError("FS303", f"{records.where(row)} has no label{said}. Fill it in, or drop the row")
        if known is not None and label not in known:
            raise DataError("FS303", f"{records.where(row)} has the unknown label '{label}'. {nearest(label, known)}")
    for row, label in enumerate(records.true or ()):
        if known is not None and label and label not in known:
            raise DataError(
                "FS303", f"{records.where(row)} has the unknown true label '{label}'. {nearest(label, known)}"
            )
    refuse_twice(records.class_names or (), records.origin)
    names = records.class_names or sorted_names(found)
    if names or not records.may_lack_labels:
        require_classes(len(names), records.origin, names[0])
    return names


def is_missing(text: str) -> bool:
    """Whether a cell is empty, or holds what programs write for an empty one."""
    return text.strip().casefold() in MISSING


def refuse_twice(class_names: Names, origin: str) -> None:
    """FS313 for classes of one name: they could not be told apart."""
    counted = Counter(class_names)
    twice = next((name for name in class_names if counted[name] > 1), None)
    if twice is not None:
        raise DataError("FS313", f"{origin}: two classes are called '{twice}'. Name each class once")


def alike_notes(what: str, names: Names) -> list[str]:
    """A note on names that differ in capitals or blanks alone: mostly they are meant to be one."""
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(" ".join(unicodedata.normalize("NFKC", name).casefold().split()), []).append(name)
    pairs = [" and ".join(f"'{name}'" for name in group) for group in alike.values() if len(group) > 1]
    if not pairs:
        return []
    return [
        f"{what} whose names differ in capitals or blanks alone: {', '.join(pairs)}. If they are one, name them alike"
    ]


def sorted_names(names: set[str]) -> tuple[str, ...]:
    """In alphabetical order; names that look like numbers come first, as numbers: 2 before 10."""
    return tuple(sorted(names, key=_sort_key))


def _sort_key(name: str) -> tuple[int, float, str]:
    try:
        return 0, float(name), name
    except ValueError:
        return 1, 0.0, name


def to_source(
    name: str, records: Records, store: Store, class_names: tuple[str, ...], *, test_fraction: float, seed: int
) -> Source:
    """The source of checked records whose training rows come first."""
    labels = _numbered(records.labels, class_names)
    true, partly = _truth(records, class_names)
    notes = [*records.notes, *store.notes, *partly, *alike_notes("classes", class_names)]
    best = np.where(true >= 0, true, labels)
    owners, owner_names = _codes(records.clients)
    notes += alike_notes("clients", owner_names)
    groups, _ = _codes(records.groups)
    n_train = len(store.samples)
    rows, test_samples = None, store.test
    if test_samples is None and (not test_fraction or (labels == UNLABELLED).all()):
        tested, test_samples = np.arange(0), store.samples[:0].copy()
        notes += [] if test_fraction else [UNTESTED]
    elif test_samples is None:
        chosen = chosen_for_test(labels, owners, groups, test_fraction, numpy_rng(seed, "federation", "test"))
        if not chosen.any():
            raise DataError(
                "FS305",
                f"{records.origin}: no client has enough rows to keep {test_fraction:g} of them for testing. "
                "Raise data.test_fraction, mark rows as test, or test on nothing with data.test_fraction=0",
            )
        rows, tested = np.flatnonzero(~chosen), np.flatnonzero(chosen)
        test_samples = store.take(tested)
        notes.append(
            f"the data bring no test set: {len(tested)} of {len(labels)} rows are kept for testing "
            f"(data.test_fraction={test_fraction:g}, by client and class)"
        )
    else:
        tested = np.arange(n_train, len(labels))
    if (true[tested] < 0).any():
        notes.append("test labels are as delivered: accuracy is agreement with them, right or wrong")
    trained = np.arange(n_train) if rows is None else rows
    notes += overlap_notes(store.digests[trained], store.digests[tested])
    if owners is not None:
        owners, owner_names = _present(owners[:n_train], owner_names)
    return Source(
        name=name,
        images=store.samples,
        labels=labels[:n_train],
        true=true[:n_train] if (true[trained] >= 0).all() else None,
        test_images=test_samples,
        test_labels=best[tested],
        class_names=class_names,
        rows=rows,
        owners=owners,
        owner_names=owner_names,
        groups=None if groups is None else groups[:n_train],
        origins=records.origins[:n_train],
        texts=None if records.texts is None else tuple(records.texts[:n_train]),
        test_texts=None if records.texts is None else tuple(records.texts[row] for row in tested.tolist()),
        reading=store.reading,
        notes=tuple(notes),
    )


def chosen_for_test(
    labels: np.ndarray,
    owners: np.ndarray | None,
    groups: np.ndarray | None,
    fraction: float,
    rng: np.random.Generator,
) -> np.ndarray:
    """Which rows to test on: the whole part of the fraction of each client's labelled rows, its classes in proportion.

    Where rows belong to groups, whole groups are taken as long as they fit: nobody is trained and tested on.
    """
    chosen = np.zeros(len(labels), bool)
    owners = np.zeros(len(labels), np.int64) if owners is None else owners
    for owner in np.unique(owners):
        mine = np.flatnonzero((owners == owner) & (labels != UNLABELLED))
        wanted = whole_part(fraction, len(mine))
        if groups is None:
            chosen[mine[spread_order(labels[mine], rng)[:wanted]]] = True
            continue
        partly = groups[(owners == owner) & (labels == UNLABELLED)]
        for group in rng.permutation(np.setdiff1d(groups[mine], partly)):
            rows = mine[groups[mine] == group]
            if len(rows) <= wanted:
                chosen[rows] = True
                wanted -= len(rows)
    return chosen


def digests(samples: np.ndarray) -> np.ndarray:
    """A number that stands for the content of each row."""
    return np.array([digest(row) for row in samples], np.uint64)


def digest(row: np.ndarray) -> int:
    return int.from_bytes(hashlib.blake2b(np.ascontiguousarray(row).data, digest_size=8).digest(), "little")


def overlap_notes(train: np.ndarray, test: np.ndarray) -> list[str]:
    """A note if the content of test samples also occurs, bit for bit, among the training samples."""
    both = np.flatnonzero(np.isin(test, train))
    if not len(both):
        return []
    return [f"{len(both)} of {len(test)} test samples are also training samples (the first is test sample {both[0]})"]


def _truth(records: Records, class_names: tuple[str, ...]) -> tuple[np.ndarray, list[str]]:
    """True labels, -1 where unknown, and a note where only some are known."""
    number = {name: code for code, name in enumerate(class_names)}
    true = np.array([number.get(label, -1) for label in records.true or [""] * len(records.labels)], np.int64)
    known = int((true >= 0).sum())
    if known in (0, len(true)):
        return true, []
    return true, [f"true labels are given for {known} of {len(true)} rows: noise is measured only where all are"]


def _codes(names: Names | None) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """Names as numbers in sorted order."""
    if names is None:
        return None, ()
    known = sorted_names(set(names))
    return _numbered(names, known), known


def _numbered(names: Names, known: tuple[str, ...]) -> np.ndarray:
    """Checked names as numbers; where one is missing, which only labels may be, it is -1."""
    number = {name: code for code, name in enumerate(known)}
    return np.array([number.get(name, UNLABELLED) for name in names], np.int64)


def _present(owners: np.ndarray, names: tuple[str, ...]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Owners that have training rows, numbered anew."""
    there, codes = np.unique(owners, return_inverse=True)
    return codes.astype(np.int64), tuple(names[i] for i in there)
