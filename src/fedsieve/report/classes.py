"""What the final model makes of each class."""

from __future__ import annotations

import numpy as np

from fedsieve.report.folder import Runs
from fedsieve.report.matrix_plots import heat_map
from fedsieve.report.section import Section
from fedsieve.report.tables import UNKNOWN, Table, per_cent

WRITTEN = 20
"""Most classes whose counts are written into the picture."""


def classes_section(runs: Runs) -> Section | None:
    """Confusion matrix and accuracy per class, of a single run."""
    run = runs.first
    counts = run.confusion
    if runs.several or counts is None or run.federation is None or not counts.sum():
        return None
    names = [run.federation.class_name(i) for i in range(len(counts))]
    totals, hits = counts.sum(axis=1), np.diag(counts)
    shares = [int(hit) / int(total) if total else None for hit, total in zip(hits, totals, strict=True)]
    side = min(7.2, max(3.4, 1.6 + 0.32 * len(names)))
    plot = heat_map(
        "confusion",
        f"Confusion matrix of {len(names)} classes: {hits.sum()} of {totals.sum()} test samples on its diagonal.",
        "true class (rows) and what it is taken for (columns)",
        counts,
        xlabel="predicted",
        rows=names,
        columns=names,
        size=(side + 1.2, side),
        numbers="g" if len(names) <= WRITTEN else "",
    )
    rows = tuple(
        (name, f"{total:,}", per_cent(share), _mostly(counts[i], i, names))
        for i, (name, total, share) in enumerate(zip(names, totals.tolist(), shares, strict=True))
    )
    text = "What the saved model makes of the test set; where there are several models, all of them together."
    header = ("class", "test samples", "accuracy", "mostly mistaken for")
    return Section("Classes", text, plots=(plot,), table=Table(header, rows))


def _mostly(row: np.ndarray, own: int, names: list[str]) -> str:
    """The wrong class that is predicted most."""
    wrong = np.where(np.arange(len(row)) == own, 0, row)
    return f"{names[int(wrong.argmax())]} ({int(wrong.max())})" if wrong.any() else UNKNOWN
