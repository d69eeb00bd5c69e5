"""How soon the first local step of a pool of two workers begins, in units of `python -c 'import torch'`.

From the start of the command `fedsieve run` to the first client's first hook in a worker. Trials alternate; the ratio
of the medians counts. Goal: at most 3.

    python benchmarks/start_up.py [--trials 5]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from header import header

from fedsieve.core.client import Client
from fedsieve.core.part import Method, Part, Stage

STAMP = "FEDSIEVE_FIRST_STEP"


@dataclass(frozen=True, kw_only=True)
class NoteTheTime(Part):
    def start(self, c: Client) -> None:
        path = Path(os.environ[STAMP])
        if not path.exists():
            path.write_text(repr(time.time()))


def first_step(part: NoteTheTime) -> Method:
    return Method("first-step", (Stage(parts=(part,)),))


def seconds_to_import() -> float:
    begun = time.time()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.time() - begun


def seconds_to_first_step(folder: Path) -> float:
    stamp = folder / "stamp"
    environment = os.environ | {STAMP: str(stamp), "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-m", "fedsieve", "run", "--quiet", "method=start_up:first_step", "workers=2"]
    begun = time.time()
    subprocess.run(
        [*command, "rounds=1", "clients=2", "epochs=0", f"out={folder / 'run'}"], check=True, env=environment,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return float(stamp.read_text()) - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=5)
    trials = parser.parse_args().trials
    header("start of the command to the first local step of 2 workers", f"torch {torch.__version__}")
    imports, steps = [], []
    for _ in range(trials):
        imports.append(seconds_to_import())
        with tempfile.TemporaryDirectory() as folder:
            steps.append(seconds_to_first_step(Path(folder)))
        print(f"import torch {imports[-1]:.2f} s, first step after {steps[-1]:.2f} s", flush=True)
    ratio = statistics.median(steps) / statistics.median(imports)
    print(f"ratio of the medians of {trials} trials: {ratio:.2f} (goal: at most 3)")


if __name__ == "__main__":
    main()
