"""Finding wrong labels: FB-NLL's correction at 20 clients against cleanlab on the pooled data, with the same features.

Features of the first 5,000 training images of CIFAR-10 by the ImageNet ResNet-50 (kept in the cache folder). 200 images
of each class are the server's clean set; the labels of the others are spoilt and audited. They are dealt to clients at
random, and each client corrects its own with what the server tells it: FB-NLL flags what it would change. cleanlab's
find_label_issues sees all samples at once. It gets probabilities of a logistic regression, cross-validated on the
audited labels; and, with what FB-NLL has too, those of one that was trained on the clean set.

    OMP_NUM_THREADS=1 python benchmarks/label_audit.py [--human cifar10n.npz] [--rate 0.4] [--seeds 3]
        [--clients 20] [--normalise] [--tau 1]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import cleanlab
import numpy as np
import sklearn
from cleanlab.filter import find_label_issues
from header import header
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from fedsieve.data.features import feature_map, features_of
from fedsieve.data.instance_noise import read_human_labels
from fedsieve.data.sources import load_source
from fedsieve.data.sources.counting import counting
from fedsieve.estimate.subspace import (
    by_class,
    class_similarity,
    prepare,
    relevances,
    repair,
    signature,
    whole_classes,
)

IMAGES, CLEAN, CLASSES = 5000, 200, 10
CLASS_RANK, SAMPLE_RANK = 5, 20


def probe() -> Pipeline:
    return make_pipeline(StandardScaler(), LogisticRegression(C=0.001, max_iter=200))


def fb_nll(
    features: np.ndarray,
    given: np.ndarray,
    clean: np.ndarray,
    labels: np.ndarray,
    tau: float,
    owners: list[np.ndarray],
) -> np.ndarray:
    """Which labels Procedure 2 would change; `owners` are the rows of each client, which sees no other's."""
    changed = np.zeros(len(given), bool)
    for rows in owners:
        changed[rows] = changed_at(features[rows], given[rows], clean, labels, tau)
    return changed


def changed_at(
    features: np.ndarray, given: np.ndarray, clean: np.ndarray, labels: np.ndarray, tau: float
) -> np.ndarray:
    """Of one client's."""
    server, local = by_class(clean, labels, CLASSES), by_class(features, given, CLASSES)
    theirs, mine = ([signature(x, CLASS_RANK) for x in side] for side in (server, local))
    views = [
        relevances(data, [one.values for one in own], [one.vectors for one in other])
        for data, own, other in ((server, theirs, mine), (local, mine, theirs))
    ]
    decided = whole_classes(class_similarity(*views), tau)
    suggested = repair(features, given, [signature(x, SAMPLE_RANK).vectors for x in server], decided).labels
    changed: np.ndarray = suggested != given
    return changed


def spoilt(true: np.ndarray, rows: np.ndarray, options: argparse.Namespace) -> Iterator[tuple[str, int, np.ndarray]]:
    """The kinds of noise, each with its seed and labels."""
    for seed in range(options.seeds):
        rng = np.random.default_rng(seed)
        moved = (true + rng.integers(1, CLASSES, len(true))) % CLASSES
        yield f"symmetric {options.rate:g}", seed, np.where(rng.random(len(true)) < options.rate, moved, true)
    if options.human:
        _, human = read_human_labels(options.human, "worse_label")
        yield "human (worse labels)", 0, human[rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--human", type=Path, help="labels that people gave, as the key noise.file takes them")
    parser.add_argument("--rate", type=float, default=0.4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=20, help="1: all samples are one client's")
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--tau", type=float, default=0.85, help="1: no class is accepted as a whole")
    parser.add_argument("--normalise", action="store_true", help="features of length 1 for FB-NLL")
    options = parser.parse_args()
    header("label audit on CIFAR-10", f"cleanlab {cleanlab.__version__}", f"scikit-learn {sklearn.__version__}")
    source = load_source("cifar10")
    table = features_of(source.images[:IMAGES], feature_map("resnet50", options.size), progress=counting)
    everything, true = np.asarray(table), source.labels[:IMAGES]
    held = np.concatenate([np.flatnonzero(true == c)[:CLEAN] for c in range(CLASSES)])
    rest = np.setdiff1d(np.arange(IMAGES), held)
    ready = prepare(everything, normalise=options.normalise)
    by_clean = probe().fit(everything[held], true[held]).predict_proba(everything[rest])
    for kind, seed, given in spoilt(true[rest], rest, options):
        wrong = given != true[rest]
        owners = np.array_split(np.random.default_rng(seed).permutation(len(given)), options.clients)
        by_given = cross_val_predict(probe(), everything[rest], given, cv=5, method="predict_proba")
        found = {
            "fb-nll": fb_nll(ready[rest], given, ready[held], true[held], options.tau, owners),
            "cleanlab, cross-validated": find_label_issues(given, by_given),
            "cleanlab, model of the clean set": find_label_issues(given, by_clean),
        }
        print(f"{kind}, seed {seed}: {wrong.sum()} of {len(given)} labels are wrong")
        for name, flagged in found.items():
            hits = (flagged & wrong).sum()
            precision, recall = hits / max(flagged.sum(), 1), hits / wrong.sum()
            f1 = 2 * precision * recall / max(precision + recall, 1e-12)
            print(f"  {name}: precision {precision:.3f}, recall {recall:.3f}, F1 {f1:.3f}", flush=True)


if __name__ == "__main__":
    main()
