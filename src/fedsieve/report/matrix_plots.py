"""Plots of matrices and trees."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike, NDArray

from fedsieve.report.canvas import HEAT, MUTED, SERIES, Canvas, Plot, drawing, name_columns, name_ticks, short

MOST_CELLS = 2000
"""Cells of a plot beyond which single ones cannot be pointed at."""


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
    each: str = "",
    told: str = "{:,.0f}",
) -> Plot:
    """A matrix as an image, so that a thousand columns stay one small picture; `numbers` is the format of its cells.

    Counts are shown from 0, small ones raised; `linear` shows the range of the values as it is. Who points at a cell is
    told its value in the form of `told`, its row, and its column as one of `each`, which is the label if not given.
    """
    matrix = np.asarray(values, dtype=float)
    if linear:
        norm: Normalize = Normalize(float(np.nanmin(matrix)), float(np.nanmax(matrix)))
    else:
        norm = PowerNorm(0.6, vmin=0, vmax=float(matrix.max(initial=0.0)) or 1.0)  # small counts matter too
    width, height = size or (9.6, min(5.2, max(1.7, 0.9 + 0.21 * len(matrix))))
    with drawing(name, alt, width, height) as canvas:
        ax = canvas.axes(title, xlabel, grid="")
        ax.imshow(matrix, cmap=HEAT, norm=norm, aspect="auto", interpolation="none")
        name_ticks(ax.yaxis, rows, height)
        if columns is None:
            ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=20))
        else:
            name_columns(ax, columns, width)
        headings = [f"{each or xlabel} {one}" for one in (range(matrix.shape[1]) if columns is None else columns)]
        _tell_cells(canvas, ax, matrix, told, rows, headings)
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
    names = classes or [str(i) for i in range(matrices.shape[1])]
    with drawing(name, alt, 9.6, 0.4 + 1.75 * rows) as canvas:
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
                name_ticks(ax.yaxis, names, 3.0)
                ax.tick_params(axis="y", labelsize=6)
            if matrices.size <= MOST_CELLS:
                _tell_cells(canvas, ax, matrix, "{:.2f}", [f"{above}: {one}" for one in names], names)
    return canvas.plot


def dendrogram(name: str, alt: str, title: str, merges: ArrayLike, leaves: Sequence[str]) -> Plot:
    """A tree of merges (scipy's `linkage`), its leaves below, in one colour: the cut is the reader's."""
    from scipy.cluster import hierarchy  # slow to load, and few pages have one

    with drawing(name, alt, 4.8, 4.2) as canvas:
        ax = canvas.axes(title, "client")
        tree = hierarchy.dendrogram(np.asarray(merges, dtype=float), no_plot=True)
        joins = zip(tree["icoord"], tree["dcoord"], strict=True)
        for across, heights in sorted(joins, key=lambda join: -join[1][1]):  # lower ones lie over higher ones
            ax.plot(across, heights, color=SERIES[0], linewidth=1.1)
            canvas.area(ax, (across[1], across[2]), (0.0, heights[1]), f"joined at {heights[1]:.3g}")
        order = [leaves[i] for i in tree["leaves"]]
        fitting = max(1, -(-len(order) // 40))
        at = range(0, len(order), fitting)
        ax.set_xticks([10 * i + 5 for i in at], [short(order[i], 18) for i in at], rotation=90, fontsize=6)
        ax.set_ylim(bottom=0)
    return canvas.plot


def _tell_cells(
    canvas: Canvas, ax: Axes, matrix: NDArray[np.float64], told: str, rows: Sequence[str], columns: Sequence[str]
) -> None:
    """Row, column and value of each cell that has one, where they are large enough to be pointed at."""
    for (i, j), value in np.ndenumerate(matrix) if matrix.size <= MOST_CELLS else ():
        if np.isfinite(value):
            canvas.area(ax, (j - 0.5, j + 0.5), (i - 0.5, i + 0.5), f"{rows[i]}, {columns[j]}: {told.format(value)}")
