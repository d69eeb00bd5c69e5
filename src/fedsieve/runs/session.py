"""Conducting one run from start or checkpoint to its last file."""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import yaml

from fedsieve.settings.config import FREE, Config
from fedsieve.core.host import Host
from fedsieve.core.plan import Plan
from fedsieve.core.rounds import Faults, Loop, Runtime
from fedsieve.core.server import Server, ServerState
from fedsieve.data.federation import Federation, describe
from fedsieve.settings.splitting import federation_of
from fedsieve.base.ending import typed
from fedsieve.base.errors import DataError, RunError
from fedsieve.evaluate.evaluator import Evaluator, Tester
from fedsieve.evaluate.record import Recorder
from fedsieve.data.truth import GroundTruth
from fedsieve.settings.planning import plan_of, reads_truth, spelt_out
from fedsieve.runs.results import leave_behind
from fedsieve.report.progress import Progress
from fedsieve.runs.folder import check_free
from fedsieve.runs.belongings import CHECKPOINT, clear
from fedsieve.runs.checkpoint import Checkpoints
from fedsieve.runs.claim import claimed
from fedsieve.core.client_states import ClientStates
from fedsieve.runtime.crew import Crew
from fedsieve.base.disk import sweep, write_bytes
from fedsieve.runtime.pool import PoolRuntime
from fedsieve.runtime.serial import SerialRuntime
from fedsieve.base.sealed import sealed, unsealed
from fedsieve.report.tracking import Tracking


class Carrier(Runtime, Tester, Protocol):
    """A runtime as a run uses it: it trains, it tests, and it ends."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class Venue:
    """Where a run takes place: whose data, where the clients' states lie, and what carries the messages."""

    federation: Federation
    truth: GroundTruth
    states: ClientStates
    carrier: Callable[[Callable[[], Host], Federation], Carrier]
    """From the server's own host and the federation as clients are served with it."""
    memory: Callable[[], float] = lambda: _peak_memory(None)
    """Peak memory in MB."""
    labelled: bool | None = None
    """Whether the clients have labels, where the server does not see them."""


def on_this_machine(crew: Crew | None) -> Callable[[Config, Path], Venue]:
    """All clients here: in the crew's worker processes, or in this process if there is no crew."""

    def venue(config: Config, folder: Path) -> Venue:
        federation, truth = federation_of(config)
        states = ClientStates(states_folder(folder))

        def carrier(bench: Callable[[], Host], served: Federation) -> Carrier:
            return SerialRuntime(bench()) if crew is None else PoolRuntime(crew, config.flat(), served, states.folder)

        return Venue(federation, truth, states, carrier, lambda: _peak_memory(crew))

    return venue


def states_folder(folder: Path) -> Path:
    """Where a run on one machine keeps its clients' states."""
    return folder / CHECKPOINT / "clients"


def conduct(
    config: Config, folder: Path, place: Callable[[Config, Path], Venue], progress: Progress, *, resuming: bool
) -> dict[str, Any]:
    """Run in a new folder, or go on with the run in it; returns the summary. Nobody else may write there meanwhile."""
    with typed(), claimed(folder, progress.note):
        if not resuming:
            check_free(folder, config.top.overwrite)
        kept = folder / CHECKPOINT
        sweep(folder, kept, *(path for path in kept.rglob("*") if path.is_dir() and not path.is_symlink()))
        return _conducted(spelt_out(config), folder, place, progress, resuming=resuming)


def _conducted(
    config: Config, folder: Path, place: Callable[[Config, Path], Venue], progress: Progress, *, resuming: bool
) -> dict[str, Any]:
    tracking = Tracking(config.trackers(), progress.note)
    venue = place(config, folder)
    federation, truth, states = venue.federation, venue.truth, venue.states
    plan = plan_of(config, federation, labelled=venue.labelled)
    evaluator = Evaluator(federation, truth, states)
    if plan.method.test == "probe":
        evaluator.probe_set()  # refuses data that it cannot be judged on
    served = federation
    if reads_truth(plan.method):
        served = federation.serving(evaluator.masks())
    checkpoints = Checkpoints(folder / CHECKPOINT, states, config.top.checkpoint_every)
    if resuming:
        _check_same(folder, config, federation)
    else:
        _begin_folder(folder, config, federation, truth)
    state = checkpoints.load(progress.note) if resuming else None
    state = state or ServerState.fresh(plan)
    _check_fits(state, plan, folder)
    for note in federation.notes:
        progress.note(note)

    bench = _once(lambda: Host(plan, served, states))
    runtime = venue.carrier(bench, served)
    evaluator.tester = runtime
    total = sum(stage.rounds or 0 for stage in plan.stages)

    def tell(row: dict[str, Any]) -> None:
        progress.round(row)
        tracking.round(row)

    recorder = Recorder(folder, evaluator, state.round, eval_every=config.top.eval_every, last_round=total, tell=tell)
    for note in recorder.notes():
        progress.note(note)
    server = Server(state, plan, bench, checkpoints.retained)
    progress.begin(config.top.method, total, state.round, plan, federation)
    with tracking.following(folder, config.flat(), recorder.metrics.rows):
        try:
            with _one_thread():
                Loop(runtime, checkpoints, recorder, Faults(config.top.dropout, config.top.stragglers)).run(server)
                if not recorder.client_accuracy:
                    recorder.client_accuracy = evaluator.scores(server)["client_accuracy"]
            memory = venue.memory()
        except BaseException:  # an interrupt, a full disk, a closed terminal: what was computed is not lost
            with suppress(OSError):
                checkpoints.flush()
            with suppress(OSError):
                progress.end()
            raise
        finally:
            runtime.close()
        summary = leave_behind(folder, config, plan, federation, server, recorder, states, memory)
        tracking.end(summary)
    progress.end()
    return summary


def _begin_folder(folder: Path, config: Config, federation: Federation, truth: GroundTruth) -> None:
    """What a run begins with; config.yaml comes last, and makes the folder a run's.

    The settings stand in federation.json too, so that a change by hand is noticed when the run is resumed.
    """
    clear(folder)
    described = describe(federation, truth) | {"partition": config.top.partition, "noise": config.top.noise}
    settings = _plain(config.flat())
    write_bytes(folder / "federation.json", sealed(described | {"settings": settings}).encode())
    truth.save(folder / "truth.npz")
    write_bytes(folder / "config.yaml", yaml.safe_dump(settings, sort_keys=False).encode())


def _plain(flat: dict[str, Any]) -> dict[str, Any]:
    """Tuples as lists, so that YAML stays plain."""
    return json.loads(json.dumps(flat))  # type: ignore[no-any-return]


def _check_same(folder: Path, config: Config, federation: Federation) -> None:
    """Settings and data must be those the run began with."""
    file = folder / "federation.json"
    try:
        begun = unsealed(file.read_text(encoding="utf-8"))
        data, settings = str(begun["hash"]), dict(begun["settings"])
    except (OSError, ValueError, KeyError, TypeError) as problem:
        reason = f"{type(problem).__name__}: {problem}"
        raise DataError("FS311", f"{file}: cannot be read ({reason}). Restore it, or start the run anew") from None
    now = _plain(config.flat())
    for key in sorted({*settings, *now}):
        if settings.get(key) != now.get(key) and key not in FREE and not key.startswith("flower."):
            raise RunError(
                "FS241",
                f"{folder / 'config.yaml'}: {key} is {now.get(key)}, but the run began with {settings.get(key)}. "
                "Put it back, or start a new run",
            )
    if data != federation.hash:
        raise RunError(
            "FS214",
            f"{folder}: the data changed since the run began (federation {data[:12]}, now {federation.hash[:12]}). "
            "Restore the data, or start a new run",
        )


def _check_fits(state: ServerState, plan: Plan, folder: Path) -> None:
    """A checkpoint is of this very plan: a whole file of another run is none."""
    sizes = {(len(nets), *(tuple(net.shape) for net in nets)) for nets in state.models.values()}
    fits = (
        sizes == {(plan.nets, *[(plan.layout.size,)] * plan.nets)}
        and state.stage <= len(plan.stages)
        and all(len(column) == plan.clients for column in state.columns.values())
        and all(-1 <= client < plan.clients for client in {*state.versions}.union(*state.rows.values()))
    )
    if not fits:
        raise RunError(
            "FS212", f"{folder / CHECKPOINT}: its checkpoint is of another run. Start the run anew with overwrite=true"
        )


@contextmanager
def _one_thread() -> Iterator[None]:
    """The server's own arithmetic in one thread, as the workers' is: the order of a sum is then fixed."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _peak_memory(crew: Crew | None) -> float:
    """MB: the peak of this process plus the peaks of the workers, where the system tells them."""
    unit = 1 if sys.platform == "darwin" else 1024
    total = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    for worker in crew.workers if crew else ():
        status = Path(f"/proc/{worker.process.pid}/status")
        lines = status.read_text().splitlines() if status.exists() else []
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    return round(total / 2**20, 1)


def _once(make: Callable[[], Host]) -> Callable[[], Host]:
    made: list[Host] = []

    def get() -> Host:
        if not made:
            made.append(make())
        return made[0]

    return get
