"""Tensors in memory that several processes see: an unnamed file, mapped by each, that goes with the last of them."""

from __future__ import annotations

import mmap
import os
from math import prod
from typing import Any

import torch
from torch import Tensor

ALIGNMENT = 64
Ref = list[Any]
"""[offset, dtype, shape], as JSON carries it."""


class Arena:
    """Tensors one after the other in such a file. One process writes, others read."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._map: mmap.mmap | None = None
        self._used = 0
        self._placed: dict[int, tuple[Tensor, Ref]] = {}

    def reset(self) -> None:
        """Begin anew; what was placed before is no longer valid."""
        self._used = 0
        self._placed.clear()

    def place(self, tensor: Tensor) -> Ref:
        """Copy a tensor in; the very same tensor is placed only once."""
        if id(tensor) in self._placed:
            return self._placed[id(tensor)][1]
        flat = tensor.detach().cpu().contiguous()
        start = -(-self._used // ALIGNMENT) * ALIGNMENT
        self._used = start + flat.numel() * flat.element_size()
        ref: Ref = [start, str(flat.dtype).removeprefix("torch."), list(flat.shape)]
        if flat.numel():
            self._reach(self._used, grow=True)
            self.view(ref).copy_(flat)
        self._placed[id(tensor)] = (tensor, ref)
        return ref

    def view(self, ref: Ref) -> Tensor:
        """The tensor in place, without a copy."""
        start, name, shape = ref
        dtype, count = getattr(torch, name), prod(shape)
        if not count:
            return torch.empty(shape, dtype=dtype)
        mapped = self._reach(start + count * dtype.itemsize, grow=False)
        return torch.frombuffer(mapped, dtype=dtype, count=count, offset=start).view(shape)

    def _reach(self, size: int, grow: bool) -> mmap.mmap:
        if self._map is None or len(self._map) < size:
            if grow and os.fstat(self._fd).st_size < size:
                os.ftruncate(self._fd, max(2 * size, 1 << 20))
            self._map = mmap.mmap(self._fd, os.fstat(self._fd).st_size)
        return self._map
