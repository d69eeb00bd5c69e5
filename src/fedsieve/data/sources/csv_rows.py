"""CSV files: images by their path, tables of numbers, or texts. Errors name the line as an editor counts."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import numpy as np

from fedsieve.base.errors import DataError, nearest
from fedsieve.base.sheets import original
from fedsieve.data.origins import Origins
from fedsieve.data.sources.base import DataOptions, Source
from fedsieve.data.sources.limits import MAX_GB, check_bytes, limited_lines, regular
from fedsieve.data.sources.records import Records, check_records, table_store, to_source, training_first
from fedsieve.data.sources.tabular import Rules, read_sheet

ABOUT = ("id", "true_label", "split", "group")
"""Columns with a meaning of their own, beside the label's and the client's."""
SPLITS = {"train": False, "": False, "test": True}
SEPARATORS = (",", ";", "\t")


@dataclass(frozen=True)
class Columns:
    """The cells of a CSV file, stripped of blanks around them."""

    file: Path
    header: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    lines: Sequence[int]
    """Where each row begins."""
    decimal_comma: bool = False
    """Whether 1,5 may be a number, as in files that programs write where commas do not separate cells."""

    def texts(self, name: str) -> list[str]:
        column = self.header.index(name)
        return [row[column] for row in self.rows]

    def place(self, row: int) -> str:
        return f"line {self.lines[row]}"

    def records(self, options: DataOptions, class_names: tuple[str, ...] | None, labels: bool = True) -> Records:
        """Label, client, truth, group and split of every row. Without `labels` their cells or column may be missing."""
        spared = ("client",) if labels else ("client", "label")
        for option, name in (("label", options.label), ("client", options.client), ("text", options.text)):
            usual = option in spared and name == getattr(DataOptions, option)
            if name is not None and name not in self.header and not usual:
                raise DataError(
                    "FS302",
                    f"{self.file}: has no column '{name}'. {nearest(name, self.header)} "
                    f"Name the right one with data.{option}",
                )
        file, lines = self.file.name, np.array(self.lines)  # and not `self`: origins would keep all cells in memory
        records = Records(
            origin=str(self.file),
            place=self.place,
            origins=Origins(len(lines), lambda row: f"{file}:{lines[row]}"),
            labels=self._optional(options.label) or [""] * len(lines),
            clients=self._optional(options.client),
            true=self._optional("true_label"),
            groups=self._optional("group"),
            class_names=class_names,
            may_lack_labels=not labels,
            notes=() if options.label in self.header else (f"no row has a label: no column is called {options.label}",),
        )
        self._refuse_twice(records)
        return Records(**{**vars(records), "test": self._test_rows(records)})

    def _optional(self, name: str) -> list[str] | None:
        return self.texts(name) if name in self.header else None

    def _test_rows(self, records: Records) -> np.ndarray | None:
        splits = self._optional("split") or []
        for row, split in enumerate(splits):
            if split not in SPLITS:
                raise DataError("FS302", f"{records.where(row)} has the split '{split}'. Write train or test")
        test = np.array([SPLITS[split] for split in splits], bool)
        return test if test.any() else None

    def _refuse_twice(self, records: Records) -> None:
        seen: dict[str, int] = {}
        for row, name in enumerate(self._optional("id") or ()):
            if name in seen:
                raise DataError(
                    "FS313", f"{records.where(row)}: id {name} stands in {self.place(seen[name])} too. Drop one of them"
                )
            seen[name] = row


def separator_of(file: Path) -> str:
    """What stands between cells: of comma, semicolon and tab the one that the first line has most of."""
    with file.open(newline="", encoding="utf-8-sig") as handle:
        first = re.sub(r'"[^"]*"', "", next(limited_lines(handle, file, MAX_GB), ""))
    return max(SEPARATORS, key=first.count)


def read_header(file: Path) -> tuple[str, ...]:
    """The names of the columns."""
    regular(file)
    try:
        with file.open(newline="", encoding="utf-8-sig") as handle:
            _, names = next(_numbered_rows(handle, file, MAX_GB), (0, []))
    except OSError as problem:
        raise _unreadable(str(file), problem) from None
    return tuple(name.strip() for name in names)


def read_columns(file: Path, max_gb: float = MAX_GB) -> Columns:
    check_bytes(regular(file), str(file), max_gb)
    header = read_header(file)
    counted = Counter(header)
    twice = next((name for name in header if counted[name] > 1), None)
    if twice is not None:
        raise DataError("FS302", f"{file}: has two columns '{twice}'. Rename one")
    rows, lines = [], []
    try:
        with file.open(newline="", encoding="utf-8-sig") as handle:
            reader = _numbered_rows(handle, file, max_gb)
            next(reader, None)
            for line, cells in reader:
                if not any(cells):
                    continue
                if len(cells) != len(header):
                    raise DataError(
                        "FS302",
                        f"{file}: line {line} has {len(cells)} cells, the header {len(header)}. Complete it",
                    )
                rows.append([original(cell.strip()) for cell in cells])
                lines.append(line)
    except OSError as problem:
        raise _unreadable(str(file), problem) from None
    return Columns(file, header, rows, lines, decimal_comma=separator_of(file) == ";")


def _numbered_rows(handle: IO[str], file: Path, max_gb: float) -> Iterator[tuple[int, list[str]]]:
    """The cells of each row, and the line where it begins: a quoted cell may go on over several."""
    begins = 1
    try:
        reader = csv.reader(limited_lines(handle, file, max_gb), delimiter=separator_of(file))
        for cells in reader:
            line, begins = begins, reader.line_num + 1
            yield line, cells
    except csv.Error as problem:
        raise _unreadable(f"{file}: line {reader.line_num}", problem) from None
    except UnicodeDecodeError as problem:
        raise _unreadable(f"{file}: line {_undecodable(file)}", problem) from None


def _undecodable(file: Path) -> int:
    """The first line that is not UTF-8: what complains has read further already."""
    with file.open("rb") as handle:
        return next((number for number, line in enumerate(handle, 1) if not _is_utf8(line)), 1)


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _unreadable(where: str, problem: Exception) -> DataError:
    return DataError("FS302", f"{where}: cannot be read as CSV ({problem}). Save it as UTF-8 with commas")


def read_table(
    columns: Columns, options: DataOptions, class_names: tuple[str, ...] | None, name: str, seed: int, labels: bool
) -> Source:
    """Every column that has no meaning of its own is a feature."""
    records = columns.records(options, class_names, labels)
    names = check_records(records, options.max_classes)
    features = [name for name in columns.header if name not in (*ABOUT, options.label, options.client)]
    if not features:
        raise DataError(
            "FS302", f"{columns.file}: has neither a column 'file' nor columns of numbers. Add what to learn from"
        )
    trained = np.ones(len(columns.rows), bool) if records.test is None else ~records.test
    rules = Rules.of(options, features, str(columns.file), columns.decimal_comma)
    sheet = read_sheet({name: columns.texts(name) for name in features}, rules, trained, records.where)
    order = training_first(records)
    order = order[sheet.whole[order]]
    ordered = records.in_order(order)
    if not len(order) or (ordered.test is not None and bool(ordered.test.all())):
        raise DataError("FS307", f"{columns.file}: every row for training has a gap. Choose another data.missing")
    store = replace(table_store(sheet.values[order], ordered), reading=sheet.reading, notes=sheet.notes)
    return to_source(name, ordered, store, names, test_fraction=options.test_fraction, seed=seed)
