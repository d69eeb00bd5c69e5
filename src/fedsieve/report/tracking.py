"""Trackers: the numbers of every round to TensorBoard, MLflow or Weights & Biases while a run goes on.

They watch and cannot influence a run: one that fails is noted and left out. Nothing leaves the machine unless an
environment variable of the tracker says so. `metrics.jsonl` stays the record: a tracker is told those of its rows that
it has not had, so it can be added when a run is resumed, and rounds that are run again are not told twice.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fedsieve.base.disk import write_bytes
from fedsieve.base.errors import ConfigError
from fedsieve.evaluate.schema import File

PROJECT = "fedsieve"
"""W&B project and MLflow experiment, where the environment names none."""
LONGEST_PARAMETER = 500
"""Characters that every version of MLflow takes as a parameter's value."""
LONGEST_REASON = 200
RUN_NAME = re.compile(r"[\w.-]{1,200}")
"""A tracker's name for a run, as it stands in tracking.json: some trackers make a path of it."""
Row = Mapping[str, Any]
Numbers = Mapping[str, float]


class Begun(NamedTuple):
    run: str
    """The tracker's own name for the run; given back to it when the run is resumed."""
    seen: str
    """Where a person finds it."""


class Tracker(Protocol):
    """One place that numbers go to. It is made before a run begins, and may raise whatever its package raises."""

    def begin(self, folder: Path, settings: Mapping[str, Any], run: str) -> Begun:
        """Go on with the tracker's run of that name, or begin one if it is empty."""

    def log(self, numbers: Numbers, step: int) -> None: ...

    def summarise(self, numbers: Numbers, step: int) -> None: ...

    def close(self, problem: BaseException | None) -> None: ...


class TensorBoard:
    """Event files in the run's folder; each time the run is resumed adds one."""

    def __init__(self) -> None:
        self._package = _load("tensorboard", "torch.utils.tensorboard")

    def begin(self, folder: Path, settings: Mapping[str, Any], run: str) -> Begun:
        target = folder / "tensorboard"
        self._writer = self._package.SummaryWriter(str(target))
        if not run:
            listed = "".join(f"    {key}: {value}\n" for key, value in settings.items())
            self._writer.add_text("config", listed)  # the indent makes it a code block
        return Begun(target.name, f"tensorboard --logdir {target}")

    def log(self, numbers: Numbers, step: int) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    summarise = log

    def close(self, problem: BaseException | None) -> None:
        self._writer.close()


class MLflow:
    """A run at MLFLOW_TRACKING_URI, or in files of the run's folder: a database there would cost seconds a run."""

    def __init__(self) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # standard output may be our JSON
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")  # its 7 would hold a run up for four minutes
        self._package = _load("mlflow", "mlflow")

    def begin(self, folder: Path, settings: Mapping[str, Any], run: str) -> Begun:
        server = os.environ.get("MLFLOW_TRACKING_URI")
        self._client = self._package.MlflowClient(tracking_uri=server or _local_store(folder))
        self._run = run or self._new_run(folder.name, settings)
        self._client.update_run(self._run, status="RUNNING")
        shown = f"MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri {folder / 'mlruns'}"
        return Begun(self._run, f"run {self._run} at MLFLOW_TRACKING_URI" if server else shown)

    def _new_run(self, name: str, settings: Mapping[str, Any]) -> str:
        made = self._client.create_run(self._experiment(), run_name=name)
        parameter = self._package.entities.Param
        parameters = [parameter(key, str(value)[:LONGEST_PARAMETER]) for key, value in settings.items()]
        self._client.log_batch(made.info.run_id, params=parameters)
        return str(made.info.run_id)

    def _experiment(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or PROJECT
        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self._client.create_experiment(name))
            except self._package.MlflowException:  # another run of a comparison was faster
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        return str(found.experiment_id)

    def log(self, numbers: Numbers, step: int) -> None:
        now = int(time.time() * 1000)
        metric = self._package.entities.Metric
        self._client.log_batch(self._run, metrics=[metric(name, value, now, step) for name, value in numbers.items()])

    summarise = log

    def close(self, problem: BaseException | None) -> None:
        broken = "KILLED" if isinstance(problem, KeyboardInterrupt) else "FAILED"
        self._client.set_terminated(self._run, broken if problem else "FINISHED")


class WeightsAndBiases:
    """A W&B run in mode WANDB_MODE, offline if not set; each time the run is resumed adds a folder with the same id."""

    def __init__(self) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # it would call home even offline
        self._package = _load("wandb", "wandb")

    def begin(self, folder: Path, settings: Mapping[str, Any], run: str) -> Begun:
        self._run = self._package.init(
            dir=str(folder),
            mode=os.environ.get("WANDB_MODE") or "offline",
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            name=folder.name,
            id=run or None,
            resume="allow" if run else None,
            config=dict(settings),
            reinit="create_new",  # a run that the calling script has open stays its own
            settings=self._package.Settings(console="off", silent=True, disable_git=True, disable_code=True),
        )
        local = f"wandb sync {folder / 'wandb'}/offline-run-*-{self._run.id}*"
        return Begun(self._run.id, local if self._run.offline else self._run.url or "disabled")

    def log(self, numbers: Numbers, step: int) -> None:
        self._run.log(dict(numbers), step=step)

    def summarise(self, numbers: Numbers, step: int) -> None:
        self._run.summary.update(dict(numbers))  # a step that is over would be refused after a resume

    def close(self, problem: BaseException | None) -> None:
        self._run.finish(exit_code=1 if problem else 0)


TRACKERS: Mapping[str, Callable[[], Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WeightsAndBiases,
}


class Tracking:
    """The trackers of one run. Making it loads their packages, so that a missing one is told before anything runs."""

    def __init__(self, names: Iterable[str], note: Callable[[str], None]) -> None:
        self._note = note
        self._trackers = {name: TRACKERS[name]() for name in names}
        self._told: dict[str, dict[str, Any]] = {}
        self._file = Path(File.TRACKING)

    @contextmanager
    def following(self, folder: Path, settings: Mapping[str, Any], rows: Sequence[Row]) -> Iterator[None]:
        """Open the trackers, tell them the rows they missed, and close them however the run ends."""
        self._file = folder / File.TRACKING
        self._told = _read(self._file)

        def begin(name: str, tracker: Tracker) -> None:
            told = self._told.setdefault(name, {"run": "", "round": 0, "summary": False})
            told["run"], seen = tracker.begin(folder, settings, told["run"])
            self._tell(name, tracker, rows)
            self._note(f"{name}: {seen}")

        ended: BaseException | None = None
        try:
            self._each(begin)
            yield
        except BaseException as problem:
            ended = problem
            raise
        finally:
            self._each(lambda _, tracker: tracker.close(ended))

    def round(self, row: Row) -> None:
        self._each(lambda name, tracker: self._tell(name, tracker, [row]))

    def end(self, summary: Row) -> None:
        """The numbers of summary.json, once."""
        found = {f"summary/{key}": value for key, value in numbers(summary).items()}

        def tell(name: str, tracker: Tracker) -> None:
            if not self._told[name]["summary"]:
                tracker.summarise(found, summary["rounds"])
                self._told[name]["summary"] = True
                self._save()

        self._each(tell)

    def _tell(self, name: str, tracker: Tracker, rows: Sequence[Row]) -> None:
        told = self._told[name]
        for row in rows:
            if row["round"] > told["round"]:
                found = numbers(row)
                tracker.log(found, int(found.pop("round")))
                told["round"] = row["round"]
        self._save()

    def _each(self, do: Callable[[str, Tracker], None]) -> None:
        """With every tracker that still works; one that fails now is given up, and the run goes on."""
        for name, tracker in list(self._trackers.items()):
            try:
                do(name, tracker)
            except Exception as problem:  # packages, servers and disks raise every kind
                del self._trackers[name]
                reason = " ".join(str(problem).split())[:LONGEST_REASON]
                self._note(f"{name} failed and gets no more ({type(problem).__name__}: {reason}); the run goes on")

    def _save(self) -> None:
        write_bytes(self._file, json.dumps(self._told, indent=1).encode())


def numbers(row: Row, before: str = "") -> dict[str, float]:
    """The numbers of a row, those of a mapping within it as NAME/KEY; flags and unknown values are left out."""
    found: dict[str, float] = {}
    for key, value in row.items():
        if isinstance(value, Mapping):
            found |= numbers(value, f"{before}{key}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[f"{before}{key}"] = value
    return found


def _read(file: Path) -> dict[str, dict[str, Any]]:
    """What was told before; a damaged file only means that trackers begin anew."""
    try:
        told: dict[str, dict[str, Any]] = json.loads(file.read_text())
        return {
            name: {"run": str(of["run"]), "round": int(of["round"]), "summary": bool(of["summary"])}
            for name, of in told.items()
            if RUN_NAME.fullmatch(str(of["run"]))
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _local_store(folder: Path) -> str:
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    store = folder.resolve() / "mlruns"
    (store / ".trash").mkdir(parents=True, exist_ok=True)  # MLflow makes it once a process, even if the run is replaced
    return store.as_uri()


def _load(tracker: str, module: str) -> Any:
    try:
        return import_module(module)
    except ImportError as problem:
        raise ConfigError(
            "FS008", f"track={tracker}: its package cannot be loaded ({problem}). Run `pip install fedsieve[track]`"
        ) from None
