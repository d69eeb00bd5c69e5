"""Plots of what a watched run shows at its end: its features as points, and neighbours as images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from fedsieve.report.arrays import FeatureMap, Neighbours
from fedsieve.report.canvas import GRID, INK, MUTED, SERIES, Plot, drawing, short

COLOURS = (*SERIES, INK, MUTED)
SHAPES = ("o", "^", "s", "D", "v", "P")
"""Beyond ten classes the shape of the points changes."""
MOST_NAMED = 24
"""Classes that a legend names."""
GAP, CAPTION = 0.35, 0.46
"""In images: between the sample, its neighbours and the others; below an image, for its label."""


def classes_map(name: str, alt: str, found: FeatureMap, classes: Sequence[str]) -> Plot:
    """The points coloured by true class."""
    there = np.unique(found.true).tolist()
    with drawing(name, alt, 4.8, _height(found)) as canvas:
        ax = _bare(canvas.axes("coloured by true class", "", grid=""))
        for place in there:
            colour, shape = COLOURS[place % len(COLOURS)], SHAPES[place // len(COLOURS) % len(SHAPES)]
            label = short(classes[place], 14) if place < len(classes) else str(place)
            _points(ax, found.points[found.true == place], colour, shape, label)
        if len(there) <= MOST_NAMED:
            canvas.figure.legend(
                loc="outside lower left", ncols=4, handletextpad=0.1, columnspacing=0.8, markerscale=1.8
            )
    return canvas.plot


def wrong_map(name: str, alt: str, found: FeatureMap) -> Plot:
    """The same points, wrongly labelled ones above the others."""
    with drawing(name, alt, 4.8, _height(found)) as canvas:
        ax = _bare(canvas.axes("coloured by whether the label is wrong", "", grid=""))
        _points(ax, found.points[~found.wrong], SERIES[5], "o", "label right")
        _points(ax, found.points[found.wrong], SERIES[1], "o", "label wrong")
        canvas.figure.legend(loc="outside lower left", ncols=2, handletextpad=0.1, markerscale=1.8)
    return canvas.plot


def neighbour_images(name: str, alt: str, found: Neighbours, classes: Sequence[str], clients: Sequence[str]) -> Plot:
    """A line a sample: itself, its neighbours, others of its batch; each with its label, framed where it is wrong."""
    count, width = found.given.shape
    at = np.arange(width) + GAP * (np.arange(width) > 0) + GAP * (np.arange(width) > found.near)
    across, down = at[-1] + 1 + 0.9, count * (1 + CAPTION) + 0.3
    with drawing(name, alt, 9.6, 9.6 * down / across) as canvas:
        ax = _bare(canvas.axes("", "", grid=""))
        ax.set_axis_off()
        heads = {0: "sample", 1: "its nearest in the batch", found.near + 1: "others of the batch"}
        for column, head in heads.items():
            if column < width:
                ax.text(at[column], -0.12, head, color=MUTED, va="bottom")
        for i in range(count):
            top = i * (1 + CAPTION)
            ax.text(-0.1, top + 0.5, short(clients[i], 14), color=MUTED, ha="right", va="center")
            for j in range(width):
                _image(ax, found.images[i, j], (at[j], top), f"{name}-{i}-{j}")
                _caption(ax, (at[j], top), int(found.given[i, j]), int(found.true[i, j]), classes)
        ax.set_xlim(-0.9, at[-1] + 1)
        ax.set_ylim(down - 0.3, -0.3)
    return canvas.plot


def _image(ax: Axes, image: NDArray[np.uint8], corner: tuple[float, float], gid: str) -> None:
    """In a square; with three channels in colour, with others by their mean."""
    pixels = image if image.shape[2] == 3 else image.mean(axis=2)
    x, y = corner
    drawn = ax.imshow(
        pixels, cmap="gray", vmin=0, vmax=255, extent=(x, x + 0.94, y + 0.94, y), interpolation="none", aspect="equal"
    )
    drawn.set_gid(gid)  # equal images would share an id


def _caption(ax: Axes, corner: tuple[float, float], given: int, true: int, classes: Sequence[str]) -> None:
    def named(index: int) -> str:
        return short(classes[index] if index < len(classes) else str(index), 13)

    (x, y), wrong = corner, given >= 0 and given != true
    edge, size = (SERIES[1], 2.0) if wrong else (GRID, 0.8)
    ax.add_patch(Rectangle((x, y), 0.94, 0.94, fill=False, edgecolor=edge, linewidth=size))
    ax.text(x, y + 0.99, named(given) if given >= 0 else "no label", color=INK, fontsize=6.5, va="top")
    if wrong:
        ax.text(x, y + 1.17, f"is {named(true)}", color=SERIES[1], fontsize=6.5, va="top")


def _height(found: FeatureMap) -> float:
    """Of both maps, in inches: with room for the legend of the first."""
    classes = len(np.unique(found.true))
    return 3.6 + 0.17 * (-(-classes // 4) if classes <= MOST_NAMED else 1)


def _bare(ax: Axes) -> Axes:
    """Without scales: the axes of such a picture mean nothing."""
    ax.set_xticks([])
    ax.set_yticks([])
    ax.spines["bottom"].set_visible(False)
    return ax


def _points(ax: Axes, points: NDArray[np.float32], colour: str, shape: str, label: str) -> None:
    ax.plot(points[:, 0], points[:, 1], shape, color=colour, markersize=2.6, markeredgewidth=0, alpha=0.8, label=label)
