"""What a finished run leaves in its folder: model, judged labels, pictures, summary, report."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsieve.base.disk import write_bytes
from fedsieve.base.hardware import hardware
from fedsieve.base.seal import seal
from fedsieve.base.version import VERSION
from fedsieve.core.client_states import ClientStates
from fedsieve.core.plan import Plan
from fedsieve.core.server import Models, Server, ServerState
from fedsieve.data.federation import Federation
from fedsieve.data.texts import TextForm
from fedsieve.evaluate.disclosure import disclosure, messages, secure_aggregation
from fedsieve.evaluate.exhibits import write_exhibits
from fedsieve.evaluate.labels import JudgedLabel, counts_by_owner, judged_labels, labels_csv, write_suspects
from fedsieve.evaluate.record import Recorder
from fedsieve.evaluate.schema import LAST, METRICS, PROBE_ROWS, File, Metric
from fedsieve.evaluate.serving import delivered
from fedsieve.models.heads import head_card
from fedsieve.models.saved import to_bytes
from fedsieve.settings.config import Config


def write_results(
    folder: Path,
    config: Config,
    plan: Plan,
    federation: Federation,
    server: Server,
    recorder: Recorder,
    states: ClientStates,
    memory: float,
) -> dict[str, Any]:
    """Model, labels, exhibits, summary, report."""
    from fedsieve.report.html import write_report  # plotting is slow to load, and only needed here

    model = to_bytes(_named_models(plan, delivered(server)), _model_card(config, plan, federation, server.state))
    write_bytes(folder / File.MODEL, model)
    judged = _write_labels(folder, plan.method.name, federation, server.state, states)
    write_exhibits(folder, server)
    summary = _summary(config, plan, federation, server.state, recorder) | {
        "labels": counts_by_owner(judged) or None,
        "peak_memory_mb": memory,
        "model_sha256": hashlib.sha256(model).hexdigest(),
    }
    write_bytes(folder / File.SUMMARY, seal(summary, indent=1).encode())
    write_report([folder], folder / File.REPORT)
    return summary


def _named_models(plan: Plan, models: Mapping[int, Models]) -> dict[str, Tensor]:
    """Every model under the names of its state dict; integer buffers as they were made, for `load_state_dict`."""
    fixed = {name: b for name, b in plan.build(0).named_buffers() if not b.is_floating_point()}
    named: dict[str, Tensor] = {}
    for group, nets in models.items():
        for index, vector in enumerate(nets):
            prefix = f"group{group}.net{index}." if len(models) > 1 or plan.nets > 1 else ""
            named |= {prefix + name: tensor for name, tensor in (plan.layout.named(vector) | fixed).items()}
    return {name: tensor.clone() for name, tensor in named.items()}


def _several(plan: Plan, state: ServerState) -> bool:
    """Whether the file holds more than one model."""
    return len(state.models) > 1 or plan.nets > 1


def _model_card(config: Config, plan: Plan, federation: Federation, state: ServerState) -> dict[str, Any]:
    """What a reader of the file alone needs; no time, no path, no runtime."""
    card = {
        "model": config.top.model,
        "options": config.of("model"),
        "norm": config.top.norm,
        "heads": [head_card(head) for head in plan.method.heads],
        "several": _several(plan, state),
        "shared": _is_shared(plan),
        "classifies": plan.method.test != "probe",
        "method": config.top.method,
        "data": federation.training_hash,
        "rounds": state.round,
        "class_names": federation.class_names,
        "mean": federation.mean,
        "std": federation.std,
        "shape": federation.sample_shape,
        **({"reading": federation.reading} if federation.reading else {}),
    }
    return card if federation.text_form is None else card | {"text": _text_card(federation.text_form)}


def _text_card(form: TextForm) -> dict[str, str]:
    """Of a map from elsewhere the last part of its name: it may lie in a folder, and is known by its key."""
    return {"column": form.column, "features": form.features.rpartition("/")[2], "key": form.key}


def _is_shared(plan: Plan) -> bool:
    """Whether the server holds all that classifies; heads at the side may stay with the clients."""
    side = {head.name for head in plan.method.heads if not head.in_line}
    return all(entry.name.split(".")[0] in side for entry in plan.layout.select(plan.share.keep))


def _write_labels(
    folder: Path, method: str, federation: Federation, state: ServerState, states: ClientStates
) -> list[JudgedLabel]:
    """The clients' judgements of their labels; no file where no method judged any."""
    judged: list[JudgedLabel] = []
    for client in range(federation.clients):
        kept = states.load(client, state.versions.get(client, 0))
        judged += judged_labels(federation, client, kept, method)
    if judged:
        write_bytes(folder / File.LABELS, labels_csv(judged))
        write_suspects(folder, federation, judged)
    return judged


def _summary(
    config: Config, plan: Plan, federation: Federation, state: ServerState, recorder: Recorder
) -> dict[str, Any]:
    rows = recorder.metrics.rows
    tested = _tested(rows)
    accuracies = [row["test_accuracy"] for row in [row for row in tested if not row.get("extra")] or tested]
    up, down = state.talk_up, state.talk_down  # of conversations after the last round
    numbers = {metric.name: _in_summary(metric, rows) for metric in METRICS if metric.summary}
    return {
        "method": config.top.method,
        "seed": config.top.seed,
        "rounds": state.round,
        **({"rounds_missing": recorder.missing} if recorder.missing else {}),
        **numbers,
        "bytes_up": numbers["bytes_up"] + up,
        "bytes_down": numbers["bytes_down"] + down,
        "bytes_talk": numbers["bytes_talk"] + up + down,
        "test_accuracy_last10": float(np.mean(accuracies[-LAST:])) if accuracies else None,
        "tests_in_mean": len(accuracies[-LAST:]),
        "test_accuracy_best": max(accuracies, default=None),
        PROBE_ROWS: tested[-1].get(PROBE_ROWS) if tested else None,
        "reference_probes": recorder.reference_probes,
        "collapsed": recorder.collapsed(),
        "client_accuracy": recorder.client_accuracy,
        "confusion": recorder.confusion,
        "bytes_exchange": 2 * plan.clients * plan.nets * torch.float32.itemsize * plan.layout.size,
        "federation": federation.hash,
        "secure_aggregation": secure_aggregation(plan),
        "messages": messages(plan),
        "disclosure": disclosure(plan),
        "parameters": plan.layout.trainable,
        "hardware": _hardware(config, plan),
        "versions": {
            "fedsieve": VERSION,
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "numpy": np.__version__,
        },
        "finished": True,
    }


def _in_summary(metric: Metric, rows: list[dict[str, Any]]) -> Any:
    """One number for all rounds, in the way that the metric declares."""
    if metric.summary == "sum":
        return sum(row[metric.name] for row in rows)
    if metric.summary == "mean":
        known = [row[metric.name] for row in rows if row.get(metric.name) is not None]
        return float(np.mean(known)) if known else None
    last = _tested(rows) if metric.summary == "last test" else rows
    return last[-1].get(metric.name) if last else None


def _tested(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["test_accuracy"] is not None]


def _hardware(config: Config, plan: Plan) -> str:
    workers = f"{config.top.workers} workers"
    where = {"pool": workers, "serial": "serial", "flower": f"Flower, {workers}"}[config.top.runtime]
    return f"{hardware()}, {where}, {plan.device}"
