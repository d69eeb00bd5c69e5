"""What a round of the pool runtime costs against a bare PyTorch loop that does the same local training.

100 clients, 10 a round, 500 images of 32 x 32 x 3 each, 5 epochs, batch 50, cnn4, SGD 0.05 with momentum 0.5, random
flip; 2 processes with one thread each, channels-last, fp32. Rounds alternate; the median ratio of the pairs counts.
Goal: at most 1.10.

    python benchmarks/round_overhead.py [--pairs 7] [--model cnn4] [--workers 2]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from header import header
from torch import nn

CLIENTS, CHOSEN, ROWS, EPOCHS, BATCH, LR, MOMENTUM = 100, 10, 500, 5, 50, 0.05, 0.5
MEAN, STD = 0.5, 0.25


def fake_cifar() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (CLIENTS * ROWS, 32, 32, 3), dtype=np.uint8), rng.integers(0, 10, CLIENTS * ROWS)


# --- the bare loop ---------------------------------------------------------------------------------------------
bare: dict[str, object] = {}


def start_bare_worker(model: str) -> None:
    from fedsieve.models import build_model

    torch.set_num_threads(1)
    images, labels = fake_cifar()
    bare["images"], bare["labels"] = torch.from_numpy(images), torch.from_numpy(labels)
    bare["model"] = build_model(model, (3, 32, 32), 10).to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # its stub lacks the argument


def bare_client(task: tuple[int, dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Plain PyTorch: load the weights, five epochs of shuffled batches, return the weights."""
    client, state = task
    model: nn.Module = bare["model"]  # type: ignore[assignment]
    model.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), LR, momentum=MOMENTUM)
    rows = torch.arange(client * ROWS, (client + 1) * ROWS)
    for _ in range(EPOCHS):
        for batch in rows[torch.randperm(ROWS)].split(BATCH):  # type: ignore[no-untyped-call]
            x = bare["images"][batch].permute(0, 3, 1, 2).float().div_(255)  # type: ignore[index]
            x = torch.where(torch.rand(len(x), 1, 1, 1) < 0.5, x.flip(3), x).sub_(MEAN).div_(STD)
            loss = nn.functional.cross_entropy(model(x), bare["labels"][batch])  # type: ignore[index]
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return {name: value.numpy() for name, value in model.state_dict().items()}


def bare_round(
    pool: multiprocessing.pool.Pool, state: dict[str, np.ndarray], chosen: list[int]
) -> dict[str, np.ndarray]:
    reports = list(pool.imap(bare_client, [(client, state) for client in chosen]))
    return {name: np.asarray(np.mean([r[name] for r in reports], axis=0), state[name].dtype) for name in state}


# --- ours ------------------------------------------------------------------------------------------------------
def our_round(model: str, workers: int, folder: Path):  # type: ignore[no-untyped-def]
    """A function that does one round through the round loop, checkpoint included."""
    from fedsieve.core.client_states import ClientStates
    from fedsieve.core.rounds import Loop, Round
    from fedsieve.core.server import Server, ServerState
    from fedsieve.data.federation import Federation
    from fedsieve.runs.checkpoint import Checkpoints
    from fedsieve.runtime.crew import Crew
    from fedsieve.runtime.pool import PoolRuntime
    from fedsieve.settings.planning import config_of, plan_of

    images, labels = fake_cifar()
    rows = tuple(np.arange(k * ROWS, (k + 1) * ROWS) for k in range(CLIENTS))
    federation = Federation(
        images, images[:100], rows, tuple(labels[part] for part in rows), {}, np.empty(0, np.int64),
        tuple("0123456789"), (MEAN,) * 3, (STD,) * 3,
    )  # fmt: skip
    config = config_of(
        {
            "clients": CLIENTS,
            "fraction": CHOSEN / CLIENTS,
            "epochs": EPOCHS,
            "batch": BATCH,
            "lr": LR,
            "momentum": MOMENTUM,
            "model": model,
        }
    )
    plan, crew = plan_of(config, federation), Crew(workers)
    states = ClientStates(folder / "clients")
    runtime = PoolRuntime(crew, config.flat(), federation, states.folder)
    server = Server(ServerState.fresh(plan), plan, lambda: None)  # type: ignore[arg-type, return-value]  # never asked

    class Nothing:
        def round_done(self, s: Server, what: Round) -> None: ...

    store = Checkpoints(folder, states)
    loop = Loop(runtime, store, Nothing())

    def one() -> None:
        loop.one_round(plan.stages[0], plan.hooks[0], server, Round("train"))
        store.commit(server)

    return one, crew.close


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--model", default="cnn4")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    header(
        f"a round of the pool against a bare loop, {options.model}, {options.workers} processes",
        f"torch {torch.__version__}",
    )
    from fedsieve.models import build_model

    state = {name: value.numpy() for name, value in build_model(options.model, (3, 32, 32), 10).state_dict().items()}
    context = multiprocessing.get_context("spawn")
    rng = np.random.default_rng(1)
    with (
        tempfile.TemporaryDirectory() as folder,
        context.Pool(options.workers, start_bare_worker, (options.model,)) as pool,
    ):
        ours, close = our_round(options.model, options.workers, Path(folder))
        ratios = []
        for pair in range(-1, options.pairs):  # the first pair warms both up
            chosen = sorted(rng.choice(CLIENTS, CHOSEN, replace=False).tolist())

            def bare_one(chosen: list[int] = chosen) -> None:
                nonlocal state
                state = bare_round(pool, state, chosen)

            seconds = {}
            for name, work in (("bare", bare_one), ("ours", ours))[:: 1 if pair % 2 else -1]:
                begun = time.perf_counter()
                work()
                seconds[name] = time.perf_counter() - begun
            if pair >= 0:
                ratios.append(seconds["ours"] / seconds["bare"])
                print(f"bare {seconds['bare']:.2f} s, ours {seconds['ours']:.2f} s, ratio {ratios[-1]:.3f}", flush=True)
        close()
    print(f"median ratio of {len(ratios)} pairs: {statistics.median(ratios):.3f} (goal: at most 1.10)")


if __name__ == "__main__":
    main()
