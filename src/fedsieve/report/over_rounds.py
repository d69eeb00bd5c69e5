"""Sections of what changes from round to round: labels chosen, labels guessed, features."""

from __future__ import annotations

from fedsieve.report.canvas import Plot
from fedsieve.report.curve_plots import Series, curves
from fedsieve.report.folder import Runs
from fedsieve.report.section import Section


def series_of(runs: Runs, metric: str) -> list[Series]:
    """The curves of a metric, of the groups that know it."""
    known = [
        (label, tuple(filter(None, (run.by_round(metric) for run in group)))) for label, group in runs.groups.items()
    ]
    return [Series(label, place, shown) for place, (label, shown) in enumerate(known) if shown]


def small_curves(runs: Runs, *wanted: tuple[str, str]) -> tuple[Plot, ...]:
    """A plot for each metric and what it is called, where a run knows it."""
    return tuple(
        curves(metric, f"{name} over rounds.", f"{name} (%)", series, {}, width=4.8)
        for metric, name in wanted
        if (series := series_of(runs, metric))
    )


def selection_section(runs: Runs) -> Section | None:
    shown = small_curves(
        runs,
        ("label_precision", "label precision"),
        ("label_recall", "label recall"),
        ("repair_precision", "repair precision"),
        ("repair_recall", "repair recall"),
    )
    text = "How well the method tells right labels from wrong ones, judged by the true labels."
    if any(run.numbers.get("repair_precision") is not None for run in runs.runs):
        text += " Repair: which of the changed labels are now right, and which of the wrong ones were put right."
    return Section("Label precision and recall", text, plots=shown) if shown else None


def guesses_section(runs: Runs) -> Section | None:
    shown = small_curves(
        runs,
        ("guess_accuracy", "guesses that are right"),
        ("guess_precision", "used guesses that are right"),
        ("guess_share", "rows whose guess is used"),
        ("guess_entropy", "spread of the guesses over the classes"),
    )
    text = "Labels that clients guessed, judged by the true ones. A spread of 0 % means that all guesses are one class."
    return Section("Guessed labels", text, plots=shown) if shown else None


def features_section(runs: Runs) -> Section | None:
    shown = small_curves(
        runs,
        ("knn_accuracy", "nearest neighbours"),
        ("linear_accuracy", "linear classifier"),
        ("feature_spread", "spread of the directions"),
    )
    text = "How well the test set is classified by the frozen features alone. A spread of 0 % is a collapse."
    return Section("Features", text, plots=shown) if shown else None
