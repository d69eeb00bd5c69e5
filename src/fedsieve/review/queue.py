"""In which order rows are looked at: the most suspicious first, and among them rows that tell what the flags are worth.

**Controls** are drawn from the rows that nobody suspects. They say how many wrong labels the flags missed. They are
blind: a suggestion and a score are made up for them, such as the rows around them have. **Probes** are drawn from the
flagged rows and come early. They say how many of all flags are right; the most suspicious rows alone would say too
much. Both are drawn at random from the content of the judged file, so that they are the same in every session.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

from fedsieve.base.rng import numpy_rng

FEWEST_CONTROLS = 30
SHARE = 10
"""One of so many flagged rows is a probe, and there are as many controls, if not fewer than `FEWEST_CONTROLS`."""
NONE = -1
"""Stands for no suggestion."""


@dataclass(frozen=True)
class Judged:
    """The rows of one owner as a method judged them."""

    where: list[str]
    given: np.ndarray
    suggested: np.ndarray
    """Numbers of classes; `NONE` where the method has no opinion."""
    score: np.ndarray
    flagged: np.ndarray
    twin: np.ndarray
    """Another row that is nearly the same and labelled otherwise; `NONE` for none."""

    def __len__(self) -> int:
        return len(self.where)


@dataclass(frozen=True)
class Queue:
    """Rows in the order in which they are shown."""

    judged: Judged
    order: np.ndarray
    """All rows. The first `suspicious` of them are the flagged ones, the controls, and then others that have a twin."""
    suspicious: int
    controls: np.ndarray
    """In the order in which they were drawn, which is that in which they come."""
    probes: np.ndarray
    suggested: np.ndarray
    """As shown."""
    score: np.ndarray
    """As shown."""


def queued(judged: Judged, key: str, controls: int | None = None) -> Queue:
    """The queue that belongs to a judged file, known by its key. `controls` is how many there should be."""
    rng = numpy_rng("review", key)
    suspects = np.flatnonzero(judged.flagged)
    suspects = suspects[np.argsort(judged.score[suspects], kind="stable")]
    others = np.flatnonzero(~judged.flagged)
    share = ceil(len(suspects) / SHARE)
    drawn_probes = rng.permutation(suspects)[:share]
    wanted = max(FEWEST_CONTROLS, share) if controls is None else controls
    drawn_controls = rng.permutation(others)[:wanted]
    ranked = suspects[~np.isin(suspects, drawn_probes)]
    keys = np.concatenate(
        [(np.arange(len(ranked)) + 0.5) / max(1, len(ranked)), _spread(drawn_probes, rng), _spread(drawn_controls, rng)]
    )
    front = np.concatenate([ranked, drawn_probes, drawn_controls])[np.argsort(keys, kind="stable")].astype(np.int64)
    rest = others[~np.isin(others, drawn_controls)]
    rest = rest[np.lexsort([judged.score[rest], judged.twin[rest] == NONE])]
    order = np.concatenate([front, rest])
    suspicious = len(front) + int((judged.twin[rest] != NONE).sum())
    suggested, score = judged.suggested.copy(), judged.score.copy()
    for row, (made_up, shown) in _disguises(judged, front, drawn_controls, drawn_probes, rng).items():
        suggested[row], score[row] = made_up, shown
    return Queue(judged, order, suspicious, drawn_controls, drawn_probes, suggested, score)


def _spread(drawn: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Places between 0 and 1, one in each of as many equal stretches."""
    return (np.arange(len(drawn)) + rng.random(len(drawn))) / max(1, len(drawn))


def _disguises(
    judged: Judged, front: np.ndarray, controls: np.ndarray, probes: np.ndarray, rng: np.random.Generator
) -> dict[int, tuple[int, float]]:
    """For each control a suggestion like those of flagged rows of its class, and a score between those around it."""
    classes = int(max(judged.given.max(initial=1), judged.suggested.max(initial=1))) + 1
    flagged = np.flatnonzero(judged.flagged)
    is_control, is_ranked = np.isin(front, controls), ~np.isin(front, [*controls, *probes])
    following = np.where(is_ranked, judged.score[front], np.inf)
    following = np.minimum.accumulate(following[::-1])[::-1]  # ranked scores rise
    made: dict[int, tuple[int, float]] = {}
    last = 0.0
    for place, row in enumerate(front.tolist()):
        if is_ranked[place]:
            last = float(judged.score[row])
        elif is_control[place]:
            alike = flagged[judged.given[flagged] == judged.given[row]]
            chance = int((judged.given[row] + rng.integers(1, classes)) % classes)
            suggestion = int(judged.suggested[rng.choice(alike)]) if len(alike) else chance
            last = rng.uniform(last, following[place]) if np.isfinite(following[place]) else last
            made[row] = (suggestion, last)
    return made
