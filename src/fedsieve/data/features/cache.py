"""Features on disk: computed once for the same image and the same map, whoever asks and whatever else they ask for.

Each map has two files: its rows one after another, and an index that says of each which image it belongs to, where it
lies, and its checksum. Both are only ever added to, so readers need no lock. A row that was damaged fails its checksum
and is computed again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedsieve.base.disk import locked
from fedsieve.base.errors import ConfigError, DataError
from fedsieve.data.features.base import FeatureMap, bytes_of, hash_of
from fedsieve.data.sources.base import cache_folder
from fedsieve.data.texts import TextMap

FORMAT = "2"
"""Part of a file's name: changes when the same map would give other numbers."""
BATCH = 32
"""Images that a map gets at a time, never fewer: the last digits of a net's numbers depend on the size of the batch."""
CHUNK = 8 * BATCH
"""Rows that are lost at most when work is cut off."""
ENTRY = np.dtype([("image", "V16"), ("checksum", "V16"), ("offset", "<u8"), ("width", "<u8")])

Map = FeatureMap | TextMap

Counting = Callable[[str, int, int], AbstractContextManager[Callable[[int], None]]]
"""What, how many in all, how many are done: a context that yields a function to call with every few items."""


def silently(*_: object) -> AbstractContextManager[Callable[[int], None]]:
    return nullcontext(lambda _: None)


def features_of(
    images: np.ndarray, feature_map: Map, cache_dir: Path | None = None, progress: Counting = silently
) -> np.ndarray:
    """(n, d) in float32; only what the cache folder does not hold yet is computed. Texts are an array of objects."""
    if not len(images):
        raise DataError("FS309", f"{feature_map.name}: there are no images to take features of. Give at least one")
    folder = cache_dir or cache_folder() / "features"
    folder.mkdir(parents=True, exist_ok=True)
    key = hash_of(FORMAT, feature_map.key)
    kind = f"{images.shape[1:]}{images.dtype}"
    names = [bytes.fromhex(hash_of(kind, image if isinstance(image, str) else bytes_of(image))) for image in images]
    # Who asks for the same waits, and finds it done. Two digits: so there are 256 of these files at most.
    with locked(folder / f"{hash_of(key, *names)[:2]}.lock"):
        store = Store(folder / key)
        rows = store.read(names)
        lacking = {name: place for place, name in enumerate(names) if name not in rows}
        if lacking:
            _add(store, lacking, images, feature_map, progress)
            rows = store.read(names)
    return store.table([rows[name] for name in names], feature_map.name)


@dataclass(frozen=True)
class Row:
    """Where the features of an image lie."""

    offset: int
    width: int


@dataclass(frozen=True)
class Store:
    """The rows of one map and their index."""

    stem: Path

    @property
    def rows(self) -> Path:
        return self.stem.with_suffix(".rows")

    @property
    def index(self) -> Path:
        return self.stem.with_suffix(".index")

    def read(self, names: Sequence[bytes]) -> dict[bytes, Row]:
        """Those of the named images whose rows are there and intact."""
        entries = self._entries()
        last = {name: place for place, name in enumerate(entries["image"].tolist())}
        content = self._content()
        found = {}
        for name in names:
            if (place := last.get(name)) is not None:
                entry = entries[place]
                row = Row(int(entry["offset"]), int(entry["width"]))
                stored = content[row.offset : row.offset + 4 * row.width]
                if _checksum(stored, row.width) == entry["checksum"].tobytes():
                    found[name] = row
        return found

    def table(self, rows: Sequence[Row], what: str) -> np.ndarray:
        """Rows of features; mapped where they lie one after another, so they may be larger than memory."""
        first = rows[0]
        odd = next((place for place, row in enumerate(rows) if row.width != first.width), None)
        if odd is not None:
            raise _uneven(what, rows[odd].width, odd, first.width)
        if all(row.offset == first.offset + 4 * first.width * place for place, row in enumerate(rows)):
            # Copy-on-write: PyTorch wants writable memory, the file stays as it is.
            return np.memmap(self.rows, np.float32, "c", first.offset, (len(rows), first.width))
        content = self._content()
        return np.stack([content[row.offset : row.offset + 4 * row.width].view(np.float32) for row in rows])

    def add(self, names: Sequence[bytes], features: np.ndarray) -> None:
        """Rows first, then the index: what was cut off in between is not in the index."""
        with locked(self.stem.with_suffix(".lock")):
            start = _append(self.rows, bytes_of(features), step=4)
            entries = np.empty(len(names), ENTRY)
            for place, (name, row) in enumerate(zip(names, features, strict=True)):
                entries[place] = (name, _checksum(row, len(row)), start + place * row.nbytes, len(row))
            _append(self.index, bytes_of(entries), step=ENTRY.itemsize)

    def _entries(self) -> np.ndarray:
        try:
            content = self.index.read_bytes()
        except FileNotFoundError:
            return np.empty(0, ENTRY)
        return np.frombuffer(content, ENTRY, len(content) // ENTRY.itemsize)

    def _content(self) -> np.ndarray:
        try:
            return np.memmap(self.rows, np.uint8, "r")
        except (FileNotFoundError, ValueError):  # not there, or empty
            return np.empty(0, np.uint8)


def _add(store: Store, lacking: dict[bytes, int], images: np.ndarray, feature_map: Map, progress: Counting) -> None:
    names = list(lacking)
    with progress(f"{feature_map.name} features", len(images), len(images) - len(names)) as advance:
        for start in range(0, len(names), CHUNK):
            chunk = names[start : start + CHUNK]
            store.add(chunk, _compute(feature_map, images, [lacking[name] for name in chunk]))
            advance(len(chunk))


def _compute(feature_map: Map, images: np.ndarray, places: Sequence[int]) -> np.ndarray:
    """The features of the images at these places, in batches of one size: the last is filled up with its last image."""
    parts: list[np.ndarray] = []
    for start in range(0, len(places), BATCH):
        wanted = list(places[start : start + BATCH])
        part = feature_map(images[wanted + wanted[-1:] * (BATCH - len(wanted))])
        if part.ndim != 2 or len(part) != BATCH or part.dtype != np.float32:
            raise ConfigError(
                "FS006",
                f"{feature_map.name} gives {part.dtype} of shape {part.shape} for {BATCH} images. "
                "Let it give one float32 row each",
            )
        if parts and part.shape[1] != parts[0].shape[1]:
            raise _uneven(feature_map.name, part.shape[1], wanted[0], parts[0].shape[1])
        broken = np.flatnonzero(~np.isfinite(part).all(axis=1))
        if len(broken):
            row = wanted[min(int(broken[0]), len(wanted) - 1)]
            raise DataError("FS304", f"{feature_map.name} gives NaN or infinity for row {row}. Take other weights")
        parts.append(part[: len(wanted)])
    return np.concatenate(parts)


def _uneven(what: str, width: int, row: int, others: int) -> ConfigError:
    return ConfigError(
        "FS006",
        f"{what} gives {width} features for row {row}, {others} for others. Let it give as many for each image",
    )


def _checksum(row: np.ndarray, width: int) -> bytes:
    return bytes.fromhex(hash_of(str(width), bytes_of(row)))


def _append(file: Path, content: memoryview, step: int) -> int:
    """Where the content begins, which is a multiple of `step`; a torn end is overwritten."""
    with os.fdopen(os.open(file, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as handle:
        start = handle.seek(0, os.SEEK_END) // step * step
        handle.seek(start)
        handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())
    return start
