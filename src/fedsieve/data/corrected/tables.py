"""CSV files after the decisions: all that was not decided stays as it was, character by character."""

from __future__ import annotations

import csv
import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from fedsieve.base.disk import write_bytes
from fedsieve.base.errors import DataError
from fedsieve.base.sheets import harmless, original, row_text
from fedsieve.data.corrected.base import Outcome, Verdicts
from fedsieve.data.sources.base import DataOptions
from fedsieve.data.sources.csv_rows import Columns, read_columns, separator_of
from fedsieve.data.sources.files import CLASS_LIST, file_column, read_class_list

MARK = "\ufeff"
"""Which some programs write before a table."""
Rename = Callable[[str], str]


def correct_csv(file: Path, verdicts: Verdicts, out: Path, options: DataOptions) -> Outcome:
    """One CSV file to another; files that it lists are named as seen from the new one."""
    if out.suffix != ".csv":
        raise DataError("FS302", f"{out}: the data are a CSV file. Give a name that ends with .csv")
    columns = read_columns(file, options.max_gb)
    moved = os.path.relpath(file.parent.resolve(), out.parent.resolve())

    def seen_from_there(name: str) -> str:
        return name if Path(name).is_absolute() else Path(os.path.normpath(Path(moved, name))).as_posix()

    lists_files = file_column(columns, options) is not None and moved != "."
    outcome = rewrite(columns, verdicts, out, options, seen_from_there if lists_files else None)
    classes = out.parent / CLASS_LIST
    if (file.parent / CLASS_LIST).is_file() and not classes.exists():
        shutil.copy2(file.parent / CLASS_LIST, classes)
    return outcome


def rewrite(
    columns: Columns, verdicts: Verdicts, out: Path, options: DataOptions, rename: Rename | None = None
) -> Outcome:
    labels = columns.records(options, read_class_list(columns.file.parent)).labels
    listed, separator = file_column(columns, options), separator_of(columns.file)
    where = places(columns, listed)
    verdicts.check(where, {*labels, *(read_class_list(columns.file.parent) or ())})
    after = {line: verdicts.after(at, label) for line, at, label in zip(columns.lines, where, labels, strict=True)}
    before = dict(zip(columns.lines, labels, strict=True))
    label_at = columns.header.index(options.label)
    file_at = columns.header.index(listed) if rename is not None and listed is not None else None
    written = []
    for line, text in _records(columns.file, separator):
        if line not in after:  # the header, or an empty line
            written.append(text)
            continue
        label = after[line]
        if label is None:
            continue
        if label == before[line] and rename is None:
            written.append(text)
            continue
        cells = next(csv.reader([text], delimiter=separator))
        if label != before[line]:
            cells[label_at] = str(harmless(label))
        if rename is not None and file_at is not None:
            cells[file_at] = str(harmless(rename(original(cells[file_at].strip()))))
        written.append(row_text(cells, text[len(text.rstrip("\r\n")) :], separator))
    write_bytes(out, "".join(written).encode())
    return Outcome(out, len(after) - verdicts.left_out, verdicts.changed, verdicts.left_out)


def places(columns: Columns, listed: str | None) -> list[str]:
    """Where each row came from, as sources say it."""
    if listed is not None:
        return [Path(name).as_posix() for name in columns.texts(listed)]
    return [f"{columns.file.name}:{line}" for line in columns.lines]


def _records(file: Path, separator: str) -> list[tuple[int, str]]:
    """The line where each record begins, and its text with the ends of its lines."""
    text = file.read_bytes().decode("utf-8")
    lines = io.StringIO(text.removeprefix(MARK), newline="").readlines()
    reader = csv.reader(iter(lines), delimiter=separator)
    found, begins = [], 0
    for _ in reader:
        found.append((begins + 1, "".join(lines[begins : reader.line_num])))
        begins = reader.line_num
    return [(0, MARK), *found] if text.startswith(MARK) else found
