"""A network's numbers as one flat vector: trainable parameters first, then float buffers.

Penalties, control variates, moving averages, uploads and means are then one tensor operation each. Integer buffers
(BatchNorm's batch counter) are not part of the vector, so nothing can average them.
Convolution weights lie in channels-last order inside the vector, which is the order they compute in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property

import torch
from torch import Tensor, nn

from fedsieve.base.errors import CompositionError, nearest
from fedsieve.models.norm import NORM_TYPES

Names = tuple[str, ...]
ALL: Names = ("*",)
NORM = "@norm"


@dataclass(frozen=True)
class Entry:
    name: str
    shape: tuple[int, ...]
    start: int
    stop: int
    trainable: bool
    norm: bool

    def view(self, flat: Tensor) -> Tensor:
        """This tensor as a view of the flat vector."""
        chunk = flat[self.start : self.stop]
        if len(self.shape) == 4:
            out, into, height, width = self.shape
            return chunk.view(out, height, width, into).permute(0, 3, 1, 2)
        return chunk.view(self.shape)


@dataclass(frozen=True)
class Layout:
    entries: tuple[Entry, ...]

    @staticmethod
    def of(module: nn.Module) -> Layout:
        norm_names = {
            f"{prefix}.{name}" if prefix else name
            for prefix, child in module.named_modules()
            if isinstance(child, NORM_TYPES)
            for name, _ in [*child.named_parameters(), *child.named_buffers()]
        }
        entries, at = [], 0
        floats = [(name, b) for name, b in module.named_buffers() if b.is_floating_point()]
        for named, trainable in ((list(module.named_parameters()), True), (floats, False)):
            for name, tensor in named:
                stop = at + tensor.numel()
                entries.append(Entry(name, tuple(tensor.shape), at, stop, trainable, name in norm_names))
                at = stop
        return Layout(tuple(entries))

    @cached_property
    def size(self) -> int:
        return self.entries[-1].stop if self.entries else 0

    @cached_property
    def trainable(self) -> int:
        return sum(entry.stop - entry.start for entry in self.entries if entry.trainable)

    def select(self, names: Names) -> list[Entry]:
        """The entries that the patterns choose.

        A pattern is `*`, a module's or tensor's name (a prefix up to a dot, or with wildcards), or `@norm` for
        normalisation layers; with a leading `-` it takes entries out again. Later patterns win.
        """
        inside: dict[str, bool] = {}
        for pattern in names:
            wanted, bare = not pattern.startswith("-"), pattern.removeprefix("-")
            hits = [entry.name for entry in self.entries if _matches(bare, entry)]
            if not hits and bare not in ("*", NORM):
                tops = {entry.name.split(".")[0] for entry in self.entries}
                raise CompositionError("FS116", f"the model has no section '{bare}'. {nearest(bare, tops)}")
            inside |= dict.fromkeys(hits, wanted)
        return [entry for entry in self.entries if inside.get(entry.name, False)]

    def slices(self, names: Names, *, trainable_only: bool = False) -> list[slice]:
        """The chosen entries as ranges of the flat vector, adjacent ones joined."""
        joined: list[slice] = []
        for entry in self.select(names):
            if trainable_only and not entry.trainable:
                continue
            if joined and joined[-1].stop == entry.start:
                joined[-1] = slice(joined[-1].start, entry.stop)
            else:
                joined.append(slice(entry.start, entry.stop))
        return joined

    def count(self, names: Names, *, trainable_only: bool = False) -> int:
        return sum(part.stop - part.start for part in self.slices(names, trainable_only=trainable_only))

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """The vector as contiguous tensors by their names, as a state dict has them."""
        return {entry.name: entry.view(flat).contiguous() for entry in self.entries}

    def flat(self, named: Mapping[str, Tensor]) -> Tensor:
        """The inverse of `named`."""
        vector = torch.empty(self.size)
        for entry in self.entries:
            entry.view(vector).copy_(named[entry.name])
        return vector


def mean_models(groups: Mapping[int, tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """The even mean of several groups' models, net by net."""
    return tuple(torch.stack(nets).double().mean(0).float() for nets in zip(*groups.values(), strict=True))


def pack(flat: Tensor, slices: list[slice]) -> Tensor:
    """The given ranges of a vector, one after the other."""
    if len(slices) == 1:
        return flat[slices[0]].clone()
    return torch.cat([flat[part] for part in slices]) if slices else flat.new_empty(0)


def unpack_(flat: Tensor, slices: list[slice], packed: Tensor) -> Tensor:
    """Write what `pack` took back into place."""
    at = 0
    for part in slices:
        length = part.stop - part.start
        flat[part] = packed[at : at + length]
        at += length
    return flat


def _matches(pattern: str, entry: Entry) -> bool:
    if pattern == NORM:
        return entry.norm
    return pattern == "*" or entry.name.startswith(f"{pattern}.") or fnmatchcase(entry.name, pattern)
