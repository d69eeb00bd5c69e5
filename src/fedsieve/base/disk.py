"""Folders and files on disk: written in one step, held by one process, closed to others. Nothing here loads PyTorch."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

OPEN, PRIVATE = 0o666, 0o600
"""Modes of files: what the umask leaves, or the owner's alone."""
PRIVATE_FOLDER = 0o700
TEMPORARY = re.compile(r"\..+\.\d+\.tmp")
"""What a process leaves behind that dies while it writes."""


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


def temporary_of(path: Path) -> Path:
    """Beside a file, where its content is gathered until it is whole."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def sweep(*folders: Path) -> None:
    """Remove what processes that died left half written. The caller holds the folders: nobody else is writing there."""
    for folder in folders:
        for path in folder.iterdir() if folder.is_dir() else ():
            if TEMPORARY.fullmatch(path.name) and not path.is_dir():
                path.unlink(missing_ok=True)


def inside(folder: Path, name: object) -> Path | None:
    """What a file calls by name in a folder: None unless it is a plain name, and no link that leads out of it."""
    if not isinstance(name, str) or not name or name in (".", "..") or "/" in name or "\0" in name:
        return None
    path = folder / name
    return path if path.resolve().parent == folder.resolve() else None


def write_bytes(path: Path, content: bytes, *, private: bool = False) -> None:
    """Replace a file in one step that survives a crash at any point. A private one is its owner's from the start."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_of(path)
    temporary.unlink(missing_ok=True)  # of a process that had this number before
    with _gone_if_broken(temporary, path):
        # Exclusively: a link that lies in wait under this name is not followed.
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE if private else OPEN)
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Down to the disk, which files a folder has."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def append_bytes(path: Path, content: bytes) -> None:
    """Add to a file that is there, down to the disk."""
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND), "ab") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as problem:
        problem.filename = str(path)
        raise


@contextmanager
def _gone_if_broken(temporary: Path, path: Path) -> Iterator[None]:
    """A file that could not be written to its end does not stay: on a full disk it would keep what is left."""
    try:
        yield
    except BaseException as problem:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(problem, OSError) and problem.errno is not None:
            problem.filename = str(path)  # writing tells no name, and the temporary one tells little
        raise
