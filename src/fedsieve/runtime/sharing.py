"""A federation in shared memory: every worker sees the same images without a copy."""

from __future__ import annotations

from mmap import mmap
from typing import Any

import numpy as np
import torch

from fedsieve.data.federation import Federation, Holding
from fedsieve.runtime.arena import Arena


def place(federation: Federation, arena: Arena) -> dict[str, Any]:
    """Place the arrays; returns a JSON header from which `open_shared` rebuilds the federation."""

    def place(array: np.ndarray) -> Any:
        if isinstance(array, np.memmap) and isinstance(array.base, mmap):  # a slice's offset would be its parent's
            return {
                "file": str(array.filename),
                "offset": int(array.offset),
                "dtype": array.dtype.str,
                "shape": list(array.shape),
            }
        return arena.place(torch.from_numpy(np.ascontiguousarray(array)))

    return {
        "images": place(federation.images),
        "test_images": place(federation.test_images),
        "rows": [place(rows) for rows in federation.rows],
        "given": [place(given) for given in federation.given],
        "served": None if federation.served is None else [place(mask) for mask in federation.served],
        "validation": place(federation.validation),
        "server": {
            name: [place(held.rows), None if held.labels is None else place(held.labels)]
            for name, held in federation.server.items()
        },
        "class_names": federation.class_names,
        "mean": federation.mean,
        "std": federation.std,
        "data": federation.data,
        "tasks": federation.tasks,
    }


def open_shared(header: dict[str, Any], arena: Arena) -> Federation:
    def array(ref: Any) -> np.ndarray:
        if isinstance(ref, dict):
            # Copy-on-write: PyTorch wants writable memory, the file stays as it is.
            return np.memmap(ref["file"], ref["dtype"], "c", ref["offset"], tuple(ref["shape"]))
        return arena.view(ref).numpy()

    return Federation(
        images=array(header["images"]),
        test_images=array(header["test_images"]),
        rows=tuple(array(ref) for ref in header["rows"]),
        given=tuple(array(ref) for ref in header["given"]),
        served=None if header["served"] is None else tuple(array(ref) for ref in header["served"]),
        validation=array(header["validation"]),
        server={
            name: Holding(array(rows), None if labels is None else array(labels))
            for name, (rows, labels) in header["server"].items()
        },
        class_names=tuple(header["class_names"]),
        mean=tuple(header["mean"]),
        std=tuple(header["std"]),
        data=header["data"],
        tasks=None if header["tasks"] is None else tuple(tuple(task) for task in header["tasks"]),
    )
