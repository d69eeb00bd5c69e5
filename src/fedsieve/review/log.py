"""The file of decisions while somebody decides: appended at once, down to the disk, by one process at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from fedsieve.base.disk import PRIVATE, sync_folder
from fedsieve.data.decisions import Action, Decision, Decisions, Judged, Key, Sample, Standing, digest, parsed, replayed

TORN = ".torn"
"""Behind the name of the file: where torn lines are set aside."""


class Entry(NamedTuple):
    """A decision before it is written."""

    key: Key
    before: str
    after: str | None
    action: Action


class Log:
    """One reader's pen. Others may write to the same file from other processes meanwhile: the chain holds all."""

    def __init__(self, file: Path, reader: str, judged: Judged) -> None:
        self.file, self.reader, self.judged = file, reader, judged
        self.notes: list[str] = []
        self._known = Decisions(file, ())
        self._size = 0
        self._standing: tuple[str, dict[Key, Standing]] = (self._known.last, {})
        if file.exists():
            with self._held() as fd:
                self._catch_up(fd)

    @property
    def entries(self) -> tuple[Decision, ...]:
        return self._known.entries

    def standing(self) -> dict[Key, Standing]:
        """What this reader decided and did not take back."""
        if self._standing[0] != self._known.last:
            self._standing = self._known.last, replayed(enumerate(self.entries, 1), self.reader)
        return self._standing[1]

    def by_reader(self) -> dict[str, dict[Key, Standing]]:
        """The same of everybody."""
        return self._known.by_reader()

    def write(self, entries: Sequence[Entry]) -> None:
        """All of them or, if the disk refuses, none."""
        with self._held() as fd:
            self._catch_up(fd)
            known, lines = list(self._known.entries), []
            last = self._known.last
            for entry in entries:
                made = self._decision(entry, last)
                lines.append(made.line())
                last = digest(lines[-1])
                known.append(made)
            content = b"".join(line + b"\n" for line in lines)
            try:
                _write_all(fd, content)
                os.fsync(fd)
                if not self._size:  # the file itself is new
                    sync_folder(self.file.parent)
            except BaseException:
                os.ftruncate(fd, self._size)
                raise
            self._size += len(content)
            self._known = Decisions(self.file, tuple(known), last=last)

    def _decision(self, entry: Entry, previous: str) -> Decision:
        owner, where = entry.key
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return Decision(
            sample=Sample(owner=owner, where=where), before=entry.before, after=entry.after, action=entry.action,
            who=self.reader, when=now, judged=self.judged, previous=previous,
        )  # fmt: skip

    @contextmanager
    def _held(self) -> Iterator[int]:
        """The file, open, and ours alone."""
        fd = os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, PRIVATE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield fd
        finally:
            os.close(fd)

    def _catch_up(self, fd: int) -> None:
        """Read what others added; what a process that died left of a line goes into a file beside this one."""
        size = os.fstat(fd).st_size
        if size == self._size:
            return
        content = os.pread(fd, size - self._size, self._size) if size > self._size else b""
        if size < self._size:  # somebody replaced it: read it anew
            self._known, self._size, content = Decisions(self.file, ()), 0, os.pread(fd, size, 0)
        found = parsed(self.file, content, self._known.entries, self._known.last)
        whole = size - len(found.torn)
        if found.torn:
            self._set_aside(found.torn)
            os.ftruncate(fd, whole)
            self.notes.append(
                f"{self.file}: the last line was torn, as by a power cut; it is set aside in {self.file.name}{TORN}"
            )
        self._known, self._size = Decisions(self.file, found.entries, last=found.last), whole

    def _set_aside(self, torn: bytes) -> None:
        beside = self.file.with_name(self.file.name + TORN)
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, PRIVATE), "ab") as aside:
            aside.write(torn + b"\n")


def _write_all(fd: int, content: bytes) -> None:
    while content:
        content = content[os.write(fd, content) :]
