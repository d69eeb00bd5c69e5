"""Where rows came from, in words with which their owner finds them again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np


@dataclass(frozen=True)
class Origins(Sequence[str]):
    """Texts that are made when somebody asks: most of millions of rows are never asked for."""

    size: int
    text: Callable[[int], str]

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, row: int) -> str: ...

    @overload
    def __getitem__(self, row: slice) -> Origins: ...

    def __getitem__(self, row: int | slice) -> str | Origins:
        at = range(self.size)[row]
        return self.text(at) if isinstance(at, int) else Origins(len(at), lambda i: self.text(at[i]))

    def picked(self, rows: np.ndarray) -> Origins:
        """Those of some rows, in their order."""
        return Origins(len(rows), lambda i: self.text(int(rows[i])))


def indices(name: str, count: int) -> Origins:
    """Rows of an array by their number in it."""
    return Origins(count, lambda row: f"{name}[{row}]")
