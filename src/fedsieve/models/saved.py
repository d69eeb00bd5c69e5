"""The models that a run left in its model.safetensors: a card that says what they are, and their tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from torch import Tensor, nn

from fedsieve.errors import ConfigError, DataError
from fedsieve.models import build_model
from fedsieve.own_code import AllowCode


@dataclass(frozen=True)
class SavedModels:
    """The content of one file."""

    file: Path
    card: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    @staticmethod
    def read(file: Path) -> SavedModels:
        if not file.is_file():
            raise DataError("FS301", f"{file}: no such file. Give the model.safetensors of a run")
        content = file.read_bytes()
        try:
            tensors = load_safetensors(content)
            header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
            card = json.loads(header["__metadata__"]["fedsieve"])
        except (SafetensorError, ValueError, KeyError) as problem:
            raise DataError(
                "FS302",
                f"{file}: not the model of a run ({type(problem).__name__}: {problem}). Give a run's model.safetensors",
            ) from None
        return SavedModels(file, card, tensors)

    @property
    def shape(self) -> tuple[int, ...]:
        """(channels, height, width), or (features,)."""
        return tuple(self.card["shape"])

    def model(self, group: int = 0, allow_code: AllowCode = False) -> nn.Module:
        """A group's first net, in evaluation mode. The card's word for a class of one's own is not enough."""
        if not self.card["shared"]:
            raise ConfigError(
                "FS007",
                f"{self.file}: the run's clients keep their models, or part of them. Take a run with one model for all",
            )
        prefix = f"group{group}.net0." if self.card["several"] else ""
        weights = {name.removeprefix(prefix): t for name, t in self.tensors.items() if name.startswith(prefix)}
        if not weights or (group and not self.card["several"]):
            raise ConfigError("FS002", f"group={group}: the run has no such group. Take another")
        with torch.random.fork_rng(devices=[]):  # weights that are drawn and replaced shift nobody's draws
            model = build_model(
                self.card["model"],
                self.shape,
                len(self.card["class_names"]),
                norm=self.card["norm"],
                heads=tuple(self.card["heads"]),
                options=self.card["options"],
                allow_code=allow_code,
            )
        try:
            model.load_state_dict(weights)
        except RuntimeError as problem:
            reason = str(problem).split("\n")[0]
            raise DataError(
                "FS302", f"{self.file}: does not hold a whole {self.card['model']} ({reason}). Take another run"
            ) from None
        return model.eval()
