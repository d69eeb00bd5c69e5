"""What a finished run leaves in its folder: model, judged labels, pictures, summary, report."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
from torch import Tensor

from fedsieve.base.version import VERSION
from fedsieve.settings.config import Config
from fedsieve.core.plan import Plan
from fedsieve.core.server import Server, ServerState
from fedsieve.data.federation import Federation
from fedsieve.evaluate.disclosure import disclosure, messages, secure_aggregation
from fedsieve.evaluate.exhibits import write_exhibits
from fedsieve.evaluate.record import Recorder
from fedsieve.base.hardware import hardware
from fedsieve.models.heads import head_card
from fedsieve.models.saved import packed
from fedsieve.core.client_states import ClientStates
from fedsieve.base.disk import write_bytes
from fedsieve.base.sealed import sealed
from fedsieve.base.sheets import write_rows

LAST = 10
"""Rounds that the headline accuracy is the mean of."""


def leave_behind(
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

    model = packed(_named_models(plan, server.state), _model_card(config, plan, federation, server.state))
    write_bytes(folder / "model.safetensors", model)
    _write_labels(folder / "labels.csv", federation, server.state, states)
    write_exhibits(folder, server)
    summary = _summary(config, plan, federation, server.state, recorder) | {
        "peak_memory_mb": memory,
        "model_sha256": hashlib.sha256(model).hexdigest(),
    }
    write_bytes(folder / "summary.json", sealed(summary, indent=1).encode())
    write_report([folder], folder / "report.html")
    return summary


def _named_models(plan: Plan, state: ServerState) -> dict[str, Tensor]:
    """Every model under the names of its state dict; integer buffers as they were made, for `load_state_dict`."""
    fixed = {name: b for name, b in plan.build(0).named_buffers() if not b.is_floating_point()}
    named: dict[str, Tensor] = {}
    for group, nets in state.models.items():
        for index, vector in enumerate(nets):
            prefix = f"group{group}.net{index}." if _several(plan, state) else ""
            named |= {prefix + name: tensor for name, tensor in (plan.layout.named(vector) | fixed).items()}
    return {name: tensor.clone() for name, tensor in named.items()}


def _several(plan: Plan, state: ServerState) -> bool:
    """Whether the file holds more than one model."""
    return len(state.models) > 1 or plan.nets > 1


def _model_card(config: Config, plan: Plan, federation: Federation, state: ServerState) -> dict[str, Any]:
    """What a reader of the file alone needs; no time, no path, no runtime."""
    return {
        "model": config.top.model,
        "options": config.of("model"),
        "norm": config.top.norm,
        "heads": [head_card(head) for head in plan.method.heads],
        "several": _several(plan, state),
        "shared": _is_shared(plan),
        "classifies": plan.method.test != "probe",
        "method": config.top.method,
        "class_names": federation.class_names,
        "mean": federation.mean,
        "std": federation.std,
        "shape": federation.sample_shape,
    }


def _is_shared(plan: Plan) -> bool:
    """Whether the server holds all that classifies; heads at the side may stay with the clients."""
    side = {head.name for head in plan.method.heads if not head.in_line}
    return all(entry.name.split(".")[0] in side for entry in plan.layout.chosen(plan.share.keep))


def _write_labels(path: Path, federation: Federation, state: ServerState, states: ClientStates) -> None:
    """The clients' judgements of their labels; no file where no method judged any."""
    judged: list[list[Any]] = []
    for client, given in enumerate(federation.given):
        judged += judged_labels(client, given, states.load(client, state.versions.get(client, 0)))
    if judged:
        text = StringIO()
        write_judged(text, judged)
        write_bytes(path, text.getvalue().encode())


def judged_labels(client: int, given: np.ndarray, audit: Mapping[str, Tensor]) -> list[list[Any]]:
    """What a client's state says of its labels, worst first; nothing where no method judged them.

    A row without a label has none that could be wrong.
    """
    if "audit/score" not in audit:
        return []
    score, suggested, kept = (audit[f"audit/{name}"].numpy() for name in ("score", "suggested", "kept"))
    flagged = ~kept.astype(bool) | (suggested != given)
    score = np.where(np.isnan(score), ~flagged, score)  # a method that flags without a score is sure
    return [
        [client, row, given[row], suggested[row], f"{score[row]:.6g}", str(flagged[row]).lower()]
        for row in np.argsort(score, kind="stable")
        if given[row] >= 0
    ]


def write_judged(file: TextIO, judged: list[list[Any]]) -> None:
    write_rows(file, [["client", "row", "given", "suggested", "score", "flagged"], *judged])


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
        "rounds": state.round,
        **({"rounds_missing": recorder.missing} if recorder.missing else {}),
        "test_accuracy": last.get("test_accuracy"),
        "test_accuracy_last10": float(np.mean(accuracies[-LAST:])) if tested else None,
        "test_accuracy_best": max(accuracies) if tested else None,
        "validation_accuracy": last.get("validation_accuracy"),
        "knn_accuracy": last.get("knn_accuracy"),
        "linear_accuracy": last.get("linear_accuracy"),
        "probe_rows": last.get("probe_rows"),
        "macro_f1": last.get("macro_f1"),
        "balanced_accuracy": last.get("balanced_accuracy"),
        "label_precision": rows[-1]["label_precision"] if rows else None,
        "label_recall": rows[-1]["label_recall"] if rows else None,
        "repair_precision": rows[-1]["repair_precision"] if rows else None,
        "repair_recall": rows[-1]["repair_recall"] if rows else None,
        "client_noise_auc": rows[-1]["client_noise_auc"] if rows else None,
        "client_noise_rank": _mean_known(rows, "client_noise_rank"),
        "clustering_ari": rows[-1]["clustering_ari"] if rows else None,
        "client_accuracy": recorder.client_accuracy,
        "client_accuracy_std": last.get("client_accuracy_std"),
        "client_accuracy_min": last.get("client_accuracy_min"),
        "bytes_up": sum(row["bytes_up"] for row in rows) + state.talk_up,
        "bytes_down": sum(row["bytes_down"] for row in rows) + state.talk_down,
        "bytes_talk": sum(row["bytes_talk"] for row in rows) + state.talk_up + state.talk_down,
        "bytes_exchange": 2 * plan.clients * plan.nets * torch.float32.itemsize * plan.layout.size,
        "seconds": sum(row["seconds"] for row in rows),
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


def _mean_known(rows: list[dict[str, Any]], key: str) -> float | None:
    known = [row[key] for row in rows if row.get(key) is not None]
    return float(np.mean(known)) if known else None


def _hardware(config: Config, plan: Plan) -> str:
    workers = f"{config.top.workers} workers"
    where = {"pool": workers, "serial": "serial", "flower": f"Flower, {workers}"}[config.top.runtime]
    return f"{hardware()}, {where}, {plan.device}"
