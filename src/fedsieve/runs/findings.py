"""What a run says of each owner's labels as a whole, from the scores in its folder."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedsieve.estimate.label_scores import Budget, Wrong, budget, wrong
from fedsieve.evaluate.schema import File
from fedsieve.report.folder import read_labels
from fedsieve.report.records import Label


@dataclass(frozen=True)
class Findings:
    """Of one owner."""

    owner: str
    rows: int
    flagged: int
    wrong: Wrong
    """Share of its labels that are wrong, with an interval."""
    budget: Budget
    """What looking at the most doubtful rows first would find."""
    twins: int
    """Rows that are nearly the same as another one of the owner that is labelled otherwise."""

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def findings(folder: Path) -> list[Findings]:
    """Owner by owner, as `labels.csv` has them; none where no method judged any label."""
    labels = read_labels(folder / File.LABELS) or ()
    by_owner: dict[str, list[Label]] = {}
    for label in labels:
        by_owner.setdefault(label.owner, []).append(label)
    return [
        Findings(
            owner=owner,
            rows=len(mine),
            flagged=sum(one.flagged for one in mine),
            wrong=wrong(scores),
            budget=budget(scores),
            twins=sum(bool(one.twin) for one in mine),
        )
        for owner, mine in by_owner.items()
        if (scores := [one.score for one in mine])
    ]
