"""Arrays of numbers in MATLAB's files of version 5, as SVHN is published in. A damaged one can end SciPy's process."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path

import numpy as np

from fedsieve.data.sources.limits import GB, check_bytes, read_limited

HEADER = 128
ORDERS: Mapping[bytes, str] = {b"IM": "<", b"MI": ">"}
"""The header's last bytes tell how the others are ordered."""
MATRIX, COMPRESSED = 14, 15
STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
"""Kinds of elements that are numbers."""
CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
"""What a matrix is of; its numbers may be stored in fewer bytes."""
Element = tuple[int, memoryview]


def read_mat(path: Path, max_gb: float) -> dict[str, np.ndarray]:
    """By name; what is no array of real numbers is left out. ValueError or zlib's error for a damaged file."""
    raw = memoryview(read_limited(path, max_gb))
    order = ORDERS.get(bytes(raw[HEADER - 2 : HEADER]))
    if order is None:
        raise ValueError("no MATLAB file of version 5")
    found: dict[str, np.ndarray] = {}
    for kind, content in _elements(raw[HEADER:], order):
        inner = _elements(_inflated(content, path, max_gb), order) if kind == COMPRESSED else iter([(kind, content)])
        found |= {name: array for one in inner for name, array in _array(one, order, path, max_gb)}
    return found


def _elements(content: memoryview, order: str) -> Iterator[Element]:
    """One after another, each with its kind: eight bytes of tag, or four where the data are no more than four."""
    place = 0
    while place < len(content):
        if len(content) - place < 8:
            raise ValueError("it is cut off")
        kind, size = struct.unpack_from(f"{order}II", content, place)
        begin, ends = place + 8, place + 8 + size + (-size % 8 if kind != COMPRESSED else 0)
        if kind >> 16:
            kind, size, begin, ends = kind & 0xFFFF, kind >> 16, place + 4, place + 8
        if begin + size > min(ends, len(content)):
            raise ValueError("it is cut off")
        yield kind, content[begin : begin + size]
        place = ends


def _inflated(content: memoryview, path: Path, max_gb: float) -> memoryview:
    stream = zlib.decompressobj()
    found = stream.decompress(content, int(max_gb * GB) + 1)
    check_bytes(len(found), str(path), max_gb)
    if not stream.eof:
        raise ValueError("it is cut off")
    return memoryview(found)


def _array(element: Element, order: str, path: Path, max_gb: float) -> Iterator[tuple[str, np.ndarray]]:
    """Its name and itself, if the element is an array of real numbers: flags, sides, name and numbers."""
    kind, content = element
    parts = list(_elements(content, order)) if kind == MATRIX else []
    if len(parts) != 4 or parts[0][1].nbytes != 8:
        return
    made = CLASSES.get(struct.unpack_from(f"{order}I", parts[0][1])[0] & 0xFF)
    stored = STORED.get(parts[3][0])
    if made is None or stored is None:
        return
    shape = [int(side) for side in np.frombuffer(parts[1][1], f"{order}i4")]
    numbers = np.frombuffer(parts[3][1], order + stored)
    if min(shape, default=-1) < 0 or prod(shape) != len(numbers):
        raise ValueError(f"an array of shape {shape} has {len(numbers)} numbers")
    check_bytes(len(numbers) * np.dtype(made).itemsize, str(path), max_gb)
    yield bytes(parts[2][1]).decode("ascii"), numbers.astype(made).reshape(shape, order="F")
