"""Ground truth. The evaluator alone holds it: client and server code never receive it."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedsieve.base.array_files import BROKEN
from fedsieve.base.disk import write_bytes
from fedsieve.base.errors import DataError

SERVER = "server_"
"""Before the names of the server's sets, in the file."""


@dataclass(frozen=True)
class GroundTruth:
    labels: tuple[np.ndarray, ...] | None
    """True label of each client's rows, where known."""
    test: np.ndarray
    validation: np.ndarray
    nominal: np.ndarray | None = None
    """Nominal noise rate of each client of a simulation."""
    server: Mapping[str, np.ndarray] = field(default_factory=dict)
    """True labels of the server's labelled sets, by name, where known."""

    def correct(self, client: int, given: np.ndarray) -> np.ndarray | None:
        """Which of a client's given labels are right."""
        return None if self.labels is None else self.labels[client] == given

    def noise(self, client: int, given: np.ndarray) -> float | None:
        """The share of a client's given labels that are wrong; None where nobody knows, or where it has none."""
        correct, labelled = self.correct(client, given), given >= 0
        return None if correct is None or not labelled.any() else float(1 - correct[labelled].mean())

    def server_noise(self, name: str, given: np.ndarray) -> float | None:
        """The share of the labels of one of the server's sets that are wrong; None where nobody knows."""
        return round(float((self.server[name] != given).mean()), 6) if name in self.server else None

    def save(self, path: Path) -> None:
        arrays = {"test": self.test, "validation": self.validation}
        arrays |= {SERVER + name: labels for name, labels in self.server.items()}
        if self.labels is not None:
            arrays["labels"] = np.concatenate(self.labels) if self.labels else np.empty(0, np.int64)
            arrays["sizes"] = np.array([len(part) for part in self.labels], np.int64)
        if self.nominal is not None:
            arrays["nominal"] = self.nominal
        content = io.BytesIO()
        np.savez_compressed(content, allow_pickle=False, **arrays)
        write_bytes(path, content.getvalue())

    @staticmethod
    def load(path: Path) -> GroundTruth:
        try:
            with np.load(path, allow_pickle=False) as file:
                labels = None
                if "labels" in file:
                    labels = tuple(np.split(file["labels"], np.cumsum(file["sizes"])[:-1]))
                server = {name.removeprefix(SERVER): file[name] for name in file.files if name.startswith(SERVER)}
                return GroundTruth(labels, file["test"], file["validation"], file.get("nominal"), server)
        except (*BROKEN, MemoryError) as problem:
            raise DataError("FS311", f"{path}: cannot be read ({problem}). Run again from its config.yaml") from None
