"""What every model is: features, and a linear head on them."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor, nn

from fedsieve.base.errors import ConfigError


class Classifier(nn.Module):
    """A net whose last layer can be told apart: methods read its features or retrain its head alone."""

    head: nn.Linear

    @property
    def feature_dim(self) -> int:
        return self.head.in_features

    def features(self, x: Tensor) -> Tensor:
        """One row of `feature_dim` numbers for each sample."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x))
        return logits


class BodyAndHead(Classifier):
    """The usual case: one body from samples to features, one linear head."""

    def __init__(self, body: nn.Module, feature_dim: int, classes: int) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(feature_dim, classes)

    def features(self, x: Tensor) -> Tensor:
        rows: Tensor = self.body(x)
        return rows


class GlobalAverage(nn.Module):
    """The mean over the image plane, (B, C, H, W) -> (B, C)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=(2, 3))


def image_shape(model: str, shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Channels, height and width; FS002 when the data are a table."""
    if len(shape) != 3:
        raise ConfigError(
            "FS002",
            f"model={model} needs images, but a sample has the shape {shape}. "
            "Take model=mlp or model=linear for tables and texts",
        )
    channels, height, width = shape
    return channels, height, width


def cells_left(model: str, height: int, width: int, shrink: Callable[[int], int]) -> int:
    """The number of positions left when each side has gone through `shrink`; FS002 when there is none."""
    left = math.prod(max(0, shrink(side)) for side in (height, width))
    if left == 0:
        raise ConfigError(
            "FS002",
            f"model={model}: nothing is left of images of {height} x {width} after its pooling. "
            "Take larger images, model=resnet10 or model=mlp",
        )
    return left


def kaiming(net: nn.Module) -> None:
    """He et al.'s initialisation of the convolutions, for nets too deep for PyTorch's default."""
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
