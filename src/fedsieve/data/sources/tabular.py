"""The cells of a table as numbers: numbers as they are, categories as columns of 0 and 1, gaps as somebody chose."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsieve.base.errors import DataError, nearest
from fedsieve.data.sources.base import DataOptions
from fedsieve.data.sources.records import sorted_names

GAPS = frozenset({"", "nan", "<na>", "nat", "na", "n/a", "null", "none", "?"})
"""Cells, in small letters, that hold nothing."""
AUTO = "auto"
MOST_GUESSED, MOST_CATEGORIES = 50, 1000
"""Categories of a column that is found to have some, and of one that is said to."""
DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}([T ].*)?|\d{1,2}[./-]\d{1,2}[./-]\d{2,4}( .*)?|\d{4}/\d{1,2}/\d{1,2}( .*)?")


@dataclass(frozen=True)
class Sheet:
    """A table of numbers, and what is needed to read another one alike."""

    values: np.ndarray
    whole: np.ndarray
    """Which rows stay: those without a gap, where rows with one are dropped."""
    reading: Mapping[str, Any]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Rules:
    """How cells are read."""

    missing: str
    categories: Mapping[str, Sequence[str] | None]
    """Columns of categories; which these are, if they are known."""
    guess: bool = False
    """Whether other columns without numbers are taken for categories too."""
    fill: Mapping[str, float] | None = None
    """What stands for a gap in a column of numbers, if it is known."""
    decimal_comma: bool = False

    @staticmethod
    def of(options: DataOptions, features: Sequence[str], file: str, decimal_comma: bool) -> Rules:
        named = [] if options.categories in ("", AUTO) else options.categories.split("+")
        for name in named:
            if name not in features:
                raise DataError("FS302", f"{file}: has no column '{name}' (data.categories). {nearest(name, features)}")
        return Rules(options.missing, dict.fromkeys(named), options.categories == AUTO, None, decimal_comma)

    @staticmethod
    def again(reading: Mapping[str, Any], decimal_comma: bool) -> Rules:
        """As another table was read."""
        categories = {str(name): list(values) for name, values in reading.get("categories", {}).items()}
        return Rules(str(reading.get("missing", "refuse")), categories, False, reading.get("fill", {}), decimal_comma)


def read_sheet(
    columns: Mapping[str, Sequence[str]], rules: Rules, trained: np.ndarray, where: Callable[[int], str]
) -> Sheet:
    """All columns side by side. What stands for a gap comes from the rows that are `trained` on."""
    rows = len(trained)
    whole, made, notes = np.ones(rows, bool), [], []
    categories, fill = {}, {}
    for name, cells in columns.items():
        gaps = np.array([cell.casefold() in GAPS for cell in cells], bool)
        if gaps.any():
            _check_gap(name, cells, gaps, rules, where)
            whole &= ~gaps if rules.missing == "drop" else True
        numbers = None if name in rules.categories else _numbers(cells, gaps, rules)
        if numbers is None:
            kinds = _kinds(name, cells, gaps, rules, where)
            categories[name] = kinds
            made.append((np.array(cells)[:, None] == np.array(kinds)) & ~gaps[:, None])
            continue
        infinite = np.flatnonzero(~np.isfinite(numbers) & ~gaps)
        if len(infinite):
            raise DataError("FS304", f"{where(int(infinite[0]))}: column '{name}' holds infinity. Mend or drop the row")
        if rules.missing == "mean":
            known = numbers[trained & ~gaps]
            fill[name] = (rules.fill or {}).get(name, float(known.mean()) if len(known) else 0.0)
        numbers[gaps] = fill.get(name, 0.0)
        made.append(numbers[:, None])
    if categories and rules.fill is None:
        listed = ", ".join(f"{name} ({len(kinds)})" for name, kinds in categories.items())
        notes.append(f"columns of categories, each of which becomes a column of 0 and 1: {listed}")
    reading = {"columns": list(columns), "missing": rules.missing, "categories": categories, "fill": fill}
    with np.errstate(over="ignore"):  # refused below, with its place
        values = np.hstack(made).astype(np.float32)
    broken = np.argwhere(~np.isfinite(values))
    if len(broken):
        raise DataError("FS304", f"{where(int(broken[0][0]))} holds a number that is too large. Mend or drop the row")
    if not whole.all():
        notes.append(f"{int((~whole).sum())} rows with a gap are dropped (data.missing=drop)")
    return Sheet(values, whole, reading, tuple(notes))


def _check_gap(name: str, cells: Sequence[str], gaps: np.ndarray, rules: Rules, where: Callable[[int], str]) -> None:
    if rules.missing == "refuse":
        row = int(gaps.argmax())
        said = f"holds '{cells[row]}'" if cells[row] else "is empty"
        raise DataError(
            "FS304",
            f"{where(row)}: column '{name}' {said}. Fill it in, drop the row, or say what a gap means by data.missing",
        )


def _numbers(cells: Sequence[str], gaps: np.ndarray, rules: Rules) -> np.ndarray | None:
    """A column of numbers, NaN in gaps; None where it is none."""
    filled = ["nan" if gap else cell for cell, gap in zip(cells, gaps, strict=True)]
    for texts in (filled, [text.replace(",", ".") for text in filled] if rules.decimal_comma else ()):
        if len(texts):
            try:
                with np.errstate(over="ignore"):
                    return np.array(texts).astype(np.float64)
            except ValueError:
                continue
    return None


def _kinds(
    name: str, cells: Sequence[str], gaps: np.ndarray, rules: Rules, where: Callable[[int], str]
) -> Sequence[str]:
    """The categories of a column, or why it has none."""
    texts = [(row, cell) for row, cell in enumerate(cells) if not gaps[row]]
    known = rules.categories.get(name)
    if known is not None:
        for row, cell in texts:
            if cell not in known:
                raise DataError(
                    "FS303",
                    f"{where(row)}: column '{name}' holds the unknown category '{cell}'. Known: {', '.join(known)}",
                )
        return known
    row, first = next((one for one in texts if not _is_number(one[1], rules)), texts[0] if texts else (0, ""))
    if DATE.fullmatch(first):
        raise DataError(
            "FS302",
            f"{where(row)}: column '{name}' holds the date '{first}', of which a model makes nothing. Write what "
            "matters of it as a number, such as an age in days or a month, or drop the column",
        )
    found = {cell for _, cell in texts}
    if name not in rules.categories and (not rules.guess or len(found) > MOST_GUESSED):
        raise DataError(
            "FS302",
            f"{where(row)}: column '{name}' holds '{first}', which is no number. Name columns of categories by "
            f"data.categories ({AUTO} takes those of at most {MOST_GUESSED}), one of texts by data.text, or drop it",
        )
    if len(found) > MOST_CATEGORIES:
        raise DataError(
            "FS320", f"{where(row)}: column '{name}' has {len(found):,} categories, more than {MOST_CATEGORIES:,}"
        )
    return sorted_names(found)


def _is_number(cell: str, rules: Rules) -> bool:
    try:
        float(cell.replace(",", ".") if rules.decimal_comma else cell)
    except ValueError:
        return False
    return True
