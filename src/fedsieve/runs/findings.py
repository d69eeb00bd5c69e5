"""What a run says of each owner's labels as a whole, from the scores in its folder."""

from __future__ import annotations

import csv
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedsieve.base.errors import DataError
from fedsieve.estimate.label_scores import Budget, Wrong, budget, wrong
from fedsieve.evaluate.schema import LABEL_COLUMNS, File


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

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def findings(folder: Path) -> list[Findings]:
    """Owner by owner, as `labels.csv` has them; none where no method judged any label."""
    file = folder / File.LABELS
    if not file.exists():
        return []
    scores: dict[str, list[float]] = {}
    flagged: dict[str, int] = {}
    try:
        with file.open(newline="", encoding="utf-8") as rows:
            for row in csv.DictReader(rows):
                owner = row[LABEL_COLUMNS[0]]
                scores.setdefault(owner, []).append(float(row["score"]))
                flagged[owner] = flagged.get(owner, 0) + (row["flagged"] == "true")
    except (KeyError, TypeError, ValueError) as problem:
        raise DataError("FS311", f"{file}: cannot be read ({problem}). Restore it, or run again") from None
    return [Findings(owner, len(mine), flagged[owner], wrong(mine), budget(mine)) for owner, mine in scores.items()]
