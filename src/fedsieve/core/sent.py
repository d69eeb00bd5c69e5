"""What a client may send under a name: its shape, and which numbers.

A part declares it where it declares the name, so that a report is admitted by range as well as by shape:

    up = {"accuracy": proportion(), "probe": probabilities("C")}

A bare shape stands for numbers of at most `LARGEST` in size. Tensors of numbers are float32, those of whole numbers
int64; a scalar is a Python number or a tensor without axes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

Shape = tuple[int | str, ...]
"""Symbols: M floats of the model that travel down, U that travel up, V all floats of the model, W the trainable ones,
n rows of the client, C classes, d features, K clients, G groups, P public rows, N nets, or an attribute of the part;
"<=k" is an axis of at most k; () is a scalar."""

LARGEST = 1e6
"""Size of a number where a declaration names no other bound."""
UNEVEN = 1e-3
"""How far probabilities may be from adding up to one: single precision over thousands of classes."""
OBLIQUE = 1e-2
"""How far columns may be from length one and from right angles: eigenvectors of nearly singular moments."""


@dataclass(frozen=True)
class Sent:
    """A shape, the smallest and the largest number, and what they must be together."""

    shape: Shape = ()
    low: float = -LARGEST
    high: float = LARGEST
    whole: bool = False
    """Whole numbers, not floats."""
    holds: Callable[[Tensor], bool] | None = None
    """What else must be true of the numbers."""
    paced: bool = False
    """Whether its length is compared with that of the other reports, as that of the model's update is."""
    kind: str = ""
    """What the numbers are, in a word or two, for the disclosure and for refusals."""

    def says(self) -> str:
        """The range in words."""
        if self.kind:
            return self.kind
        return f"{'whole, ' if self.whole else ''}{self.low:g} to {self.high:g}"

    def type_fault(self, value: Any) -> str:
        """Why a value is none of this kind, whatever its numbers; empty if it is."""
        if isinstance(value, Tensor):
            wanted = torch.int64 if self.whole else torch.float32
            return "" if plain(value, wanted) else f"holds {kind_of(value)} instead of {_name(wanted)}"
        if type(value) is (int if self.whole else float):
            return ""
        found = "text" if isinstance(value, str) else type(value).__name__
        return f"is {found} instead of {'a whole number' if self.whole else 'a number'}"

    def range_fault(self, value: Any) -> str:
        """Why the numbers of a value of this kind will not do; empty if they will."""
        if not isinstance(value, Tensor):
            inside = self.low <= value <= self.high  # NaN is in no range
            return "" if inside and self._holds(torch.tensor(value)) else f"is {short(value)}, not {self.says()}"
        if not finite(value):
            return "holds NaN or infinity"
        if value.numel() and (float(value.min()) < self.low or float(value.max()) > self.high):
            return f"reaches from {float(value.min()):.6g} to {float(value.max()):.6g}, not {self.says()}"
        return "" if self._holds(value) else f"holds other numbers than {self.says()}"

    def _holds(self, value: Tensor) -> bool:
        return self.holds is None or self.holds(value)


Declared: TypeAlias = Mapping[str, Shape | Sent]


def in_full(declared: Shape | Sent) -> Sent:
    """A declaration in full."""
    return declared if isinstance(declared, Sent) else Sent(declared)


# --- the ranges that methods use
def proportion(*shape: int | str) -> Sent:
    """Numbers from 0 to 1."""
    return Sent(shape, 0.0, 1.0)


def flags(*shape: int | str) -> Sent:
    """Each number 0 or 1."""
    return Sent(shape, 0.0, 1.0, holds=lambda x: bool(((x == 0) | (x == 1)).all()), kind="0 or 1")


def at_least_zero(*shape: int | str, most: float = LARGEST) -> Sent:
    return Sent(shape, 0.0, most)


def probabilities(*shape: int | str) -> Sent:
    """Along the last axis not negative and with the sum one."""
    return Sent(shape, 0.0, 1.0 + UNEVEN, holds=sums_to_one, kind="probabilities")


def orthonormal(*shape: int | str) -> Sent:
    """(..., d, q): columns of length one at right angles; columns of zeros fill up where there are fewer."""
    return Sent(shape, -1.0 - OBLIQUE, 1.0 + OBLIQUE, holds=_at_right_angles, kind="orthonormal columns")


def sums_to_one(x: Tensor) -> bool:
    return bool(((x.double().sum(-1) - 1.0).abs() <= UNEVEN).all())


def _at_right_angles(x: Tensor) -> bool:
    columns = x.double()
    products = columns.mT @ columns
    there = torch.diag_embed((columns != 0).any(-2).double())
    return bool(((products - there).abs() <= OBLIQUE).all())


# --- what can be said of any value
def plain(value: Tensor, dtype: torch.dtype) -> bool:
    """Whether a tensor is of this type and an ordinary one: in memory, on the CPU, with every number in its place."""
    return value.dtype == dtype and value.device.type == "cpu" and value.layout == torch.strided and not value.is_nested


def finite(value: Tensor) -> bool:
    return bool(torch.isfinite(value).all())


def kind_of(value: Tensor) -> str:
    """A tensor's type in words."""
    odd = "" if value.layout == torch.strided and not value.is_nested else "sparse or nested "
    where = "" if value.device.type == "cpu" else f" on {value.device.type}"
    return f"{odd}{_name(value.dtype)}{where}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


MOST_TEXT = 200
"""Characters of a text from a client that are taken over."""


def clean_text(text: object, most: int = MOST_TEXT) -> str:
    """A text from a client as it may be logged and printed: cut, and without characters that do something."""
    raw = str(text)
    shown = "".join(c if c.isprintable() else " " for c in raw[:most])
    return shown if len(raw) <= most else f"{shown}..."


def short(value: Any) -> str:
    """A number from a client in a few characters, however many digits it has."""
    if isinstance(value, int) and abs(value) >= 10**12:
        return "a whole number of more than 12 digits"
    return clean_text(value, 40)


def names(mapping: Mapping[Any, Any]) -> str:
    """The keys of something a client sent, in order."""
    return clean_text(sorted(clean_text(key, 40) for key in mapping))
