"""One process at a time in the folder of a run or of a comparison."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedsieve.base.errors import RunError
from fedsieve.evaluate.schema import File

PATIENCE = 3.0
"""Seconds for a process that is just ending."""
LOCKLESS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})
"""What file systems say that know no locks, as some network file systems do."""


@contextmanager
def claimed(folder: Path, say: Callable[[str], None]) -> Iterator[int]:
    """Hold a folder, made if need be; yields the descriptor that holds it.

    The kernel gives it free when its holder ends, however that ends, and those that inherited the descriptor. The file
    is taken away at the end, and with it folders that were made and stayed empty.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    file = folder / File.LOCK
    fd = _hold(file, folder, say)
    try:
        os.ftruncate(fd, 0)
        os.write(fd, f"{os.getpid()}\n".encode())
        yield fd
    finally:
        with suppress(OSError):  # the folder may be gone
            file.unlink()
        os.close(fd)
        with suppress(OSError):  # somebody uses it
            for path in made:
                path.rmdir()


def _hold(file: Path, folder: Path, say: Callable[[str], None]) -> int:
    ends = time.monotonic() + PATIENCE
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        except FileNotFoundError:  # whoever held the folder has just taken it away
            if time.monotonic() > ends:
                raise
            time.sleep(0.05)
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _still(file, fd):
                return fd
        except BlockingIOError:
            if time.monotonic() > ends:
                owner = os.read(fd, 20).decode("ascii", "replace").strip()
                os.close(fd)
                raise RunError(
                    "FS240",
                    f"{folder}: process {owner or 'unknown'} is writing to it. Wait for its end, or choose another out",
                ) from None
            time.sleep(0.05)
        except OSError as problem:
            if problem.errno not in LOCKLESS:
                os.close(fd)
                raise
            say(f"{folder}: its file system has no locks; see to it that nothing else writes to it meanwhile")
            return fd
        os.close(fd)


def _still(file: Path, fd: int) -> bool:
    """Whether the lock is on the file that is there: its holder may have taken it away while we waited."""
    try:
        there = file.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(there, os.fstat(fd))
