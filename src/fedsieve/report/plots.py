"""Plots as inline SVG: the same bytes for the same data, and colours that the page's style sheet decides.

Every colour drawn here stands for a variable of `report.css`, so one SVG is readable in light and in dark mode.
Heat maps are one colour with growing opacity: where there is nothing, the page itself shows.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize, PowerNorm, to_rgba
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, MaxNLocator
from numpy.typing import ArrayLike, NDArray

INK, MUTED, GRID = "#1c2430", "#5a6675", "#d8dee6"
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#8c6d31")
"""Okabe and Ito's colours that stand out on white, and two more; beyond eight series the line style changes."""
DASHES = ("-", (0, (5, 2)), (0, (1, 1.4)), (0, (5, 1.5, 1, 1.5)))
HEAT = LinearSegmentedColormap.from_list("heat", [to_rgba("#2b83d1", 0.0), to_rgba("#2b83d1", 0.95)])

_VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    GRID: "var(--line)",
    **{colour: f"var(--series-{i})" for i, colour in enumerate(SERIES, 1)},
}
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "fedsieve",
    "text.parse_math": False,
    "font.family": ["DejaVu Sans"],
    "font.size": 8,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.titlesize": 8,
    "axes.titlecolor": MUTED,
    "axes.titlelocation": "left",
    "axes.titlepad": 7,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.linewidth": 0.8,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "patch.linewidth": 0,
}


@dataclass(frozen=True)
class Plot:
    """An inline SVG, already escaped, and its width in inches, by which the page shares out a row."""

    svg: str
    width: float


@dataclass(frozen=True)
class Series:
    """The curves of the runs that differ in their seed alone: for each run, value by round.

    `place` is that of the group among all, so that its colour is the same in every plot.
    """

    label: str
    place: int
    runs: tuple[Mapping[int, float], ...]

    def mean(self) -> dict[int, float]:
        """The mean at the rounds that every run knows."""
        rounds = set.intersection(*(set(run) for run in self.runs))
        return {r: float(np.mean([run[r] for run in self.runs])) for r in sorted(rounds)}


class _Canvas:
    """Collects the SVG that `_drawing` writes when its block ends."""

    plot: Plot

    def __init__(self, figure: Figure) -> None:
        self.figure = figure

    def axes(self, title: str, xlabel: str, grid: Literal["x", "y", ""] = "y") -> Axes:
        ax = self.figure.add_subplot()
        ax.set_title(title)
        ax.set_xlabel(xlabel)
        ax.grid(visible=False, axis="both")
        if grid:
            ax.grid(visible=True, axis=grid)
        return ax


@contextmanager
def _drawing(name: str, alt: str, width: float, height: float) -> Iterator[_Canvas]:
    """A figure drawn in the report's style, without pyplot; `name` keeps the ids of two plots on a page apart."""
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*[Gg]lyph.*")  # the browser has the letters of every language
        canvas = _Canvas(Figure(figsize=(width, height), layout="constrained"))
        yield canvas
        text = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        canvas.figure.savefig(text, format="svg", transparent=True, metadata=nothing)
    canvas.plot = Plot(_inline(text.getvalue(), name, alt), width)


def _inline(svg: str, name: str, alt: str) -> str:
    """An SVG file as an element of an HTML page: own ids, the page's colours, a text for those who cannot see it."""
    body = svg[svg.index(">", svg.index("<svg")) + 1 :]
    view = re.search(r'viewBox="[^"]*"', svg)
    assert view is not None
    body = re.sub(r"<style.*?</style>", "", body, count=1, flags=re.DOTALL)  # would hold for the whole page
    body = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", body)
    body = re.sub(r'style="[^"]*"', lambda style: _with_variables(style[0]), body)
    return f'<svg {view[0]} role="img" aria-label="{escape(alt)}">{body.strip()}'


def _with_variables(style: str) -> str:
    return re.sub(r"#[0-9a-f]{6}", lambda colour: _VARIABLES.get(colour[0], colour[0]), style)


def short(text: str, limit: int = 20) -> str:
    """A name that fits beside an axis."""
    clean = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def curves(
    name: str, alt: str, title: str, series: Sequence[Series], stages: Mapping[int, str], *, width: float = 9.6
) -> Plot:
    """Per cent over rounds: each run thin, the mean of its seeds strong; `stages` names the rounds that begin one."""
    columns = max(1, int(width / 2.4))
    legend_rows = -(-len(series) // columns) if len(series) > 1 else 0
    with _drawing(name, alt, width, 3.1 + 0.17 * legend_rows) as canvas:
        ax = canvas.axes(title, "round")
        for one in series:
            colour, dash = _look(one.place)
            for run in one.runs if len(one.runs) > 1 else ():
                ax.plot(list(run), _per_cent(run.values()), color=colour, linewidth=0.7, alpha=0.4)
            mean = one.mean()
            marker = "o" if len(mean) <= 30 else ""
            ax.plot(
                list(mean),
                _per_cent(mean.values()),
                color=colour,
                linestyle=dash,
                linewidth=1.7,
                marker=marker,
                markersize=2.6,
                label=short(one.label, 44),
            )
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12))
        ax.margins(x=0.015)
        lowest = min((value for one in series for run in one.runs for value in run.values()), default=0.0)
        low, high = ax.get_ylim()
        widened = max(0.0, 5 - (high - low)) / 2  # a flat curve has next to no range of its own
        floor = -0.4 if lowest >= 0 else -100.4  # no margin where there can be no value
        ax.set_ylim(max(low - widened, floor), min(high + widened, 100.4))
        for begin, stage in stages.items():
            ax.axvline(begin - 0.5, color=MUTED, linewidth=0.8, linestyle=(0, (2, 2)))
            ax.annotate(
                short(stage), (begin - 0.5, 1), (4, -2), xycoords=("data", "axes fraction"),
                textcoords="offset points", va="top", color=MUTED, fontsize=7,
            )  # fmt: skip
        if legend_rows:
            canvas.figure.legend(loc="outside lower left", ncols=columns, handlelength=2.4)
    return canvas.plot


def heat_map(
    name: str,
    alt: str,
    title: str,
    values: ArrayLike,
    *,
    xlabel: str,
    rows: Sequence[str],
    columns: Sequence[str] | None = None,
    size: tuple[float, float] | None = None,
    numbers: str = "",
    linear: bool = False,
) -> Plot:
    """A matrix as an image, so that a thousand columns stay one small picture; `numbers` is the format of its cells.

    Counts are shown from 0, small ones raised; `linear` shows the range of the values as it is.
    """
    matrix = np.asarray(values, dtype=float)
    if linear:
        norm: Normalize = Normalize(float(np.nanmin(matrix)), float(np.nanmax(matrix)))
    else:
        norm = PowerNorm(0.6, vmin=0, vmax=float(matrix.max(initial=0.0)) or 1.0)  # small counts matter too
    width, height = size or (9.6, min(5.2, max(1.7, 0.9 + 0.21 * len(matrix))))
    with _drawing(name, alt, width, height) as canvas:
        ax = canvas.axes(title, xlabel, grid="")
        ax.imshow(matrix, cmap=HEAT, norm=norm, aspect="auto", interpolation="none")
        _name_ticks(ax.yaxis, rows, height)
        if columns is None:
            ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=20))
        else:
            _name_ticks(ax.xaxis, columns, width)
            longest = max(map(len, columns), default=0)
            ax.tick_params(axis="x", rotation=90 if longest * len(columns) > 8 * width else 0)
        if numbers:
            for (i, j), value in np.ndenumerate(matrix):
                if value > 0:
                    ax.text(j, i, format(value, numbers), ha="center", va="center", fontsize=6.5)
        else:
            bar = canvas.figure.colorbar(ScalarMappable(norm, HEAT), ax=ax, pad=0.01, fraction=0.03, aspect=30)
            bar.outline.set_linewidth(0)
            bar.locator = MaxNLocator(integer=not linear, nbins=5)
            bar.update_ticks()
    return canvas.plot


def small_matrices(
    name: str, alt: str, title: str, values: ArrayLike, titles: Sequence[str], classes: Sequence[str]
) -> Plot:
    """Matrices of shares side by side, six to a row, on one scale from 0 to 1."""
    matrices = np.asarray(values, dtype=float)
    rows = -(-len(matrices) // 6)
    with _drawing(name, alt, 9.6, 0.4 + 1.75 * rows) as canvas:
        canvas.figure.suptitle(title, x=0.01, ha="left", fontsize=8, color=MUTED)
        for place, (matrix, above) in enumerate(zip(matrices, titles, strict=True)):
            ax = canvas.figure.add_subplot(rows, 6, place + 1)
            image = ax.imshow(matrix, cmap=HEAT, norm=Normalize(0, 1), aspect="equal", interpolation="none")
            image.set_gid(f"matrix{place}")  # equal matrices would share an id
            ax.set_title(above, fontsize=7)
            ax.grid(visible=False)
            ax.set_xticks([])
            ax.set_yticks([])
            if place % 6 == 0 and len(matrix) <= 12:
                _name_ticks(ax.yaxis, classes or [str(i) for i in range(len(matrix))], 3.0)
                ax.tick_params(axis="y", labelsize=6)
    return canvas.plot


def dendrogram(name: str, alt: str, title: str, merges: ArrayLike, leaves: Sequence[str]) -> Plot:
    """A tree of merges (scipy's `linkage`), its leaves below, in one colour: the cut is the reader's."""
    from scipy.cluster import hierarchy  # slow to load, and few pages have one

    with _drawing(name, alt, 4.8, 4.2) as canvas:
        ax = canvas.axes(title, "client")
        tree = hierarchy.dendrogram(np.asarray(merges, dtype=float), no_plot=True)
        for across, heights in zip(tree["icoord"], tree["dcoord"], strict=True):
            ax.plot(across, heights, color=SERIES[0], linewidth=1.1)
        order = [leaves[i] for i in tree["leaves"]]
        fitting = max(1, -(-len(order) // 40))
        at = range(0, len(order), fitting)
        ax.set_xticks([10 * i + 5 for i in at], [short(order[i], 10) for i in at], rotation=90, fontsize=6)
        ax.set_ylim(bottom=0)
    return canvas.plot


def noise_bars(name: str, alt: str, realised: Sequence[float | None], nominal: Sequence[float | None]) -> Plot:
    """Share of wrong labels of each client, with the rate that was asked for as a mark."""
    with _drawing(name, alt, 6.2, 3.2) as canvas:
        ax = canvas.axes("wrong labels of a client (%)", "client")
        _bars(ax, _per_cent(realised), "realised")
        asked = _per_cent(nominal)
        if np.isfinite(asked).any():
            edges = np.arange(len(asked) + 1) - 0.5
            ax.hlines(asked, edges[:-1] + 0.06, edges[1:] - 0.06, color=SERIES[1], linewidth=1.6, label="nominal")
            canvas.figure.legend(loc="outside lower left", ncols=2)
        ax.set_ylim(bottom=0)
    return canvas.plot


def sorted_clients(name: str, alt: str, accuracy: Mapping[int, float]) -> Plot:
    """Accuracy of each client from the worst to the best, and their mean."""
    order = sorted(accuracy, key=lambda client: (accuracy[client], client))
    values = _per_cent(accuracy[client] for client in order)
    with _drawing(name, alt, 4.8, 3.1) as canvas:
        ax = canvas.axes("test accuracy of a client (%)", "client, from worst to best")
        _bars(ax, values, "")
        ax.axhline(float(values.mean()), color=SERIES[1], linewidth=1.2)
        ax.annotate(
            f"mean {values.mean():.1f}", (0, float(values.mean())), (2, 3), textcoords="offset points",
            color=INK, fontsize=7,
        )  # fmt: skip
        if len(order) <= 24:
            _name_ticks(ax.xaxis, [str(client) for client in order], 4.8)
    return canvas.plot


def client_band(name: str, alt: str, rounds: Sequence[int], mean: ArrayLike, std: ArrayLike, worst: ArrayLike) -> Plot:
    """Mean of the clients with one standard deviation, and the worst client, over rounds."""
    middle, spread = 100 * np.asarray(mean, dtype=float), 100 * np.asarray(std, dtype=float)
    with _drawing(name, alt, 4.8, 3.1) as canvas:
        ax = canvas.axes("accuracy over clients (%)", "round")
        ax.fill_between(rounds, middle - spread, middle + spread, color=SERIES[0], alpha=0.18, label="± 1 std")
        ax.plot(rounds, middle, color=SERIES[0], linewidth=1.7, label="mean")
        ax.plot(rounds, 100 * np.asarray(worst, dtype=float), color=SERIES[1], linewidth=1.2, label="worst")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
        canvas.figure.legend(loc="outside lower left", ncols=3)
    return canvas.plot


def boxes(name: str, alt: str, title: str, samples: Mapping[str, Sequence[float]]) -> Plot:
    """The spread of each group as a box with whiskers to the extremes, in per cent; a group may know nothing."""
    with _drawing(name, alt, 9.6, 0.9 + 0.3 * len(samples)) as canvas:
        ax = canvas.axes("", title, grid="x")
        drawn = ax.boxplot(
            [_per_cent(values) for values in samples.values()],
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
            box.set_facecolor((*to_rgba(_look(i)[0])[:3], 0.55))
        ax.set_yticks(range(1, len(samples) + 1), [short(label, 44) for label in samples])
        ax.invert_yaxis()
    return canvas.plot


def scatter(name: str, alt: str, title: str, noise: ArrayLike, values: ArrayLike) -> Plot:
    """One point a client: something the method believes, against the truth about its labels."""
    with _drawing(name, alt, 4.8, 3.0) as canvas:
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
    with _drawing(name, alt, 9.6, 2.8) as canvas:
        ax = canvas.axes("seconds a round", "round")
        base = np.zeros(len(begins))
        for i, (part, values) in enumerate(parts.items()):
            seconds = np.add.reduceat(np.asarray(values, dtype=float), begins) / sizes
            ax.bar(at, seconds, 0.76 * step, bottom=base, color=_look(i)[0], label=part)
            base = base + seconds
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12))
        ax.margins(x=0.01)
        canvas.figure.legend(loc="outside lower left", ncols=len(parts), handlelength=1)
    return canvas.plot


def time_by_group(name: str, alt: str, groups: Sequence[str], parts: Mapping[str, ArrayLike]) -> Plot:
    """Seconds a run by what they were spent on, one lying bar a group of runs."""
    with _drawing(name, alt, 9.6, 1.1 + 0.3 * len(groups)) as canvas:
        ax = canvas.axes("", "seconds a run", grid="x")
        base = np.zeros(len(groups))
        for i, (part, values) in enumerate(parts.items()):
            ax.barh(np.arange(len(groups)), values, 0.6, left=base, color=_look(i)[0], label=part)
            base = base + np.asarray(values, dtype=float)
        ax.set_yticks(range(len(groups)), [short(label, 44) for label in groups])
        ax.invert_yaxis()
        canvas.figure.legend(loc="outside lower left", ncols=len(parts), handlelength=1)
    return canvas.plot


def _look(i: int) -> tuple[str, Any]:
    return SERIES[i % len(SERIES)], DASHES[i // len(SERIES) % len(DASHES)]


def _per_cent(values: Any) -> NDArray[np.float64]:
    return 100 * np.array([np.nan if value is None else value for value in values], dtype=float)


def _bars(ax: Axes, values: NDArray[np.float64], label: str) -> None:
    """One bar a client; beyond a hundred, one outline, which stays small and needs no gaps."""
    at = np.arange(len(values))
    if len(values) <= 100:
        ax.bar(at, values, 0.76, color=SERIES[0], alpha=0.8, label=label)
    else:
        ax.stairs(values, np.append(at - 0.5, len(values) - 0.5), fill=True, color=SERIES[0], alpha=0.8, label=label)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12))
    ax.margins(x=0.01)


def _name_ticks(axis: Axis, names: Sequence[str], inches: float) -> None:
    """Names along an axis where they all fit, otherwise some of their numbers."""
    fitting = max(1, int(5 * inches))
    step = -(-len(names) // fitting)
    at = range(0, len(names), step)
    axis.set_major_locator(FixedLocator(at))
    axis.set_major_formatter(FixedFormatter([short(names[i], 18) if step == 1 else str(i) for i in at]))
