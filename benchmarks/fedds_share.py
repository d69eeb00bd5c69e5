"""How much of a FedDS round goes into the votes, and how much into EM and weighting.

100 clients, 10 a round, 500 images of 32 x 32 x 3 each, 5 epochs, batch 50, 1,000 unlabelled images at the server; one
process, one thread. Votes are forward passes in the workers ("assess"); EM, weighting and averaging are "combine": the
share of these in the whole round counts. Goal: below 5 %.

    python benchmarks/fedds_share.py [--rounds 6] [--model cnn-lite] [--classes 10]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

import numpy as np
import torch
from header import header

from fedsieve.core.client_states import ClientStates
from fedsieve.core.host import Host
from fedsieve.core.rounds import Loop, Round
from fedsieve.core.server import Server, ServerState
from fedsieve.data.federation import Federation, Holding
from fedsieve.runs.checkpoint import Checkpoints
from fedsieve.runtime.serial import SerialRuntime
from fedsieve.settings.planning import config_of, plan_of

CLIENTS, ROWS, UNLABELLED = 100, 500, 1000


class Seconds:
    """Keeps what each round took and evaluates nothing."""

    def __init__(self) -> None:
        self.rounds: list[dict[str, float]] = []

    def round_done(self, s: Server, what: Round) -> None:
        self.rounds.append(dict(what.seconds))


def made_up_federation(classes: int) -> Federation:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (CLIENTS * ROWS + UNLABELLED, 32, 32, 3), dtype=np.uint8)
    rows = tuple(np.arange(k * ROWS, (k + 1) * ROWS) for k in range(CLIENTS))
    given = tuple(rng.integers(0, classes, ROWS) for _ in rows)
    names, grey = tuple(map(str, range(classes))), (0.5,) * 3
    unlabelled = Holding(np.arange(CLIENTS * ROWS, len(images)))
    none = np.empty(0, np.int64)
    return Federation(images, images[:10], rows, given, {"unlabelled": unlabelled}, none, names, grey, (0.25,) * 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--model", default="cnn-lite")
    parser.add_argument("--classes", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)
    header(f"EM and weighting within a FedDS round, {options.model}, {options.classes} classes", torch.__version__)
    federation = made_up_federation(options.classes)
    settings = {
        "method": "fedds",
        "model": options.model,
        "clients": CLIENTS,
        "fraction": 0.1,
        "rounds": options.rounds,
    }
    with tempfile.TemporaryDirectory() as folder:
        plan = plan_of(config_of(settings), federation)
        states = ClientStates(Path(folder) / "clients")
        host, watch, store = Host(plan, federation, states), Seconds(), Checkpoints(Path(folder), states)
        Loop(SerialRuntime(host), store, watch).run(Server(ServerState.fresh(plan), plan, lambda: host, store.retained))
    shares = []
    for number, seconds in enumerate(watch.rounds, 1):
        shares.append(seconds["combine"] / sum(seconds.values()))
        told = ", ".join(f"{what} {seconds[what]:.3f} s" for what in ("train", "assess", "combine"))
        print(f"round {number}: {told}; EM and weighting {100 * shares[-1]:.2f} % of the round", flush=True)
    print(f"median of {len(shares)} rounds: {100 * statistics.median(shares):.2f} % (goal: below 5 %)")


if __name__ == "__main__":
    main()
