"""Pure functions from labels and predictions to numbers."""

from __future__ import annotations

import numpy as np


def confusion(true: np.ndarray, predicted: np.ndarray, n_classes: int) -> np.ndarray:
    """Counts, true class by predicted class."""
    counts = np.bincount(true * n_classes + predicted, minlength=n_classes * n_classes)
    return counts.reshape(n_classes, n_classes)


def accuracy(counts: np.ndarray) -> float:
    return float(np.trace(counts) / max(counts.sum(), 1))


def recalls(counts: np.ndarray) -> np.ndarray:
    """Per class; NaN for classes that do not occur."""
    totals = counts.sum(axis=1)
    shares: np.ndarray = np.divide(np.diag(counts), totals, out=np.full(len(counts), np.nan), where=totals > 0)
    return shares


def balanced_accuracy(counts: np.ndarray) -> float:
    """Mean recall of the classes that occur."""
    return float(np.nanmean(recalls(counts))) if counts.sum() else 0.0


def macro_f1(counts: np.ndarray) -> float:
    """Mean F1 of the classes that occur or are predicted."""
    hits, sizes = np.diag(counts), counts.sum(axis=0) + counts.sum(axis=1)
    there = sizes > 0
    return float(np.mean(2 * hits[there] / sizes[there])) if there.any() else 0.0


def selection(kept: np.ndarray, correct: np.ndarray) -> tuple[float | None, float | None]:
    """Label precision (how many kept labels are right) and recall (how many right labels are kept)."""
    both = float((kept & correct).sum())
    precision = both / kept.sum() if kept.any() else None
    recall = both / correct.sum() if correct.any() else None
    return precision, recall


def repair(given: np.ndarray, suggested: np.ndarray, true: np.ndarray) -> tuple[float | None, float | None]:
    """Share of the changed labels that are now right, and share of the wrong labels that were put right."""
    changed, wrong, right = suggested != given, given != true, suggested == true
    precision = float(right[changed].mean()) if changed.any() else None
    return precision, float(right[wrong].mean()) if wrong.any() else None


def guessing(
    guessed: np.ndarray, used: np.ndarray, true: np.ndarray, n_classes: int
) -> tuple[float | None, float | None, float | None, float | None]:
    """Share of the guesses (-1 is none) that are right, the same of those used, share of the rows whose guess is used,
    and how evenly these spread over the classes: −Σ_c f_c log f_c / log C."""
    made, right = guessed >= 0, guessed == true
    shares = np.bincount(guessed[used], minlength=n_classes) / max(int(used.sum()), 1)
    spread = -float((shares[shares > 0] * np.log(shares[shares > 0])).sum()) / np.log(n_classes)
    return (
        float(right[made].mean()) if made.any() else None,
        float(right[used].mean()) if used.any() else None,
        float(used.mean()) if len(used) else None,
        abs(spread) if used.any() else None,
    )


def ranking_auc(reliability: np.ndarray, noise: np.ndarray) -> float | None:
    """How well reliability tells the noisier half of the clients from the cleaner: area under the ROC curve.

    Clients with more than the median noise are the noisy ones; 1 means that each of them scores below every other.
    """
    known = np.isfinite(reliability) & np.isfinite(noise)
    score, noisy = -reliability[known], noise[known] > np.median(noise[known]) if known.any() else np.zeros(0, bool)
    positive, negative = int(noisy.sum()), int((~noisy).sum())
    if not positive or not negative:
        return None
    ranks = _ranks(score)
    return float((ranks[noisy].sum() - positive * (positive + 1) / 2) / (positive * negative))


def rank_correlation(reliability: np.ndarray, noise: np.ndarray) -> float | None:
    """Spearman's correlation of reliability with the share of right labels: 1 means the same order."""
    known = np.isfinite(reliability) & np.isfinite(noise)
    if known.sum() < 2 or not np.ptp(reliability[known]) or not np.ptp(noise[known]):
        return None
    return float(np.corrcoef(_ranks(reliability[known]), _ranks(-noise[known]))[0, 1])


def adjusted_rand_index(one: np.ndarray, two: np.ndarray) -> float:
    """How far two groupings of the same things agree: 1 is the same, 0 is chance (Hubert & Arabie 1985)."""

    def pairs(sizes: np.ndarray) -> float:
        return float((sizes * (sizes - 1) / 2).sum())

    (_, i), (_, j) = (np.unique(grouping, return_inverse=True) for grouping in (one, two))
    table = np.zeros((i.max(initial=-1) + 1, j.max(initial=-1) + 1))
    np.add.at(table, (i, j), 1)
    rows, columns, everything = pairs(table.sum(1)), pairs(table.sum(0)), pairs(np.array([len(one)]))
    by_chance = rows * columns / everything if everything else 0.0
    most = (rows + columns) / 2
    return 1.0 if most == by_chance else (pairs(table) - by_chance) / (most - by_chance)


def _ranks(values: np.ndarray) -> np.ndarray:
    """From 1; tied values share their mean rank."""
    _, place, size = np.unique(values, return_inverse=True, return_counts=True)
    ranks: np.ndarray = (np.cumsum(size) - (size - 1) / 2)[place]
    return ranks
