"""What the decisions so far say of the labels that nobody has looked at: the owner knows when to stop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedsieve.estimate.agreement import Interval, share_interval
from fedsieve.review.queue import Queue

LEVEL = 0.95


@dataclass(frozen=True)
class Share:
    """So many of those looked at were wrong, and between which shares all of their kind are."""

    wrong: int
    of: int
    low: float
    high: float


@dataclass(frozen=True)
class Left:
    """Wrong labels among the rows that are not decided."""

    rows: int
    expected: float | None
    low: float
    high: float


@dataclass(frozen=True)
class Estimates:
    flags: Share
    """Of the flagged labels: the precision of the flags."""
    missed: Share
    """Of the labels that are not flagged."""
    found: int
    """Wrong labels found so far."""
    left: Left

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def estimated(queue: Queue, wrong: Mapping[int, bool | None]) -> Estimates:
    """From what a reader found, by row: wrong, right, or None for unsure."""
    flagged = queue.judged.flagged
    missed = _share(queue.controls, wrong)
    suspects = np.flatnonzero(flagged)
    whole = all(int(row) in wrong for row in suspects)
    flags = _share(suspects if whole else queue.probes, wrong)
    open_rows = np.array([row not in wrong for row in range(len(flagged))], bool)
    return Estimates(
        flags, missed, sum(verdict is True for verdict in wrong.values()), _left(queue, wrong, flags, missed, open_rows)
    )


def _share(drawn: np.ndarray, wrong: Mapping[int, bool | None]) -> Share:
    """Of rows in the order in which they were drawn, up to the first that is not decided: whatever a reader chose to
    look at first, these are a random sample. Those that the reader was unsure of do not count."""
    known: list[bool] = []
    for row in drawn.tolist():
        if row not in wrong:
            break
        if (verdict := wrong[row]) is not None:
            known.append(verdict)
    return Share(sum(known), len(known), *share_interval(sum(known), len(known), LEVEL))


def _left(queue: Queue, wrong: Mapping[int, bool | None], flags: Share, missed: Share, open_rows: np.ndarray) -> Left:
    """The open rows of both kinds; each of the two intervals is as wide as makes both hold together at the level."""
    flagged = queue.judged.flagged
    suspects, others = int((open_rows & flagged).sum()), int((open_rows & ~flagged).sum())
    found = sum(verdict is True and bool(flagged[row]) for row, verdict in wrong.items())
    both = (1 + LEVEL) / 2
    of_flags, of_missed = (share_interval(share.wrong, share.of, both) for share in (flags, missed))

    def open_suspects(share: float) -> float:
        return float(np.clip(share * flagged.sum() - found, 0, suspects))

    known = (flags.of or not suspects) and (missed.of or not others)
    expected = open_suspects(_rate(flags)) + _rate(missed) * others if known else None
    bounds = Interval(*(open_suspects(a) + b * others for a, b in zip(of_flags, of_missed, strict=True)))
    return Left(suspects + others, expected, bounds.low, bounds.high)


def _rate(share: Share) -> float:
    return share.wrong / share.of if share.of else 0.0
