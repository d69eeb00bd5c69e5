"""Residual nets (He et al. 2016): 10, 18, 34 and 50 layers, and the pre-activation net of 18."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor, nn

from fedsieve.models.base import BodyAndHead, GlobalAverage, image_shape, kaiming
from fedsieve.models.norm import NormLayer

Start = Literal["auto", "cifar", "imagenet"]
Stem = Literal[Start, "half"]
Width = Annotated[int, Field(ge=1, le=1024)]
"""Channels of the first stage; each further one has twice as many."""
StrideOn = Literal["1x1", "3x3"]
MakeBlock = Callable[[int, int, int, NormLayer], "Block"]
"""Input channels, width, stride, normalisation."""


def is_small(stem: Stem | Start, height: int, width: int) -> bool:
    """Whether the net starts at full resolution: by choice, or because the images are small."""
    return stem == "cifar" or (stem == "auto" and max(height, width) <= 64)


def conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)


class Block(nn.Module):
    """A residual block; `outputs` is the number of channels that leave it."""

    outputs: int


class BasicBlock(Block):
    """Two 3 x 3 convolutions around a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int, norm: NormLayer) -> None:
        super().__init__()
        self.outputs = width
        self.residual = nn.Sequential(
            conv(inputs, width, 3, stride), norm(width), nn.ReLU(inplace=True), conv(width, width, 3), norm(width)
        )
        self.shortcut = _shortcut(inputs, width, stride, norm)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.relu(self.residual(x) + self.shortcut(x))
        return out


class Bottleneck(Block):
    """1 x 1, 3 x 3 and 1 x 1 convolutions around a shortcut; the last is four times as wide."""

    def __init__(self, inputs: int, width: int, stride: int, norm: NormLayer, stride_on: StrideOn) -> None:
        super().__init__()
        self.outputs = 4 * width
        first, second = (stride, 1) if stride_on == "1x1" else (1, stride)
        self.residual = nn.Sequential(
            conv(inputs, width, 1, first),
            norm(width),
            nn.ReLU(inplace=True),
            conv(width, width, 3, second),
            norm(width),
            nn.ReLU(inplace=True),
            conv(width, self.outputs, 1),
            norm(self.outputs),
        )
        self.shortcut = _shortcut(inputs, self.outputs, stride, norm)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.relu(self.residual(x) + self.shortcut(x))
        return out


class PreActBlock(Block):
    """Normalisation and ReLU stand before each convolution; a shortcut that changes shape starts after the first."""

    def __init__(self, inputs: int, width: int, stride: int, norm: NormLayer) -> None:
        super().__init__()
        self.outputs = width
        self.activate = nn.Sequential(norm(inputs), nn.ReLU(inplace=True))
        self.residual = nn.Sequential(
            conv(inputs, width, 3, stride), norm(width), nn.ReLU(inplace=True), conv(width, width, 3)
        )
        changes_shape = stride != 1 or inputs != width
        self.shortcut = conv(inputs, width, 1, stride) if changes_shape else None

    def forward(self, x: Tensor) -> Tensor:
        active = self.activate(x)
        kept = x if self.shortcut is None else self.shortcut(active)
        out: Tensor = self.residual(active) + kept
        return out


def _shortcut(inputs: int, outputs: int, stride: int, norm: NormLayer) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(conv(inputs, outputs, 1, stride), norm(outputs))


def _stages(block: MakeBlock, depths: Sequence[int], first: int, norm: NormLayer) -> tuple[nn.Sequential, int]:
    """The stages, each but the first twice as wide and halving the image; and their output channels."""
    channels = first
    stages = []
    for position, depth in enumerate(depths):
        blocks: list[Block] = []
        for index in range(depth):
            stride = 2 if position > 0 and index == 0 else 1
            blocks.append(block(channels, first * 2**position, stride, norm))
            channels = blocks[-1].outputs
        stages.append(nn.Sequential(*blocks))
    return nn.Sequential(*stages), channels


class ResidualNet(BodyAndHead):
    """Stem, four stages, global average, linear head."""

    def __init__(
        self,
        model: str,
        shape: tuple[int, ...],
        classes: int,
        norm: NormLayer,
        stem: Stem,
        width: int,
        block: MakeBlock,
        depths: Sequence[int],
        pre_activation: bool = False,
    ) -> None:
        channels, *sides = image_shape(model, shape)
        small = stem == "half" or is_small(stem, *sides)
        first = conv(channels, width, 3, 2 if stem == "half" else 1) if small else conv(channels, width, 7, stride=2)
        shrink = [] if small else [nn.MaxPool2d(3, stride=2, padding=1)]
        stages, outputs = _stages(block, depths, width, norm)
        after_stem = [] if pre_activation else [norm(width), nn.ReLU(inplace=True)]
        after_stages = [norm(outputs), nn.ReLU(inplace=True)] if pre_activation else []
        body: OrderedDict[str, nn.Module] = OrderedDict(
            stem=nn.Sequential(first, *after_stem, *shrink),
            stages=stages,
            pool=nn.Sequential(*after_stages, GlobalAverage()),
        )
        super().__init__(nn.Sequential(body), outputs, classes)
        kaiming(self)


class ResNet10(ResidualNet):
    def __init__(
        self, shape: tuple[int, ...], classes: int, norm: NormLayer, stem: Stem = "auto", width: Width = 64
    ) -> None:
        super().__init__("resnet10", shape, classes, norm, stem, width, BasicBlock, (1, 1, 1, 1))


class ResNet18(ResidualNet):
    def __init__(
        self, shape: tuple[int, ...], classes: int, norm: NormLayer, stem: Stem = "auto", width: Width = 64
    ) -> None:
        super().__init__("resnet18", shape, classes, norm, stem, width, BasicBlock, (2, 2, 2, 2))


class ResNet34(ResidualNet):
    def __init__(
        self, shape: tuple[int, ...], classes: int, norm: NormLayer, stem: Stem = "auto", width: Width = 64
    ) -> None:
        super().__init__("resnet34", shape, classes, norm, stem, width, BasicBlock, (3, 4, 6, 3))


class ResNet50(ResidualNet):
    """Version 1: the first 1 x 1 convolution of a stage halves the image, as in the paper and in Keras;
    `stride_on="3x3"` leaves that to the 3 x 3 one, as other libraries do."""

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        norm: NormLayer,
        stem: Stem = "auto",
        stride_on: StrideOn = "1x1",
        width: Width = 64,
    ) -> None:
        block = partial(Bottleneck, stride_on=stride_on)
        super().__init__("resnet50", shape, classes, norm, stem, width, block, (3, 4, 6, 3))


class PreAct18(ResidualNet):
    def __init__(
        self, shape: tuple[int, ...], classes: int, norm: NormLayer, stem: Stem = "auto", width: Width = 64
    ) -> None:
        super().__init__("preact18", shape, classes, norm, stem, width, PreActBlock, (2, 2, 2, 2), pre_activation=True)
