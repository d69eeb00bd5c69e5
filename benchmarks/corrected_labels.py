"""What looking at flagged labels is worth: test accuracy on the labels as delivered, after a review, and on true ones.

Four owners of folders of images (embedded data, a Dirichlet distribution), with 5, 20, 35 and 50 % wrong labels. The
labels are audited; a reader who knows the truth decides on every row that the review page calls suspicious, flagged
rows and controls, by the same code that the page calls; `fedsieve corrections apply` writes corrected folders. Then
the same model is trained on each. The reader makes no mistake, which people do.

    OMP_NUM_THREADS=1 python benchmarks/corrected_labels.py [--noise symmetric pair] [--seeds 3] [--rounds 10]
"""

from __future__ import annotations

import argparse
import csv
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from header import header

import fedsieve
from fedsieve.data.decisions import DECISIONS
from fedsieve.review.desk import Desk, Sitting, Wish
from fedsieve.review.subject import open_subject

NAMES = ("east", "north", "south", "west")
RATES = [0.05, 0.2, 0.35, 0.5]
PAGE = 48
"""Rows that are decided at once, as among many on the page."""
ACCURACIES = ("test_accuracy", "test_accuracy_last10")
Accuracy = dict[tuple[str, str], float]
TRAINED = ("delivered", "audit alone", "reviewed", "true")


@dataclass
class Reviewed:
    """What the reader saw and changed."""

    rows: int = 0
    suspicious: int = 0
    flagged: int = 0
    hits: int = 0
    """Flagged labels that are wrong."""
    changed: int = 0
    wrong: int = 0
    """Labels that were wrong in all."""
    left: float = 0.0
    """Wrong labels that remain, as the page estimates at the end."""


def fedsieve_command(*words: object) -> None:
    subprocess.run([sys.executable, "-m", "fedsieve", *map(str, words)], check=True)


def hospitals(folder: Path, noise: str, seed: int) -> dict[str, str]:
    """Folders OWNER/CLASS/image with wrong labels; returned is the true class by the name of the file."""
    keys = ["clients=4", "partition=dirichlet", f"noise={noise}", "noise.rates=given", f"noise.values={RATES}"]
    fedsieve_command("data", "export", folder, *keys, f"seed={seed}")
    with (folder / "manifest.csv").open(encoding="utf-8") as file:
        truth = {Path(row["file"]).name: row["true_label"] for row in csv.DictReader(file)}
    (folder / "manifest.csv").unlink()
    for client, name in enumerate(NAMES):
        (folder / f"client-{client}").rename(folder / name)
    return truth


def relabelled(folder: Path, truth: dict[str, str], target: Path) -> None:
    """The same folders with every label right."""
    shutil.copytree(folder, target)
    for image in sorted(target.glob("*/*/*.png")):
        right = image.parents[1] / truth[image.name] / image.name
        right.parent.mkdir(exist_ok=True)
        image.rename(right)


def review(run: Path, truth: dict[str, str]) -> Reviewed:
    """A reader who knows the truth decides on every suspicious row of every owner."""
    total = Reviewed()
    for owner in NAMES:
        desk = Desk(open_subject(run, owner), Sitting("a reader who knows"))
        judged, names = desk.subject.judged, desk.subject.class_names
        true = np.array([names.index(truth[Path(where).name]) for where in judged.where])
        shown = desk.queue.order[: desk.queue.suspicious]
        wishes = [Wish(row=row, action="other", choice=int(true[row])) for row in shown.tolist()]
        for begins in range(0, len(wishes), PAGE):
            desk.decide(wishes[begins : begins + PAGE])
        wrong = true != judged.given
        total.rows += len(judged)
        total.suspicious += len(shown)
        total.flagged += int(judged.flagged.sum())
        total.hits += int((judged.flagged & wrong).sum())
        total.changed += int(wrong[shown].sum())
        total.wrong += int(wrong.sum())
        total.left += desk.estimates()["left"]["expected"]
    return total


def once(folder: Path, noise: str, seed: int, training: dict[str, Any]) -> tuple[Reviewed, Accuracy]:
    data, run = folder / "hospitals", folder / "audit"
    truth = hospitals(data, noise, seed)
    fedsieve_command("audit", f"data={data}", f"out={run}", "runtime=serial", "--quiet")
    seen = review(run, truth)
    fedsieve_command("corrections", "apply", run / DECISIONS, "--data", data, "--out", folder / "reviewed")
    relabelled(data, truth, folder / "true")
    sources = dict(zip(TRAINED, (data, data, folder / "reviewed", folder / "true"), strict=True))
    accuracy: Accuracy = {}
    for name, source in sources.items():
        method = "audit+fedavg" if name == "audit alone" else "fedavg"
        where = {"data": str(source), "out": str(folder / f"run {name}"), "seed": seed, "method": method}
        run_on = fedsieve.run(**training | where, quiet=True)
        accuracy |= {(name, key): 100 * float(run_on[key]) for key in ACCURACIES}
    return seen, accuracy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--noise", nargs="+", default=["symmetric", "pair"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    header("the worth of a review", f"torch {torch.__version__}")
    training = {"rounds": options.rounds, "epochs": options.epochs, "runtime": "serial"}
    for noise in options.noise:
        results = []
        for seed in range(options.seeds):
            with tempfile.TemporaryDirectory() as folder:
                seen, accuracy = once(Path(folder), noise, seed, training)
            print(
                f"  {noise}, seed {seed}: {seen}", {" ".join(key): value for key, value in accuracy.items()}, flush=True
            )
            results.append(accuracy)
        for name, key in product(TRAINED, ACCURACIES):
            values = np.array([one[name, key] for one in results])
            gain = values - [one["delivered", key] for one in results]
            spread = [f"{each.mean():.1f} ± {each.std(ddof=1) if len(each) > 1 else 0:.1f}" for each in (values, gain)]
            print(f"{noise}, {name}, {key}: {spread[0]}, gain {spread[1]}", flush=True)


if __name__ == "__main__":
    main()
