"""Pictures decoded into memory, or once into a file of the cache folder that is then mapped.

A mapped file is written row after row with a count of the rows that are safely in it, so decoding that was cut off
goes on where it was. Several runs may start at once: one decodes, the others wait for it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedsieve.base.disk import locked
from fedsieve.data.sources.base import DataOptions, cache_folder
from fedsieve.data.sources.counting import counting
from fedsieve.data.sources.pictures import STRETCH, Frame, Pictures, frame_of, open_row
from fedsieve.data.sources.records import Records, Store, digest, table_store

FORMAT = "1"
"""Part of a mapped file's name: changes when the same pictures would give other bytes."""
CHUNK = 256
"""Rows after which a file is known to be good so far."""


def picture_store(pictures: Pictures, records: Records, options: DataOptions) -> Store:
    """The pictures of records whose training rows come first."""
    frame = frame_of(pictures, options)
    if len(pictures) * int(np.prod(frame.shape)) <= options.in_memory << 20:
        return replace(table_store(_decode(pictures, frame, options), records), **_told(frame, options))
    mapped = Mapped.of(pictures, frame)
    mapped.fill(pictures, frame, options)
    n_train = len(pictures) if records.test is None else int((~records.test).sum())
    train = mapped.rows(0, n_train)
    test = None if records.test is None else mapped.rows(n_train, len(pictures))
    return Store(train, test, np.load(mapped.digests), lambda rows: mapped.copied(train, rows), **_told(frame, options))


def _told(frame: Frame, options: DataOptions) -> dict[str, Any]:
    """What there is to say about how pictures were brought to the frame."""
    reading: dict[str, Any] = {} if frame.fit == DataOptions.fit else {"fit": frame.fit}
    if frame.window is None:
        return {"reading": reading}
    low, high = frame.window
    how = "data.window" if options.window else f"the {STRETCH[0]}th and {STRETCH[1]}th percentile of their values"
    note = f"images of more than 256 levels: {low:g} becomes black and {high:g} white ({how})"
    return {"reading": reading | {"window": [low, high]}, "notes": (note,)}


def _decode(pictures: Pictures, frame: Frame, options: DataOptions) -> np.ndarray:
    images = np.empty((len(pictures), *frame.shape), np.uint8)
    for row in range(len(pictures)):
        with open_row(pictures, row, options) as picture:
            images[row] = frame(picture)
    return images


@dataclass(frozen=True)
class Mapped:
    """A file of N x H x W x channels bytes in the cache folder, with the digest of each row beside it."""

    file: Path
    shape: tuple[int, int, int, int]

    @staticmethod
    def of(pictures: Pictures, frame: Frame) -> Mapped:
        text = f"{FORMAT} {frame} {pictures.key()}"
        name = hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
        return Mapped(cache_folder() / "decoded" / f"{name}.npy", (len(pictures), *frame.shape))

    @property
    def digests(self) -> Path:
        return self.file.with_suffix(".digests.npy")

    def fill(self, pictures: Pictures, frame: Frame, options: DataOptions) -> None:
        """Decode what is missing."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with locked(self.file.with_suffix(".lock")):
            if self.file.exists():
                return
            part, count = self.file.with_suffix(".part"), self.file.with_suffix(".count")
            seen = self.file.with_suffix(".seen")
            done = int(count.read_text()) if count.exists() and part.exists() and seen.exists() else 0
            target = np.lib.format.open_memmap(part, "r+" if done else "w+", np.uint8, self.shape)
            marks = np.lib.format.open_memmap(seen, "r+" if done else "w+", np.uint64, self.shape[:1])
            with counting("decoding images", len(pictures), done) as advance:
                for start in range(done, len(pictures), CHUNK):
                    stop = min(start + CHUNK, len(pictures))
                    for row in range(start, stop):
                        with open_row(pictures, row, options) as picture:
                            target[row] = frame(picture)
                        marks[row] = digest(target[row])
                    target.flush()
                    marks.flush()
                    _replace(count, str(stop))
                    advance(stop - start)
            seen.replace(self.digests)
            part.replace(self.file)
            count.unlink()

    def rows(self, start: int, stop: int) -> np.ndarray:
        """A block of rows as a map of its own, so that worker processes can open it by file and offset."""
        whole = np.load(self.file, mmap_mode="r")
        offset = whole.offset + start * int(np.prod(self.shape[1:]))
        # Copy-on-write: PyTorch wants writable memory, the file stays as it is.
        return np.memmap(self.file, np.uint8, "c", offset, (stop - start, *self.shape[1:]))

    def copied(self, images: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Some rows in a mapped file of their own."""
        chosen = hashlib.blake2b(rows.tobytes(), digest_size=6).hexdigest()
        copy = Mapped(self.file.with_name(f"{self.file.stem}-{chosen}.npy"), (len(rows), *self.shape[1:]))
        with locked(copy.file.with_suffix(".lock")):
            if not copy.file.exists():
                part = copy.file.with_suffix(".part")
                target = np.lib.format.open_memmap(part, "w+", np.uint8, copy.shape)
                for to, row in enumerate(rows):
                    target[to] = images[row]
                target.flush()
                part.replace(copy.file)
        return copy.rows(0, len(rows))


def _replace(file: Path, text: str) -> None:
    temporary = file.with_suffix(".new")
    temporary.write_text(text)
    temporary.replace(file)
