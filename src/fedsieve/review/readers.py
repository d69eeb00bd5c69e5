"""How far readers who decided on the same rows agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

from fedsieve.data.decisions import Decision, Key, Standing
from fedsieve.estimate.agreement import cohens_kappa


@dataclass(frozen=True)
class Agreement:
    first: str
    second: str
    rows: int
    """That both decided."""
    differ: int
    kappa: float | None


def agreements(by_reader: Mapping[str, Mapping[Key, Standing]]) -> list[Agreement]:
    """Of every two readers who have rows in common."""
    found = []
    for (one, mine), (other, theirs) in combinations(sorted(by_reader.items()), 2):
        both = [key for key in mine if key in theirs]
        first, second = ([_verdict(decided[key].decision) for key in both] for decided in (mine, theirs))
        differ = sum(a != b for a, b in zip(first, second, strict=True))
        if both:
            found.append(Agreement(one, other, len(both), differ, cohens_kappa(first, second)))
    return found


def _verdict(decision: Decision) -> tuple[str, str | None]:
    """What they must agree on: the class, or why there is none."""
    return ("class" if decision.after is not None else decision.action), decision.after
