"""Plots of amounts and shares: of clients, of groups of runs, of time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike, NDArray

from fedsieve.report.canvas import INK, MUTED, SERIES, Plot, drawing, in_per_cent, look, name_columns, short


def noise_bars(
    name: str, alt: str, realised: Sequence[float | None], nominal: Sequence[float | None], clients: Sequence[str]
) -> Plot:
    """Share of wrong labels of each client, with the rate that was asked for as a mark."""
    with drawing(name, alt, 6.2, 3.2) as canvas:
        ax = canvas.axes("wrong labels of a client (%)", "client")
        wrong, asked = in_per_cent(realised), in_per_cent(nominal)
        _bars(ax, wrong, "realised", clients, 6.2)
        if np.isfinite(asked).any():
            edges = np.arange(len(asked) + 1) - 0.5
            ax.hlines(asked, edges[:-1] + 0.06, edges[1:] - 0.06, color=SERIES[1], linewidth=1.6, label="nominal")
            canvas.figure.legend(loc="outside lower left", ncols=2)
        ax.set_ylim(bottom=0)
        for i, client in enumerate(clients):
            if np.isfinite(wrong[i]):
                meant = f", nominal {asked[i]:.1f} %" if np.isfinite(asked[i]) else ""
                canvas.column(ax, (i - 0.5, i + 0.5), f"client {client}: {wrong[i]:.1f} % wrong{meant}")
    return canvas.plot


def sorted_clients(name: str, alt: str, accuracy: Sequence[tuple[str, float]]) -> Plot:
    """Accuracy of each client from the worst to the best, and their mean; `accuracy` has names and values."""
    order = sorted(accuracy, key=lambda named: named[1])
    values = in_per_cent(value for _, value in order)
    with drawing(name, alt, 4.8, 3.1) as canvas:
        ax = canvas.axes("test accuracy of a client (%)", "client, from worst to best")
        _bars(ax, values, "", [client for client, _ in order], 4.8)
        ax.axhline(float(values.mean()), color=SERIES[1], linewidth=1.2)
        ax.annotate(
            f"mean {values.mean():.1f}", (0, float(values.mean())), (2, 3), textcoords="offset points",
            color=INK, fontsize=7,
        )  # fmt: skip
        for i, (client, _) in enumerate(order):
            canvas.column(ax, (i - 0.5, i + 0.5), f"client {client}: {values[i]:.2f} %")
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
        for place, (label, values) in enumerate(samples.items(), 1):
            if values:
                low, quarter, middle, three, high = np.percentile(in_per_cent(values), [0, 25, 50, 75, 100])
                told = f"median {middle:.2f} %, quartiles {quarter:.2f} and {three:.2f} %, {low:.2f} to {high:.2f} %"
                canvas.area(ax, (low, high), (place - 0.4, place + 0.4), f"{label}: {told}")
    return canvas.plot


def scatter(
    name: str, alt: str, title: str, noise: Sequence[float], values: Sequence[float], clients: Sequence[str]
) -> Plot:
    """One point a client: something the method believes, against the truth about its labels."""
    with drawing(name, alt, 4.8, 3.0) as canvas:
        ax = canvas.axes(title, "wrong labels of the client, realised (%)")
        ax.scatter(100 * np.asarray(noise), values, s=16, color=SERIES[0], alpha=0.75, linewidths=0)
        low, high = ax.get_xlim()
        ax.set_xlim(min(low, -1), max(high, 10))  # clients that are equally noisy are shown to be
        for client, rate, value in zip(clients, noise, values, strict=True):
            canvas.point(ax, 100 * rate, value, f"client {client}: {value:.4g}, {100 * rate:.1f} % wrong")
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
        seconds = {
            part: np.add.reduceat(np.asarray(values, dtype=float), begins) / sizes for part, values in parts.items()
        }
        for i, (part, heights) in enumerate(seconds.items()):
            ax.bar(at, heights, 0.76 * step, bottom=base, color=look(i)[0], label=part)
            base = base + heights
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12))
        ax.margins(x=0.01)
        for i, (first, size) in enumerate(zip(begins.tolist(), sizes.tolist(), strict=True)):
            which = f"round {rounds[first]}" + (f" to {rounds[first + size - 1]}, mean" if size > 1 else "")
            canvas.column(ax, (at[i] - step / 2, at[i] + step / 2), f"{which}: {_spent(seconds, i)}")
        canvas.figure.legend(loc="outside lower left", ncols=len(parts), handlelength=1)
    return canvas.plot


def time_by_group(name: str, alt: str, groups: Sequence[str], parts: Mapping[str, Sequence[float]]) -> Plot:
    """Seconds a run by what they were spent on, one lying bar a group of runs."""
    with drawing(name, alt, 9.6, 1.1 + 0.3 * len(groups)) as canvas:
        ax = canvas.axes("", "seconds a run", grid="x")
        base = np.zeros(len(groups))
        for i, (part, values) in enumerate(parts.items()):
            ax.barh(np.arange(len(groups)), values, 0.6, left=base, color=look(i)[0], label=part)
            base = base + np.asarray(values, dtype=float)
        ax.set_yticks(range(len(groups)), [short(label, 44) for label in groups])
        ax.invert_yaxis()
        for i, label in enumerate(groups):
            canvas.area(ax, (0.0, float(base[i])), (i - 0.4, i + 0.4), f"{label}: {_spent(parts, i)}")
        canvas.figure.legend(loc="outside lower left", ncols=len(parts), handlelength=1)
    return canvas.plot


def _spent(parts: Mapping[str, ArrayLike], place: int) -> str:
    return ", ".join(f"{part} {np.asarray(values)[place]:.2f} s" for part, values in parts.items())


def _bars(ax: Axes, values: NDArray[np.float64], label: str, clients: Sequence[str], inches: float) -> None:
    """One bar a client, with its name where there is room; beyond a hundred, one outline, which needs no gaps."""
    at = np.arange(len(values))
    if len(values) <= 100:
        ax.bar(at, values, 0.76, color=SERIES[0], alpha=0.8, label=label)
    else:
        ax.stairs(values, np.append(at - 0.5, len(values) - 0.5), fill=True, color=SERIES[0], alpha=0.8, label=label)
    if len(clients) <= 5 * inches:
        name_columns(ax, clients, inches)
    else:
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12))
    ax.margins(x=0.01)
