"""Noise that depends on nothing but the class, or not even on that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedsieve.base.errors import ConfigError
from fedsieve.data.dealing import whole_part
from fedsieve.data.maps import CIFAR100_SUPERCLASSES, CLASS_MAPS, next_in_group
from fedsieve.data.noise_base import ClientwiseNoise, Flip, Noise, Owned, require_two_classes
from fedsieve.data.rates import Rates

Count = Literal["exact", "bernoulli"]


@dataclass(frozen=True, kw_only=True)
class NoNoise(ClientwiseNoise):
    """All labels stay as they are."""

    def nominal(self, rates: Rates, clients: int, rng: np.random.Generator) -> NDArray[np.float64]:
        return np.zeros(clients)

    def flip(self, owned: Owned, rate: float, n_classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
        return owned.labels.copy()


@dataclass(frozen=True, kw_only=True)
class Symmetric(ClientwiseNoise):
    """A wrong label is any of the other classes, all equally likely."""

    count: Count = "exact"
    """exact: the whole part of rate times n labels are wrong; bernoulli: each label is wrong with that probability."""
    space: Literal["all", "local"] = "all"
    """Classes a wrong label may be: all, or those the client holds (all if it holds one)."""

    def flip(self, owned: Owned, rate: float, n_classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
        require_two_classes(n_classes, "symmetric")
        chosen = _choose(np.arange(len(owned.labels)), rate, self.count, rng)
        held = np.unique(owned.labels)
        space = held if self.space == "local" and len(held) > 1 else np.arange(n_classes)
        return _replace(owned.labels, chosen, _other_classes(owned.labels[chosen], space, rng))


@dataclass(frozen=True, kw_only=True)
class SymmetricSelf(ClientwiseNoise):
    """With probability rate a label is drawn again from all classes, so it may come out right (FedCorr, FedNoRo)."""

    def flip(self, owned: Owned, rate: float, n_classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
        chosen = _choose(np.arange(len(owned.labels)), rate, "bernoulli", rng)
        return _replace(owned.labels, chosen, rng.integers(n_classes, size=len(chosen)))


@dataclass(frozen=True, kw_only=True)
class Pair(ClientwiseNoise):
    """A wrong label is the next class."""

    step: int = 1
    """How far the next class is, circularly; FedRN's code uses -1."""
    count: Count = "exact"
    """exact: the whole part of rate times n labels are wrong; bernoulli: each label is wrong with that probability."""

    def flip(self, owned: Owned, rate: float, n_classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
        if self.step % n_classes == 0:
            raise ConfigError(
                "FS002",
                f"noise.step={self.step} changes no label with {n_classes} classes. Give another step or noise=none",
            )
        chosen = _choose(np.arange(len(owned.labels)), rate, self.count, rng)
        return _replace(owned.labels, chosen, (owned.labels[chosen] + self.step) % n_classes)


@dataclass(frozen=True, kw_only=True)
class Asymmetric(ClientwiseNoise):
    """Some classes are taken for one other; the rest stay right, so the overall rate is below the nominal one."""

    map: Literal["cifar10", "cifar10-two-way", "mnist"] | dict[int, int] | list[tuple[int, int]] = "cifar10"
    """A named map, or pairs {from: to}."""
    count: Count = "exact"
    """exact: the whole part of rate times the rows of the source classes; bernoulli: each with that probability."""

    def flip(self, owned: Owned, rate: float, n_classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
        mapping = CLASS_MAPS[self.map] if isinstance(self.map, str) else dict(self.map)
        return _map_labels(mapping, owned, rate, n_classes, self.count, rng)


@dataclass(frozen=True, kw_only=True)
class Superclass(ClientwiseNoise):
    """A class is taken for the next one of its superclass, circularly."""

    map: Literal["cifar100"] | list[list[int]] = "cifar100"
    """CIFAR-100's coarse classes, or a list of lists of classes."""
    count: Count = "exact"
    """exact: the whole part of rate times the rows of these classes; bernoulli: each with that probability."""

    def flip(self, owned: Owned, rate: float, n_classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
        if self.map == "cifar100" and n_classes != 100:
            raise ConfigError(
                "FS002",
                f"noise=superclass knows the superclasses of 100 classes, and the data have {n_classes}. "
                "Give noise.map, a list of lists of classes",
            )
        groups = list(CIFAR100_SUPERCLASSES.values()) if isinstance(self.map, str) else self.map
        return _map_labels(next_in_group(groups), owned, rate, n_classes, self.count, rng)


@dataclass(frozen=True, kw_only=True)
class Mixed(Noise):
    """The first half of the clients has symmetric noise, the other half pair noise, each half with rates of its own."""

    step: int = 1
    """How far the next class of pair noise is, circularly; FedRN's code uses -1."""
    count: Count = "exact"
    """exact: the whole part of rate times n labels are wrong; bernoulli: each label is wrong with that probability."""

    def for_clients(self, owned: Sequence[Owned], n_classes: int, rng: np.random.Generator) -> Sequence[Flip]:
        first, second = self._halves(len(owned))
        return [Symmetric(count=self.count).flip] * first + [Pair(step=self.step, count=self.count).flip] * second

    def nominal(self, rates: Rates, clients: int, rng: np.random.Generator) -> NDArray[np.float64]:
        return rates.for_groups(self._halves(clients), rng)

    @staticmethod
    def _halves(clients: int) -> tuple[int, int]:
        return clients - clients // 2, clients // 2


@dataclass(frozen=True, kw_only=True)
class ClassIndependent(ClientwiseNoise):
    """A share of the client's labels, whatever their class, becomes one class of another task (FB-NLL)."""

    def flip(self, owned: Owned, rate: float, n_classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
        _, foreign = _task_and_rest(owned, n_classes, "class-independent")
        chosen = _choose(np.arange(len(owned.labels)), rate, "exact", rng)
        return _replace(owned.labels, chosen, rng.choice(foreign))


@dataclass(frozen=True, kw_only=True)
class ClassDependent(ClientwiseNoise):
    """As many labels, but of one class of the client's task (then of a next, if short), become one of another task."""

    def flip(self, owned: Owned, rate: float, n_classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
        task, foreign = _task_and_rest(owned, n_classes, "class-dependent")
        turn = np.full(n_classes, len(task))
        turn[rng.permutation(task)] = np.arange(len(task))
        order = rng.permutation(len(owned.labels))
        order = order[np.argsort(turn[owned.labels[order]], kind="stable")]
        own = order[turn[owned.labels[order]] < len(task)]
        return _replace(owned.labels, own[: whole_part(rate, len(owned.labels))], rng.choice(foreign))


def _choose(rows: NDArray[np.int64], rate: float, count: Count, rng: np.random.Generator) -> NDArray[np.int64]:
    """The rows to mislabel: exactly the whole part of their share, or each by itself with that probability."""
    if count == "bernoulli":
        return rows[rng.random(len(rows)) < rate]
    return rng.permutation(rows)[: whole_part(rate, len(rows))]


def _replace(labels: NDArray[np.int64], rows: NDArray[np.int64], new: NDArray[np.int64] | int) -> NDArray[np.int64]:
    given = labels.copy()
    given[rows] = new
    return given


def _other_classes(labels: NDArray[np.int64], space: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """A class of the (sorted) space for each label, all but the label itself equally likely."""
    drawn = rng.integers(len(space) - 1, size=len(labels))
    return space[drawn + (drawn >= np.searchsorted(space, labels))]


def _map_labels(
    mapping: Mapping[int, int], owned: Owned, rate: float, n_classes: int, count: Count, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Labels with a share of those the mapping knows sent where it says."""
    target = np.arange(n_classes)
    for source, wrong in mapping.items():
        if not (0 <= source < n_classes and 0 <= wrong < n_classes) or source == wrong:
            raise ConfigError(
                "FS002",
                f"noise.map sends class {source} to {wrong}, and the data have {n_classes} classes. "
                f"Give pairs of different classes between 0 and {n_classes - 1}",
            )
        target[source] = wrong
    sources = np.flatnonzero(target[owned.labels] != owned.labels)
    chosen = _choose(sources, rate, count, rng)
    return _replace(owned.labels, chosen, target[owned.labels[chosen]])


def _task_and_rest(owned: Owned, n_classes: int, name: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The classes of the client's task, and the others."""
    if owned.task is None:
        raise ConfigError("FS002", f"noise={name} needs clients with tasks. Use partition=tasks")
    rest = np.setdiff1d(np.arange(n_classes), owned.task)
    if not len(rest):
        raise ConfigError(
            "FS002",
            f"noise={name}: the task of client {owned.client} holds every class. Give partition.tasks of 2 or more",
        )
    return np.array(owned.task, np.int64), rest
