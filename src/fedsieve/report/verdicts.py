"""Pictures of what a method came to believe about the clients, beside what is true of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedsieve.report.arrays import Exhibit
from fedsieve.report.bar_plots import scatter
from fedsieve.report.canvas import Plot, short
from fedsieve.report.federation_plots import class_names
from fedsieve.report.folder import RunFolder
from fedsieve.report.matrix_plots import dendrogram, heat_map, small_matrices

EQUAL = 1e-9
"""Clients of whom a method makes the same by this much need no picture."""
SHOWN_MATRICES = 12
"""Confusion matrices beyond this many are left out; those of the cleanest and of the noisiest clients stay."""


def trust_plots(run: RunFolder) -> list[Plot]:
    """Weight and score of each client, mean over its rounds, against its share of wrong labels."""
    noise, shown = _noise(run), []
    for column, name in (("weight", "weight in the average"), ("score", "score of the client (0 = bad)")):
        seen: dict[int, list[float]] = {}
        for row in run.client_reports if noise else ():
            if row.client in noise and (value := getattr(row, column)) is not None:
                seen.setdefault(row.client, []).append(value)
        rates, means = [noise[client] for client in seen], [float(np.mean(values)) for values in seen.values()]
        if np.ptp(means or [0.0]) > EQUAL:
            alt = f"Mean {name} of {len(seen)} clients against their share of wrong labels."
            names = [run.client_name(client) for client in seen]
            shown.append(scatter(column, alt, f"{name}, mean over rounds", rates, means, names))
    scores = [(row.client, row.round, row.score) for row in run.client_reports if row.score is not None]
    if scores and noise:
        shown.append(_by_round(run, scores, noise))
    return shown


def _by_round(run: RunFolder, scores: list[tuple[int, int, float]], noise: Mapping[int, float]) -> Plot:
    """Rounds from left to right, clients from the cleanest to the noisiest; white where a client took no part."""
    clients = sorted(noise, key=lambda client: (noise[client], client))
    line = {client: i for i, client in enumerate(clients)}
    last = max(number for _, number, _ in scores)
    table = np.full((len(clients), last), np.nan)
    for client, number, score in scores:
        if client in line:
            table[line[client], number - 1] = score
    return heat_map(
        "score-rounds",
        f"The score of each of {len(clients)} clients in each of {last} rounds, the cleanest client on top.",
        "score of each client in each round, from the cleanest client (top) to the noisiest",
        table,
        xlabel="round",
        rows=[f"{short(run.client_name(client), 12)}: {100 * noise[client]:.0f} %" for client in clients],
        columns=[str(number) for number in range(1, last + 1)],
        linear=True,
        told="{:.3g}",
    )


def exhibit_plots(run: RunFolder, place: int) -> list[Plot]:
    """What the run's parts put on show; `place` keeps the ids of several runs on a page apart."""
    drawn: list[Plot] = []
    for number, exhibit in enumerate(run.exhibits):
        name = f"exhibit-{place}-{number}"
        if exhibit.kind == "pairs":
            drawn.append(_pairs(name, exhibit, run))
        elif exhibit.kind == "tree":
            drawn.append(_tree(name, exhibit, run))
        elif exhibit.kind == "confusions":
            drawn.append(_confusions(name, exhibit, run))
        else:
            drawn += _against_noise(name, exhibit, run)
    return drawn


def _against_noise(name: str, exhibit: Exhibit, run: RunFolder) -> list[Plot]:
    """One number a client against its noise, with their correlation; nothing where the truth is not known."""
    noise = _noise(run)
    known = [
        (noise[client], value, run.client_name(client))
        for client, value in zip(exhibit.clients, exhibit.values.tolist(), strict=True)
        if client in noise and np.isfinite(value)
    ]
    if not known:
        return []
    rates, values, names = (list(column) for column in zip(*known, strict=True))
    varied = np.ptp(rates) > 0 and np.ptp(values) > 0
    found = f", correlation {np.corrcoef(rates, values)[0, 1]:.2f}" if varied else ""
    alt = f"The {exhibit.title} against its share of wrong labels, for {len(known)} clients{found}."
    return [scatter(name, alt, f"{exhibit.title}{found}", rates, values, names)]


def _pairs(name: str, exhibit: Exhibit, run: RunFolder) -> Plot:
    """Each two clients, in the order of their most frequent given class, so that likeness shows as blocks."""
    clients, federation = exhibit.clients, run.federation
    counts = [() if federation is None else federation.clients[client].classes for client in clients]
    order = sorted(range(len(clients)), key=lambda i: (int(np.argmax(counts[i])) if counts[i] else 0, clients[i]))
    names = [run.client_name(clients[i]) for i in order]
    return heat_map(
        name,
        f"The {exhibit.title}, for each two of {len(clients)} clients, in order of their most frequent given class.",
        exhibit.title,
        exhibit.values[np.ix_(order, order)],
        xlabel="client, in order of the most frequent given class",
        rows=names,
        columns=names,
        size=(4.8, 4.2),
        linear=True,
        each="client",
        told="{:.3g}",
    )


def _tree(name: str, exhibit: Exhibit, run: RunFolder) -> Plot:
    names = [run.client_name(client) for client in exhibit.clients]
    alt = f"A dendrogram: {exhibit.title}, for {len(names)} clients."
    return dendrogram(name, alt, exhibit.title, exhibit.values, names)


def _confusions(name: str, exhibit: Exhibit, run: RunFolder) -> Plot:
    """A small matrix a client, from the cleanest to the noisiest."""
    noise = _noise(run)
    order = sorted(range(len(exhibit.clients)), key=lambda i: (noise.get(exhibit.clients[i], 0), exhibit.clients[i]))
    if len(order) > SHOWN_MATRICES:
        order = order[: SHOWN_MATRICES // 2] + order[-(SHOWN_MATRICES // 2) :]
    titles = [
        short(run.client_title(exhibit.clients[i]), 14)
        + (f", {100 * noise[exhibit.clients[i]]:.0f} % wrong" if noise else "")
        for i in order
    ]
    names = [] if run.federation is None else class_names(run.federation)
    alt = f"The {exhibit.title}, for {', '.join(titles)}."
    return small_matrices(name, alt, exhibit.title, exhibit.values[order], titles, names)


def _noise(run: RunFolder) -> dict[int, float]:
    """The share of wrong labels of each client for which it is known."""
    clients = run.federation.clients if run.federation else ()
    return {client.client: client.noise_realised for client in clients if client.noise_realised is not None}
