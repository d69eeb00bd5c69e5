"""Seconds a round on Flower's simulation against the pool runtime, on the same work with the same number of workers.

The embedded data over 20 clients, FedAvg, cnn-lite, batch 50, no test between rounds; 2 workers with one thread each.
The first round is left out: workers load PyTorch and the data in it. Both end with the same model, which is checked.

    python benchmarks/flower_overhead.py [--rounds 6] [--clients 20] [--epochs 2] [--workers 2]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from header import header

from fedsieve.report.progress import Progress
from fedsieve.start import run


def timed(folder: Path, settings: dict[str, Any], runtime: str) -> tuple[list[float], str]:
    """The seconds of training of each round but the first, and the hash of the model."""
    _, summary = run({**settings, "runtime": runtime, "out": str(folder / runtime)}, Progress())
    rows = [json.loads(line) for line in (folder / runtime / "metrics.jsonl").read_text().splitlines()]
    return [row["seconds_by"]["train"] for row in rows[1:]], summary["model_sha256"]


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (("rounds", 6), ("clients", 20), ("epochs", 2), ("workers", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    settings = vars(parser.parse_args())
    settings["eval_every"] = settings["rounds"]
    header("seconds a round on Flower's simulation and on the pool runtime", *versions())
    with tempfile.TemporaryDirectory() as folder:
        pool, pool_model = timed(Path(folder), settings, "pool")
        flower, flower_model = timed(Path(folder), settings, "flower")
    if pool_model != flower_model:
        raise SystemExit("the two runtimes do not agree on the model")
    slow, fast = statistics.median(flower), statistics.median(pool)
    print(f"pool:   {fast:.2f} s a round (median of {len(pool)})")
    print(f"flower: {slow:.2f} s a round, {slow / fast:.2f} x the pool")


def versions() -> list[str]:
    from importlib.metadata import version

    return [f"{package} {version(package)}" for package in ("torch", "flwr", "ray")]


if __name__ == "__main__":
    main()
