"""How fast the Dawid-Skene estimator iterates: against crowd-kit's, and on many classes.

Against crowd-kit: 50,000 items, 3 annotators, 10 classes, 10 iterations of each, pairs alternate; the median ratio of
the whole fits counts, preparation of the votes included. Goal: at least 10. Items with equal votes are counted once,
which is most of it here; the second ratio is without that.
Many classes: 5,000 items, 10 annotators, 100 classes, whose votes nearly all differ. Goal: below 30 ms an iteration
of wall-clock time; processor time stands beside it, to tell a slow estimator from a busy machine.
One thread: set OMP_NUM_THREADS=1.

    OMP_NUM_THREADS=1 python benchmarks/dawid_skene_speed.py [--pairs 5]
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from collections.abc import Callable
from importlib.metadata import version
from time import perf_counter, process_time
from unittest.mock import patch

import numpy as np
import pandas as pd
from crowdkit.aggregation import DawidSkene as CrowdKit
from header import header
from numpy.typing import NDArray

from fedsieve.estimate.dawid_skene import DawidSkene

ITERATIONS = 10
Votes = NDArray[np.int64]


def votes_of(items: int, annotators: int, classes: int) -> Votes:
    """Annotators that are right with probability 0.4 to 0.8, and otherwise vote for any class."""
    rng = np.random.default_rng(0)
    truth = rng.integers(classes, size=(items, 1))
    right = rng.random((items, annotators)) < np.linspace(0.4, 0.8, annotators)
    return np.where(right, truth, rng.integers(classes, size=(items, annotators)))


def seconds(work: Callable[[], object]) -> float:
    begun = perf_counter()
    work()
    return perf_counter() - begun


def each_row_by_itself(votes: Votes, *_: object) -> tuple[Votes, Votes, Votes]:
    rows = np.arange(len(votes))
    return rows, rows, np.ones_like(rows)


def against_crowd_kit(pairs: int) -> None:
    items, annotators, classes = 50_000, 3, 10
    votes = votes_of(items, annotators, classes)
    table = pd.DataFrame(
        {
            "task": np.repeat(np.arange(items), annotators),
            "worker": np.tile(np.arange(annotators), items),
            "label": votes.ravel(),
        }
    )
    # Its bound may fall, so that with tol=0 it could stop early.
    theirs = CrowdKit(n_iter=ITERATIONS, tol=-np.inf)
    ours = DawidSkene(classes, max_iter=ITERATIONS, tol=0, smoothing=0)
    counted, single = [], []
    for _ in range(pairs):
        their_seconds = seconds(lambda: theirs.fit(table))
        with patch("fedsieve.estimate.dawid_skene._different_rows", each_row_by_itself):
            single_seconds = seconds(lambda: ours.fit(votes))
        our_seconds = seconds(lambda: ours.fit(votes))
        assert theirs.labels_ is not None
        assert len(theirs.loss_history_) == ours.n_iter_ == ITERATIONS
        assert np.mean(theirs.labels_.sort_index().to_numpy() == ours.labels_) >= 0.999
        counted.append(their_seconds / our_seconds)
        single.append(their_seconds / single_seconds)
        print(
            f"crowd-kit {1e3 * their_seconds:.0f} ms, fedsieve {1e3 * our_seconds:.1f} ms, ratio {counted[-1]:.0f};"
            f" equal rows not counted together {1e3 * single_seconds:.0f} ms, ratio {single[-1]:.1f}",
            flush=True,
        )
    print(
        f"median ratio of {pairs} pairs: {statistics.median(counted):.0f} (goal: at least 10);"
        f" equal rows not counted together: {statistics.median(single):.1f}"
    )


def many_classes(trials: int) -> None:
    items, annotators, classes = 5_000, 10, 100
    votes = votes_of(items, annotators, classes)
    different = len(np.unique(votes, axis=0))
    model = DawidSkene(classes, max_iter=50, tol=0)
    begun = process_time()
    each = [1e3 * seconds(lambda: model.fit(votes)) / model.max_iter for _ in range(trials)]
    processor = 1e3 * (process_time() - begun) / (trials * model.max_iter)
    print(
        f"{items} items ({different} different), {annotators} annotators, {classes} classes:"
        f" {statistics.median(each):.1f} ms an iteration, {min(each):.1f} to {max(each):.1f} in {trials} trials"
        f" (goal: below 30); processor time {processor:.1f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    pairs = parser.parse_args().pairs
    # crowd-kit uses arguments that pandas will drop.
    warnings.simplefilter("ignore", DeprecationWarning)
    versions = [f"{name} {version(name)}" for name in ("crowd-kit", "pandas", "scipy")]
    header(f"Dawid-Skene, {ITERATIONS} iterations of crowd-kit and of fedsieve; 100 classes", *versions)
    against_crowd_kit(pairs)
    many_classes(pairs)


if __name__ == "__main__":
    main()
