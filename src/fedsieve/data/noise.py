"""Wrong labels: what each client's true labels are turned into.

A noise is applied with one random stream per client, so the flips of one client tell nothing about those of another.
The rate a client was meant to have and the one it got are both kept, for they differ: a noise may draw the true label
again, touch only some classes, or round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedsieve.data.class_noise import (
    Asymmetric,
    ClassDependent,
    ClassIndependent,
    Mixed,
    NoNoise,
    Pair,
    Superclass,
    Symmetric,
    SymmetricSelf,
)
from fedsieve.data.instance_noise import Human, InstancePart, InstanceSoft
from fedsieve.data.noise_base import Noise, Owned, check
from fedsieve.data.rates import RATES, Rates

__all__ = ["NOISES", "RATES", "Noise", "NoiseOutcome", "Owned", "Rates", "corrupt", "transition_test"]

NOISES: dict[str, type[Noise]] = {
    "none": NoNoise,
    "symmetric": Symmetric,
    "symmetric-self": SymmetricSelf,
    "pair": Pair,
    "asymmetric": Asymmetric,
    "superclass": Superclass,
    "mixed": Mixed,
    "class-independent": ClassIndependent,
    "class-dependent": ClassDependent,
    "instance-soft": InstanceSoft,
    "instance-part": InstancePart,
    "human": Human,
}


@dataclass(frozen=True)
class NoiseOutcome:
    """What noise did to a federation."""

    given: list[NDArray[np.int64]]
    nominal: NDArray[np.float64]
    """The rate each client was meant to have; NaN where the noise has no rate (human labels)."""
    realised: NDArray[np.float64]
    """The share of each client's labels that are wrong."""
    transitions: NDArray[np.int64]
    """Over all clients, how often each true class (row) was given as each class (column)."""


def corrupt(
    noise: Noise,
    rates: Rates,
    owned: Sequence[Owned],
    n_classes: int,
    stream: Callable[..., np.random.Generator],
) -> NoiseOutcome:
    """Apply noise to every client. `stream(*key)` gives an independent generator for each key."""
    nominal = noise.nominal(rates, len(owned), stream("rates"))
    for one, rate in zip(owned, nominal, strict=True):
        check(one, rate, n_classes)
    flips = noise.for_clients(owned, n_classes, stream("noise"))
    given = [
        np.asarray(flip(one, float(rate), n_classes, stream("noise", one.client)), np.int64)
        for one, rate, flip in zip(owned, nominal, flips, strict=True)
    ]
    realised = np.array(
        [np.mean(new != one.labels) if len(new) else 0.0 for one, new in zip(owned, given, strict=True)]
    )
    transitions = np.zeros((n_classes, n_classes), np.int64)
    for one, new in zip(owned, given, strict=True):
        np.add.at(transitions, (one.labels, new), 1)
    return NoiseOutcome(given, nominal, realised, transitions)


def transition_test(transitions: NDArray[np.int64], nominal_matrix: NDArray[np.float64]) -> float:
    """The chi-square p-value of counts against a row-stochastic matrix; 0 where something impossible occurred."""
    from scipy.special import chdtrc

    expected = transitions.sum(axis=1, keepdims=True) * nominal_matrix
    possible = expected > 0
    if transitions[~possible].any():
        return 0.0
    statistic = float(((transitions - expected)[possible] ** 2 / expected[possible]).sum())
    freedom = int(possible.sum() - possible.any(axis=1).sum())
    return float(chdtrc(freedom, statistic)) if freedom else 1.0
