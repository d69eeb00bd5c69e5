"""Cells of CSV files that a spreadsheet would run as a formula, made text, and read back as they were."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from typing import Any, TextIO

_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_BOTH = "\r\n"
_PLAIN = r"[-+]?(\d[\d,]*\.?\d*|\.\d+)(e[-+]?\d+)?"
_NUMBER = re.compile(rf"{_PLAIN}( ± {_PLAIN})?( \(n=\d+\))?", re.IGNORECASE)


def harmless(cell: Any) -> Any:
    """A quote before text that begins like a formula; numbers stay numbers."""
    if isinstance(cell, str) and _FORMULA.match(cell) and not _NUMBER.fullmatch(cell):
        return f"'{cell}"
    return cell


def original(cell: str) -> str:
    """A cell as it was before `harmless`."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


def write_rows(file: TextIO, rows: Iterable[Iterable[Any]]) -> None:
    """The only way in which CSV is written, but for rows of somebody's own file."""
    csv.writer(_Lines(file), lineterminator=_BOTH).writerows([harmless(cell) for cell in row] for row in rows)


def row_text(cells: Iterable[str], end: str, separator: str = ",") -> str:
    """One row of somebody's own file, whose other cells stay as they are."""
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=separator, lineterminator=end).writerow(cells)
    return text.getvalue()


class _Lines:
    """Rows that end as lines do; the writer itself is to know of both characters, to quote cells that hold one."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, row: str) -> int:
        return self._file.write(row.removesuffix(_BOTH) + "\n")
