"""How sure a count makes us of a share, and how far two readers agree beyond chance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from scipy.special import betaincinv


class Interval(NamedTuple):
    low: float
    high: float


def share_interval(found: int, of: int, level: float = 0.95) -> Interval:
    """Clopper and Pearson's interval of a share: whatever the share is, it holds it with at least this probability."""
    if not 0 <= found <= of or not 0 < level < 1:
        raise ValueError(f"{found} of {of} at level {level} is no share")
    tail = (1 - level) / 2
    low = float(betaincinv(found, of - found + 1, tail)) if found else 0.0
    high = float(betaincinv(found + 1, of - found, 1 - tail)) if found < of else 1.0
    return Interval(low, high)


def cohens_kappa(first: Sequence[Hashable], second: Sequence[Hashable]) -> float | None:
    """κ = (p_o − p_e) / (1 − p_e): observed agreement against what independent readers with these habits would reach.

    None without a common sample; 1 where both said one and the same throughout, for then nothing was left to chance.
    """
    if len(first) != len(second):
        raise ValueError(f"{len(first)} and {len(second)} decisions cannot be compared")
    n = len(first)
    if not n:
        return None
    observed = sum(a == b for a, b in zip(first, second, strict=True)) / n
    one, other = Counter(first), Counter(second)
    expected = sum(count * other[name] for name, count in one.items()) / n**2
    return 1.0 if expected == 1 else (observed - expected) / (1 - expected)
