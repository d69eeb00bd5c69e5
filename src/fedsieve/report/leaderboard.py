"""Methods by settings: who is best where, what it costs and what it needs, as tables and as a page."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from fedsieve.base.disk import write_bytes
from fedsieve.base.errors import DataError
from fedsieve.report.matrix_plots import heat_map
from fedsieve.report.page import write_page
from fedsieve.report.section import Section
from fedsieve.report.tables import MEAN, UNKNOWN, Row, Table, is_bound

RIGHT_LABELS = ", right labels"
"""Behind the name of a method that was trained without noise."""
OPENS, ENDS = "<!-- board {} -->", "<!-- end of board {} -->"
"""Between these a page has the tables of a board."""


@dataclass(frozen=True)
class Column:
    """One setting, with the runs of each method in it, a row a seed."""

    name: str
    settings: Mapping[str, str]
    runs: Mapping[str, tuple[Row, ...]]

    def accuracies(self, method: str) -> list[float]:
        """In per cent."""
        return [100 * row[MEAN] for row in self.runs.get(method, ()) if row.get(MEAN) is not None]

    @cached_property
    def means(self) -> dict[str, float]:
        """Of the methods that were tested."""
        return {method: float(np.mean(known)) for method in self.runs if (known := self.accuracies(method))}

    @cached_property
    def ranks(self) -> dict[str, int]:
        """1 for the best; who knows the truth takes no part. Equal means share the better place."""
        rivals = {method: mean for method, mean in self.means.items() if not knows_truth(method)}
        return {method: 1 + sum(other > mean for other in rivals.values()) for method, mean in rivals.items()}


@dataclass(frozen=True)
class Board:
    """Columns under one name."""

    name: str
    columns: tuple[Column, ...]

    @cached_property
    def methods(self) -> list[str]:
        """Rivals by their mean rank, those that lack a column after the others; then bounds by their mean."""
        names = dict.fromkeys(method for column in self.columns for method in column.means)
        return sorted(names, key=lambda m: (knows_truth(m), self.missing(m), self.mean_rank(m), -self.mean(m), m))

    def missing(self, method: str) -> int:
        """Columns without it."""
        return sum(method not in column.means for column in self.columns)

    def mean(self, method: str) -> float:
        """Accuracy over the columns that it has."""
        return float(np.mean([column.means[method] for column in self.columns if method in column.means]))

    def mean_rank(self, method: str) -> float:
        """Over the columns that it has; 0 for bounds, which have none."""
        places = [column.ranks[method] for column in self.columns if method in column.ranks]
        return float(np.mean(places)) if places else 0.0

    def cost(self, method: str, of: Callable[[Row], float | None]) -> float | None:
        """The mean over columns of the mean over their runs."""
        by_column = [
            float(np.mean(known))
            for column in self.columns
            if (known := [value for row in column.runs.get(method, ()) if (value := of(row)) is not None])
        ]
        return float(np.mean(by_column)) if by_column else None


def knows_truth(method: str) -> bool:
    """Whether it is a bound and no rival."""
    return is_bound(method) or method.endswith(RIGHT_LABELS)


def accuracy_table(board: Board) -> Table:
    """Mean ± sample standard deviation over seeds; the best rival of a column is bold."""
    body = [
        (
            _named(method),
            _one(None if board.missing(method) else board.mean(method)),
            *(_spread(column.accuracies(method)) for column in board.columns),
        )
        for method in board.methods
    ]
    best = {
        (i, 2 + j)
        for j, column in enumerate(board.columns)
        for i, method in enumerate(board.methods)
        if column.ranks.get(method) == 1
    }
    whole = {m: board.mean(m) for m in board.methods if not (knows_truth(m) or board.missing(m))}
    best |= {(i, 1) for i, m in enumerate(board.methods) if m in whole and whole[m] == max(whole.values())}
    return Table(("method", "mean", *(column.name for column in board.columns)), tuple(body), frozenset(best))


def cost_table(board: Board, needs: Mapping[str, str]) -> Table:
    """Ranks, seconds and bytes of a run, what a method needs."""
    body = [
        (
            _named(method),
            _one(board.mean_rank(method) or None),
            ", ".join(str(column.ranks.get(method, UNKNOWN)) for column in board.columns)
            if not knows_truth(method)
            else UNKNOWN,
            _one(board.cost(method, lambda row: row.get("seconds"))),
            _one(board.cost(method, _megabytes)),
            needs.get(method.removesuffix(RIGHT_LABELS), UNKNOWN),
        )
        for method in board.methods
    ]
    return Table(("method", "mean rank", "rank in each column", "seconds", "MB", "needs"), tuple(body))


def column_table(board: Board) -> Table | None:
    """The settings in which columns differ, if they do."""
    keys = dict.fromkeys(key for column in board.columns for key in column.settings)
    differ = [key for key in keys if len({column.settings.get(key) for column in board.columns}) > 1]
    body = [(column.name, *(column.settings.get(key, UNKNOWN) for key in differ)) for column in board.columns]
    return Table(("column", *differ), tuple(body)) if differ else None


def shared_settings(board: Board) -> str:
    """What all columns have in common, as on the command line."""
    first, *others = (column.settings for column in board.columns)
    return " ".join(f"{key}={value}" for key, value in first.items() if all(o.get(key) == value for o in others))


def board_text(board: Board, needs: Mapping[str, str]) -> str:
    """The tables of a board as Markdown."""
    differing = column_table(board)
    parts = [
        f"In all columns: `{shared_settings(board)}`.\n",
        *([differing.to_markdown()] if differing else []),
        "Accuracy in per cent, the mean of the last tests; ± is the sample standard deviation over seeds, and a number "
        "without it is of one seed. The mean is that of all columns.\n",
        accuracy_table(board).to_markdown(),
        "Ranks leave out who knows the truth. Seconds and megabytes, both ways, are of a whole run.\n",
        cost_table(board, needs).to_markdown(),
    ]
    return "\n".join(parts)


def write_leaderboard(
    boards: Sequence[Board], needs: Mapping[str, str], folder: Path, markdown: Path | None = None
) -> tuple[Path, Path]:
    """`leaderboard.md`, or another file, in which other text stays as it is, and `leaderboard.html`."""
    page = markdown or folder / "leaderboard.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    if page.exists():
        text = page.read_text(encoding="utf-8")
    else:
        places = (f"\n## {b.name}\n\n{OPENS.format(b.name)}\n{ENDS.format(b.name)}\n" for b in boards)
        text = f"# Leaderboard\n{''.join(places)}"
    for board in boards:
        text = _filled(page, text, board.name, board_text(board, needs))
    write_bytes(page, text.encode())  # whole or not at all: people write into it
    rivals = {m for board in boards for m in board.methods if not knows_truth(m)}
    html = write_page(
        folder / "leaderboard.html",
        title="Leaderboard",
        headlines=[
            *((f"best mean rank, {board.name}", _named(board.methods[0])) for board in boards),
            ("methods", str(len(rivals))),
            ("runs", str(sum(len(runs) for b in boards for column in b.columns for runs in column.runs.values()))),
        ],
        sections=[section for board in boards for section in _sections(board, needs)],
    )
    return page, html


def _filled(page: Path, text: str, name: str, tables: str) -> str:
    begin, end = (re.escape(mark.format(name)) for mark in (OPENS, ENDS))
    filled, places = re.subn(
        f"({begin}\n).*?({end})", lambda found: f"{found[1]}\n{tables}\n{found[2]}", text, flags=re.DOTALL
    )
    if places != 1:
        raise DataError(
            "FS311",
            f"{page}: has {places} places for the board '{name}', and needs one. Write the lines "
            f"'{OPENS.format(name)}' and '{ENDS.format(name)}' where it should stand, or remove the file",
        )
    return filled


def _sections(board: Board, needs: Mapping[str, str]) -> Iterator[Section]:
    rivals = [method for method in board.methods if not knows_truth(method)]
    beaten = [
        [len(c.ranks) - c.ranks[method] if method in c.ranks else np.nan for c in board.columns] for method in rivals
    ]
    names = [column.name for column in board.columns]
    plot = heat_map(
        f"beaten-{re.sub('[^a-z0-9]+', '-', board.name.lower())}",
        "For each method and column, how many other methods are below it.",
        "Other methods below it",
        beaten,
        xlabel="",
        rows=rivals,
        columns=names,
        size=(9.6, 2.6 + 0.21 * len(rivals)),
        linear=True,
        each="column",
    )
    yield Section(
        f"{board.name}: accuracy",
        "Per cent, mean of the last tests; ± is the sample standard deviation over seeds, and a number without it is "
        "of one seed. The best of a column is bold; bounds know the truth and are no rivals.",
        plots=(plot,),
        table=accuracy_table(board),
    )
    yield Section(
        f"{board.name}: ranks and costs",
        "Seconds and megabytes, both ways, are of a whole run.",
        table=cost_table(board, needs),
    )
    yield Section(f"{board.name}: columns", "", command=shared_settings(board), table=column_table(board))


def _named(method: str) -> str:
    return f"{method} (bound)" if knows_truth(method) else method


def _one(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.1f}"


def _spread(values: Sequence[float]) -> str:
    if not values:
        return UNKNOWN
    return _one(float(np.mean(values))) + (f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else "")


def _megabytes(row: Row) -> float | None:
    ways = row.get("bytes_up"), row.get("bytes_down")
    return None if None in ways else sum(way for way in ways if way is not None) / 1e6
