"""Files that would hang us or eat all memory, refused before they are read: by their kind and by what they declare."""

from __future__ import annotations

import stat
import zipfile
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedsieve.base.errors import DataError

MAX_CLASSES = 10_000
MAX_GB = 4.0
MAX_MEGAPIXELS = 90.0
GB = 10**9
DEEPEST = 8
"""Levels of folders that are looked into; images stand three deep at most."""


def regular(path: Path, advice: str = "Check the path") -> int:
    """The size of a file; FS301 if there is none, FS321 for a pipe, a device or a socket, which might never end."""
    try:
        state = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise DataError("FS301", f"{path}: no such file. {advice}") from None
    except (OSError, ValueError) as problem:
        raise DataError("FS302", f"{path}: cannot be read ({problem}). {advice}") from None
    if not stat.S_ISREG(state.st_mode):
        kind = "a folder" if stat.S_ISDIR(state.st_mode) else "a pipe, a device or a socket"
        raise DataError("FS321", f"{path}: is {kind}, not a regular file. {advice}")
    return state.st_size


def check_bytes(size: int, where: str, max_gb: float) -> None:
    if size > max_gb * GB:
        raise DataError(
            "FS320", f"{where}: holds {size / GB:,.1f} GB, more than data.max_gb={max_gb:g}. Raise it if that is right"
        )


def check_classes(count: int, where: str, max_classes: int) -> None:
    if count > max_classes:
        raise DataError(
            "FS320",
            f"{where} {count:,} classes, more than data.max_classes={max_classes:,}. Raise it if that is right",
        )


def read_limited(path: Path, max_gb: float) -> bytes:
    check_bytes(regular(path), str(path), max_gb)
    return path.read_bytes()


def check_arrays(path: Path, max_gb: float) -> None:
    """Of an .npz or .npy file, what its headers claim: no more than the limit, and no other than what is there.

    ValueError, or what zipfile and NumPy raise, for a file that is damaged.
    """
    size = regular(path)
    if path.suffix == ".npy" or not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            check_bytes(_claimed(file, size, max_gb), str(path), max_gb)
        return
    total = 0
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            total += member.file_size
            if member.filename.endswith(".npy"):
                with archive.open(member) as file:
                    total += max(0, _claimed(file, member.file_size, max_gb) - member.file_size)
            check_bytes(total, str(path), max_gb)


def _claimed(file: IO[bytes], size: int, max_gb: float) -> int:
    """Bytes of an array by its header; ValueError if the file is too short for that."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    claimed = prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or size < claimed <= max_gb * GB:
        raise ValueError(f"an array of shape {shape} does not fit into {size:,} bytes")
    return int(claimed)


def limited_lines(handle: IO[str], file: Path, max_gb: float) -> Iterator[str]:
    """The lines of a table; one as long as a whole table is refused before it is in memory."""
    longest = int(max_gb * GB / 100)
    while line := handle.readline(longest + 1):
        if len(line) > longest:
            raise DataError(
                "FS320",
                f"{file}: has a line of more than {longest:,} characters (a hundredth of data.max_gb={max_gb:g}). "
                "Save it as a table with one row a line",
            )
        yield line


def folders_below(root: Path) -> Iterator[tuple[tuple[str, ...], list[str], list[str]]]:
    """Parts of the path, folders and other entries of every folder; links are followed, but not in a circle."""

    def walked(folder: Path, parts: tuple[str, ...], above: list[Any]) -> Iterator[Any]:
        here = folder.stat()
        mark = (here.st_dev, here.st_ino)
        if mark in above:
            raise DataError("FS321", f"{folder}: leads back to a folder that it lies in. Remove the link")
        entries = sorted(folder.iterdir())
        below = [path.name for path in entries if path.is_dir() and not path.name.startswith(".")]
        yield parts, below, [path.name for path in entries if not path.is_dir()]
        if len(parts) < DEEPEST:
            for name in below:
                yield from walked(folder / name, (*parts, name), [*above, mark])

    yield from walked(root, (), [])
