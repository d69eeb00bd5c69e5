"""Numbers that change with the round: called with the stage's round t, counted from 0."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

Schedule = Callable[[int], float]


@dataclass(frozen=True)
class Const:
    value: float

    def __call__(self, t: int) -> float:
        return self.value


@dataclass(frozen=True)
class Ramp:
    """From `start` to `stop` in a straight line over `over` rounds, then constant."""

    start: float
    stop: float
    over: int

    def __call__(self, t: int) -> float:
        if self.over <= 0:
            return self.stop
        return self.start + (self.stop - self.start) * min(t / self.over, 1.0)


def rise(t: int, over: int) -> float:
    """exp(−5 (1 − t/over)²): from 0.007 to 1."""
    return math.exp(-5.0 * (1.0 - min(t / over, 1.0)) ** 2)


@dataclass(frozen=True)
class Cosine:
    """Half a cosine from `start` to zero over `over` rounds."""

    start: float
    over: int

    def __call__(self, t: int) -> float:
        return 0.5 * self.start * (1.0 + math.cos(math.pi * min(t / max(self.over, 1), 1.0)))


@dataclass(frozen=True)
class Exponential:
    """`start` multiplied by `decay` each round."""

    start: float
    decay: float

    def __call__(self, t: int) -> float:
        return self.start * self.decay**t


@dataclass(frozen=True)
class Steps:
    """Divided by ten after half and after three quarters of the rounds."""

    start: float
    over: int

    def __call__(self, t: int) -> float:
        return self.start * 0.1 ** sum(t >= mark * self.over for mark in (0.5, 0.75))


@dataclass(frozen=True)
class Paused:
    """A schedule that stands still in some rounds: `spans` are their numbers in order, and whether they count."""

    schedule: Schedule
    spans: tuple[tuple[int, bool], ...]

    def __call__(self, t: int) -> float:
        counted = begun = 0
        for length, counts in self.spans:
            counted += min(max(t - begun, 0), length) if counts else 0
            begun += length
        last = sum(length for length, counts in self.spans if counts) - 1
        return self.schedule(max(0, min(counted, last)))


def learning_rate(name: str, lr: float, rounds: int, decay: float) -> Schedule:
    """The schedule of that name; `rounds` is how many it spans."""
    schedules: dict[str, Schedule] = {
        "none": Const(lr),
        "cosine": Cosine(lr, rounds),
        "exponential": Exponential(lr, decay),
        "steps": Steps(lr, rounds),
    }
    return schedules[name]
