"""What a noise is: the data it may see and the hooks it fills."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedsieve.base.errors import ConfigError, DataError
from fedsieve.base.options import Choice
from fedsieve.data.rates import Rates


@dataclass(frozen=True)
class Owned:
    """One client's data as noise may see them."""

    labels: NDArray[np.int64]
    """True labels."""
    client: int
    task: tuple[int, ...] | None = None
    """The classes of the client's task."""
    rows: NDArray[np.int64] | None = None
    """Row numbers in the source, for human labels."""
    features: NDArray[np.float32] | None = None
    """(n, d), flattened images or features; filled where the noise `needs_features`."""
    soft: NDArray[np.floating] | None = None
    """(n, classes), a helper model's soft labels; filled where the noise `needs_soft`."""


Flip = Callable[[Owned, float, int, np.random.Generator], NDArray[np.int64]]
"""What turns one client's true labels into given ones: (owned, rate, n_classes, rng)."""


@dataclass(frozen=True, kw_only=True)
class Noise(Choice, ABC):
    """A way in which labels go wrong."""

    needs_features: ClassVar[bool] = False
    needs_soft: ClassVar[bool] = False

    def __call__(self, owned: Owned, rate: float, n_classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """The given labels of a client that is alone."""
        check(owned, rate, n_classes)
        return self.for_clients([owned], n_classes, rng)[0](owned, rate, n_classes, rng)

    @abstractmethod
    def for_clients(self, owned: Sequence[Owned], n_classes: int, rng: np.random.Generator) -> Sequence[Flip]:
        """What to do at each client; what clients share is prepared here."""

    def nominal(self, rates: Rates, clients: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """The rate each client is meant to have."""
        return rates(clients, rng)


@dataclass(frozen=True, kw_only=True)
class ClientwiseNoise(Noise):
    """A noise for which clients share nothing."""

    def for_clients(self, owned: Sequence[Owned], n_classes: int, rng: np.random.Generator) -> Sequence[Flip]:
        return [self.flip] * len(owned)

    @abstractmethod
    def flip(self, owned: Owned, rate: float, n_classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """The given labels of one client."""


def check(owned: Owned, rate: float, n_classes: int) -> None:
    """FS002 for a rate outside [0, 1], FS303 for a label that is no class."""
    if rate < 0 or rate > 1:
        raise ConfigError(
            "FS002", f"noise rate {rate} of client {owned.client} is outside [0, 1]. Give a rate between 0 and 1"
        )
    outside = np.flatnonzero((owned.labels < 0) | (owned.labels >= n_classes))
    if len(outside):
        raise DataError(
            "FS303",
            f"client {owned.client}, row {outside[0]}: label {owned.labels[outside[0]]} is not one of {n_classes} "
            "classes. Number the classes from 0",
        )


def require_two_classes(n_classes: int, name: str) -> None:
    if n_classes < 2:
        raise ConfigError("FS002", f"noise={name} needs 2 classes for a label to be wrong. Use noise=none")
