"""What every plot of the report is drawn on: inline SVG, the same bytes for the same data, in the page's colours.

Every colour drawn here stands for a variable of `report.css`, so one SVG is readable in light and in dark mode.
Heat maps are one colour with growing opacity: where there is nothing, the page itself shows.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import Any, Literal, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator
from numpy.typing import NDArray

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


class Spot(NamedTuple):
    """An area of a plot that tells something when somebody points at it; it cannot be seen."""

    ax: Axes
    across: tuple[float, float]
    """In the units of the axes, as is what follows."""
    along: tuple[float, float]
    text: str
    margin: float
    """Around it, in points."""


class Canvas:
    """Collects the SVG that `drawing` writes when its block ends."""

    plot: Plot

    def __init__(self, figure: Figure) -> None:
        self.figure = figure
        self.spots: list[Spot] = []

    def point(self, ax: Axes, x: float, y: float, text: str) -> None:
        """What is said of a point."""
        self.spots.append(Spot(ax, (x, x), (y, y), text, 4.0))

    def area(self, ax: Axes, across: tuple[float, float], along: tuple[float, float], text: str) -> None:
        """What is said of a bar or of a cell."""
        self.spots.append(Spot(ax, across, along, text, 0.0))

    def column(self, ax: Axes, across: tuple[float, float], text: str) -> None:
        """What is said of all that stands there, from the bottom of the axes to their top."""
        low, high = ax.get_ylim()
        self.area(ax, across, (low, high), text)

    def told(self) -> str:
        """The spots as elements of the SVG; to be asked when the figure has been drawn, as that lays it out."""
        points, height = 72 / self.figure.dpi, 72 * self.figure.get_figheight()
        return "".join(_element(spot, points, height) for spot in self.spots)

    def axes(self, title: str, xlabel: str, grid: Literal["x", "y", ""] = "y") -> Axes:
        ax = self.figure.add_subplot()
        ax.set_title(title)
        ax.set_xlabel(xlabel)
        ax.grid(visible=False, axis="both")
        if grid:
            ax.grid(visible=True, axis=grid)
        return ax


@contextmanager
def drawing(name: str, alt: str, width: float, height: float) -> Iterator[Canvas]:
    """A figure drawn in the report's style, without pyplot; `name` keeps the ids of two plots on a page apart."""
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*[Gg]lyph.*")  # the browser has the letters of every language
        canvas = Canvas(Figure(figsize=(width, height), layout="constrained"))
        yield canvas
        text = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        canvas.figure.savefig(text, format="svg", transparent=True, metadata=nothing)
    canvas.plot = Plot(_inline(text.getvalue(), name, alt, canvas.told()), width)


def _element(spot: Spot, points: float, height: float) -> str:
    """A rectangle with a title, which browsers show without any script; the SVG counts from the top."""
    corners = points * spot.ax.transData.transform(np.transpose([spot.across, spot.along]))
    (left, low), (right, high) = corners.min(axis=0) - spot.margin, corners.max(axis=0) + spot.margin
    if not np.isfinite([left, low, right, high]).all():
        return ""
    place = f'x="{left:.1f}" y="{height - high:.1f}" width="{right - left:.1f}" height="{high - low:.1f}"'
    return f'<rect {place} fill="none" pointer-events="all"><title>{escape(spot.text)}</title></rect>\n'


def _inline(svg: str, name: str, alt: str, told: str) -> str:
    """An SVG file as an element of an HTML page: own ids, the page's colours, a text for those who cannot see it."""
    body = svg[svg.index(">", svg.index("<svg")) + 1 :]
    view = re.search(r'viewBox="[^"]*"', svg)
    assert view is not None
    body = re.sub(r"<style.*?</style>", "", body, count=1, flags=re.DOTALL)  # would hold for the whole page
    body = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", body)
    body = re.sub(r'style="[^"]*"', lambda style: _with_variables(style[0]), body)
    drawn = body[: body.rindex("</svg>")].strip()
    return f'<svg {view[0]} role="img" aria-label="{escape(alt)}">{drawn}\n{told}</svg>'


def _with_variables(style: str) -> str:
    return re.sub(r"#[0-9a-f]{6}", lambda colour: _VARIABLES.get(colour[0], colour[0]), style)


def short(text: str, limit: int = 20) -> str:
    """A name that fits beside an axis."""
    clean = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def look(i: int) -> tuple[str, Any]:
    return SERIES[i % len(SERIES)], DASHES[i // len(SERIES) % len(DASHES)]


def in_per_cent(values: Any) -> NDArray[np.float64]:
    return 100 * np.array([np.nan if value is None else value for value in values], dtype=float)


def name_ticks(axis: Axis, names: Sequence[str], inches: float) -> None:
    """Names along an axis where they all fit, otherwise some of their numbers."""
    fitting = max(1, int(5 * inches))
    step = -(-len(names) // fitting)
    at = range(0, len(names), step)
    axis.set_major_locator(FixedLocator(at))
    axis.set_major_formatter(FixedFormatter([short(names[i], 18) if step == 1 else str(i) for i in at]))


def name_columns(ax: Axes, names: Sequence[str], inches: float) -> None:
    """The same below the axes, upright where they would run into each other."""
    name_ticks(ax.xaxis, names, inches)
    longest = max(map(len, names), default=0)
    ax.tick_params(axis="x", rotation=90 if longest * len(names) > 8 * inches else 0)
