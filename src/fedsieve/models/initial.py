"""Weights to start from: the encoder of a file, for a net of the same architecture. Classifier and heads stay new."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedsieve.base.errors import ConfigError
from fedsieve.models.heads import head_of, standing_heads
from fedsieve.models.pretrained import Pretrained
from fedsieve.models.saved import SavedModels
from fedsieve.models.weights import Weights

HALVES = "stride_on"
"""The option of a model that alters what its weights do, and not their shapes."""


@dataclass(frozen=True)
class FirstWeights:
    file: Path
    tensors: Mapping[str, Tensor]
    """Of the encoder alone."""
    options: Mapping[str, Any]
    """Of the model that they were learnt in."""

    @staticmethod
    def read(file: Path) -> FirstWeights:
        """Of a run's first model, or of a ResNet that others trained."""
        weights = Weights.read(file)
        if not weights.of_a_run:
            found = Pretrained.of(weights)
            return FirstWeights(file, found.tensors, found.options)
        saved = SavedModels.of(weights)
        heads = {head.name: head.in_line for head in map(head_of, saved.card["heads"])}
        return FirstWeights(file, _encoder(saved.weights(), heads), saved.card["options"])

    def into(self, model: nn.Module, options: Mapping[str, Any]) -> nn.Module:
        """The same model, its encoder with these weights; FS011 names the first tensor, in its order, that differs."""
        heads = {name: standing.in_line for name, standing in standing_heads(model).items()}
        wanted = _encoder(model.state_dict(), heads)
        for name in dict.fromkeys((*wanted, *sorted(self.tensors))):
            here, there = (_shape(tensors.get(name)) for tensors in (wanted, self.tensors))
            if here != there:
                raise self._unfit(f"{name} is {there} in the file, {here} in the model")
        if options.get(HALVES) != self.options.get(HALVES):
            raise self._unfit(f"model.{HALVES} is {self.options.get(HALVES)} there, {options.get(HALVES)} here")
        for name, tensor in self.tensors.items():
            wanted[name].copy_(tensor)
        return model

    def _unfit(self, reason: str) -> ConfigError:
        return ConfigError(
            "FS011", f"init={self.file}: {reason}. Set model, norm and the options behind `model.` to those of the file"
        )


def _encoder(named: Mapping[str, Tensor], heads: Mapping[str, bool]) -> dict[str, Tensor]:
    """The tensors below classifier and heads, as they are called without a head in line; counters are left out."""
    above = {"head", *heads}
    return {
        name.removeprefix("encoder.") if any(heads.values()) else name: tensor
        for name, tensor in named.items()
        if name.partition(".")[0] not in above and tensor.is_floating_point()
    }


def _shape(tensor: Tensor | None) -> str:
    return "missing" if tensor is None else f"{tensor.dtype} of shape {tuple(tensor.shape)}"
