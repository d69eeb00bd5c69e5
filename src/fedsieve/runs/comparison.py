"""Methods x seeds x whatever else: every combination run once, finished ones never again.

Each run is its own process with the serial runtime, `jobs` at a time. A finished run is a row of `results.jsonl`; a run
that was cut off goes on from its checkpoint.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from fedsieve.base.disk import inside, sweep, write_bytes
from fedsieve.base.ending import typed
from fedsieve.base.errors import ConfigError, DataError, RunError
from fedsieve.base.options import options_of
from fedsieve.base.own_code import AllowCode
from fedsieve.base.seal import seal, unseal
from fedsieve.data.noise import NOISES
from fedsieve.data.partition import PARTITIONS
from fedsieve.data.rates import RATES
from fedsieve.evaluate.schema import ASKED, RESULTS, File, last_tests
from fedsieve.methods import canonical, label
from fedsieve.report.progress import Several
from fedsieve.runs.claim import claimed
from fedsieve.runtime.children import Child
from fedsieve.settings.config import FREE, PLACES, SECTIONS, Config, flatten, parse, resolve
from fedsieve.settings.effects import idle

LONGEST_NAME = 100
"""Characters of a run's values in the name of its folder."""
SETTINGS_FILE = re.compile(r"\..+-[0-9a-f]{6}\.yaml")
"""Where a run finds its settings when it begins."""
LISTED = frozenset({"noise.map", "noise.values", "partition.tasks", "model.hidden", "data.window"})
"""Keys whose value may itself be a list; they do not multiply."""


@dataclass(frozen=True)
class Cell:
    """One run of a comparison."""

    varied: Mapping[str, Any]
    config: Config

    @property
    def key(self) -> str:
        """Of everything that decides the result."""
        kept = {key: value for key, value in self.config.flat().items() if key not in FREE}
        return hashlib.sha256(json.dumps(kept, sort_keys=True, default=str).encode()).hexdigest()[:16]

    @property
    def rounds(self) -> int:
        """Rounds it will take, as far as the settings tell: data may name other clients."""
        from fedsieve.settings.planning import complete_method, rounds_of

        return rounds_of(complete_method(self.config, self.config.top.clients))

    @property
    def name(self) -> str:
        values = "-".join(f"{value}".replace("/", "_").replace(":", "_") for value in self.varied.values())
        return f"{values[:LONGEST_NAME] or 'run'}-{self.key[:6]}"


def cells(settings: Mapping[str, Any], allow_code: AllowCode = False) -> list[Cell]:
    """Every combination of the listed values. An option goes to those runs that know it, and some run must."""
    from fedsieve.settings.planning import (
        config_of,  # with the defaults of options, so that writing one out changes nothing
    )

    axes = {key: _values_of(key, value) for key, value in flatten(settings) if key not in PLACES}
    empty = [key for key, values in axes.items() if not values]
    if empty:
        raise ConfigError("FS002", f"{empty[0]}: an empty list leaves nothing to compare. Give at least one value")
    varied = [key for key, values in axes.items() if len(values) > 1]
    combinations = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    used: set[str] = set()
    made: dict[str, Cell] = {}
    for combination in combinations:
        mine = {key: value for key, value in combination.items() if _applies(key, combination)}
        used |= mine.keys()
        config = config_of(mine | {"runtime": "serial", "workers": 1}, allow_code=allow_code)
        cell = Cell({key: mine[key] for key in varied if key in mine}, config)
        made.setdefault(cell.key, cell)
    for key in axes:
        if key not in used:
            resolve({**combinations[0], key: axes[key][0]})  # says what is wrong with it
            raise ConfigError("FS001", f"unknown key '{key}': no run of this comparison knows it. Check its spelling")
    return list(made.values())


@dataclass(frozen=True)
class Outcome:
    """What came of a comparison."""

    folder: Path
    rows: list[dict[str, Any]]
    """One for each finished run."""
    missing: Mapping[str, str]
    """By the names of runs that cannot be or failed, why."""
    planned: int

    def complain(self) -> None:
        """FS215 where runs are missing."""
        if self.missing:
            told = "; ".join(f"{name}: {why}" for name, why in self.missing.items())
            verb = "is" if len(self.missing) == 1 else "are"
            raise RunError(
                "FS215",
                f"{len(self.missing)} of {self.planned} runs {verb} missing: {told}. Mend that and start again; the "
                "others are kept",
            )


def compare(
    settings: Mapping[str, Any], *, jobs: int | None = None, quiet: bool = False, allow_code: AllowCode = False
) -> Outcome:
    """Run what is missing and can be; FS215 at once if nothing can."""
    planned = cells(settings, allow_code)
    jobs = jobs or os.cpu_count() or 1
    tally = Several(quiet)
    folder = Path(str(settings.get("out") or "runs/compare")).expanduser()
    with typed(), claimed(folder, tally.note) as lock:
        asked = {key: _plain(value) for key, value in flatten(settings)}
        write_bytes(folder / ASKED, yaml.safe_dump(asked, sort_keys=False).encode())
        done = {row["key"] for row in read_results(folder, tally.note)}
        missing = impossible([cell for cell in planned if cell.key not in done])
        for name, why in missing.items():
            tally.note(f"{name} cannot be: {why}")
        possible = [cell for cell in planned if cell.name not in missing]
        failed: dict[str, str] = {}
        rows = _run_missing(possible, folder, jobs, tally, lock, failed) if possible else []
        outcome = Outcome(folder, rows, missing | failed, len(planned))
    if not rows:
        outcome.complain()
    return outcome


def impossible(planned: Sequence[Cell]) -> dict[str, str]:
    """By the names of runs that could not even begin, why."""
    from fedsieve.runs.feasible import Feasibility

    feasible = Feasibility()
    found = {cell.name: feasible.why_not(cell.config) for cell in planned}
    return {name: why for name, why in found.items() if why is not None}


def _run_missing(
    planned: Sequence[Cell], folder: Path, jobs: int, tally: Several, lock: int, failed: dict[str, str]
) -> list[dict[str, Any]]:
    sweep(folder)
    for path in folder.iterdir():
        if SETTINGS_FILE.fullmatch(path.name):
            path.unlink()
    results = folder / RESULTS
    done = {row["key"]: row for row in read_results(folder, tally.note)}
    todo = [cell for cell in planned if cell.key not in done]
    tally.begin(len(planned), len(planned) - len(todo), sum(cell.rounds for cell in todo), jobs)
    try:
        for cell, summary in _run_cells(todo, folder, jobs, tally, lock, failed):
            row = {"key": cell.key, "folder": cell.name, **cell.varied, **_numbers(summary)}
            row |= {"method": cell.config.top.method, "seed": cell.config.top.seed}
            with results.open("a") as file:
                file.write(f"{seal(row)}\n")
            done[cell.key] = row
            accuracy = summary["test_accuracy_last10"]
            shown = (
                "not tested"
                if accuracy is None
                else f"accuracy {summary['test_accuracy']:.4f} at the end, {accuracy:.4f} in "
                f"{last_tests(summary['tests_in_mean'])}"
            )
            tally.note(f"{cell.name}: {shown}")
    finally:
        tally.end()
    return [done[cell.key] for cell in planned if cell.key in done]


def read_results(folder: Path, say: Callable[[str], None] | None = None) -> list[dict[str, Any]]:
    """The rows of finished runs. One that is damaged or names a folder elsewhere is FS311, or told and passed over."""
    file = folder / RESULTS
    lines = file.read_bytes().split(b"\n") if file.exists() else []
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = unseal(line.decode(), required=True)
            if not isinstance(row.get("key"), str) or inside(folder, row.get("folder")) is None:
                raise ValueError("names no run of this comparison")
            rows.append(row)
        except ValueError as problem:
            if say is None:
                raise DataError(
                    "FS311", f"{file}, line {number}: {problem}. Start the comparison again, which mends it"
                ) from None
            say(f"{file}, line {number}: {problem}; that run is looked at again")
    if say is not None and len(rows) < sum(bool(line.strip()) for line in lines):
        write_bytes(file, "".join(f"{seal(row)}\n" for row in rows).encode())
    return rows


def runs_in(folder: Path) -> list[Path]:
    """A comparison's folder stands for its runs."""
    if (folder / RESULTS).is_file():
        return [folder / row["folder"] for row in read_results(folder)]
    return [folder]


class Tables(NamedTuple):
    text: str
    """Markdown."""
    reported: int
    """Runs that the report shows."""


def write_tables(folder: Path, rows: Sequence[Mapping[str, Any]], vary: Sequence[str]) -> Tables:
    """Markdown, CSV and LaTeX beside the results, and a report of the runs of which more than their row is left."""
    from fedsieve.report.html import write_report
    from fedsieve.report.tables import compare_table, paired_table, pivot_table

    keys = ["method", *(key for key in vary if key not in ("method", "seed"))]
    tables = {
        "table": ("Mean and sample standard deviation over n seeds.", compare_table(rows, keys)),
        "pivot": ("Methods by settings: mean and sample standard deviation over seeds.", pivot_table(rows, keys)),
        "pairs": ("Differences over shared seeds, with Student's 95 % interval.", paired_table(rows, keys)),
    }
    shown = []
    for name, (caption, table) in tables.items():
        if table is None:
            for suffix in ("md", "csv", "tex"):
                (folder / f"{name}.{suffix}").unlink(missing_ok=True)
            continue
        written = {"md": table.to_markdown(), "csv": table.to_csv(), "tex": table.to_latex(caption, f"tab:{name}")}
        for suffix, text in written.items():
            write_bytes(folder / f"{name}.{suffix}", text.encode())
        shown.append(table.to_markdown() if name == "table" else f"{caption}\n\n{table.to_markdown()}")
    whole = [run for row in rows if (run := folder / row["folder"]).is_dir()]
    if whole:
        write_report(whole, folder / File.REPORT)
    return Tables("\n".join(shown), len(whole))


def _values_of(key: str, value: Any) -> list[Any]:
    """The values of one key: a list in YAML, any sequence in Python, or text with commas."""
    if key in LISTED:
        return [value]
    if isinstance(value := _plain(value), list):
        return value
    if isinstance(value, str) and "," in value:
        return [parse(part) for part in value.split(",")]
    return [value]


def _plain(value: Any) -> Any:
    """A sequence as a list, with paths as text: as YAML writes it."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return value
    return [str(one) if isinstance(one, Path) else one for one in value]


def _applies(key: str, combination: Mapping[str, Any]) -> bool:
    """Whether the run that the combination describes knows this key."""
    section, dot, name = key.partition(".")
    if not dot:
        return True
    if idle(key, combination):
        return False
    if section == "combine":
        from fedsieve.core.combiners import COMBINERS  # loads PyTorch

        return name in options_of(COMBINERS.get(str(combination["combine"]), COMBINERS["mean"]))
    if section == "partition":
        natural = resolve({"data": combination.get("data", "embedded")}).top.partition
        kind = PARTITIONS.get(str(combination.get("partition", natural)))
        return kind is None or name in options_of(kind)
    if section == "noise":
        noise = NOISES.get(str(combination.get("noise", "none")))
        rates = RATES.get(str(combination.get("noise.rates", "fixed")))
        known = {"rates"}
        for choice in (noise, rates):
            known |= set(options_of(choice)) if choice is not None else set()
        return name in known or noise is None or rates is None
    methods = canonical(str(combination.get("method", "fedavg"))).split("+")
    return section in SECTIONS or section in [label(part) for part in methods]


def _run_cells(
    todo: Sequence[Cell], folder: Path, jobs: int, tally: Several, lock: int, failed: dict[str, str]
) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """Run the cells in processes of their own and yield each as it ends; why others did not is noted in `failed`.

    They end with this process, however it ends.
    """
    waiting = list(todo)
    running: dict[str, tuple[Cell, Child]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                cell = waiting.pop(0)
                running[cell.key] = (cell, _start(cell, folder, lock))
            for key, (cell, child) in list(running.items()):
                status = child.poll()
                if status is None:
                    continue
                del running[key]
                if status:
                    failed[cell.name] = (child.last_words() or f"status {status}").removeprefix("error: ")
                    tally.note(f"{cell.name} failed: {failed[cell.name]}")
                    continue
                yield cell, _summary(folder / cell.name / File.SUMMARY)
            tally.rounds(sum(_rounds_done(folder / cell.name) for cell in todo))
            time.sleep(0.1)
    finally:
        for _, child in running.values():
            child.terminate()
        for _, child in running.values():
            child.wait()
        if running:
            tally.note("stopped; what is finished is kept, and the others go on where they were if started again")


def _start(cell: Cell, folder: Path, lock: int) -> Child:
    """A new run, or what is left of one that was cut off."""
    target = folder / cell.name
    if (target / File.CONFIG).exists() and any((target / File.CHECKPOINT).glob("*.json")):
        arguments = ["resume", str(target)]
    else:
        file = folder / f".{cell.name}.yaml"
        settings = yaml.safe_dump(cell.config.flat() | {"out": str(target), "overwrite": True})
        write_bytes(file, settings.encode())
        arguments = ["run", str(file)]
    if cell.config.code:
        arguments.append("--allow-code")
    # The lock is passed on: a comparison is over when the last of its runs is.
    path = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    return Child([sys.executable, "-P", "-m", "fedsieve", *arguments, "--quiet"], {"PYTHONPATH": path}, [lock])


def _summary(file: Path) -> dict[str, Any]:
    try:
        return unseal(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise DataError("FS311", f"{file}: cannot be read ({problem}). Start the comparison again") from None


def _numbers(summary: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in summary.items() if value is None or isinstance(value, int | float | str)}


def _rounds_done(run: Path) -> int:
    metrics = run / File.METRICS
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0
