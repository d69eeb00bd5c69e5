"""Folders and files on disk: written in one step, held by one process, closed to others. Nothing here loads PyTorch."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

OPEN, PRIVATE = 0o666, 0o600
"""Modes of files: what the umask leaves, or the owner's alone."""
PRIVATE_FOLDER = 0o700


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """One process at a time; the lock ends with its holder, however that ends."""
    with file.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def private_folder(path: Path) -> Path:
    """A folder that only its owner can look into, made with its parents if it is not there; an open one is closed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        path.mkdir(mode=PRIVATE_FOLDER)
    if path.stat().st_mode & 0o777 != PRIVATE_FOLDER:  # the umask, or somebody else, made it otherwise
        path.chmod(PRIVATE_FOLDER)
    return path


def write_bytes(path: Path, content: bytes, *, private: bool = False) -> None:
    """Replace a file in one step that survives a crash at any point. A private one is its owner's from the start."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)  # of a process that had this number before
    with _gone_if_broken(temporary):
        # Exclusively: a link that lies in wait under this name is not followed.
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE if private else OPEN)
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def _gone_if_broken(temporary: Path) -> Iterator[None]:
    """A file that could not be written to its end does not stay: on a full disk it would keep what is left."""
    try:
        yield
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
