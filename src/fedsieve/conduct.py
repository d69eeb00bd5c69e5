"""Conducting one run from start or checkpoint to its last file."""

from __future__ import annotations

import csv
import hashlib
import json
import platform
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import torch
import yaml
from safetensors.torch import save as save_safetensors
from torch import Tensor

import fedsieve
from fedsieve.config import Config
from fedsieve.core.host import Host
from fedsieve.core.plan import Plan
from fedsieve.core.rounds import Faults, Loop
from fedsieve.core.server import Server, ServerState
from fedsieve.data.federation import Federation, describe
from fedsieve.data.splitting import federation_of
from fedsieve.errors import RunError
from fedsieve.evaluate.disclosure import disclosure, messages, secure_aggregation
from fedsieve.evaluate.evaluator import Evaluator
from fedsieve.evaluate.record import Recorder
from fedsieve.experiment import config_of, plan_of, reads_truth
from fedsieve.hardware import hardware
from fedsieve.progress import Progress
from fedsieve.runtime.checkpoint import Checkpoints
from fedsieve.runtime.client_states import ClientStates
from fedsieve.runtime.crew import Crew
from fedsieve.runtime.files import write_bytes
from fedsieve.runtime.pool import PoolRuntime
from fedsieve.runtime.serial import SerialRuntime

LAST = 10


def conduct(config: Config, folder: Path, crew: Crew | None, progress: Progress, *, resuming: bool) -> dict[str, Any]:
    """Run in a new folder, or go on with the run in it; returns the summary."""
    config = config_of(config.flat())
    federation, truth = federation_of(config)
    plan = plan_of(config, federation)
    states = ClientStates(folder / "checkpoint" / "clients")
    evaluator = Evaluator(federation, truth, states)
    served = federation
    if reads_truth(plan.method):
        served = federation.serving(evaluator.masks())
    checkpoints = Checkpoints(folder / "checkpoint", states, config.top.checkpoint_every)
    if resuming:
        _check_same(folder, federation)
    else:
        _begin_folder(folder, config, describe(federation, truth))
        truth.save(folder / "truth.npz")
    state = checkpoints.load(progress.note) if resuming else None
    state = state or ServerState.fresh(plan)
    for note in federation.notes:
        progress.note(note)

    bench = _once(lambda: Host(plan, served, states))
    if crew is None:
        runtime: PoolRuntime | SerialRuntime = SerialRuntime(bench())
    else:
        runtime = PoolRuntime(crew, config.flat(), served, states.folder)
    evaluator.tester = runtime
    total = sum(stage.rounds or 0 for stage in plan.stages)
    recorder = Recorder(
        folder, evaluator, state.round, eval_every=config.top.eval_every, last_round=total, tell=progress.round
    )
    server = Server(state, plan, bench, checkpoints.retained)
    progress.begin(config.top.method, total, state.round, plan, federation)
    torch.set_num_threads(1)
    try:
        Loop(runtime, checkpoints, recorder, Faults(config.top.dropout, config.top.stragglers)).run(server)
        memory = _peak_memory(crew)
        if not recorder.client_accuracy:
            recorder.client_accuracy = evaluator.scores(server)["client_accuracy"]
    except KeyboardInterrupt:
        checkpoints.flush()
        progress.end()
        raise
    finally:
        runtime.close()
    summary = _finish(folder, config, plan, federation, server, recorder, states, memory)
    progress.end()
    return summary


def _begin_folder(folder: Path, config: Config, description: dict[str, Any]) -> None:
    if folder.exists():
        rmtree(folder)
    described = description | {"partition": config.top.partition, "noise": config.top.noise}
    write_bytes(folder / "federation.json", json.dumps(described).encode())
    write_bytes(folder / "config.yaml", yaml.safe_dump(_plain(config.flat()), sort_keys=False).encode())


def _plain(flat: dict[str, Any]) -> dict[str, Any]:
    """Tuples as lists, so that YAML stays plain."""
    return json.loads(json.dumps(flat))  # type: ignore[no-any-return]


def _check_same(folder: Path, federation: Federation) -> None:
    """The data must be those the run began with."""
    begun = json.loads((folder / "federation.json").read_text())["hash"]
    if begun != federation.hash:
        raise RunError(
            "FS214",
            f"{folder}: the data changed since the run began (federation {begun[:12]}, now {federation.hash[:12]}). "
            "Restore the data, or start a new run",
        )


def _finish(
    folder: Path,
    config: Config,
    plan: Plan,
    federation: Federation,
    server: Server,
    recorder: Recorder,
    states: ClientStates,
    memory: float,
) -> dict[str, Any]:
    """Model, labels, summary, report."""
    from fedsieve.report.html import write_report  # plotting is slow to load, and only needed here

    model = save_safetensors(
        _named_models(plan, server.state), {"fedsieve": json.dumps(_model_card(config, plan, federation))}
    )
    write_bytes(folder / "model.safetensors", model)
    _write_labels(folder / "labels.csv", federation, server.state, states)
    summary = _summary(config, plan, federation, server.state, recorder) | {
        "peak_memory_mb": memory,
        "model_sha256": hashlib.sha256(model).hexdigest(),
    }
    write_bytes(folder / "summary.json", json.dumps(summary, indent=1).encode())
    write_report([folder], folder / "report.html")
    return summary


def _named_models(plan: Plan, state: ServerState) -> dict[str, Tensor]:
    """Every model under the names of its state dict; integer buffers as they were made, for `load_state_dict`."""
    fixed = {name: b for name, b in plan.build(0).named_buffers() if not b.is_floating_point()}
    named: dict[str, Tensor] = {}
    several = len(state.models) > 1 or plan.nets > 1
    for group, nets in state.models.items():
        for index, vector in enumerate(nets):
            prefix = f"group{group}.net{index}." if several else ""
            named |= {prefix + name: tensor for name, tensor in (plan.layout.named(vector) | fixed).items()}
    return {name: tensor.clone() for name, tensor in named.items()}


def _model_card(config: Config, plan: Plan, federation: Federation) -> dict[str, Any]:
    """What a reader of the file alone needs; no time, no path, no runtime."""
    return {
        "model": config.top.model,
        "options": config.of("model"),
        "norm": config.top.norm,
        "heads": plan.method.heads,
        "method": config.top.method,
        "class_names": federation.class_names,
        "mean": federation.mean,
        "std": federation.std,
        "shape": federation.sample_shape,
    }


def _write_labels(path: Path, federation: Federation, state: ServerState, states: ClientStates) -> None:
    """The clients' judgements of their labels, worst first; no file where no method judged any."""
    judged = []
    for client, given in enumerate(federation.given):
        audit = states.load(client, state.versions.get(client, 0))
        if "audit/score" not in audit:
            continue
        score, suggested, kept = (audit[f"audit/{name}"].numpy() for name in ("score", "suggested", "kept"))
        flagged = ~kept.astype(bool) | (suggested != given)
        for row in np.argsort(np.nan_to_num(score, nan=1.0), kind="stable"):
            number = "" if np.isnan(score[row]) else f"{score[row]:.6g}"
            judged.append([client, row, given[row], suggested[row], number, str(bool(flagged[row])).lower()])
    if judged:
        with path.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(
                [["client", "row", "given", "suggested", "score", "flagged"], *judged]
            )


def _summary(
    config: Config, plan: Plan, federation: Federation, state: ServerState, recorder: Recorder
) -> dict[str, Any]:
    rows = recorder.metrics.rows
    tested = [row for row in rows if row["test_accuracy"] is not None]
    accuracies = [row["test_accuracy"] for row in tested]
    last = tested[-1] if tested else {}
    return {
        "method": config.top.method,
        "seed": config.top.seed,
        "rounds": len(rows),
        "test_accuracy": last.get("test_accuracy"),
        "test_accuracy_last10": float(np.mean(accuracies[-LAST:])) if tested else None,
        "test_accuracy_best": max(accuracies) if tested else None,
        "validation_accuracy": last.get("validation_accuracy"),
        "macro_f1": last.get("macro_f1"),
        "balanced_accuracy": last.get("balanced_accuracy"),
        "label_precision": rows[-1]["label_precision"] if rows else None,
        "label_recall": rows[-1]["label_recall"] if rows else None,
        "client_noise_auc": rows[-1]["client_noise_auc"] if rows else None,
        "client_accuracy": recorder.client_accuracy,
        "client_accuracy_std": last.get("client_accuracy_std"),
        "client_accuracy_min": last.get("client_accuracy_min"),
        "bytes_up": sum(row["bytes_up"] for row in rows) + state.talk_up,
        "bytes_down": sum(row["bytes_down"] for row in rows) + state.talk_down,
        "seconds": sum(row["seconds"] for row in rows),
        "federation": federation.hash,
        "secure_aggregation": secure_aggregation(plan),
        "messages": messages(plan),
        "disclosure": disclosure(plan),
        "parameters": plan.layout.trainable,
        "hardware": _hardware(config, plan),
        "versions": {
            "fedsieve": fedsieve.__version__,
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "numpy": np.__version__,
        },
        "finished": True,
    }


def _hardware(config: Config, plan: Plan) -> str:
    workers = f"{config.top.workers} workers" if config.top.runtime == "pool" else "serial"
    return f"{hardware()}, {workers}, {plan.device}"


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
