"""The models that a run left in its model.safetensors: a card that says what they are, and their tensors.

The card carries a checksum of both. A file is read only if it holds, and if the card and the weights make sense: a
damaged model would go on to predict, only otherwise.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, field_validator, model_validator
from safetensors.torch import save as save_safetensors
from torch import Tensor, nn

from fedsieve.base.errors import CompositionError, ConfigError, DataError
from fedsieve.base.files import tensors_digest
from fedsieve.base.own_code import AllowCode
from fedsieve.models import build_model
from fedsieve.models.heads import head_of
from fedsieve.models.weights import BROKEN, METADATA, Weights

CHECKSUM = "sha256"
Text = Annotated[str, Field(max_length=1000)]
Side = Annotated[int, Field(ge=1, le=2**20)]


class TextCard(BaseModel):
    """Of a model of texts: their column, the map that made numbers of them, and what must be true of it."""

    model_config = ConfigDict(strict=True, extra="forbid")

    column: Text
    features: Text
    key: Text


class Reading(BaseModel):
    """How samples were read; what a card does not say is as usual."""

    model_config = ConfigDict(strict=False, extra="ignore")

    fit: Literal["resize", "crop"] = "resize"
    window: tuple[FiniteFloat, FiniteFloat] | None = None
    columns: Annotated[list[Text], Field(max_length=10**6)] = []
    missing: Literal["refuse", "drop", "mean", "zero"] = "refuse"
    categories: dict[Text, Annotated[list[Text], Field(max_length=10**4)]] = {}
    fill: dict[Text, FiniteFloat] = {}

    @model_validator(mode="after")
    def _is_a_range(self) -> Reading:
        if self.window is not None and not self.window[0] < self.window[1]:
            raise ValueError("the window is no range")
        return self

    def width(self) -> int:
        """Numbers that a row of the table becomes."""
        return sum(len(self.categories.get(name, ("",))) for name in self.columns)


class Card(BaseModel):
    """What a card may say."""

    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=())

    model: Text
    options: dict[Text, Any]
    norm: Literal["average", "local", "batch", "group"]
    heads: Annotated[list[dict[Text, Any]], Field(max_length=16)]
    several: bool
    shared: bool
    classifies: bool = True
    method: Text
    data: Text = ""
    """The hash of what it was trained on."""
    rounds: Annotated[int, Field(ge=0)] = 0
    class_names: Annotated[list[Text], Field(min_length=2, max_length=10**6)]
    mean: list[FiniteFloat]
    std: list[Annotated[FiniteFloat, Field(gt=0)]]
    shape: list[Side]
    text: TextCard | None = None
    reading: Reading = Reading()

    @field_validator("heads")
    @classmethod
    def _are_heads(cls, cards: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for card in cards:
            try:
                head_of(card)
            except ConfigError as problem:
                raise ValueError(problem.message) from None
        return cards

    @model_validator(mode="after")
    def _fits_together(self) -> Card:
        if len(self.shape) not in (1, 3):
            raise ValueError("shape is neither that of an image nor that of a row")
        if not len(self.mean) == len(self.std) == self.shape[0]:
            raise ValueError(f"mean and std are not of {self.shape[0]} channels or features")
        if self.reading.columns and [self.reading.width()] != self.shape:
            raise ValueError("reading does not give rows of the model's shape")
        return self


def to_bytes(tensors: Mapping[str, Tensor], card: Mapping[str, Any]) -> bytes:
    """The file of models. The checksum stands inside the card: two entries of metadata have no order of their own."""
    ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    plain = json.loads(json.dumps(card))
    return save_safetensors(ready, {METADATA: json.dumps(plain | {CHECKSUM: _checksum(ready, plain)})})


def _checksum(tensors: Mapping[str, Tensor], card: Mapping[str, Any]) -> str:
    body = json.dumps({key: value for key, value in card.items() if key != CHECKSUM}, sort_keys=True)
    return hashlib.sha256(f"{tensors_digest(tensors)} {body}".encode()).hexdigest()


@dataclass(frozen=True)
class SavedModels:
    """The content of one file."""

    file: Path
    card: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    @staticmethod
    def read(file: Path) -> SavedModels:
        return SavedModels.of(Weights.read(file))

    @staticmethod
    def of(weights: Weights) -> SavedModels:
        file, tensors = weights.file, weights.tensors
        try:
            card = json.loads(weights.metadata[METADATA])
            stated = card[CHECKSUM]
        except BROKEN as problem:
            raise DataError(
                "FS302",
                f"{file}: not the model of a run ({type(problem).__name__}: {problem}). Give a run's model.safetensors",
            ) from None
        if stated != _checksum(tensors, card):
            raise DataError("FS310", f"{file}: the model is damaged, its checksum does not hold. Restore the file")
        _check(file, card, tensors)
        return SavedModels(file, card, tensors)

    @property
    def shape(self) -> tuple[int, ...]:
        """(channels, height, width), or (features,)."""
        return tuple(self.card["shape"])

    @property
    def reading(self) -> Reading:
        """How the samples that it was trained on were read."""
        return Reading.model_validate(self.card.get("reading", {}))

    def weights(self, group: int = 0) -> dict[str, Tensor]:
        """Of a group's first net."""
        if not self.card["shared"]:
            raise ConfigError(
                "FS007",
                f"{self.file}: the run's clients keep their models, or part of them. Take a run with one model for all",
            )
        prefix = f"group{group}.net0." if self.card["several"] else ""
        weights = {name.removeprefix(prefix): t for name, t in self.tensors.items() if name.startswith(prefix)}
        if not weights or (group and not self.card["several"]):
            raise ConfigError("FS002", f"group={group}: the run has no such group. Take another")
        return weights

    def model(self, group: int = 0, allow_code: AllowCode = False) -> nn.Module:
        """A group's first net, in evaluation mode. The card's word for a class of one's own is not enough."""
        weights = self.weights(group)
        with torch.random.fork_rng(devices=[]):  # weights that are drawn and replaced shift nobody's draws
            with torch.device("meta"):  # takes no memory: whether it fits is known before any is asked for
                self._check_fits(self._build(allow_code), weights)
            model = self._build(allow_code)
        model.load_state_dict(weights)
        return model.eval()

    def _build(self, allow_code: AllowCode) -> nn.Module:
        try:
            return build_model(
                self.card["model"],
                self.shape,
                len(self.card["class_names"]),
                norm=self.card["norm"],
                heads=tuple(head_of(card) for card in self.card["heads"]),
                options=self.card["options"],
                allow_code=allow_code,
            )
        except (RuntimeError, ValueError, TypeError, OverflowError, MemoryError, CompositionError) as problem:
            raise self._unfit(str(problem).split("\n")[0]) from None

    def _check_fits(self, model: nn.Module, weights: Mapping[str, Tensor]) -> None:
        wanted = {name: (tuple(t.shape), t.dtype) for name, t in model.state_dict().items()}
        found = {name: (tuple(t.shape), t.dtype) for name, t in weights.items()}
        for name in sorted({*wanted, *found}):
            if wanted.get(name) != found.get(name):
                raise self._unfit(f"{name} is {_kind(found.get(name))}, not {_kind(wanted.get(name))}")

    def _unfit(self, reason: str) -> DataError:
        return DataError(
            "FS302", f"{self.file}: does not hold a whole {self.card['model']} ({reason}). Take another run"
        )


def _kind(tensor: tuple[tuple[int, ...], torch.dtype] | None) -> str:
    return "missing" if tensor is None else f"{tensor[1]} of shape {tensor[0]}"


def _check(file: Path, card: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """A checksum tells damage; whoever writes a file can write a fitting one."""
    try:
        Card.model_validate(card)
    except ValidationError as problem:
        first = problem.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise DataError(
            "FS302", f"{file}: its card cannot be used ({where}: {first['msg']}). Give a run's model.safetensors"
        ) from None
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise DataError("FS304", f"{file}: {name} holds NaN or infinity. Take a run whose training did not diverge")
