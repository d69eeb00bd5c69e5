"""Plots of values over rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from fedsieve.report.canvas import MUTED, SERIES, Plot, drawing, in_per_cent, look, short

POINTED_AT = 100
"""Most values of a curve that can be pointed at, evenly spread; a table has them all."""


@dataclass(frozen=True)
class Series:
    """The curves of the runs that differ in their seed alone: for each run, value by round.

    `place` is that of the group among all, so that its colour is the same in every plot.
    """

    label: str
    place: int
    runs: tuple[Mapping[int, float], ...]
    dashed: bool = False
    """Of two curves of one group, the second."""

    def mean(self) -> dict[int, float]:
        """The mean at the rounds that every run knows."""
        rounds = set.intersection(*(set(run) for run in self.runs))
        return {r: float(np.mean([run[r] for run in self.runs])) for r in sorted(rounds)}


def curves(
    name: str,
    alt: str,
    title: str,
    series: Sequence[Series],
    stages: Mapping[int, str],
    *,
    width: float = 9.6,
    shares: bool = True,
) -> Plot:
    """Over rounds: each run thin, the mean of its seeds strong; `stages` names the rounds that begin one.

    Shares are drawn in per cent, other values as they are, from 0 on.
    """
    shown = in_per_cent if shares else list
    columns = max(1, int(width / 2.4))
    legend_rows = -(-len(series) // columns) if len(series) > 1 else 0
    with drawing(name, alt, width, 3.1 + 0.17 * legend_rows) as canvas:
        ax = canvas.axes(title, "round")
        for one in series:
            colour, dash = look(one.place + len(SERIES) * one.dashed)
            for run in one.runs if len(one.runs) > 1 else ():
                ax.plot(list(run), shown(run.values()), color=colour, linewidth=0.7, alpha=0.4)
            mean = one.mean()
            marker = "o" if len(mean) <= 30 else ""
            ax.plot(
                list(mean),
                shown(mean.values()),
                color=colour,
                linestyle=dash,
                linewidth=1.7,
                marker=marker,
                markersize=2.6,
                label=short(one.label, 44),
            )
            values = list(zip(mean, shown(mean.values()), strict=True))
            for number, value in values[:: -(-len(values) // POINTED_AT) or 1]:
                told = f"{value:.2f} %" if shares else f"{value:.4g}"
                canvas.point(ax, number, value, f"{short(one.label, 44)}, round {number}: {told}")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12))
        ax.margins(x=0.015)
        if shares:
            lowest = min((value for one in series for run in one.runs for value in run.values()), default=0.0)
            low, high = ax.get_ylim()
            widened = max(0.0, 5 - (high - low)) / 2  # a flat curve has next to no range of its own
            floor = -0.4 if lowest >= 0 else -100.4  # no margin where there can be no value
            ax.set_ylim(max(low - widened, floor), min(high + widened, 100.4))
        else:
            ax.set_ylim(bottom=0)
        for begin, stage in stages.items():
            ax.axvline(begin - 0.5, color=MUTED, linewidth=0.8, linestyle=(0, (2, 2)))
            ax.annotate(
                short(stage), (begin - 0.5, 1), (4, -2), xycoords=("data", "axes fraction"),
                textcoords="offset points", va="top", color=MUTED, fontsize=7,
            )  # fmt: skip
        if legend_rows:
            canvas.figure.legend(
                loc="outside lower left", ncols=columns, handlelength=4.0 if any(s.dashed for s in series) else 2.4
            )
    return canvas.plot


def client_band(name: str, alt: str, rounds: Sequence[int], mean: ArrayLike, std: ArrayLike, worst: ArrayLike) -> Plot:
    """Mean of the clients with one standard deviation, and the worst client, over rounds."""
    middle, spread, lowest = (100 * np.asarray(values, dtype=float) for values in (mean, std, worst))
    with drawing(name, alt, 4.8, 3.1) as canvas:
        ax = canvas.axes("accuracy over clients (%)", "round")
        ax.fill_between(rounds, middle - spread, middle + spread, color=SERIES[0], alpha=0.18, label="± 1 std")
        ax.plot(rounds, middle, color=SERIES[0], linewidth=1.7, label="mean")
        ax.plot(rounds, lowest, color=SERIES[1], linewidth=1.2, label="worst")
        for i in range(0, len(rounds), -(-len(rounds) // POINTED_AT) or 1):
            told = f"mean {middle[i]:.2f} ± {spread[i]:.2f} %, worst client {lowest[i]:.2f} %"
            canvas.column(ax, (rounds[i] - 0.5, rounds[i] + 0.5), f"round {rounds[i]}: {told}")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
        canvas.figure.legend(loc="outside lower left", ncols=3)
    return canvas.plot
