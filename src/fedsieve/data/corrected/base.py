"""What all forms of data share when decisions are applied to them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fedsieve.data.corrections import check_classes, check_label, check_samples
from fedsieve.data.decisions import CHANGES, Decisions, Standing


@dataclass(frozen=True)
class Outcome:
    """What was written."""

    out: Path
    rows: int
    changed: int
    left_out: int

    def __str__(self) -> str:
        return f"{self.out}: {self.rows} rows, {self.changed} labels corrected, {self.left_out} rows left out"


class Verdicts:
    """The standing decisions of a file, by where samples came from."""

    def __init__(self, decisions: Decisions, reader: str | None = None) -> None:
        self.file = decisions.file
        self._standing = decisions.standing(reader)
        self._by_where = {one.decision.sample.where: one for one in self._standing.values()}
        self.changed = self.left_out = 0

    def check(self, where: Iterable[str], classes: Iterable[str]) -> None:
        """FS331 for a sample, FS332 for a class that the data do not have."""
        check_samples(self._standing, set(where), self.file)
        check_classes(self._standing, set(classes), self.file)

    def after(self, where: str, label: str) -> str | None:
        """The label that a sample has from now on; None if it is left out. Counts what it changes."""
        one: Standing | None = self._by_where.get(where)
        if one is None:
            return label
        check_label(one, label, self.file)
        if one.decision.action == "exclude":
            self.left_out += 1
            return None
        if one.decision.action not in CHANGES or label == one.decision.after:
            return label
        self.changed += 1
        return one.decision.after
