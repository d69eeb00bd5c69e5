"""Reading a run's folder, checked on the way, so that the modules beside this one meet only whole values.

A file that is damaged raises FS311 with its name and line; an optional one that is missing is an empty answer.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from fedsieve.base.array_files import BROKEN
from fedsieve.base.errors import DataError
from fedsieve.base.seal import unseal
from fedsieve.base.sheets import original
from fedsieve.base.yaml_file import UNREADABLE, load_yaml
from fedsieve.evaluate.schema import LAST, File
from fedsieve.report.arrays import Arrays, Exhibit, Inside, Sample, exhibits_of, inside_of, suspects_of
from fedsieve.report.records import KNOWN, ClientReport, Federation, Label, Record, Round, Summary
from fedsieve.report.tables import setting_text


@dataclass(frozen=True)
class RunFolder:
    """A run as its folder tells it. What only some pages need is read when asked for."""

    folder: Path
    config: Mapping[str, Any]
    rounds: tuple[Round, ...]
    federation: Federation | None
    summary: Summary | None

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def method(self) -> str:
        return str(self.config.get("method", "?"))

    @property
    def data(self) -> str:
        return str((self.federation and self.federation.data) or self.config.get("data", "?"))

    def fact(self, key: str) -> str | None:
        """A setting as it came true: data may name their clients, and bring labels that are not known to be right."""
        if key not in self.config:
            return None
        told = setting_text(self.config[key])
        clients = self.federation.clients if self.federation else ()
        if key == "clients" and clients:
            return str(len(clients))
        if key == "noise" and told == "none" and any(client.noise_realised != 0 for client in clients):
            return "as delivered"
        return told

    def client_name(self, number: int) -> str:
        return str(number) if self.federation is None else self.federation.client_name(number)

    def client_title(self, number: int) -> str:
        """Where nothing else says that it is a client."""
        name = self.client_name(number)
        return f"client {number}" if name == str(number) else name

    @property
    def finished(self) -> bool:
        return self.summary is not None and self.summary.finished

    @property
    def missing_rounds(self) -> list[int]:
        """Rounds before the last one that metrics.jsonl tells nothing of, and those that the summary misses."""
        there = {row.round for row in self.rounds}
        lost = set(self.summary.rounds_missing) if self.summary is not None else set()
        return sorted(lost | ({*range(1, max(there, default=0))} - there))

    @cached_property
    def client_reports(self) -> tuple[ClientReport, ...]:
        return _read_lines(self.folder / File.CLIENTS, ClientReport)

    @cached_property
    def labels(self) -> tuple[Label, ...] | None:
        return read_labels(self.folder / File.LABELS)

    @cached_property
    def suspects(self) -> dict[tuple[str, str], Sample]:
        """By owner and origin, the samples of labels that the report shows."""
        return _read_arrays(self.folder / File.SUSPECTS, suspects_of) or {}

    @cached_property
    def exhibits(self) -> tuple[Exhibit, ...]:
        return _read_arrays(self.folder / File.EXHIBITS, exhibits_of) or ()

    @cached_property
    def inside(self) -> Inside | None:
        return _read_arrays(self.folder / File.INSIDE, inside_of)

    @cached_property
    def client_accuracy(self) -> dict[int, float]:
        """Test accuracy of the clients for which it is known, at the end."""
        known = (self.summary and self.summary.client_accuracy) or ()
        return {client: value for client, value in enumerate(known) if value is not None and np.isfinite(value)}

    @cached_property
    def confusion(self) -> NDArray[np.int64] | None:
        """True by predicted classes at the end, where they fit the federation's."""
        counts = self.summary and self.summary.confusion
        size = self.federation.n_classes if self.federation else 0
        if not counts or len(counts) != size or any(len(row) != size for row in counts):
            return None
        return np.array(counts, np.int64)

    @cached_property
    def numbers(self) -> dict[str, Any]:
        """The settings and the results in one row; results of a run without a summary come from its rounds so far."""
        tested, extra = self.by_round("test_accuracy"), {row.round for row in self.rounds if row.extra}
        accuracy = [value for number, value in tested.items() if number not in extra] or list(tested.values())
        results: dict[str, Any] = {"seconds": sum(row.seconds for row in self.rounds) or None}
        if accuracy:
            results |= {"test_accuracy_last10": float(np.mean(accuracy[-LAST:])), "test_accuracy_best": max(accuracy)}
            results |= {"test_accuracy": list(tested.values())[-1], "tests_in_mean": len(accuracy[-LAST:])}
        if self.summary is not None:
            results |= self.summary.numbers
        worst_by_round = [None, *self.by_round("client_accuracy_min").values()]
        results["worst_client"] = min(self.client_accuracy.values(), default=worst_by_round[-1])
        return {**self.config, **results}

    def by_round(self, metric: str) -> dict[int, float]:
        """A declared metric at the rounds where it is known."""
        assert metric in KNOWN, metric
        values = {row.round: row.numbers.get(metric, np.nan) for row in self.rounds}
        return {r: value for r, value in values.items() if np.isfinite(value)}


@dataclass(frozen=True)
class Runs:
    """The runs of a page, and how they differ."""

    runs: tuple[RunFolder, ...]

    @property
    def first(self) -> RunFolder:
        return self.runs[0]

    @property
    def several(self) -> bool:
        return len(self.runs) > 1

    @property
    def vary(self) -> list[str]:
        """The method, and the settings in which runs that have them differ: not where a run or a seed is kept."""
        keys = dict.fromkeys(key for run in self.runs for key in run.config)
        differ = [
            key for key in keys if key not in ("method", "seed", "out", "overwrite") and len(self.values(key)) > 1
        ]
        return ["method", *differ]

    def values(self, key: str) -> list[str]:
        return list(dict.fromkeys(setting_text(run.config[key]) for run in self.runs if key in run.config))

    @property
    def groups(self) -> dict[str, list[RunFolder]]:
        """The runs that differ in their seed alone, by a name that tells them from the rest."""
        found: dict[str, list[RunFolder]] = {}
        for run in self.runs:
            differ = [f"{key}={setting_text(run.config[key])}" for key in self.vary[1:] if key in run.config]
            named = [run.method] if len(self.values("method")) > 1 or not differ else []
            found.setdefault(", ".join(named + differ), []).append(run)
        return found


def read_run(folder: Path) -> RunFolder:
    """Reads the files of a run that every page needs; config.yaml and metrics.jsonl must be there."""
    rounds = folder / File.METRICS
    if not rounds.exists():
        raise DataError("FS311", f"{rounds}: not found. Give the folder that a run wrote")
    return RunFolder(
        folder,
        _read_config(folder / File.CONFIG),
        _read_lines(rounds, Round),
        _read_json(folder / File.FEDERATION, Federation),
        _read_json(folder / File.SUMMARY, Summary),
    )


_R = TypeVar("_R", bound=Record)
_A = TypeVar("_A")


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = load_yaml(path)
    except FileNotFoundError:
        raise DataError("FS311", f"{path}: not found. Give the folder that a run wrote") from None
    except (OSError, *UNREADABLE) as problem:
        raise _damaged(path, f"cannot be read ({' '.join(str(problem).split())})") from None
    if not isinstance(config, dict):
        raise _damaged(path, "is not a mapping of keys to values")
    return {str(key): value for key, value in config.items()}


def _read_json(path: Path, kind: type[_R]) -> _R | None:
    text = _text(path)
    return None if text is None else _record(kind, _whole(text, str(path)), str(path))


def _read_lines(path: Path, kind: type[_R]) -> tuple[_R, ...]:
    lines = enumerate((_text(path) or "").split("\n"), 1)
    placed = [(line, f"{path}, line {number}") for number, line in lines if line.strip()]
    return tuple(_record(kind, _whole(line, place), place) for line, place in placed)


def read_labels(path: Path) -> tuple[Label, ...] | None:
    """The rows of a labels.csv; None where there is none."""
    text = _text(path, newline="")  # a cell may hold any kind of line break
    if text is None:
        return None
    rows = csv.DictReader(io.StringIO(text, newline=""))
    try:
        return tuple(_record(Label, _originals(row), f"{path}, line {rows.line_num}") for row in rows)
    except csv.Error as problem:
        raise _damaged(f"{path}, line {rows.line_num}", str(problem)) from None


def _originals(row: Mapping[str | Any, Any]) -> dict[str | Any, Any]:
    """Cells as they were before they were made harmless for spreadsheets."""
    return {key: original(cell) if isinstance(cell, str) else cell for key, cell in row.items()}


def _read_arrays(path: Path, build: Callable[[Arrays], _A]) -> _A | None:
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return build(arrays)
    except (*BROKEN, MemoryError) as problem:
        raise _damaged(path, f"cannot be read ({problem})") from None


def _text(path: Path, newline: str | None = None) -> str | None:
    try:
        with path.open(encoding="utf-8", newline=newline) as file:
            return file.read()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as problem:
        raise _damaged(path, f"cannot be read ({problem})") from problem


def _record(kind: type[_R], content: str | Mapping[str | Any, Any], place: str) -> _R:
    try:
        return kind.model_validate_json(content) if isinstance(content, str) else kind.model_validate(content)
    except ValidationError as problem:
        first = problem.errors()[0]
        where = ".".join(str(step) for step in first["loc"]).removeprefix("numbers.")
        raise _damaged(place, f"{where}: {first['msg']}" if where else first["msg"]) from None


def _whole(text: str, place: str) -> str:
    """JSON whose checksum holds, if it has one."""
    try:
        unseal(text)
    except ValueError as problem:
        raise _damaged(place, str(problem)) from None
    return text


def _damaged(place: Path | str, what: str) -> DataError:
    return DataError("FS311", f"{place}: {what}. Mend the file, or run again from its config.yaml")
