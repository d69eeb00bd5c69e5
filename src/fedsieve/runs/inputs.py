"""New samples for a trained model, from images, folders, lists, tables and arrays, read as its training data were."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedsieve.base.array_files import BROKEN
from fedsieve.base.errors import DataError
from fedsieve.data.sources.base import DataOptions, Window, checked_images
from fedsieve.data.sources.csv_rows import Columns, read_columns
from fedsieve.data.sources.files import SUFFIXES, file_column, listed_file
from fedsieve.data.sources.limits import MAX_GB, check_arrays, folders_below, regular
from fedsieve.data.sources.pictures import Frame, ImageFiles, open_row
from fedsieve.data.sources.tabular import Rules, read_sheet
from fedsieve.models.saved import SavedModels

CHUNK = 500
"""Images that are in memory at a time."""
ARRAYS = (".npz", ".npy")
OPTIONS = DataOptions()


@dataclass(frozen=True)
class Taken:
    """Some samples, and where each came from."""

    where: Sequence[str]
    samples: np.ndarray
    texts: Sequence[str] | None = None
    """What each says, where samples are texts."""


@dataclass
class Inputs:
    """The samples of files and folders, in their order; what could not be read is noted and passed over."""

    given: Sequence[str | Path]
    saved: SavedModels
    unread: list[DataError] = field(default_factory=list)
    """Why samples could not be read, each with its place."""

    def __iter__(self) -> Iterator[Taken]:
        pictures: list[Path] = []
        for path in map(Path, self.given):
            if path.is_dir():
                pictures += self._below(path)
            elif path.suffix.lower() in (*ARRAYS, ".csv"):
                yield from self._pictures(pictures)
                pictures = []
                yield from self._array(path) if path.suffix.lower() in ARRAYS else self._listed(path)
            else:
                regular(path)
                self._refuse_for_tables(path)
                pictures.append(path)
        yield from self._pictures(pictures)

    def _below(self, folder: Path) -> list[Path]:
        """The images in a folder and in those below it."""
        self._refuse_for_tables(folder)
        found = [
            folder.joinpath(*parts, name)
            for parts, _, names in folders_below(folder)
            for name in names
            if Path(name).suffix.lower() in SUFFIXES and not name.startswith(".")
        ]
        if not found:
            raise DataError("FS301", f"{folder}: holds no images. Give images, a folder of them, .csv, .npz or .npy")
        return found

    def _refuse_for_tables(self, path: Path) -> None:
        if len(self.saved.shape) != 3:
            width = self.saved.shape[0]
            raise DataError("FS309", f"{path}: the model takes rows of {width} numbers. Give a .csv, .npz or .npy file")

    def _pictures(self, files: Sequence[Path], where: Sequence[str] | None = None) -> Iterator[Taken]:
        if not files:
            return
        channels, height, width = self.saved.shape
        reading = self.saved.reading
        window: Window | None = reading.window
        frame = Frame(height, width, channels, reading.fit, window)
        places = [str(file) for file in files] if where is None else list(where)
        pictures = ImageFiles(files, lambda row: places[row])
        for start in range(0, len(files), CHUNK):
            read: list[tuple[str, np.ndarray]] = []
            for row in range(start, min(start + CHUNK, len(files))):
                try:
                    with open_row(pictures, row, OPTIONS) as picture:
                        read.append((places[row], frame(picture)))
                except DataError as problem:
                    self.unread.append(problem)
            if read:
                yield Taken([place for place, _ in read], np.stack([image for _, image in read]))

    def _array(self, path: Path) -> Iterator[Taken]:
        """The array `x`, `images` or `x_test`, or the only one."""
        try:
            check_arrays(path, MAX_GB)
            loaded = np.load(path, allow_pickle=False)
            if not isinstance(loaded, np.ndarray):
                with loaded:
                    names = [name for name in ("x", "images", "x_test") if name in loaded.files] or loaded.files
                    if not names:
                        raise ValueError("it holds no array")
                    loaded = loaded[names[0]]
        except BROKEN as problem:
            raise DataError(
                "FS302", f"{path}: not a readable array file ({problem}). Write it with numpy.save"
            ) from None
        yield Taken([f"{path}:{row}" for row in range(len(loaded))], checked_images(np.asarray(loaded), str(path)))

    def _listed(self, path: Path) -> Iterator[Taken]:
        columns = read_columns(path)
        column = file_column(columns, OPTIONS) if len(self.saved.shape) == 3 else None
        if column is None:
            yield from self._table(columns)
            return
        names = columns.texts(column)
        places = [f"{path}:{line}" for line in columns.lines]
        files = [listed_file(path.parent, name, OPTIONS, where) for name, where in zip(names, places, strict=True)]
        yield from self._pictures(files, [f"{place} {name}" for place, name in zip(places, names, strict=True)])

    def _table(self, columns: Columns) -> Iterator[Taken]:
        reading, width = self.saved.reading, self.saved.shape[0]
        if len(self.saved.shape) != 1:
            raise DataError(
                "FS302", f"{columns.file}: has no column 'file' that names images. Name them there, from its folder"
            )
        wanted = list(reading.columns) or list(columns.header)
        absent = [name for name in wanted if name not in columns.header]
        if absent:
            raise DataError(
                "FS302", f"{columns.file}: has no column '{absent[0]}', which the model was trained on. Add it"
            )
        if not reading.columns and len(wanted) != width:
            raise DataError(
                "FS309", f"{columns.file}: has {len(wanted)} columns, the model takes {width}. Leave only these"
            )
        places = [f"{columns.file}:{line}" for line in columns.lines]
        rules = Rules.again(reading.model_dump(), columns.decimal_comma)
        sheet = read_sheet(
            {name: columns.texts(name) for name in wanted}, rules, np.zeros(len(places), bool), places.__getitem__
        )
        self.unread += [DataError("FS304", f"{places[row]}: has a gap") for row in np.flatnonzero(~sheet.whole)]
        kept = np.flatnonzero(sheet.whole)
        if len(kept):
            yield Taken([places[row] for row in kept], sheet.values[kept])
