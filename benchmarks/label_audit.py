"""Finding wrong labels: the federated audit at 20 owners against cleanlab on the pooled data and at each owner alone.

The first 8,000 training images of CIFAR-10 by the ImageNet ResNet-50 at 96 pixels (features are kept in the cache
folder), dealt to 20 owners at random or by a Dirichlet distribution (0.5), with labels that chance or people made
wrong. The audit sees sums of 20 owners. cleanlab gets probabilities of a logistic regression on the same features,
cross-validated on the same labels: of all images at once, and of each owner's own. Besides its own rule, the plain one:
the prediction differs from the label. The rule and the calibration alone are tried on probabilities that somebody
else's net gave (--probabilities).

    OMP_NUM_THREADS=1 python benchmarks/label_audit.py [--human cifar10n.npz] [--probabilities FILE.npz] [--seeds 3]
"""

from __future__ import annotations

import argparse
import warnings
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from time import process_time

import cleanlab
import numpy as np
import sklearn
from cleanlab.filter import find_label_issues
from cleanlab.rank import get_label_quality_scores
from header import header
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.model_selection import KFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import fedsieve
from fedsieve.base.rng import numpy_rng
from fedsieve.data.features import feature_map, features_of
from fedsieve.data.instance_noise import read_human_labels
from fedsieve.data.partition import Dirichlet, Iid, Pool
from fedsieve.data.sources import load_source
from fedsieve.data.sources.counting import counting
from fedsieve.estimate.audit import Audit
from fedsieve.estimate.label_scores import FIRST

IMAGES, CLASSES, OWNERS, FOLDS = 8000, 10, 20, 5
SIMULATED = ("symmetric 0.25", "symmetric 0.4", "pair 0.3")
HUMAN = {"human worse": "worse_label", "human aggregate": "aggre_label"}
SPLITS = {"dirichlet 0.5": Dirichlet(alpha=0.5), "iid": Iid()}
BINS = 15
"""Of the expected calibration error."""

Row = dict[str, float]


def owners_of(true: np.ndarray, split: str, seed: int) -> np.ndarray:
    """Who holds each image."""
    dealt = SPLITS[split](Pool(true, CLASSES), OWNERS, numpy_rng(seed, "owners", split))
    owners = np.empty(len(true), np.int64)
    for owner, rows in enumerate(dealt.rows):
        owners[rows] = owner
    return owners


def spoilt(true: np.ndarray, kind: str, seed: int, human: Path | None) -> np.ndarray:
    """The labels as they are given."""
    if kind in HUMAN:
        assert human is not None
        return read_human_labels(human, HUMAN[kind])[1][: len(true)]
    name, rate = kind.split()
    rng = numpy_rng(seed, "labels", kind)
    moved = rng.integers(1, CLASSES, len(true)) if name == "symmetric" else 1
    return np.where(rng.random(len(true)) < float(rate), (true + moved) % CLASSES, true)


def probabilities(features: np.ndarray, given: np.ndarray) -> np.ndarray:
    """Out of sample, by logistic regression. Rotating few rows into as many dimensions changes nothing but the time."""
    x = StandardScaler().fit_transform(features)
    if len(x) < x.shape[1]:
        left, singular, _ = np.linalg.svd(x, full_matrices=False)
        x = left * singular
    model = make_pipeline(LogisticRegression(C=0.001, max_iter=200))
    folds = KFold(FOLDS, shuffle=True, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # classes that a fold lacks have the probability 0
        found: np.ndarray = cross_val_predict(model, x, given, cv=folds, method="predict_proba")
    return found


def cleanlab_verdict(features: np.ndarray, given: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, cleanlab's flags and those of the plain rule; of the classes that occur."""
    classes, label = np.unique(given, return_inverse=True)
    if len(classes) < 2:
        return np.ones(len(given)), np.zeros(len(given), bool), np.zeros(len(given), bool)
    found = probabilities(features, label)
    flagged = find_label_issues(label, found)
    return get_label_quality_scores(label, found), flagged, found.argmax(axis=1) != label


def figures(score: np.ndarray, flagged: np.ndarray, wrong: np.ndarray) -> Row:
    hits = float((flagged & wrong).sum())
    precision, recall = hits / max(flagged.sum(), 1), hits / max(wrong.sum(), 1)
    f1 = 2 * precision * recall / max(precision + recall, 1e-12)
    ap = float(average_precision_score(wrong, -score))
    return {"precision": precision, "recall": recall, "f1": f1, "ap": ap}


def calibration_error(score: np.ndarray, right: np.ndarray) -> float:
    """The mean distance of score and share of right labels over bins of equal width, by their rows."""
    place = np.minimum((score * BINS).astype(int), BINS - 1)
    gaps = [abs(score[place == b].sum() - right[place == b].sum()) for b in range(BINS)]
    return float(sum(gaps) / len(score))


def ours(found: Audit, owners: np.ndarray, wrong: np.ndarray) -> Row:
    """What the audit promises beside its flags, against the truth."""
    covered, promised, kept = [], 0.0, 0
    for each in found.owners:
        rows = np.flatnonzero(owners == each.owner)
        covered.append(each.wrong.low <= wrong[rows].mean() <= each.wrong.high)
        first = rows[np.argsort(found.score[rows], kind="stable")[:FIRST]]
        promised, kept = promised + each.budget.wrong, kept + int(wrong[first].sum())
    return figures(found.score, found.flagged, wrong) | {
        "ece": calibration_error(found.score, ~wrong),
        "promised": found.precision,
        "share": float(1 - found.score.mean()),
        "covered": float(np.mean(covered)),
        "budget": promised / kept,
    }


def columns(options: argparse.Namespace) -> Iterator[tuple[str, str, int]]:
    kinds = (*SIMULATED, *(HUMAN if options.human else ()))
    for split in SPLITS:
        for kind in kinds:
            for seed in range(options.seeds):
                yield split, kind, seed


def told(name: str, row: Row) -> str:
    return f"  {name:<27}" + ", ".join(f"{key} {value:.3f}" for key, value in row.items())


def compare(options: argparse.Namespace) -> None:
    source = load_source("cifar10")
    table = features_of(source.images[:IMAGES], feature_map("resnet50", options.size), progress=counting)
    features, true = np.asarray(table), source.labels[:IMAGES]

    @cache
    def pooled(kind: str, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return cleanlab_verdict(features, spoilt(true, kind, seed, options.human))

    means: dict[tuple[str, str], dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for split, kind, seed in columns(options):
        owners, given = owners_of(true, split, seed), spoilt(true, kind, seed, options.human)
        wrong = given != true
        rows = means[split, kind]
        began = process_time()
        found = fedsieve.audit(features, given, owners, smallest=options.smallest)
        seconds = process_time() - began
        rows["audit"].append(ours(found, owners, wrong) | {"seconds": seconds})
        # People's labels are the same for every seed, and cleanlab does not look at owners.
        score, flagged, differs = pooled(kind, 0 if kind in HUMAN else seed)
        rows["cleanlab, pooled"].append(figures(score, flagged, wrong))
        rows["prediction differs, pooled"].append(figures(score, differs, wrong))
        alone = [np.empty(len(given)), np.empty(len(given), bool), np.empty(len(given), bool)]
        for owner in range(OWNERS):
            mine = np.flatnonzero(owners == owner)
            for all_rows, of_owner in zip(alone, cleanlab_verdict(features[mine], given[mine]), strict=True):
                all_rows[mine] = of_owner
        rows["cleanlab, each alone"].append(figures(alone[0], alone[1], wrong))
        rows["differs, each alone"].append(figures(alone[0], alone[2], wrong))
        print(f"{split}, {kind}, seed {seed}: {wrong.mean():.3f} of the labels are wrong", flush=True)
        for name, each in rows.items():
            print(told(name, each[-1]), flush=True)
    print("means over seeds")
    for (split, kind), by_name in means.items():
        print(f"{split}, {kind}")
        for name, each in by_name.items():
            print(told(name, {key: float(np.mean([row[key] for row in each])) for key in each[0]}))


def rule_alone(file: Path) -> None:
    """Flags and scores from probabilities: NAME_probabilities, NAME_given, NAME_true for each NAME of the file."""
    with np.load(file, allow_pickle=False) as arrays:
        names = [key.removesuffix("_probabilities") for key in arrays.files if key.endswith("_probabilities")]
        for name in names:
            found = arrays[f"{name}_probabilities"].astype(np.float64)
            given, true = (arrays[f"{name}_{key}"].astype(np.int64) for key in ("given", "true"))
            wrong = given != true
            judged = fedsieve.audit(probabilities=found, labels=given)
            scores = get_label_quality_scores(given, found)
            print(f"{name}: {wrong.mean():.3f} of {len(wrong)} labels are wrong")
            print(told("audit", ours(judged, np.zeros(len(given), int), wrong)))
            print(told("cleanlab", figures(scores, find_label_issues(given, found), wrong)))
            print(told("prediction differs", figures(scores, found.argmax(axis=1) != given, wrong)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--human", type=Path, help="labels that people gave, as the key noise.file takes them")
    parser.add_argument("--probabilities", type=Path, help="probabilities of a net: the rule and the calibration alone")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--smallest", type=int, default=5, help="rows below which an owner tells nothing of a class")
    options = parser.parse_args()
    header("label audit on CIFAR-10", f"cleanlab {cleanlab.__version__}", f"scikit-learn {sklearn.__version__}")
    if options.probabilities:
        rule_alone(options.probabilities)
    else:
        compare(options)


if __name__ == "__main__":
    main()
