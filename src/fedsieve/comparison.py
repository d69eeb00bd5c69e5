"""Methods x seeds x whatever else: every combination run once, finished ones never again.

Each run is its own process with the serial runtime, `jobs` at a time. A finished run is a row of `results.jsonl`; a run
that was cut off goes on from its checkpoint.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fedsieve.config import PLACES, SECTIONS, Config, flattened, parsed, resolve
from fedsieve.data.noise import NOISES
from fedsieve.data.partition import PARTITIONS
from fedsieve.data.rates import RATES
from fedsieve.errors import ConfigError, RunError
from fedsieve.methods import canonical, label
from fedsieve.options import options_of
from fedsieve.own_code import AllowCode
from fedsieve.progress import Several

RESULTS = "results.jsonl"
UNCOUNTED = ("runtime", "workers", "device", "checkpoint_every", "track")
"""Keys that do not alter a result."""
LISTED = frozenset({"noise.map", "noise.values", "partition.tasks", "model.hidden"})
"""Keys whose value may itself be a list; they do not multiply."""


@dataclass(frozen=True)
class Cell:
    """One run of a comparison."""

    varied: Mapping[str, Any]
    config: Config

    @property
    def key(self) -> str:
        """Of everything that decides the result."""
        kept = {key: value for key, value in self.config.flat().items() if key not in UNCOUNTED}
        return hashlib.sha256(json.dumps(kept, sort_keys=True, default=str).encode()).hexdigest()[:16]

    @property
    def rounds(self) -> int:
        """Rounds it will take, as far as the settings tell: data may name other clients."""
        from fedsieve.experiment import completed, rounds_of

        return rounds_of(completed(self.config, self.config.top.clients))

    @property
    def name(self) -> str:
        values = "-".join(f"{value}".replace("/", "_").replace(":", "_") for value in self.varied.values())
        return f"{values or 'run'}-{self.key[:6]}"


def cells(settings: Mapping[str, Any], allow_code: AllowCode = False) -> list[Cell]:
    """Every combination of the listed values. An option goes to those runs that know it, and some run must."""
    from fedsieve.experiment import config_of  # with the defaults of options, so that writing one out changes nothing

    axes = {key: _listed(key, value) for key, value in flattened(settings) if key not in PLACES}
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


def compare(
    settings: Mapping[str, Any], *, jobs: int | None = None, quiet: bool = False, allow_code: AllowCode = False
) -> tuple[Path, list[dict[str, Any]]]:
    """Run what is missing; returns the folder and a row for each finished run."""
    planned = cells(settings, allow_code)
    jobs = jobs or os.cpu_count() or 1
    tally = Several(quiet)
    folder = Path(str(settings.get("out") or "runs/compare"))
    folder.mkdir(parents=True, exist_ok=True)
    results = folder / RESULTS
    done = {row["key"]: row for row in _rows(results)}
    todo = [cell for cell in planned if cell.key not in done]
    tally.begin(len(planned), len(planned) - len(todo), sum(cell.rounds for cell in todo), jobs)
    try:
        for cell, summary in _finished(todo, folder, jobs, tally):
            row = {"key": cell.key, "folder": cell.name, **cell.varied, **_numbers(summary)}
            row |= {"method": cell.config.top.method, "seed": cell.config.top.seed}
            with results.open("a") as file:
                file.write(f"{json.dumps(row)}\n")
            done[cell.key] = row
            accuracy = summary["test_accuracy_last10"]
            shown = "not tested" if accuracy is None else f"accuracy {accuracy:.4f} (mean of the last rounds)"
            tally.note(f"{cell.name}: {shown}")
    finally:
        tally.end()
    return folder, [done[cell.key] for cell in planned]


def write_tables(folder: Path, rows: Sequence[Mapping[str, Any]], vary: Sequence[str]) -> str:
    """Markdown, CSV and LaTeX beside the results, and a report; returns the Markdown."""
    from fedsieve.report.html import write_report
    from fedsieve.report.tables import compare_table

    table = compare_table(rows, ["method", *(key for key in vary if key not in ("method", "seed"))])
    (folder / "table.md").write_text(table.to_markdown())
    (folder / "table.csv").write_text(table.to_csv())
    (folder / "table.tex").write_text(table.to_latex())
    write_report([folder / row["folder"] for row in rows], folder / "report.html")
    return table.to_markdown()


def _listed(key: str, value: Any) -> list[Any]:
    """The values of one key: a list in YAML, or text with commas."""
    if key in LISTED:
        return [value]
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, str) and "," in value:
        return [parsed(part) for part in value.split(",")]
    return [value]


def _applies(key: str, combination: Mapping[str, Any]) -> bool:
    """Whether the run that the combination describes knows this key."""
    section, dot, name = key.partition(".")
    if not dot:
        return True
    if section == "partition":
        natural = resolve({"data": combination.get("data", "embedded")}).top.partition
        kind = PARTITIONS.get(str(combination.get("partition", natural)))
        return kind is None or name in options_of(kind)
    if section == "noise":
        noise = NOISES.get(str(combination.get("noise", "none")))
        rates = RATES.get(str(combination.get("noise.rates", "fixed")))
        known = {"rates"} if noise is not NOISES["none"] else set()
        for choice in (noise, rates) if known else ():
            known |= set(options_of(choice)) if choice is not None else set()
        return name in known or noise is None or rates is None
    methods = canonical(str(combination.get("method", "fedavg"))).split("+")
    return section in SECTIONS or section in [label(part) for part in methods]


def _finished(todo: Sequence[Cell], folder: Path, jobs: int, tally: Several) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """Run the cells in processes of their own and yield each as it ends."""
    waiting = list(todo)
    running: dict[str, tuple[Cell, subprocess.Popen[bytes]]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                cell = waiting.pop(0)
                running[cell.key] = (cell, _start(cell, folder))
            for key, (cell, process) in list(running.items()):
                if process.poll() is None:
                    continue
                del running[key]
                if process.returncode:
                    error = (process.stderr.read() if process.stderr else b"").decode().strip().splitlines()
                    reason = error[-1] if error else f"status {process.returncode}"
                    raise RunError("FS215", f"{cell.name} failed: {reason}. The others' results are kept; start again")
                yield cell, json.loads((folder / cell.name / "summary.json").read_text())
            tally.rounds(sum(_rounds_done(folder / cell.name) for cell in todo))
            time.sleep(0.1)
    finally:
        for _, process in running.values():
            process.terminate()
        for _, process in running.values():
            process.wait()
        if running:
            tally.note("stopped; what is finished is kept, and the others go on where they were if started again")


def _start(cell: Cell, folder: Path) -> subprocess.Popen[bytes]:
    """A new run, or what is left of one that was cut off."""
    target = folder / cell.name
    if (target / "config.yaml").exists() and any((target / "checkpoint").glob("*.json")):
        arguments = ["resume", str(target)]
    else:
        file = folder / f".{cell.name}.yaml"
        file.write_text(yaml.safe_dump(cell.config.flat() | {"out": str(target), "overwrite": True}))
        arguments = ["run", str(file)]
    if cell.config.code:
        arguments.append("--allow-code")
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "fedsieve", *arguments, "--quiet"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)},
    )


def _rows(path: Path) -> list[dict[str, Any]]:
    """Whole rows only: the last may have been cut off."""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


def _numbers(summary: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in summary.items() if value is None or isinstance(value, int | float | str)}


def _rounds_done(run: Path) -> int:
    metrics = run / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0
