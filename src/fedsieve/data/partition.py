"""Who holds which rows: the split of a pool of data over clients.

A partition names one client for each row, so every row is dealt exactly once. It looks at the true labels, for a
simulated split is made before the noise. Nobody stays without rows: where chance leaves a client short, rows move to it
from the largest clients and a note says how many.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsieve.base.errors import ConfigError, DataError
from fedsieve.base.options import Choice
from fedsieve.data.dealing import by_label, deal, even_blocks, proportions, rows_of, top_up, whole_part
from fedsieve.data.maps import TASK_PRESETS

Alpha = Annotated[float, Field(gt=0, allow_inf_nan=False)]
MAX_DRAWS = 100


@dataclass(frozen=True)
class Pool:
    """What a partition may look at."""

    labels: NDArray[np.int64]
    n_classes: int
    owners: NDArray[Any] | None = None
    """Natural owners (clients) or groups (such as patients) of the rows, where the source knows them."""


@dataclass(frozen=True)
class Split:
    """The rows of each client."""

    rows: list[NDArray[np.int64]]
    """Row numbers into the pool, sorted, disjoint between clients."""
    notes: list[str] = field(default_factory=list)
    """What the user should know, one sentence each."""
    tasks: list[int] | None = None
    """The task of each client, where the partition has tasks."""
    task_classes: list[list[int]] | None = None


@dataclass(frozen=True, kw_only=True)
class Partition(Choice, ABC):
    """A rule that splits a pool over clients."""

    def __call__(self, pool: Pool, clients: int, rng: np.random.Generator) -> Split:
        if clients < 1:
            raise ConfigError(
                "FS002", f"clients={clients}: a federation needs at least one client. Give clients=1 or more"
            )
        if len(pool.labels) < clients:
            raise _too_few(f"{len(pool.labels)} rows cannot be divided over {clients} clients")
        return self.split(pool, clients, rng)

    @abstractmethod
    def split(self, pool: Pool, clients: int, rng: np.random.Generator) -> Split:
        """The split itself; there are at least as many rows as clients."""


@dataclass(frozen=True, kw_only=True)
class Iid(Partition):
    """Rows at random; sizes differ by at most one."""

    def split(self, pool: Pool, clients: int, rng: np.random.Generator) -> Split:
        return Split(rows_of(deal(rng.permutation(len(pool.labels)), clients, rng), clients))


@dataclass(frozen=True, kw_only=True)
class IidBalanced(Partition):
    """The same number of rows of each class at every client, give or take one; sizes differ by at most one."""

    def split(self, pool: Pool, clients: int, rng: np.random.Generator) -> Split:
        return Split(rows_of(deal(by_label(pool.labels, rng), clients, rng), clients))


@dataclass(frozen=True, kw_only=True)
class _DirichletShares(Partition):
    """Blocks of rows are each divided in proportions drawn from a Dirichlet distribution."""

    alpha: Alpha = 0.5
    """Concentration; the smaller, the more unequal the shares."""
    min_size: Annotated[int, Field(ge=1)] = 10
    """Draw again until every client has so many rows."""

    @abstractmethod
    def blocks(self, pool: Pool) -> NDArray[np.int64]:
        """The block of each row."""

    def split(self, pool: Pool, clients: int, rng: np.random.Generator) -> Split:
        n = len(pool.labels)
        minimum = min(self.min_size, n // clients)
        notes = []
        if minimum < self.min_size:
            notes.append(f"min_size lowered from {self.min_size} to {minimum}: {n} rows over {clients} clients.")
        blocks = self.blocks(pool)
        block_sizes = np.bincount(blocks)
        for _ in range(MAX_DRAWS):
            counts = self._draw(block_sizes, clients, rng)
            if counts.sum(axis=0).min() >= minimum:
                break
        client_of = np.empty(n, np.int64)
        client_of[by_label(blocks, rng)] = np.tile(np.arange(clients), len(counts)).repeat(counts.ravel())
        client_of, moved = top_up(client_of, clients, minimum, rng)
        return Split(rows_of(client_of, clients), notes + moved)

    def _draw(self, block_sizes: NDArray[np.int64], clients: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Rows of each block for each client; a client that already holds its even share gets no more."""
        counts = np.zeros((len(block_sizes), clients), np.int64)
        even = block_sizes.sum() / clients
        for block, size in enumerate(block_sizes):
            shares = proportions(self.alpha, counts.sum(axis=0) < even, rng)
            cuts = np.minimum(np.cumsum(shares)[:-1] * size, size).astype(np.int64)
            counts[block] = np.diff(cuts, prepend=0, append=size)
        return counts


@dataclass(frozen=True, kw_only=True)
class Dirichlet(_DirichletShares):
    """Each class is divided in Dirichlet proportions (label skew)."""

    def blocks(self, pool: Pool) -> NDArray[np.int64]:
        return pool.labels


@dataclass(frozen=True, kw_only=True)
class Quantity(_DirichletShares):
    """Sizes in Dirichlet proportions, labels at random (quantity skew only)."""

    def blocks(self, pool: Pool) -> NDArray[np.int64]:
        return np.zeros(len(pool.labels), np.int64)


@dataclass(frozen=True, kw_only=True)
class DirichletFedRN(_DirichletShares):
    """For parity with FedRN's published code only: ten blocks of row numbers stand for classes, so labels stay IID."""

    def blocks(self, pool: Pool) -> NDArray[np.int64]:
        return even_blocks(len(pool.labels), 10)


@dataclass(frozen=True, kw_only=True)
class Shards(Partition):
    """Rows sorted by label are cut into equal shards, and each client gets some at random (FedRN)."""

    shards: Annotated[int, Field(ge=1)] = 2
    """Shards per client."""

    def split(self, pool: Pool, clients: int, rng: np.random.Generator) -> Split:
        n, total = len(pool.labels), self.shards * clients
        if total > n:
            raise _too_few(
                f"{n} rows cannot be cut into {total} shards ({self.shards} for each of {clients} clients)", "shards"
            )
        client_of = np.empty(n, np.int64)
        client_of[by_label(pool.labels, rng)] = (rng.permutation(total) // self.shards)[even_blocks(n, total)]
        extra = n % total
        notes = (
            [f"{n} rows do not divide into {total} equal shards: {extra} shards hold one row more."] if extra else []
        )
        return Split(rows_of(client_of, clients), notes)


@dataclass(frozen=True, kw_only=True)
class BernoulliDirichlet(Partition):
    """Each client holds a class with probability p; those that hold it share it in Dirichlet proportions (FedCorr)."""

    p: Annotated[float, Field(gt=0, le=1)] = 0.7
    """Probability that a client holds a class."""
    alpha: Alpha = 10.0
    """Concentration; the smaller, the less equally the holders of a class share it."""

    def split(self, pool: Pool, clients: int, rng: np.random.Generator) -> Split:
        holds = self._holders(clients, pool.n_classes, rng)
        client_of = np.empty(len(pool.labels), np.int64)
        orphans = []
        for c in np.unique(pool.labels):
            holders = np.flatnonzero(holds[:, c])
            if not len(holders):
                orphans.append(int(c))
                holders = rng.integers(clients, size=1)
            rows = np.flatnonzero(pool.labels == c)
            shares = proportions(self.alpha, np.ones(len(holders), bool), rng)
            client_of[rows] = rng.choice(holders, size=len(rows), p=shares)
        notes = [f"No client drew class {_list(orphans)}: given to a random client."] if orphans else []
        client_of, moved = top_up(client_of, clients, 1, rng)
        return Split(rows_of(client_of, clients), notes + moved)

    def _holders(self, clients: int, n_classes: int, rng: np.random.Generator) -> NDArray[np.bool_]:
        """Which client holds which class; a client without any draws again, and in the end takes one at random."""
        holds = rng.random((clients, n_classes)) < self.p
        for _ in range(MAX_DRAWS):
            empty = np.flatnonzero(~holds.any(axis=1))
            holds[empty] = rng.random((len(empty), n_classes)) < self.p
        empty = np.flatnonzero(~holds.any(axis=1))
        holds[empty, rng.integers(n_classes, size=len(empty))] = True
        return holds


@dataclass(frozen=True, kw_only=True)
class LabelCount(Partition):
    """Every client holds the same number of classes, and every class has an owner."""

    classes: Annotated[int, Field(ge=1)] = 2
    """Classes per client."""

    def split(self, pool: Pool, clients: int, rng: np.random.Generator) -> Split:
        present = np.unique(pool.labels)
        if self.classes > len(present):
            raise DataError(
                "FS305",
                f"partition.classes={self.classes}, but the data have {len(present)} classes. Give at most that many",
            )
        if self.classes * clients < len(present):
            raise DataError(
                "FS305",
                f"{clients} clients of {self.classes} classes cannot own all {len(present)} classes. "
                "Give more clients or a larger partition.classes",
            )
        holds = np.zeros((clients, len(present)), bool)
        for client in range(clients):  # the classes with fewest owners so far, ties at random
            holds[client, np.lexsort((rng.random(len(present)), holds.sum(axis=0)))[: self.classes]] = True
        client_of = np.empty(len(pool.labels), np.int64)
        for position, c in enumerate(present):
            owners = rng.permutation(np.flatnonzero(holds[:, position]))
            rows = rng.permutation(np.flatnonzero(pool.labels == c))
            client_of[rows] = owners[np.arange(len(rows)) % len(owners)]
        client_of, notes = top_up(client_of, clients, 1, rng)
        return Split(rows_of(client_of, clients), notes)


@dataclass(frozen=True, kw_only=True)
class Tasks(Partition):
    """Clients belong to tasks, which are disjoint sets of classes; within a task rows are dealt at random (FB-NLL)."""

    tasks: (
        Annotated[int, Field(ge=1)]
        | Literal["cifar10-2", "cifar10-3", "cifar10-5", "svhn-2", "svhn-3", "svhn-5"]
        | list[list[int]]
    ) = 2
    """A preset, a list of lists of classes, or a number of tasks (classes in order, as equally as possible)."""
    impurity: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Fraction of each task's rows that is pooled and dealt over all clients, whatever their task."""

    def split(self, pool: Pool, clients: int, rng: np.random.Generator) -> Split:
        task_classes = self._task_classes(pool.n_classes)
        if clients < len(task_classes):
            raise DataError(
                "FS305",
                f"{clients} clients cannot serve {len(task_classes)} tasks. Give more clients or fewer partition.tasks",
            )
        task_of = rng.permutation(np.arange(clients) % len(task_classes))
        client_of = np.empty(len(pool.labels), np.int64)
        pooled = []
        for task, classes in enumerate(task_classes):
            members = np.flatnonzero(task_of == task)
            rows = rng.permutation(np.flatnonzero(np.isin(pool.labels, classes)))
            if len(rows) < len(members):
                raise _too_few(f"task {task} has {len(rows)} rows for its {len(members)} clients")
            client_of[rows] = members[np.arange(len(rows)) % len(members)]
            pooled.append(rng.permutation(rows)[: whole_part(self.impurity, len(rows))])
        impure = rng.permutation(np.concatenate(pooled))
        client_of[impure] = rng.permutation(clients)[np.arange(len(impure)) % clients]
        client_of, notes = top_up(client_of, clients, 1, rng)
        return Split(rows_of(client_of, clients), notes, task_of.tolist(), task_classes)

    def _task_classes(self, n_classes: int) -> list[list[int]]:
        if isinstance(self.tasks, int):
            if self.tasks > n_classes:
                raise DataError(
                    "FS305",
                    f"partition.tasks={self.tasks}, but the data have {n_classes} classes. Give at most that many",
                )
            return [part.tolist() for part in np.array_split(np.arange(n_classes), self.tasks)]
        tasks = [list(task) for task in (TASK_PRESETS[self.tasks] if isinstance(self.tasks, str) else self.tasks)]
        named = [c for task in tasks for c in task]
        if wrong := sorted(set(named) - set(range(n_classes))):
            raise DataError(
                "FS305",
                f"partition.tasks names class {_list(wrong)}, but the data have {n_classes} classes. Remove it",
            )
        if missing := sorted(set(range(n_classes)) - set(named)):
            raise DataError("FS305", f"partition.tasks leaves out class {_list(missing)}. Put each class into one task")
        if len(named) > n_classes or not all(tasks):
            raise ConfigError(
                "FS002", "partition.tasks has an empty task or a class in two tasks. Put each class into one task"
            )
        return tasks


@dataclass(frozen=True, kw_only=True)
class Natural(Partition):
    """One client per owner named in the data."""

    def split(self, pool: Pool, clients: int, rng: np.random.Generator) -> Split:
        names, client_of = _owners(pool, "natural")
        if len(names) != clients:
            raise DataError(
                "FS305", f"the data have {len(names)} owners, but clients={clients}. Set clients={len(names)}"
            )
        return Split(rows_of(client_of, clients))


@dataclass(frozen=True, kw_only=True)
class Group(Partition):
    """Whole owners (patients, say) at random over clients, sizes as equal as that allows."""

    def split(self, pool: Pool, clients: int, rng: np.random.Generator) -> Split:
        names, owner_of = _owners(pool, "group")
        if len(names) < clients:
            raise DataError(
                "FS305",
                f"{len(names)} owners cannot be divided over {clients} clients without splitting one. "
                f"Give at most {len(names)} clients",
            )
        sizes = np.bincount(owner_of)
        largest_first = np.lexsort((rng.random(len(sizes)), -sizes))
        load = [(0, int(tie), client) for client, tie in enumerate(rng.permutation(clients))]
        heapq.heapify(load)
        client_of_owner = np.empty(len(sizes), np.int64)
        for owner in largest_first:
            held, tie, client = load[0]
            client_of_owner[owner] = client
            heapq.heapreplace(load, (held + int(sizes[owner]), tie, client))
        return Split(rows_of(client_of_owner[owner_of], clients))


PARTITIONS: dict[str, type[Partition]] = {
    "iid": Iid,
    "iid-balanced": IidBalanced,
    "dirichlet": Dirichlet,
    "shards": Shards,
    "bernoulli-dirichlet": BernoulliDirichlet,
    "tasks": Tasks,
    "label-count": LabelCount,
    "quantity": Quantity,
    "natural": Natural,
    "group": Group,
    "dirichlet-fedrn": DirichletFedRN,
}


def _owners(pool: Pool, name: str) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The distinct owners, sorted, and the number of each row's owner among them."""
    if pool.owners is None:
        raise DataError(
            "FS305", f"partition={name} needs owners, and the data name none. Use data with owners or another partition"
        )
    names, owner_of = np.unique(pool.owners, return_inverse=True)
    return names, owner_of.astype(np.int64)


def _too_few(what: str, option: str = "") -> DataError:
    smaller = f"a smaller partition.{option}, fewer clients" if option else "fewer clients"
    return DataError("FS305", f"{what}. Give {smaller} or more data")


def _list(classes: Sequence[int]) -> str:
    return ", ".join(map(str, classes))
