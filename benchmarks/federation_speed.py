"""How long it takes to split data over clients and to corrupt their labels.

    python benchmarks/federation_speed.py

50,000 labels of 10 classes, 1,000 clients; features of 3,072 numbers (a 32 x 32 colour image) for instance-part noise.
The goal is below one second for each case; each line is the best of three trials.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter

import numpy as np
from header import header

from fedsieve.base.rng import numpy_rng
from fedsieve.data.noise import NOISES, RATES, Owned, corrupt
from fedsieve.data.partition import PARTITIONS, Pool

ROWS, CLASSES, CLIENTS, WIDTH, TRIALS = 50_000, 10, 1_000, 3_072, 3
PARTITION_CASES = ("iid", "shards", "dirichlet")
NOISE_CASES = ("symmetric", "instance-part")


def best_seconds(work: Callable[[], object]) -> float:
    seconds = []
    for _ in range(TRIALS):
        start = perf_counter()
        work()
        seconds.append(perf_counter() - start)
    return min(seconds)


def main() -> None:
    pool = Pool(numpy_rng("labels").integers(CLASSES, size=ROWS), CLASSES)
    header(f"split and corrupt {ROWS} labels, {CLASSES} classes, {CLIENTS} clients; best of {TRIALS}")
    for name in PARTITION_CASES:
        partition = PARTITIONS[name]()
        print(f"partition={name:<14} {best_seconds(partial(partition, pool, CLIENTS, numpy_rng('split'))):.3f} s")

    features = numpy_rng("features").standard_normal((ROWS, WIDTH), dtype=np.float32)
    rows = PARTITIONS["dirichlet"]()(pool, CLIENTS, numpy_rng("split")).rows
    owned = [Owned(pool.labels[own], client, features=features[own]) for client, own in enumerate(rows)]
    for name in NOISE_CASES:
        noise, rates = NOISES[name](), RATES["ramp"]()
        seconds = best_seconds(partial(corrupt, noise, rates, owned, CLASSES, numpy_rng))
        print(f"noise={name:<18} {seconds:.3f} s")


if __name__ == "__main__":
    main()
