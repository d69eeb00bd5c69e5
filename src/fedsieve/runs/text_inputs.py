"""New texts for a model of texts: given themselves, in a column of CSV files, or as the numbers that they became."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from fedsieve.base.errors import ConfigError, DataError, nearest, one_line
from fedsieve.data.sources.csv_rows import read_columns
from fedsieve.data.sources.limits import regular
from fedsieve.data.sources.text_rows import checked_texts, vectors
from fedsieve.data.texts import TextForm, is_known, text_map
from fedsieve.models.saved import SavedModels
from fedsieve.runs.inputs import ARRAYS, Inputs, Taken

FILES = (*ARRAYS, ".csv")


@dataclass
class TextInputs(Inputs):
    """The texts among what is given, and those of its files, in their order."""

    encoder: str | None = None
    """What encoded the texts, where the model's card is not enough."""

    def __iter__(self) -> Iterator[Taken]:
        for is_text, some in groupby(enumerate(self.given), key=lambda one: isinstance(one[1], str)):
            if is_text:
                yield self._themselves([(f"text {row}", str(text)) for row, text in some])
                continue
            for _, path in some:
                yield from self._of(Path(path))

    def _themselves(self, given: Sequence[tuple[str, str]]) -> Taken:
        places, texts = zip(*given, strict=True)
        return self._taken(places, checked_texts(texts, places.__getitem__))

    def _of(self, path: Path) -> Iterator[Taken]:
        if path.suffix.lower() in ARRAYS:
            yield from self._array(path)
        elif path.suffix.lower() == ".csv":
            yield from self._column(path)
        else:
            column = form_of(self.saved).column
            regular(path)
            raise DataError("FS302", f"{path}: not a CSV file. Give one with a column '{column}', or the text itself")

    def _column(self, path: Path) -> Iterator[Taken]:
        columns, name = read_columns(path), form_of(self.saved).column
        if name not in columns.header:
            hint = nearest(name, columns.header)
            raise DataError("FS302", f"{path}: has no column '{name}'. {hint} Rename the right one")
        read: list[tuple[str, str]] = []
        for line, cell in zip(columns.lines, columns.texts(name), strict=True):
            place = f"{path}:{line}"
            named = (f"{place}: column '{name}'",)
            try:
                (text,) = checked_texts([cell], named.__getitem__)
                read.append((place, text))
            except DataError as problem:
                self.unread.append(problem)
        if read:
            yield self._taken([place for place, _ in read], [text for _, text in read])

    def _taken(self, where: Sequence[str], texts: Sequence[str]) -> Taken:
        return Taken(where, encoded(self.saved, texts, self.encoder), texts)


def is_of_texts(saved: SavedModels) -> bool:
    """Whether a model was trained on texts, as its card says."""
    return saved.card.get("text") is not None


def form_of(saved: SavedModels) -> TextForm:
    """How texts became numbers for a model of them."""
    if not is_of_texts(saved):
        raise DataError("FS309", f"{saved.file}: the model was not trained on texts. Give an array or a file")
    return TextForm(**saved.card["text"])


def encoded(saved: SavedModels, texts: Sequence[str], encoder: str | None) -> np.ndarray:
    """Texts by the very map that the model was trained with, which its key proves."""
    form = form_of(saved)
    if encoder is None and not is_known(form.features):
        raise ConfigError(
            "FS010",
            f"{saved.file}: its texts were encoded by '{one_line(form.features)}', and what only a file names is not "
            "loaded. Look at it; then name it with --encoder hf:FOLDER",
        )
    name = encoder or form.features
    if text_map(name).key != form.key:
        raise DataError("FS310", f"{name}: not the encoder that {saved.file} was trained with. Name that one")
    return vectors(texts, name)


def files_among(words: Sequence[str]) -> list[str | Path]:
    """What somebody typed: files by their ending or because they are there, the rest as it is."""
    return [Path(word) if Path(word).suffix.lower() in FILES or _is_file(Path(word)) else word for word in words]


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a text too long for a name
        return False
