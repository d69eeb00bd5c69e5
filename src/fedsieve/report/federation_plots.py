"""Pictures of a federation, for a run's page and for `data inspect`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedsieve.report.bar_plots import noise_bars
from fedsieve.report.canvas import Plot
from fedsieve.report.matrix_plots import heat_map
from fedsieve.report.records import Federation
from fedsieve.report.tables import per_cent

NUMBERED = 12
"""Matrices up to this size show the numbers in their cells."""


def classes_plot(federation: Federation) -> Plot:
    """Given labels, classes x clients."""
    names = [federation.client_name(client.client) for client in federation.clients]
    named = all(client.name is not None for client in federation.clients)
    return heat_map(
        "classes",
        f"Given labels of each class on each of {len(names)} clients.",
        "given labels of a class on a client",
        np.array([client.classes for client in federation.clients]).T,
        xlabel="client",
        rows=class_names(federation),
        columns=names if named else None,
    )


def noise_plot(federation: Federation) -> Plot | None:
    """Wrong labels of each client, where the truth is known."""
    known = known_noise(federation)
    if not known:
        return None
    alt = f"Wrong labels of each client: {per_cent(min(known))} to {per_cent(max(known))}."
    realised = [client.noise_realised for client in federation.clients]
    nominal = [client.noise_nominal for client in federation.clients]
    names = [federation.client_name(client.client) for client in federation.clients]
    return noise_bars("noise", alt, realised, nominal, names)


def transitions_plot(federation: Federation, size: tuple[float, float]) -> Plot | None:
    """True x given labels in per cent, where the truth is known."""
    if federation.transitions is None:
        return None
    counts, names = np.array(federation.transitions), class_names(federation)
    return heat_map(
        "transitions",
        "Share of each true class that was given each label.",
        "true class (rows) to given label (columns), %",
        100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1),
        told="{:.1f} %",
        xlabel="given label",
        rows=names,
        columns=names,
        size=size,
        numbers=".0f" if len(counts) <= NUMBERED else "",
    )


def relabelling_plot(federation: Federation, pairs: Sequence[tuple[int, int]]) -> Plot:
    """Given x suggested labels, without those that stay."""
    counts, names = np.zeros((federation.n_classes, federation.n_classes)), class_names(federation)
    for given, suggested in pairs:
        counts[given, suggested] += given != suggested
    return heat_map(
        "relabelling",
        f"{int(counts.sum()):,} of {len(pairs):,} labels would change; rows are given labels, columns suggested ones.",
        f"given label (rows) to suggested label (columns): {int(counts.sum()):,} of {len(pairs):,} change",
        counts,
        xlabel="suggested label",
        rows=names,
        columns=names,
        size=(5.6, 4.6),
        numbers=".0f" if len(counts) <= NUMBERED else "",
    )


def known_noise(federation: Federation) -> list[float]:
    """The realised noise of the clients whose truth is known."""
    return [client.noise_realised for client in federation.clients if client.noise_realised is not None]


def missing_labels(federation: Federation) -> list[str]:
    """How many rows have a label, where some have none."""
    rows = sum(client.rows for client in federation.clients)
    labelled = sum(client.rows if client.labelled is None else client.labelled for client in federation.clients)
    if labelled == rows:
        return []
    return [f"{labelled:,} of {rows:,} rows have a label" if labelled else "the clients have no labels"]


def held_at_server(federation: Federation) -> list[str]:
    """The server's own sets, with the share of wrong labels where it is known."""
    wrong = {kind: labels.noise_realised for kind, labels in federation.server_labels.items()}
    return [
        f"{n:,} {kind}" + ("" if (share := wrong.get(kind)) is None else f" ({per_cent(share)} of the labels wrong)")
        for kind, n in federation.server.items()
        if n
    ]


def class_names(federation: Federation) -> list[str]:
    return [federation.class_name(index) for index in range(federation.n_classes)]
