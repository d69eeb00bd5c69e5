"""Tensors from a file of PyTorch's first format, without its unpickler: no code of the file is ever run.

Such a file is five pickles (a number, a version, the machine, a table of tensors, the names of their storages) and then
the storages one after another. Of a pickle's instructions those are carried out that put plain values together; any
other ends the reading.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from pickletools import genops
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

MAGIC = 0x1950A86A20F9469CFC6C
KINDS: Mapping[str, np.dtype[Any]] = {"torch FloatStorage": np.dtype("<f4"), "torch LongStorage": np.dtype("<i8")}
VALUES = ("BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "GLOBAL")
CONSTANTS: Mapping[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
MADE: Mapping[str, Any] = {"EMPTY_DICT": dict, "EMPTY_LIST": list}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class Place(NamedTuple):
    """Where a tensor lies: its storage (kind and name), and how it lies in it."""

    kind: str
    storage: str
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def tensors_of(content: bytes) -> dict[str, Tensor]:
    """Named tensors, in the order of the file; whatever else it holds raises."""
    stream = BytesIO(content)
    magic, _, _, table, storages = (_value(stream) for _ in range(5))
    if magic != MAGIC:
        raise ValueError("it does not begin as a file of PyTorch does")
    kinds = {place.storage: KINDS[place.kind] for place in table.values()}
    held: dict[str, Tensor] = {}
    for name in storages:
        count = int.from_bytes(stream.read(8), "little")
        raw = stream.read(count * kinds[name].itemsize)
        held[name] = torch.from_numpy(np.frombuffer(raw, kinds[name], count).copy())
    return {
        name: held[place.storage].as_strided(place.shape, place.stride, place.offset).contiguous()
        for name, place in table.items()
    }


def _value(stream: BytesIO) -> Any:
    """What one pickle describes."""
    stack: list[Any] = []
    marks: list[int] = []
    memory: dict[Any, Any] = {}

    def since_mark() -> list[Any]:
        start = marks.pop()
        taken = stack[start:]
        del stack[start:]
        return taken

    for instruction, argument, _ in genops(stream):
        name = instruction.name
        if name in VALUES:
            stack.append(argument)
        elif name in CONSTANTS:
            stack.append(CONSTANTS[name])
        elif name in MADE:
            stack.append(MADE[name]())
        elif name in TUPLES:
            stack[-TUPLES[name] :] = [tuple(stack[-TUPLES[name] :])]
        elif name in ("BINPUT", "LONG_BINPUT"):
            memory[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memory[argument])
        elif name == "MARK":
            marks.append(len(stack))
        elif name == "TUPLE":
            stack.append(tuple(since_mark()))
        elif name == "APPENDS":
            taken = since_mark()
            stack[-1].extend(taken)
        elif name == "SETITEMS":
            taken = since_mark()
            stack[-1].update(zip(taken[::2], taken[1::2], strict=True))
        elif name == "SETITEM":
            value, key = stack.pop(), stack.pop()
            stack[-1][key] = value
        elif name == "REDUCE":
            arguments, called = stack.pop(), stack.pop()
            stack.append(_called(called, arguments))
        elif name == "BUILD":
            stack.pop()  # what the table knows beside its entries: versions of layers
        elif name not in ("PROTO", "BINPERSID", "STOP"):  # a storage's name stays the tuple that it is
            raise ValueError(f"it holds {name}, which no table of tensors needs")
    return stack.pop()


def _called(name: str, arguments: tuple[Any, ...]) -> Any:
    """What a call in the file stands for; nothing is called."""
    if name == "collections OrderedDict":
        return {}
    if name == "torch._utils _rebuild_tensor_v2":
        (_, kind, storage, *_), offset, shape, stride, *_ = arguments
        return Place(kind, storage, offset, shape, stride)
    raise ValueError(f"it calls {name}, which no table of tensors needs")
