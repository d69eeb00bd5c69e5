"""The file of judged labels, as a review reads it."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedsieve.base.errors import ConfigError, DataError, nearest
from fedsieve.data.sources.limits import read_limited
from fedsieve.evaluate.schema import File
from fedsieve.report.folder import read_labels
from fedsieve.report.records import Label
from fedsieve.review.queue import NONE, Judged

MOST_GB = 1.0


@dataclass(frozen=True)
class JudgedLabels:
    """What a method made of everybody's labels that are in one file."""

    file: Path
    sha256: str
    rows: tuple[Label, ...]

    def owners(self) -> Counter[str]:
        """By owner, how many labels are flagged."""
        counts = Counter({row.owner: 0 for row in self.rows})
        counts.update(row.owner for row in self.rows if row.flagged)
        return counts

    def chosen_owner(self, name: str | None) -> str:
        """The one that is meant; the only one where there is no other."""
        there = self.owners()
        if name is None and len(there) == 1:
            return next(iter(there))
        if name in there:
            return str(name)
        if name is not None:
            raise ConfigError("FS004", f"--owner {name}: not in {self.file}. {nearest(name, there)}")
        listed = ", ".join(f"{owner} ({count} flagged)" for owner, count in there.most_common(20))
        raise ConfigError("FS002", f"{self.file}: has several owners. Choose one with --owner: {listed}")

    def of(self, owner: str, class_names: tuple[str, ...]) -> Judged:
        """The rows of one owner; FS332 for a class that the data do not have."""
        number = {name: code for code, name in enumerate(class_names)} | {"": NONE}
        mine = [row for row in self.rows if row.owner == owner]
        for row in mine:
            for name in (row.given, row.suggested):
                if name not in number:
                    raise DataError(
                        "FS332",
                        f"{self.file}: {row.where}: the data have no class '{name}'. {nearest(name, class_names)} Give "
                        "those of the run with data=PATH",
                    )
        place = {row.where: number for number, row in enumerate(mine)}
        return Judged(
            [row.where for row in mine],
            np.array([number[row.given] for row in mine], np.int64),
            np.array([number[row.suggested] for row in mine], np.int64),
            np.array([row.score for row in mine]),
            np.array([row.flagged for row in mine], bool),
            np.array([place.get(row.twin, NONE) for row in mine], np.int64),
        )


def find_labels(folder: Path) -> Path:
    """The judged labels in the folder of a run, or in the state folder of a Flower node: its latest."""
    here = folder / File.LABELS
    if here.is_file():
        return here
    below = sorted(folder.glob(f"*/{File.LABELS}"), key=lambda file: file.stat().st_mtime)
    if folder.is_dir() and below and not (folder / File.CONFIG).exists():
        return below[-1]
    raise DataError(
        "FS311",
        f"{here}: not found. Give the folder of a run whose method judges labels, such as `fedsieve audit`, or of a "
        "Flower node's state",
    )


def read_judged(file: Path) -> JudgedLabels:
    content = read_limited(file, MOST_GB)
    rows = read_labels(file) or ()
    if not rows:
        raise _damaged(file, "holds no rows")
    odd = next((row for row in rows if not 0 <= row.score <= 1), None)
    if odd is not None:
        raise _damaged(file, f"{odd.where} has the score {odd.score}, which is not from 0 to 1")
    twice, count = Counter((row.owner, row.where) for row in rows).most_common(1)[0]
    if count > 1:
        raise _damaged(file, f"{twice[1]} of {twice[0]} stands there twice")
    return JudgedLabels(file, hashlib.sha256(content).hexdigest(), rows)


def _damaged(file: Path, what: str) -> DataError:
    return DataError("FS311", f"{file}: {what}. Restore the file, or run again")
