"""The file of judged labels, as a review reads it."""

from __future__ import annotations

import csv
import hashlib
import io
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedsieve.base.errors import ConfigError, DataError, nearest
from fedsieve.base.sheets import original
from fedsieve.data.sources.limits import read_limited
from fedsieve.evaluate.schema import File
from fedsieve.review.queue import NONE, Judged

COLUMNS = ("owner", "where", "given", "suggested", "score", "flagged")
FLAGS = {"true": True, "false": False}
MOST_GB = 1.0


@dataclass(frozen=True)
class JudgedLabels:
    """What a method made of everybody's labels that are in one file."""

    file: Path
    sha256: str
    rows: tuple[dict[str, str], ...]

    def owners(self) -> Counter[str]:
        """By owner, how many labels are flagged."""
        counts = Counter({row["owner"]: 0 for row in self.rows})
        counts.update(row["owner"] for row in self.rows if FLAGS[row["flagged"]])
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
        mine = [row for row in self.rows if row["owner"] == owner]
        for row in mine:
            for column in ("given", "suggested"):
                if row[column] not in number:
                    raise DataError(
                        "FS332",
                        f"{self.file}: {row['where']} is {column} as '{row[column]}', a class that the data do not "
                        f"have. {nearest(row[column], class_names)}",
                    )
        return Judged(
            [row["where"] for row in mine],
            np.array([number[row["given"]] for row in mine], np.int64),
            np.array([number[row["suggested"]] for row in mine], np.int64),
            np.array([float(row["score"]) for row in mine]),
            np.array([FLAGS[row["flagged"]] for row in mine], bool),
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


def read_labels(file: Path) -> JudgedLabels:
    content = read_limited(file, MOST_GB)
    try:
        reader = csv.DictReader(io.StringIO(content.decode("utf-8"), newline=""))
        missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            raise _damaged(f"{file}", f"has no column {', '.join(missing)}")
        rows = tuple(_checked(row, f"{file}, line {reader.line_num}") for row in reader)
    except (csv.Error, UnicodeDecodeError) as problem:
        raise _damaged(str(file), f"cannot be read ({problem})") from None
    twice = next((where for where, count in Counter((r["owner"], r["where"]) for r in rows).items() if count > 1), None)
    if twice is not None:
        raise _damaged(str(file), f"{twice[1]} of {twice[0]} stands there twice")
    if not rows:
        raise _damaged(str(file), "holds no rows")
    return JudgedLabels(file, hashlib.sha256(content).hexdigest(), rows)


def _checked(row: dict[str, str | None], place: str) -> dict[str, str]:
    cells = {name: original(row[name] or "") for name in COLUMNS}
    if cells["flagged"] not in FLAGS:
        raise _damaged(place, f"flagged is '{cells['flagged']}', not true or false")
    try:
        score = float(cells["score"])
    except ValueError:
        score = math.nan
    if not 0 <= score <= 1:
        raise _damaged(place, f"the score is '{cells['score']}', not a number from 0 to 1")
    return cells


def _damaged(place: str, what: str) -> DataError:
    return DataError("FS311", f"{place}: {what}. Restore the file, or run again")
