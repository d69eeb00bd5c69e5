"""Plots of amounts and shares: of clients, of groups of runs, of time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike, NDArray

from fedsieve.report.canvas import INK, MUTED, SERIES, Plot, drawing, in_per_cent, look, name_ticks, short


def noise_bars(name: str, alt: str, realised: Sequence[float | None], nominal: Sequence[float | None]) -> Plot:
    """Share of wrong labels of each client, with the rate that was asked for as a mark."""
    with drawing(name, alt, 6.2, 3.2) as canvas:
        ax = canvas.axes("wrong labels of a client (%)", "client")
        _bars(ax, in_per_cent(realised), "realised")
        asked = in_per_cent(nominal)
        if np.isfinite(asked).any():
            edges = np.arange(len(asked) + 1) - 0.5
            ax.hlines(asked, edges[:-1] + 0.06, edges[1:] - 0.06, color=SERIES[1], linewidth=1.6, label="nominal")
            canvas.figure.legend(loc="outside lower left", ncols=2)
        ax.set_ylim(bottom=0)
    return canvas.plot


def sorted_clients(name: str, alt: str, accuracy: Mapping[int, float]) -> Plot:
    """Accuracy of each client from the worst to the best, and their mean."""
    order = sorted(accuracy, key=lambda client: (accuracy[client], client))
    values = in_per_cent(accuracy[client] for client in order)
    with drawing(name, alt, 4.8, 3.1) as canvas:
        ax = canvas.axes("test accuracy of a client (%)", "client, from worst to best")
        _bars(ax, values, "")
        ax.axhline(float(values.mean()), color=SERIES[1], linewidth=1.2)
        ax.annotate(
            f"mean {values.mean():.1f}", (0, float(values.mean())), (2, 3), textcoords="offset points",
            color=INK, fontsize=7,
        )  # fmt: skip
        if len(order) <= 24:
            name_ticks(ax.xaxis, [str(client) for client in order], 4.8)
    return canvas.plot


def boxes(name: str, alt: str, title: str, samples: Mapping[str, Sequence[float]]) -> Plot:
    """The spread of each group as a box with whiskers to the extremes, in per cent; a group may know nothing."""
    with drawing(name, alt, 9.6, 0.9 + 0.3 * len(samples)) as canvas:
        ax = canvas.axes("", title, grid="x")
        drawn = ax.boxplot(
            [in_per_cent(values) for values in samples.values()],
            orientation="horizontal",
            whis=(0, 100),
            widths=0.55,
            patch_artist=True,
            boxprops={"edgecolor": MUTED, "linewidth": 0.8},
            medianprops={"color": INK, "linewidth": 1.4},
            whiskerprops={"color": MUTED},
            capprops={"color": MUTED},
        )
        for i, box in enumerate(drawn["boxes"]):
            box.set_facecolor((*to_rgba(look(i)[0])[:3], 0.55))
        ax.set_yticks(range(1, len(samples) + 1), [short(label, 44) for label in samples])
        ax.invert_yaxis()
    return canvas.plot


def scatter(name: str, alt: str, title: str, noise: ArrayLike, values: ArrayLike) -> Plot:
    """One point a client: something the method believes, against the truth about its labels."""
    with drawing(name, alt, 4.8, 3.0) as canvas:
        ax = canvas.axes(title, "wrong labels of the client, realised (%)")
        ax.scatter(100 * np.asarray(noise), values, s=16, color=SERIES[0], alpha=0.75, linewidths=0)
        low, high = ax.get_xlim()
        ax.set_xlim(min(low, -1), max(high, 10))  # clients that are equally noisy are shown to be
    return canvas.plot


def time_by_round(name: str, alt: str, rounds: Sequence[int], parts: Mapping[str, ArrayLike]) -> Plot:
    """Seconds a round by what they were spent on; many rounds are averaged into at most 80 bars."""
    step = -(-len(rounds) // 80)
    begins = np.arange(0, len(rounds), step)
    sizes = np.diff(np.append(begins, len(rounds)))
    at = np.add.reduceat(np.asarray(rounds, dtype=float), begins) / sizes
    with drawing(name, alt, 9.6, 2.8) as canvas:
        ax = canvas.axes("seconds a round", "round")
        base = np.zeros(len(begins))
        for i, (part, values) in enumerate(parts.items()):
            seconds = np.add.reduceat(np.asarray(values, dtype=float), begins) / sizes
            ax.bar(at, seconds, 0.76 * step, bottom=base, color=look(i)[0], label=part)
            base = base + seconds
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12))
        ax.margins(x=0.01)
        canvas.figure.legend(loc="outside lower left", ncols=len(parts), handlelength=1)
    return canvas.plot


def time_by_group(name: str, alt: str, groups: Sequence[str], parts: Mapping[str, ArrayLike]) -> Plot:
    """Seconds a run by what they were spent on, one lying bar a group of runs."""
    with drawing(name, alt, 9.6, 1.1 + 0.3 * len(groups)) as canvas:
        ax = canvas.axes("", "seconds a run", grid="x")
        base = np.zeros(len(groups))
        for i, (part, values) in enumerate(parts.items()):
            ax.barh(np.arange(len(groups)), values, 0.6, left=base, color=look(i)[0], label=part)
            base = base + np.asarray(values, dtype=float)
        ax.set_yticks(range(len(groups)), [short(label, 44) for label in groups])
        ax.invert_yaxis()
        canvas.figure.legend(loc="outside lower left", ncols=len(parts), handlelength=1)
    return canvas.plot


def _bars(ax: Axes, values: NDArray[np.float64], label: str) -> None:
    """One bar a client; beyond a hundred, one outline, which stays small and needs no gaps."""
    at = np.arange(len(values))
    if len(values) <= 100:
        ax.bar(at, values, 0.76, color=SERIES[0], alpha=0.8, label=label)
    else:
        ax.stairs(values, np.append(at - 0.5, len(values) - 0.5), fill=True, color=SERIES[0], alpha=0.8, label=label)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12))
    ax.margins(x=0.01)
