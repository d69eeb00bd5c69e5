"""What people decided about labels: `decisions.jsonl`, one JSON object a line, each with the hash of the line before.

A line is never changed. Who takes a decision back adds an `undo`. What stands is found by replaying the file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError, model_validator

from fedsieve.base.errors import DataError
from fedsieve.data.sources.limits import check_bytes, regular

DECISIONS = "decisions.jsonl"
FIRST = "0" * 64
"""What the first line has in place of the hash of a line before it."""
LONGEST = 4096
"""Characters of a text in a line."""
MOST_GB = 1.0
RESTORE = "Restore the file as the review wrote it"

Text = Annotated[str, StringConstraints(max_length=LONGEST)]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Moment = Annotated[str, StringConstraints(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z$")]
Action = Literal["keep", "take", "other", "unsure", "exclude", "undo"]
CHANGES: frozenset[str] = frozenset({"take", "other"})
"""Actions that give a row another class."""
Key = tuple[str, str]
"""Of a sample: its owner, and where it came from."""


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Sample(_Line):
    owner: Text
    where: Text


class Judged(_Line):
    """What the reader was shown: hashes of the files."""

    labels: Digest
    model: Digest | None


class Decision(_Line):
    sample: Sample
    before: Text
    """The class that the row had."""
    after: Text | None
    """The class that it has from now on; none for `unsure`, `exclude` and `undo`."""
    action: Action
    who: Text
    when: Moment
    judged: Judged
    previous: Digest

    @model_validator(mode="after")
    def _fits(self) -> Decision:
        right = {"keep": self.after == self.before}
        right |= dict.fromkeys(CHANGES, self.after not in (None, self.before))
        if not right.get(self.action, self.after is None):
            raise ValueError(f"after is {self.after!r}, which is not what '{self.action}' leaves")
        return self

    @property
    def key(self) -> Key:
        return self.sample.owner, self.sample.where

    @property
    def wrong(self) -> bool | None:
        """Whether the reader found the label wrong; None if unsure."""
        return None if self.action == "unsure" else self.action != "keep"

    def line(self) -> bytes:
        """As it stands in the file, without the end of the line."""
        return self.model_dump_json().encode()


@dataclass(frozen=True)
class Standing:
    """A decision that was not taken back, and the line where it stands."""

    decision: Decision
    line: int

    @property
    def place(self) -> str:
        return f"line {self.line}, {self.decision.sample.where}"


@dataclass(frozen=True)
class Decisions:
    """A whole file whose chain is intact."""

    file: Path
    entries: tuple[Decision, ...]
    torn: bytes = b""
    """What a process that died left of a last line."""
    last: str = FIRST
    """The hash of the last line."""

    def standing(self, reader: str | None = None) -> dict[Key, Standing]:
        """By sample, what holds at the end; where several readers decided, the latest of them."""
        return replayed(enumerate(self.entries, 1), reader)

    def by_reader(self) -> dict[str, dict[Key, Standing]]:
        return {who: self.standing(who) for who in sorted({entry.who for entry in self.entries})}

    @property
    def notes(self) -> list[str]:
        if not self.torn:
            return []
        return [f"{self.file}: the last line is torn and left out; the next review sets it aside"]


def replayed(numbered: Iterable[tuple[int, Decision]], reader: str | None = None) -> dict[Key, Standing]:
    """What is left when everybody's undos have taken back that reader's last decision on that sample."""
    stacks: dict[tuple[Key, str], list[Standing]] = {}
    for number, entry in numbered:
        if reader is not None and entry.who != reader:
            continue
        stack = stacks.setdefault((entry.key, entry.who), [])
        if entry.action != "undo":
            stack.append(Standing(entry, number))
        elif stack:
            stack.pop()
    tops = sorted((stack[-1] for stack in stacks.values() if stack), key=lambda top: top.line)
    return {top.decision.key: top for top in tops}


def read_decisions(file: Path) -> Decisions:
    """All lines, each checked; FS330 names the first that is damaged or does not follow the one before it."""
    check_bytes(regular(file, "Give the decisions.jsonl of a review"), str(file), MOST_GB)
    return parsed(file, file.read_bytes())


def parsed(file: Path, content: bytes, before: Sequence[Decision] = (), previous: str = FIRST) -> Decisions:
    """The same of bytes that follow what is known already."""
    *whole, torn = content.split(b"\n")
    entries = list(before)
    open_decisions = _open(before)
    for line in whole:
        entry = _parsed(line, f"{file}, line {len(entries) + 1}")
        if entry.previous != previous:
            raise DataError(
                "FS330",
                f"{file}, line {len(entries) + 1}: does not follow the line before it. "
                f"Something was changed, added or taken out. {RESTORE}",
            )
        _count(open_decisions, entry, f"{file}, line {len(entries) + 1}")
        entries.append(entry)
        previous = digest(line)
    return Decisions(file, tuple(entries), torn, previous)


def digest(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def _parsed(line: bytes, place: str) -> Decision:
    try:
        return Decision.model_validate_json(line)
    except ValidationError as problem:
        first = problem.errors()[0]
        what = ".".join(map(str, first["loc"]))
        raise DataError("FS330", f"{place}: {what + ': ' if what else ''}{first['msg']}. {RESTORE}") from None


def _open(entries: Sequence[Decision]) -> dict[tuple[Key, str], int]:
    """How many decisions of each reader on each sample are there to be taken back."""
    counts: dict[tuple[Key, str], int] = {}
    for entry in entries:
        _count(counts, entry, "")
    return counts


def _count(counts: dict[tuple[Key, str], int], entry: Decision, place: str) -> None:
    mine = (entry.key, entry.who)
    counts[mine] = counts.get(mine, 0) + (-1 if entry.action == "undo" else 1)
    if counts[mine] < 0:
        raise DataError("FS330", f"{place}: {entry.who} takes back what was not decided. {RESTORE}")
