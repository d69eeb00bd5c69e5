"""Rows that stand twice at an owner with different labels: how many of them the audit finds, and what it costs.

The embedded images at 4 owners (a Dirichlet distribution), a quarter of the labels wrong by chance. Of every owner's
images a hundredth is added again with another label: as it is, a tenth brighter, or with a little noise (a standard
deviation of 2 of 256 levels). Precision: of the rows that are said to have a twin, those that have one by plan.

    OMP_NUM_THREADS=1 python benchmarks/planted_twins.py [--seeds 3] [--near 0.1 0.3 0.5]
"""

from __future__ import annotations

import argparse
from time import process_time
from typing import Any

import numpy as np
from header import header

import fedsieve
from fedsieve.data.features import feature_map
from fedsieve.estimate.neighbours import NEAR, twins

CLASSES = 10


def brighter(images: np.ndarray, _: np.random.Generator) -> np.ndarray:
    return np.clip(1.1 * images, 0, 255).astype(np.uint8)


def noisier(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.clip(np.round(images + rng.normal(0, 2, images.shape)), 0, 255).astype(np.uint8)


KINDS = {"as it is": lambda images, _: images, "brighter": brighter, "noisier": noisier}


def planted(kind: str, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Images, labels, owners, and of each row the one that it is a copy of, or that is a copy of it; -1 for none."""
    rng = np.random.default_rng(seed)
    noise: dict[str, Any] = {"noise": "symmetric", "noise.rate": 0.25}
    federation, _ = fedsieve.federation(clients=4, partition="dirichlet", seed=seed, **noise)
    rows = np.concatenate(federation.rows)
    images, labels = federation.images[rows], np.concatenate(federation.given)
    owners = np.repeat(np.arange(4), [len(mine) for mine in federation.rows])
    chosen = rng.choice(len(rows), len(rows) // 100, replace=False)
    copies = np.arange(len(rows), len(rows) + len(chosen))
    partner = np.full(len(rows) + len(chosen), -1)
    partner[chosen], partner[copies] = copies, chosen
    other = (labels[chosen] + rng.integers(1, CLASSES, len(chosen))) % CLASSES
    images = np.concatenate([images, KINDS[kind](images[chosen], rng)])
    return images, np.append(labels, other), np.append(owners, owners[chosen]), partner


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--near", type=float, nargs="+", default=[0.1, NEAR, 0.5])
    options = parser.parse_args()
    header("twins that were planted")
    for kind in KINDS:
        for near in options.near:
            shown = []
            for seed in range(options.seeds):
                images, labels, owners, partner = planted(kind, seed)
                features = feature_map("hog", None)(images)
                found = fedsieve.audit(features, labels, owners, n_classes=CLASSES, smallest=5, near=near).twin
                said, right = found >= 0, (found >= 0) & (found == partner)
                shown.append((right.sum() / max(said.sum(), 1), right.sum() / (partner >= 0).sum()))
            precision, recall = np.mean(shown, axis=0)
            print(f"{kind}, near={near}: precision {precision:.2f}, recall {recall:.2f}", flush=True)
    begun = process_time()
    features = feature_map("hog", None)(images)
    described = process_time()
    fedsieve.audit(features, labels, owners, n_classes=CLASSES, smallest=5)
    audited = process_time()
    for owner in range(4):
        mine = owners == owner
        twins(features[mine], labels[mine])
    searched = process_time() - audited
    whole = audited - begun
    print(f"HOG {described - begun:.1f} s, audit {audited - described:.1f} s, of it twins {searched:.1f} s", end=" ")
    print(f"({searched / whole:.0%} of both)")


if __name__ == "__main__":
    main()
