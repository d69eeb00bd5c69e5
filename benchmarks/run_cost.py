"""What a whole run of a method costs against one of FedAvg: audits, conversations and all, not a round alone.

A column of the leaderboard (20 clients, half of them a round, 20 rounds of 2 epochs, cnn-lite), each run in a process
of its own with one thread; runs alternate, and the median ratio of the pairs counts. Seconds are those of the
processor. Feature maps start with an empty cache. Goal for sieve: at most 1.5.

    python benchmarks/run_cost.py [--method sieve] [--column embedded-dirichlet] [--pairs 3]
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import yaml
from header import header

from fedsieve.data.sources.base import cache_folder

COLUMNS = Path(__file__).parents[1] / "experiments" / "leaderboard"


def processor_seconds(settings: dict[str, object], method: str, folder: Path) -> float:
    """Of a run as a child; data are found where they lie, features are not."""
    for data in cache_folder().glob("*.npz"):
        (folder / data.name).symlink_to(data)
    file = folder / "settings.yaml"
    file.write_text(yaml.safe_dump(settings | {"method": method, "out": str(folder / "run")}))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "fedsieve", "run", str(file), "--quiet"],
        check=True, env=os.environ | {"OMP_NUM_THREADS": "1", "FEDSIEVE_DATA": str(folder)}, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="sieve")
    columns = sorted(file.stem for file in COLUMNS.glob("*.yaml"))
    parser.add_argument("--column", choices=columns, default="embedded-dirichlet")
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    header(f"a run of {options.method} against one of fedavg, {options.column}", f"torch {torch.__version__}")
    asked = yaml.safe_load((COLUMNS / f"{options.column}.yaml").read_text())
    settings = {key: value for key, value in asked.items() if key.partition(".")[0] not in ("joint", "selfie")}
    ratios = []
    for _ in range(options.pairs):
        seconds = []
        for method in ("fedavg", options.method):
            with tempfile.TemporaryDirectory() as folder:
                seconds.append(processor_seconds(settings | {"runtime": "serial"}, method, Path(folder)))
        ratios.append(seconds[1] / seconds[0])
        print(f"fedavg {seconds[0]:.1f} s, {options.method} {seconds[1]:.1f} s, ratio {ratios[-1]:.3f}", flush=True)
    print(f"median ratio of {len(ratios)} pairs: {statistics.median(ratios):.3f} (goal for sieve: at most 1.5)")


if __name__ == "__main__":
    main()
