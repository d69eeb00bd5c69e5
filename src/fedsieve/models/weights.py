"""Files of weights as they come: safetensors from anywhere, of a bounded size. Who uses them checks the rest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from torch import Tensor

from fedsieve.base.errors import DataError

METADATA = "fedsieve"
"""The entry of the metadata by which a run's own file is known."""
BROKEN = (SafetensorError, ValueError, KeyError, TypeError, RecursionError, OverflowError, MemoryError)
MOST_BYTES = 4 << 30


@dataclass(frozen=True)
class Weights:
    """The content of one file."""

    file: Path
    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str]

    @staticmethod
    def read(file: Path) -> Weights:
        if not file.is_file():
            raise DataError("FS301", f"{file}: no such file. Give the model.safetensors of a run")
        if file.stat().st_size > MOST_BYTES:
            raise DataError("FS320", f"{file}: larger than {MOST_BYTES >> 30} GB. Give a smaller model")
        content = file.read_bytes()
        try:
            tensors = load_safetensors(content)
            header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
            return Weights(file, tensors, dict(header.get("__metadata__", {})))
        except BROKEN as problem:
            raise DataError(
                "FS302",
                f"{file}: not a model ({type(problem).__name__}: {problem}). Give a run's model.safetensors",
            ) from None

    @property
    def of_a_run(self) -> bool:
        return METADATA in self.metadata
