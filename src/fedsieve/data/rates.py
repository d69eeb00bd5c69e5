"""How much of each client's data is mislabelled: one nominal rate per client, in [0, 1]."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsieve.base.errors import ConfigError
from fedsieve.base.options import Choice
from fedsieve.data.dealing import whole_part

Rate = Annotated[float, Field(ge=0, le=1)]
Shape = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True)
class Rates(Choice, ABC):
    """A rule that gives each client its noise rate."""

    @abstractmethod
    def __call__(self, clients: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """The rates of so many clients."""

    def for_groups(self, sizes: Sequence[int], rng: np.random.Generator) -> NDArray[np.float64]:
        """The rates of consecutive groups of clients, each as if it were alone: two groups make two ramps."""
        return np.concatenate([self(size, rng) for size in sizes])


@dataclass(frozen=True, kw_only=True)
class Fixed(Rates):
    """The same rate for every client."""

    rate: Rate = 0.25
    """Noise rate of every client."""

    def __call__(self, clients: int, rng: np.random.Generator) -> NDArray[np.float64]:
        return np.full(clients, self.rate)


@dataclass(frozen=True, kw_only=True)
class _Range(Rates):
    """Rates between two ends."""

    low: Rate = 0.0
    """Lowest rate."""
    high: Rate = 1.0
    """Highest rate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_order("low", self.low, self.high)


@dataclass(frozen=True, kw_only=True)
class Ramp(_Range):
    """Rates rise evenly from client to client (FedRN); `high` itself is never reached."""

    high: Rate = 0.4
    """Upper end; the last of K clients has low + (high - low)(K - 1)/K."""
    shuffle: bool = True
    """Give the rates to clients in random order, so that a client's number tells nothing about its noise."""

    def __call__(self, clients: int, rng: np.random.Generator) -> NDArray[np.float64]:
        rates = self.low + np.arange(clients) * (self.high - self.low) / clients
        return rng.permutation(rates) if self.shuffle else rates


@dataclass(frozen=True, kw_only=True)
class Grid(_Range):
    """Each client draws one of equally spaced rates (FedDS: 0.1, 0.2, ..., 1.0)."""

    low: Rate = 0.1
    """Lowest rate."""
    points: Annotated[int, Field(ge=1)] = 10
    """Number of rates, both ends included."""

    def __call__(self, clients: int, rng: np.random.Generator) -> NDArray[np.float64]:
        return rng.choice(np.linspace(self.low, self.high, self.points), size=clients)


@dataclass(frozen=True, kw_only=True)
class RhoTau(Rates):
    """A client is noisy with probability rho, and then its rate is uniform between tau and high (FedCorr)."""

    rho: Rate = 0.7
    """Probability that a client is noisy."""
    tau: Rate = 0.5
    """Lowest rate of a noisy client."""
    high: Rate = 1.0
    """Highest rate of a noisy client."""
    exact: bool = False
    """Exactly the whole part of rho K noisy clients, at random, in place of a number that varies (FedNoRo)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_order("tau", self.tau, self.high)

    def __call__(self, clients: int, rng: np.random.Generator) -> NDArray[np.float64]:
        if self.exact:
            noisy = rng.permutation(clients) < whole_part(self.rho, clients)
        else:
            noisy = rng.random(clients) < self.rho
        return np.where(noisy, rng.uniform(self.tau, self.high, clients), 0.0)


@dataclass(frozen=True, kw_only=True)
class Beta(Rates):
    """Rates from a Beta distribution; small shapes make most clients nearly clean or nearly all wrong (FedNed)."""

    a: Shape = 0.1
    """First shape; the larger, the more noise."""
    b: Shape = 0.1
    """Second shape; the larger, the less noise."""

    def __call__(self, clients: int, rng: np.random.Generator) -> NDArray[np.float64]:
        return rng.beta(self.a, self.b, clients)


@dataclass(frozen=True, kw_only=True)
class Given(Rates):
    """A rate for each client, written out."""

    values: list[Rate] = field(default_factory=list)
    """One rate per client, in client order."""

    def __call__(self, clients: int, rng: np.random.Generator) -> NDArray[np.float64]:
        if len(self.values) != clients:
            raise ConfigError(
                "FS002", f"noise.values has {len(self.values)} rates for {clients} clients. Give one rate per client"
            )
        return np.array(self.values)

    def for_groups(self, sizes: Sequence[int], rng: np.random.Generator) -> NDArray[np.float64]:
        return self(sum(sizes), rng)


RATES: dict[str, type[Rates]] = {
    "fixed": Fixed,
    "ramp": Ramp,
    "rho-tau": RhoTau,
    "grid": Grid,
    "beta": Beta,
    "given": Given,
}


def _check_order(name: str, low: float, high: float) -> None:
    if low > high:
        raise ConfigError(
            "FS002", f"noise.{name}={low} is above noise.high={high}. Give noise.{name} at most noise.high"
        )
