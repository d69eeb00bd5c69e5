"""One reader at work on one owner's labels: what there is to see, what was decided, what that tells."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from fedsieve.base.errors import ConfigError
from fedsieve.data.corrections import check_classes
from fedsieve.data.decisions import LONGEST, Key
from fedsieve.review.estimates import estimated
from fedsieve.review.log import Entry, Log
from fedsieve.review.queue import NONE, Queue, queued
from fedsieve.review.readers import agreements
from fedsieve.review.subject import Subject

if TYPE_CHECKING:
    from fedsieve.review.evidence import Evidence

NOBODY = -1
"""Stands for the class of a row that nobody vouches for."""


class Wish(BaseModel):
    """What the page asks for: a decision on one row."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    row: Annotated[int, Field(ge=0)]
    action: Literal["keep", "take", "other", "unsure", "exclude", "undo"]
    choice: Annotated[int, Field(ge=0)] | None = None
    """Of `other`: the number of the class."""


class Refused(Exception):  # noqa: N818  # says what became of a wish
    """A wish that cannot be granted; the page never has such."""


@dataclass(frozen=True)
class Sitting:
    """What a session is told besides the data."""

    reader: str
    minutes: float | None = None
    controls: int | None = None


class Desk:
    def __init__(self, subject: Subject, sitting: Sitting) -> None:
        if not 0 < len(sitting.reader) <= LONGEST:
            raise ConfigError("FS002", "--reader: a name has one letter or more. Give the name of who decides")
        self.subject, self.sitting = subject, sitting
        self.queue: Queue = queued(subject.judged, f"{subject.hashes.labels} {subject.owner}", sitting.controls)
        self.log = Log(subject.file, sitting.reader, subject.hashes)
        self._row = {where: row for row, where in enumerate(subject.judged.where)}
        self._number = {name: code for code, name in enumerate(subject.class_names)}
        check_classes(self.log.standing(), self._number, subject.file)
        self._evidence: Evidence | None = None
        self.trouble: Exception | None = None
        """Why there is no evidence and will be none."""
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Compute the features on which evidence rests; meanwhile the page works without."""
        from fedsieve.review.evidence import Evidence  # loads PyTorch

        try:
            self._evidence = Evidence(self.subject.material)
        except Exception as problem:  # what the features of somebody's data may lead to; the review goes on without
            self.trouble = problem

    def overview(self) -> dict[str, Any]:
        """All that the page needs of all rows, in columns: a few bytes a row."""
        queue, subject = self.queue, self.subject
        return {
            "owner": subject.owner,
            "reader": self.sitting.reader,
            "minutes": self.sitting.minutes,
            "kind": subject.material.kind,
            "classes": list(subject.class_names),
            "order": queue.order.tolist(),
            "suspicious": queue.suspicious,
            "given": subject.judged.given.tolist(),
            "suggested": queue.suggested.tolist(),
            "score": [round(value, 3) for value in queue.score.tolist()],
            "decided": [self._told(row) for row in self._mine()],
            "notes": self.log.notes,
        }

    def sample(self, row: int) -> dict[str, Any]:
        """One row in full, with its evidence: None if that is not ready yet, nothing if it cannot be had."""
        if not 0 <= row < len(self.subject.judged):
            raise Refused("no such row")
        shown = self._shown(row) | self._twin(row)
        if self._evidence is None:
            return shown | {"evidence": None if self.trouble is None else {}}
        believed = self._believed()
        classes = {"given": int(self.subject.judged.given[row]), "suggested": int(self.queue.suggested[row])}
        found = {
            name: [self._shown(near) for near in self._evidence.nearest(row, label, believed)] if label != NONE else []
            for name, label in classes.items()
        }
        return shown | {"evidence": found}

    def samples(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Several rows without evidence."""
        if not all(0 <= row < len(self.subject.judged) for row in rows):
            raise Refused("no such row")
        return [self._shown(row) for row in rows]

    def decide(self, wishes: Sequence[Wish]) -> None:
        """Write them down, all or none."""
        with self._lock:
            self.log.write([self._entry(wish) for wish in wishes])

    def estimates(self) -> dict[str, Any]:
        wrong = {row: self.log.standing()[self._key(row)].decision.wrong for row in self._mine()}
        return estimated(self.queue, wrong).as_dict() | {"agreement": self._agreement()}

    def _agreement(self) -> list[dict[str, Any]]:
        """With each other reader, on this owner's rows that both decided."""
        mine = {
            who: {key: one for key, one in decided.items() if key[0] == self.subject.owner}
            for who, decided in self.log.by_reader().items()
        }
        return [asdict(pair) for pair in agreements(mine) if self.sitting.reader in (pair.first, pair.second)]

    def _entry(self, wish: Wish) -> Entry:
        if wish.row >= len(self.subject.judged):
            raise Refused("no such row")
        names, key = self.subject.class_names, self._key(wish.row)
        given, suggested = int(self.subject.judged.given[wish.row]), int(self.queue.suggested[wish.row])
        if wish.action == "undo" and key not in self.log.standing():
            raise Refused("nothing to undo")
        if wish.action in ("unsure", "exclude", "undo"):
            return Entry(key, names[given], None, wish.action)
        choice = {"keep": given, "take": suggested, "other": wish.choice}[wish.action]
        if choice is None or not 0 <= choice < len(names):
            raise Refused("no such class")
        action: Any = "keep" if choice == given else "take" if choice == suggested else "other"
        return Entry(key, names[given], names[choice], action)

    def _believed(self) -> np.ndarray:
        """Of each row the class that somebody vouches for: the reader, or the method by not flagging it."""
        judged = self.subject.judged
        believed = np.where(judged.flagged, NOBODY, judged.given)
        for row in self._mine():
            after = self.log.standing()[self._key(row)].decision.after
            believed[row] = NOBODY if after is None else self._number[after]
        return believed

    def _shown(self, row: int) -> dict[str, Any]:
        material = self.subject.material
        return {
            "row": row,
            "where": material.where[row],
            "text": material.text(row),
            "cells": material.named_cells(row),
        }

    def _twin(self, row: int) -> dict[str, Any]:
        """A row that is nearly the same and labelled otherwise, with its class as delivered."""
        twin = int(self.subject.judged.twin[row])
        return {} if twin == NONE else {"twin": self._shown(twin) | {"label": int(self.subject.judged.given[twin])}}

    def _key(self, row: int) -> Key:
        return self.subject.owner, self.subject.judged.where[row]

    def _mine(self) -> list[int]:
        """Rows that this reader decided."""
        owner = self.subject.owner
        return [self._row[where] for of, where in self.log.standing() if of == owner and where in self._row]

    def _told(self, row: int) -> list[Any]:
        """Row, action, and the class that was chosen."""
        decision = self.log.standing()[self._key(row)].decision
        choice = None if decision.after is None else self._number[decision.after]
        return [row, decision.action, choice]
