"""Reads comparisons as the columns of a leaderboard."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from fedsieve.base.errors import DataError
from fedsieve.base.yaml_file import UNREADABLE, load_yaml
from fedsieve.evaluate.schema import ASKED, RESULTS
from fedsieve.methods import METHODS
from fedsieve.report.leaderboard import RIGHT_LABELS, Board, Column
from fedsieve.report.tables import setting_text
from fedsieve.runs.comparison import read_results
from fedsieve.settings.config import FREE, PLACES, SECTIONS

NO_SETTING = frozenset({"method", "seed", *FREE, *PLACES})
"""Keys in which the runs of a column may differ."""


class Finished(BaseModel, strict=True):
    """What a leaderboard reads of a run."""

    method: str = Field(min_length=1, max_length=200)
    seed: int
    federation: str = ""
    test_accuracy_last10: float | None = Field(None, ge=0, le=1)
    seconds: float | None = Field(None, ge=0, allow_inf_nan=False)
    bytes_up: int | None = Field(None, ge=0)
    bytes_down: int | None = Field(None, ge=0)


def read_board(folder: Path) -> Board:
    """The comparisons in a folder by their names. One without noise is a bound for those that differ in noise alone."""
    places = sorted(file.parent for file in folder.glob(f"*/{RESULTS}"))
    if not places:
        raise DataError("FS311", f"{folder}: holds no comparison. Give a folder with those of `fedsieve compare`")
    columns = {place.name: read_column(place) for place in places}
    if not any(column.ranks for column in columns.values()):
        raise DataError(
            "FS311", f"{folder}: no run in it was tested, so there is nothing to rank. Run with test samples"
        )
    without = {name: column for name, column in columns.items() if column.settings.get("noise", "none") == "none"}
    bounds: set[str] = set()
    noisy = []
    for name, column in columns.items():
        if name in without:
            continue
        same = {other: bound for other, bound in without.items() if _split(bound) == _split(column)}
        bounds |= same.keys()
        right = {method + RIGHT_LABELS: runs for bound in same.values() for method, runs in bound.runs.items()}
        noisy.append(Column(name, column.settings, {**column.runs, **right}))
    alone = [column for name, column in without.items() if name not in bounds]
    return Board(folder.name, (*noisy, *alone))


def read_column(folder: Path) -> Column:
    """One comparison, in which method and seed alone differ, and all methods of a seed had the same data."""
    runs: dict[str, dict[int, dict[str, Any]]] = {}
    data: dict[int, tuple[str, str]] = {}
    for row in read_results(folder):
        run = _finished(folder, row)
        method, seed, held = run.method, run.seed, run.federation
        first, expected = data.setdefault(seed, (method, held))
        if held != expected:
            raise DataError(
                "FS314",
                f"{folder}: {method} and {first} had other data with seed {seed}. Compare them with the same settings, "
                "in a folder of their own",
            )
        if seed in runs.setdefault(method, {}):
            raise DataError(
                "FS314",
                f"{folder}: {method} was run twice with seed {seed}, with other options. Give each variant a folder of "
                "its own",
            )
        runs[method][seed] = run.model_dump()
    by_method = {method: tuple(by_seed[seed] for seed in sorted(by_seed)) for method, by_seed in runs.items()}
    return Column(folder.name, _settings(folder), by_method)


def _finished(folder: Path, row: Mapping[str, Any]) -> Finished:
    try:
        return Finished.model_validate(row)
    except ValidationError as problem:
        first = problem.errors()[0]
        raise DataError(
            "FS311",
            f"{folder / RESULTS}: run {row['key']}, {'.'.join(map(str, first['loc']))}: {first['msg']}. Take that line "
            "out and start the comparison again",
        ) from None


def _settings(folder: Path) -> dict[str, str]:
    """What was asked for, without options of methods."""
    try:
        asked = load_yaml(folder / ASKED)
    except (OSError, *UNREADABLE) as problem:
        raise DataError("FS311", f"{folder / ASKED}: cannot be read ({problem}). Start the comparison again") from None
    if not isinstance(asked, Mapping):
        raise DataError("FS311", f"{folder / ASKED}: holds no settings. Start the comparison again")
    return {str(key): setting_text(value) for key, value in asked.items() if _of_a_column(str(key))}


def _of_a_column(key: str) -> bool:
    section = key.partition(".")[0]
    return key not in NO_SETTING and ("." not in key or section in SECTIONS or section not in METHODS)


def _split(column: Column) -> frozenset[tuple[str, str]]:
    """All but the noise."""
    return frozenset((key, value) for key, value in column.settings.items() if key.partition(".")[0] != "noise")


def methods_of(boards: Iterable[Board]) -> list[str]:
    """Each once, as one would name it to run it."""
    return list(dict.fromkeys(m.removesuffix(RIGHT_LABELS) for board in boards for m in board.methods))
