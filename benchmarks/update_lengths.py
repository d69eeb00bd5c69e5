"""How long honest updates are: the longest of every method, as a share of what `admit.factor` allows.

    python benchmarks/update_lengths.py [METHOD ...]

Clients that differ as much as they do anywhere: uneven sizes, classes of a Dirichlet distribution with alpha 0.1,
shards; wrong labels up to 80 %. Above 1 an honest client would be refused.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
from header import header

from fedsieve.core.limits import Limits, Norms, Passed
from fedsieve.core.types import Up
from fedsieve.methods import METHODS
from fedsieve.report import html
from fedsieve.report.progress import Progress
from fedsieve.start import run

SETTINGS = {
    "clients": 12, "rounds": 6, "epochs": 2, "data.limit": 2400, "noise": "symmetric", "noise.rates": "ramp",
    "noise.high": 0.8, "server.unlabelled": 100, "server.clean": 100, "server.public": 100, "runtime": "serial",
    "eval_every": 6, "checkpoint_every": 6,
}  # fmt: skip
PARTITIONS: tuple[dict[str, object], ...] = (
    {"partition": "quantity"},
    {"partition": "dirichlet", "partition.alpha": 0.1},
    {"partition": "shards"},
)


class Watched:
    """Remembers the largest share of the limit that an update took."""

    def __init__(self) -> None:
        self.largest: dict[str, float] = {}
        self._judge = Limits._judge
        watched = self

        def judge(limits: Limits, up: Up, norms: Norms) -> Passed:
            for key, most in (limits._limit(up) if norms else {}).items():
                kind = key.partition(".")[0]
                watched.largest[kind] = max(watched.largest.get(kind, 0.0), norms[key] / most if most else 0.0)
            return watched._judge(limits, up, norms)

        Limits._judge = judge  # type: ignore[method-assign, assignment]  # looked at, not changed


def main() -> None:
    header("longest honest update / what is allowed (admit.factor at its default)", f"torch {torch.__version__}")
    html.write_report = lambda *_: None  # type: ignore[assignment]  # drawing takes longer than these runs
    overall: dict[str, float] = {}
    for method in sys.argv[1:] or METHODS:
        watched = Watched()
        with tempfile.TemporaryDirectory() as folder:
            for partition in PARTITIONS:
                out = Path(folder) / str(partition["partition"])
                run(SETTINGS | partition | {"method": method, "out": str(out)}, Progress())
        Limits._judge = watched._judge  # type: ignore[method-assign]
        print(f"{method:<17} {' '.join(f'{kind} {share:.2f}' for kind, share in watched.largest.items())}", flush=True)
        for kind, share in watched.largest.items():
            overall[kind] = max(share, overall.get(kind, 0.0))
    print(f"{'largest':<17} {' '.join(f'{kind} {share:.2f}' for kind, share in overall.items())}")


if __name__ == "__main__":
    main()
