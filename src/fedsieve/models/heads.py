"""Heads that a method asks for: in line between a model's features and its classifier, or at the side of both.

A head is a section of the model under its name, so that `Share` can name it. Features are what the classifier stands
on: with a head in line, what that head returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field
from torch import Tensor, nn

from fedsieve.base.errors import CompositionError, ConfigError, nearest
from fedsieve.base.options import Choice, build, options_of
from fedsieve.models.base import Classifier
from fedsieve.models.norm import NormLayer

FEATURES, LOGITS = "features", "logits"
KIND = "kind"
Width = Annotated[int, Field(ge=1, le=65_536)]
HeadName = Annotated[str, Field(pattern="^[a-z][a-z_]{1,30}$")]


@dataclass(frozen=True, kw_only=True)
class Head(Choice):
    """Linear layers with ReLU between them. Two methods that bring the same head must bring it with equal settings."""

    in_line: ClassVar[bool] = False

    name: HeadName
    """The section of the model that it is."""
    base: HeadName = FEATURES
    """What it stands on: the features, or another head."""
    hidden: Width | None = None
    """Width of the head's hidden layers; `times` that of its input if not given."""
    times: Annotated[int, Field(ge=1, le=16)] = 1
    """How many times as wide as its input the head's hidden layers are, where `hidden` is not given."""
    width: Width | None = None
    """How many numbers the head returns; `widen` times as many as it takes if not given."""
    widen: Annotated[int, Field(ge=1, le=16)] = 1
    """How many times as many numbers the head returns as it takes, where `width` is not given."""
    layers: Annotated[int, Field(ge=1, le=8)] = 2
    """Linear layers of the head; one is a linear map."""
    norm: Literal["none", "batch"] = "none"
    """Whether the head's hidden layers are normalised, in the way of the key `norm`."""

    def filled(self, shape: tuple[int, ...]) -> Head:
        """The same with what it leaves open filled by the shape of a sample; asked once, before a model is built."""
        return self

    def returns(self, inputs: int) -> int:
        """How many numbers come out where so many go in."""
        return self.width or self.widen * inputs

    def built(self, inputs: int, norm: NormLayer) -> nn.Sequential:
        hidden = self.hidden or self.times * inputs
        layers: list[nn.Module] = []
        taken = inputs
        for _ in range(self.layers - 1):
            layers.append(nn.Linear(taken, hidden))
            if self.norm == "batch":
                layers.append(RowNorm(norm(hidden)))
            layers.append(nn.ReLU(inplace=True))
            taken = hidden
        return nn.Sequential(*layers, nn.Linear(taken, self.returns(inputs)))


@dataclass(frozen=True, kw_only=True)
class Projector(Head):
    """In line: the classifier stands on it, as MOON's does."""

    in_line = True

    name: HeadName = field(default="projector", init=False)
    base: HeadName = field(default=FEATURES, init=False)
    width: Width | None = 256
    """How many numbers the head returns; `widen` times as many as it takes if not given."""


@dataclass(frozen=True, kw_only=True)
class SideHead(Head):
    """At the side of the features or of another head: the classifier is as it would be without it."""


HEADS: dict[str, type[Head]] = {"projector": Projector, "side": SideHead}


def head_card(head: Head) -> dict[str, Any]:
    """The head as plain values, from which `head_of` makes it again."""
    kind = next(kind for kind, made in HEADS.items() if type(head) is made)
    return {KIND: kind} | {name: getattr(head, name) for name in options_of(type(head))}


def head_of(card: Mapping[str, Any]) -> Head:
    """A head from plain values, which may come from anywhere: only kinds that are known, and checked options."""
    kind = card.get(KIND)
    if not isinstance(kind, str) or kind not in HEADS:
        raise CompositionError("FS116", f"unknown head '{kind}'. {nearest(str(kind), HEADS)}")
    options = {name: value for name, value in card.items() if name != KIND}
    try:
        made: Head = build(HEADS[kind], options, kind)
    except TypeError as problem:
        raise ConfigError("FS002", f"head '{kind}': {problem}. Give what is missing") from None
    return made


class RowNorm(nn.Module):
    """An image's normalisation for rows, each an image of one pixel.

    A batch of one row has no statistics of its own: it is normalised as in a test, or to zero where there are none.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        image = x[:, :, None, None]
        layer = self.layer
        if len(x) > 1 or not isinstance(layer, nn.BatchNorm2d) or not (layer.training or layer.running_mean is None):
            rows: Tensor = layer(image)
        elif layer.running_mean is None:
            rows = (image - image) * layer.weight[:, None, None] + layer.bias[:, None, None]
        else:
            layer.eval()
            rows = layer(image)
            layer.train()
        return rows.flatten(1)


class Standing(NamedTuple):
    """Where a head of a model stands, and how many numbers it returns."""

    base: str
    width: int
    in_line: bool


class Projected(Classifier):
    """A model with a head in line: the features are what the head returns, and the classifier stands on them."""

    def __init__(self, encoder: Classifier, head: Head, norm: NormLayer) -> None:
        super().__init__()
        width, classes = encoder.head.in_features, encoder.head.out_features
        del encoder.head  # its parameters would travel and never learn
        self.encoder = encoder
        self.projector = head.built(width, norm)
        self.head = nn.Linear(head.returns(width), classes)

    def features(self, x: Tensor) -> Tensor:
        projection: Tensor = self.projector(self.encoder.features(x))
        return projection


def with_heads(model: Classifier, heads: Iterable[Head], norm: NormLayer) -> Classifier:
    """The model with its heads; the model handed over is taken apart for one in line."""
    standing: dict[str, Standing] = {}
    for head in _from_the_ground_up(heads):
        if hasattr(model, head.name) or head.name in standing or head.name == LOGITS:
            raise CompositionError("FS116", f"the model has a section '{head.name}' already. Name the head otherwise")
        inputs = model.head.in_features if head.base == FEATURES else standing[head.base].width
        if head.in_line:
            model = Projected(model, head, norm)
        else:
            model.add_module(head.name, head.built(inputs, norm))
        standing[head.name] = Standing(head.base, head.returns(inputs), head.in_line)
    model.standing = standing  # type: ignore[assignment]  # a plain attribute, also of models of one's own
    return model


def standing_heads(model: nn.Module) -> Mapping[str, Standing]:
    """The heads of a model, by name."""
    found: Mapping[str, Standing] = getattr(model, "standing", {})
    return found


def _from_the_ground_up(heads: Iterable[Head]) -> list[Head]:
    """Those in line first, then each after the head that it stands on."""
    left = sorted(heads, key=lambda head: not head.in_line)
    placed: list[Head] = []
    while left:
        there = {FEATURES, *(head.name for head in placed)}
        fits = next((head for head in left if head.base in there), None)
        if fits is None:
            names = sorted(there | {head.name for head in left})
            raise CompositionError(
                "FS116",
                f"the head '{left[0].name}' stands on '{left[0].base}', which the model does not have. "
                f"{nearest(left[0].base, names)}",
            )
        left.remove(fits)
        placed.append(fits)
    return placed
