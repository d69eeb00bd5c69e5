"""Folders as a run leaves them, without any run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from fedsieve.evaluate.labels import JudgedLabel, labels_csv

HOSTILE = '</text></svg><script>alert("x")</script>'


def make_run(folder: Path, *, method: str = "fedrn", seed: int = 0, full: bool = True, **keys: Any) -> Path:
    """A folder as a run of three clients, two classes and four rounds leaves it."""
    folder.mkdir(parents=True)
    config = {"data": "embedded", "method": method, "seed": seed, "noise.rate": 0.4, "out": str(folder), **keys}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    bare: list[dict[str, Any]] = [
        {"round": r, "test_accuracy": None if r == 2 else 0.5 + r / 10 + seed / 100} for r in (1, 2, 3, 4)
    ]
    if not full:
        write_lines(folder / "metrics.jsonl", bare)
        return folder
    more = {
        "label_precision": 0.9, "label_recall": 0.8, "client_noise_rank": 0.5,
        "client_accuracy_mean": 0.8, "client_accuracy_std": 0.1, "client_accuracy_min": 0.6,
        "bytes_up": 3_000_000, "bytes_down": 1_000_000, "seconds": 2.0, "seconds_by": {"train": 1.5, "evaluate": 0.5},
        "reports": 2, "refused": 1, "dropped": 1,
    }  # fmt: skip
    write_lines(
        folder / "metrics.jsonl", [{**row, "stage": "pre" if row["round"] < 3 else "train", **more} for row in bare]
    )
    write_lines(
        folder / "clients.jsonl",
        [
            {"round": 1, "client": 0, "status": "reported", "weight": 0.7, "score": 0.9},
            {"round": 1, "client": 1, "status": "reported", "weight": 0.3, "score": 0.2},
            {"round": 1, "client": 2, "status": "refused", "reason": "loss is <not> finite"},
        ],
    )
    clients = [
        {"client": c, "rows": 10, "classes": [5, 5], "noise_nominal": 0.2, "noise_realised": c / 10} for c in range(3)
    ]
    federation = {
        "hash": f"hash-of-{seed}", "data": "embedded", "n_classes": 2, "class_names": ["cat $x$", HOSTILE], "test": 7,
        "server": {"clean": 5, "noisy": 0}, "notes": ["a <note>"], "clients": clients, "transitions": [[9, 1], [2, 8]],
    }  # fmt: skip
    (folder / "federation.json").write_text(json.dumps(federation))
    summary = {
        "test_accuracy_last10": 0.75 + seed / 100, "test_accuracy_best": 0.9, "client_accuracy": [0.8, None, 0.61],
        "bytes_talk": 3_000_000, "bytes_exchange": 2_000_000, "confusion": [[4, 0], [2, 1]],
        "client_noise_auc": 0.875, "seconds": 8.0, "finished": True, "secure_aggregation": method == "fedavg",
        "disclosure": [{"part": "Scaffold", "direction": "up", "name": "dc", "shape": "N x W", "bytes": 125096}],
        "hardware": "two cores", "versions": {"torch": "2.13"}, "model_sha256": "0123abcd",
    }  # fmt: skip
    (folder / "summary.json").write_text(json.dumps(summary))
    judged = [
        JudgedLabel(f"ward {row % 3}", f"x[{row}]", HOSTILE, "cat $x$", row / 30, row < 6, method, "", row % 3, row)
        for row in range(30)
    ]
    (folder / "labels.csv").write_bytes(labels_csv(judged))
    index = [{"owner": one.owner, "where": one.where, "values": ""} for one in judged[:6]]
    np.savez(folder / "suspects.npz", index=np.array(json.dumps(index)), images=np.full((6, 4, 4, 3), 7, np.uint8))
    kinds = [("clients", "training accuracy"), ("pairs", "likeness"), ("confusions", "votes"), ("tree", "joins")]
    index = [{"part": "Scaffold", "kind": kind, "title": title} for kind, title in kinds]
    values = [np.array([0.9, np.nan, 0.5]), np.eye(3), np.tile(np.eye(2), (3, 1, 1))]
    values.append(np.array([[0, 2, 0.25, 2], [1, 3, 0.5, 3]]))  # clients 0 and 2 first, then 1 with both
    arrays = {f"{i}": value for i, value in enumerate(values)} | {
        f"{i}/clients": np.arange(3) for i in range(len(values))
    }
    np.savez(folder / "exhibits.npz", allow_pickle=False, index=np.array(json.dumps(index)), **arrays)
    return folder


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
