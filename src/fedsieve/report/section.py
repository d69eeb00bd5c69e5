"""A part of the page."""

from __future__ import annotations

from dataclasses import dataclass

from fedsieve.report.canvas import Plot
from fedsieve.report.tables import Table

PAGE_INCHES = 11.0
"""Plots wider than this together do not share a row."""


@dataclass(frozen=True)
class Card:
    """A sample with what is said of it."""

    image: str
    """The address of its picture, as data; "" where there is none."""
    alt: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Gallery:
    """Cards below a heading of their own."""

    title: str
    cards: tuple[Card, ...]


@dataclass(frozen=True)
class Section:
    """A heading with what stands below it, in this order."""

    title: str
    text: str = ""
    notes: tuple[str, ...] = ()
    command: str = ""
    plots: tuple[Plot, ...] = ()
    table: Table | None = None
    folded: Table | None = None
    """Shown when asked for, below the words of `fold`."""
    fold: str = ""
    galleries: tuple[Gallery, ...] = ()

    @property
    def rows(self) -> list[list[Plot]]:
        """The plots in their order, as many side by side as are readable."""
        rows: list[list[Plot]] = []
        for plot in self.plots:
            if rows and sum(other.width for other in rows[-1]) + plot.width <= PAGE_INCHES:
                rows[-1].append(plot)
            else:
                rows.append([plot])
        return rows
