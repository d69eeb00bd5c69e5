"""Features on disk: computed once for the same images and the same map, whoever asks.

A table of features is one .npy file. A ledger beside it holds the checksum of every chunk of rows that is safely in
it, so work that was cut off goes on with the first chunk that is not there, and a chunk that was damaged since is
computed again. One process at a time works on a table; others that want it wait.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fedsieve.data.features.base import FeatureMap, bytes_of, hashed
from fedsieve.data.sources.base import cache_folder
from fedsieve.errors import ConfigError, DataError
from fedsieve.runtime.files import Damaged, locked, read_json, write_json

FORMAT = "1"
"""Part of a table's key: changes when the same map would give other numbers."""
CHUNK = 256
"""Rows that are lost at most when work is cut off."""
HASHED_WHOLE = 2 << 30
"""Images beyond this many bytes are told apart by about a thousand of them."""

Counting = Callable[[str, int, int], AbstractContextManager[Callable[[int], None]]]
"""What, how many in all, how many are done: a context that yields a function to call with every few items."""


def silently(*_: object) -> AbstractContextManager[Callable[[int], None]]:
    return nullcontext(lambda _: None)


def features_of(
    images: np.ndarray, feature_map: FeatureMap, cache_dir: Path | None = None, progress: Counting = silently
) -> np.ndarray:
    """(n, d) in float32, mapped from a file of the cache folder; only what is not there yet is computed."""
    if not len(images):
        raise DataError("FS309", f"{feature_map.name}: there are no images to take features of. Give at least one")
    folder = cache_dir or cache_folder() / "features"
    file = folder / f"{table_key(images, feature_map)}.npy"
    folder.mkdir(parents=True, exist_ok=True)
    with locked(file.with_suffix(".lock")):
        _fill(file, images, feature_map, progress)
        # Copy-on-write: PyTorch wants writable memory, the file stays as it is.
        table: np.ndarray = np.load(file, mmap_mode="c")
    return table


def table_key(images: np.ndarray, feature_map: FeatureMap) -> str:
    """The name of a table: a hash of the images and of the map."""
    sample = images if images.nbytes <= HASHED_WHOLE else images[:: max(1, len(images) // 1000)]
    return hashed(FORMAT, f"{images.shape}{images.dtype}", bytes_of(sample), feature_map.key)


@dataclass(frozen=True)
class Ledger:
    """What a table's file holds: its width, and the checksums of its chunks by first row."""

    width: int
    checksums: dict[int, str]

    @staticmethod
    def read(file: Path) -> Ledger | None:
        try:
            content = read_json(file)
            return Ledger(content["width"], {int(start): text for start, text in content["checksums"].items()})
        except (Damaged, KeyError, ValueError):
            return None

    def write(self, file: Path) -> None:
        write_json(file, {"width": self.width, "checksums": {str(at): text for at, text in self.checksums.items()}})


def _fill(file: Path, images: np.ndarray, feature_map: FeatureMap, progress: Counting) -> None:
    """Compute what is missing or damaged."""
    rows, account = len(images), file.with_suffix(".json")
    ledger = Ledger.read(account)
    if ledger is not None:
        _make_whole(file, rows, ledger.width)
        ledger = Ledger(ledger.width, _intact(file, rows, ledger))
    starts = [start for start in range(0, rows, CHUNK) if ledger is None or start not in ledger.checksums]
    if not starts:
        return
    left = sum(min(CHUNK, rows - start) for start in starts)
    with progress(f"{feature_map.name} features", rows, rows - left) as advance:
        for start in starts:
            chunk = _computed(feature_map, images, start)
            if ledger is None:
                ledger = Ledger(chunk.shape[1], {})
                _make_whole(file, rows, ledger.width)
            if chunk.shape[1] != ledger.width:
                raise ConfigError(
                    "FS006",
                    f"{feature_map.name} gives {chunk.shape[1]} features for row {start}, {ledger.width} for others. "
                    "Let it give as many for each image",
                )
            with file.open("r+b") as table:
                table.seek(_offset(rows, ledger.width, start))
                table.write(bytes_of(chunk))
                table.flush()
                os.fsync(table.fileno())
            ledger.checksums[start] = hashed(bytes_of(chunk))
            ledger.write(account)
            advance(len(chunk))


def _computed(feature_map: FeatureMap, images: np.ndarray, start: int) -> np.ndarray:
    chunk = feature_map(np.asarray(images[start : start + CHUNK]))
    expected = min(CHUNK, len(images) - start)
    if chunk.ndim != 2 or len(chunk) != expected or chunk.dtype != np.float32:
        raise ConfigError(
            "FS006",
            f"{feature_map.name} gives {chunk.dtype} of shape {chunk.shape} for {expected} images. "
            "Let it give one float32 row each",
        )
    broken = np.flatnonzero(~np.isfinite(chunk).all(axis=1))
    if len(broken):
        raise DataError(
            "FS304", f"{feature_map.name} gives NaN or infinity for row {start + broken[0]}. Take other weights"
        )
    return chunk


def _header(rows: int, width: int) -> bytes:
    buffer = io.BytesIO()
    layout = {"descr": "<f4", "fortran_order": False, "shape": (rows, width)}
    np.lib.format.write_array_header_1_0(buffer, layout)
    return buffer.getvalue()


def _offset(rows: int, width: int, row: int) -> int:
    return len(_header(rows, width)) + 4 * width * row


def _make_whole(file: Path, rows: int, width: int) -> None:
    """A file of the right size and shape. One that is too short is stretched, for others may have it mapped."""
    header, size = _header(rows, width), _offset(rows, width, rows)
    try:
        with file.open("r+b") as table:
            if table.read(len(header)) == header:
                table.truncate(size)
                return
    except FileNotFoundError:
        pass
    fresh = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    with fresh.open("wb") as table:
        table.write(header)
        table.truncate(size)
    fresh.replace(file)


def _intact(file: Path, rows: int, ledger: Ledger) -> dict[int, str]:
    """The checksums that hold."""
    with file.open("rb") as table:
        return {
            start: checksum
            for start, checksum in ledger.checksums.items()
            if hashed(_stored(table, rows, ledger.width, start)) == checksum
        }


def _stored(table: BinaryIO, rows: int, width: int, start: int) -> bytes:
    table.seek(_offset(rows, width, start))
    return table.read(4 * width * min(CHUNK, rows - start))
