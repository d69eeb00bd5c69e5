"""One session of a run: from its start or its checkpoint to its last file, or to where it is cut off."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch
import yaml

from fedsieve.base.disk import sweep, write_bytes
from fedsieve.base.ending import typed
from fedsieve.base.errors import DataError, RunError
from fedsieve.base.seal import seal, unseal
from fedsieve.core.host import Host
from fedsieve.core.plan import Plan
from fedsieve.core.rounds import Faults, Loop
from fedsieve.core.server import Server, ServerState
from fedsieve.core.types import SERVER
from fedsieve.data.federation import Federation, describe
from fedsieve.data.truth import GroundTruth
from fedsieve.evaluate.evaluator import Evaluator
from fedsieve.evaluate.inside import write_inside
from fedsieve.evaluate.record import Recorder
from fedsieve.evaluate.schema import File
from fedsieve.report.progress import Progress
from fedsieve.report.tracking import Tracking
from fedsieve.runs.belongings import clear
from fedsieve.runs.checkpoint import Checkpoints
from fedsieve.runs.claim import claimed
from fedsieve.runs.folder import check_free
from fedsieve.runs.results import write_results
from fedsieve.runs.venue import Venue
from fedsieve.settings.config import FREE, Config
from fedsieve.settings.planning import chosen_keys, plan_of, reads_truth, spell_out
from fedsieve.settings.weights import file_hashes

WEIGHTS = "weights"
"""In federation.json, by key, the hashes of files of weights."""

COLLAPSE = (
    "the features collapsed: they are as good as the same for all samples (feature_spread, feature_rank). "
    "Take a smaller learning rate, larger batches or method=simclr"
)


def run_session(config: Config, folder: Path, venue: Venue, progress: Progress, *, resuming: bool) -> dict[str, Any]:
    """Run in a new folder, or go on with the run in it; returns the summary. Nobody else may write there meanwhile."""
    with typed(), claimed(folder, progress.note):
        if not resuming:
            check_free(folder, config.top.overwrite)
        kept = folder / File.CHECKPOINT
        sweep(folder, kept, *(path for path in kept.rglob("*") if path.is_dir() and not path.is_symlink()))
        return _begin_or_resume(spell_out(config), folder, venue, progress, resuming=resuming)


def _begin_or_resume(
    config: Config, folder: Path, venue: Venue, progress: Progress, *, resuming: bool
) -> dict[str, Any]:
    tracking = Tracking(config.trackers(), progress.note)
    venue.open(config, folder)
    federation, truth, states = venue.federation, venue.truth, venue.states
    plan = plan_of(config, federation, labelled=venue.labelled)
    evaluator = Evaluator(federation, truth, states, watch=config.top.watch)
    if plan.method.test == "probe":
        evaluator.probe_set()  # refuses data that it cannot be judged on
    served = federation
    if reads_truth(plan.method):
        served = federation.serving(evaluator.masks())
    checkpoints = Checkpoints(folder / File.CHECKPOINT, states, config.top.checkpoint_every)
    if resuming:
        _check_same(folder, config, federation)
    else:
        _begin_folder(folder, config, federation, truth)
    state = checkpoints.load(progress.note) if resuming else None
    state = state or ServerState.fresh(plan)
    _check_fits(state, plan, folder)
    for note in federation.notes:
        progress.note(note)

    host = cache(lambda: Host(plan, served, states))
    runtime = venue.carrier(host, served)
    evaluator.tester = runtime
    total = sum(stage.rounds or 0 for stage in plan.stages)

    def tell(row: dict[str, Any]) -> None:
        progress.round(row)
        tracking.round(row)

    recorder = Recorder(folder, evaluator, state.round, eval_every=config.top.eval_every, last_round=total, tell=tell)
    for note in recorder.notes():
        progress.note(note)
    if total != config.top.rounds:
        progress.note(f"{total} rounds instead of {config.top.rounds}: {config.top.method} has {_stages(plan)}")
    server = Server(state, plan, host, checkpoints.retained)
    progress.begin(config.top.method, total, state.round, plan, federation)
    with tracking.following(folder, config.flat(), recorder.metrics.rows):
        try:
            with _one_thread():
                Loop(runtime, checkpoints, recorder, Faults(config.top.dropout, config.top.stragglers)).run(server)
                if not recorder.client_accuracy:  # of a run that ended before it was cut off, or has no round
                    scores = evaluator.scores(server)
                    recorder.client_accuracy, recorder.confusion = scores["client_accuracy"], scores["confusion"]
                if plan.method.test == "probe" and evaluator.tests:
                    recorder.reference_probes = evaluator.reference_probes()
                if evaluator.watch:
                    write_inside(folder, evaluator.watch, server, federation, truth, runtime)
            memory = venue.memory()
        except BaseException:  # an interrupt, a full disk, a closed terminal: what was computed is not lost
            with suppress(OSError):
                checkpoints.flush()
            with suppress(OSError):
                progress.end()
            raise
        finally:
            runtime.close()
        summary = write_results(folder, config, plan, federation, server, recorder, states, memory)
        tracking.end(summary)
    progress.end()
    if summary["collapsed"]:
        progress.note(COLLAPSE)
    return summary


def _stages(plan: Plan) -> str:
    """The rounds of each stage, in words."""
    told = [f"{s.rounds} of stage '{s.name}'{' on top' * s.extra}" for s in plan.stages if s.rounds]
    return ", ".join(told) or "no stage with rounds"


def _begin_folder(folder: Path, config: Config, federation: Federation, truth: GroundTruth) -> None:
    """What a run begins with; config.yaml comes last, and makes the folder a run's.

    The settings stand in federation.json too, and hashes of the files of weights that they name, so that a change by
    hand is noticed when the run is resumed.
    """
    clear(folder)
    described = describe(federation, truth) | {"partition": config.top.partition, "noise": config.top.noise}
    described |= {"chosen": chosen_keys(config)}
    settings, hashes = _plain(config.flat()), file_hashes(config)
    described |= {WEIGHTS: hashes} if hashes else {}
    write_bytes(folder / File.FEDERATION, seal(described | {"settings": settings}).encode())
    truth.save(folder / File.TRUTH)
    write_bytes(folder / File.CONFIG, yaml.safe_dump(settings, sort_keys=False).encode())


def _plain(flat: dict[str, Any]) -> dict[str, Any]:
    """Tuples as lists, so that YAML stays plain."""
    return json.loads(json.dumps(flat))  # type: ignore[no-any-return]


def _check_same(folder: Path, config: Config, federation: Federation) -> None:
    """Settings and data must be those the run began with."""
    file = folder / File.FEDERATION
    try:
        begun = unseal(file.read_text(encoding="utf-8"))
        data, settings, hashes = str(begun["hash"]), dict(begun["settings"]), dict(begun.get(WEIGHTS, {}))
    except (OSError, ValueError, KeyError, TypeError) as problem:
        reason = f"{type(problem).__name__}: {problem}"
        raise DataError("FS311", f"{file}: cannot be read ({reason}). Restore it, or start the run anew") from None
    now = _plain(config.flat())
    for key in sorted({*settings, *now}):
        if settings.get(key) != now.get(key) and key not in FREE and not key.startswith("flower."):
            raise RunError(
                "FS241",
                f"{folder / File.CONFIG}: {key} is {now.get(key)}, but the run began with {settings.get(key)}. "
                "Put it back, or start a new run",
            )
    for key, found in file_hashes(config).items():
        if found != hashes.get(key, found):
            raise RunError(
                "FS232",
                f"{folder}: the file of {key} changed since the run began (sha256 {hashes[key][:12]}, now "
                f"{found[:12]}). Restore it, or start a new run",
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
        and all(_is_known(client, state, plan) for client in {*state.versions}.union(*state.rows.values()))
    )
    if not fits:
        raise RunError(
            "FS212",
            f"{folder / File.CHECKPOINT}: its checkpoint is of another run. Start the run anew with overwrite=true",
        )


def _is_known(client: int, state: ServerState, plan: Plan) -> bool:
    """Whether it is a client, or the server with the models of a group."""
    return client < plan.clients if client > SERVER else SERVER - client in state.models


@contextmanager
def _one_thread() -> Iterator[None]:
    """The server's own arithmetic in one thread, as the workers' is: the order of a sum is then fixed."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
