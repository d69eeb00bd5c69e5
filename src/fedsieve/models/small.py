"""Small nets that train in seconds to minutes on a processor. They keep PyTorch's default initialisation."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field, PositiveInt
from torch import nn

from fedsieve.models.base import BodyAndHead, cells_left, image_shape
from fedsieve.models.norm import NormLayer

Probability = Annotated[float, Field(ge=0, lt=1)]


class CnnLite(BodyAndHead):
    """Two convolutions and a linear layer: 31,274 parameters on 32 x 32 x 3, ten classes."""

    def __init__(self, shape: tuple[int, ...], classes: int, norm: NormLayer) -> None:
        channels, height, width = image_shape("cnn-lite", shape)
        cells = cells_left("cnn-lite", height, width, lambda side: (side + 1) // 2 // 4)
        body = nn.Sequential(
            nn.Conv2d(channels, 32, 5, stride=2, padding=2, bias=False),
            norm(32),
            nn.MaxPool2d(2),
            nn.ReLU(inplace=True),
            nn.Conv2d(32, 64, 3, padding=1, bias=False),
            norm(64),
            nn.MaxPool2d(2),
            nn.ReLU(inplace=True),
            nn.Flatten(),
        )
        super().__init__(body, 64 * cells, classes)


class Cnn4(BodyAndHead):
    """FedRN's net for CIFAR-10: four convolutions of 64 channels, each halved, and a linear layer.

    The authors' code normalises by the statistics of the batch, at test time too: `norm=batch` gives that.
    """

    def __init__(self, shape: tuple[int, ...], classes: int, norm: NormLayer) -> None:
        channels, height, width = image_shape("cnn4", shape)
        cells = cells_left("cnn4", height, width, lambda side: side // 16)
        layers: list[nn.Module] = []
        for inputs in (channels, 64, 64, 64):
            layers += [nn.Conv2d(inputs, 64, 3, padding=1), norm(64), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
        super().__init__(nn.Sequential(*layers, nn.Flatten()), 64 * cells, classes)


class FedDSMnist(BodyAndHead):
    """FedDS's "simple CNN" for MNIST; the paper gives no layers, so these are the authors' code's.

    Two 5 x 5 convolutions (10, 20 channels), dropout of whole channels, 320-50-C. It has no normalisation.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        norm: NormLayer,
        dropout: Probability = 0.5,
    ) -> None:
        channels, height, width = image_shape("fedds-mnist", shape)
        cells = cells_left("fedds-mnist", height, width, lambda side: ((side - 4) // 2 - 4) // 2)
        body = nn.Sequential(
            nn.Conv2d(channels, 10, 5),
            nn.MaxPool2d(2),
            nn.ReLU(inplace=True),
            nn.Conv2d(10, 20, 5),
            nn.Dropout2d(dropout),
            nn.MaxPool2d(2),
            nn.ReLU(inplace=True),
            nn.Flatten(),
            nn.Linear(20 * cells, 50),
            nn.ReLU(inplace=True),
        )
        super().__init__(body, 50, classes)


class FedDSVgg(BodyAndHead):
    """FedDS's "VGG-style CNN" for CIFAR-10; the paper gives no layers, so these are the authors' code's.

    64-64-M-128-128-M-256-256-M with normalisation, then 4096-512-512-C with dropout.
    """

    def __init__(self, shape: tuple[int, ...], classes: int, norm: NormLayer, dropout: Probability = 0.5) -> None:
        channels, height, width = image_shape("fedds-vgg", shape)
        cells = cells_left("fedds-vgg", height, width, lambda side: side // 8)
        layers: list[nn.Module] = []
        inputs = channels
        for outputs in (64, 128, 256):
            for first in (inputs, outputs):
                layers += [nn.Conv2d(first, outputs, 3, padding=1, bias=False), norm(outputs), nn.ReLU(inplace=True)]
            layers.append(nn.MaxPool2d(2))
            inputs = outputs
        layers.append(nn.Flatten())
        for wide in (256 * cells, 512):
            layers += [nn.Linear(wide, 512), nn.ReLU(inplace=True), nn.Dropout(dropout)]
        super().__init__(nn.Sequential(*layers), 512, classes)


class Linear(BodyAndHead):
    """Logistic regression: the features are the sample itself, and all that learns is the head."""

    def __init__(self, shape: tuple[int, ...], classes: int, norm: NormLayer) -> None:
        super().__init__(nn.Flatten(), math.prod(shape), classes)


class Mlp(BodyAndHead):
    """Linear layers with ReLU, for tables and for images taken as rows; no hidden layer is logistic regression.

    `normalise` puts the normalisation that the key `norm` chooses before each ReLU.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        norm: NormLayer,
        hidden: tuple[PositiveInt, ...] = (256, 128),
        normalise: bool = False,
    ) -> None:
        inputs = math.prod(shape)
        layers: list[nn.Module] = [nn.Flatten()]
        for width in hidden:
            layers.append(nn.Linear(inputs, width))
            if normalise:
                # A row is an image of one pixel: so every policy serves tables too.
                layers += [nn.Unflatten(1, (width, 1, 1)), norm(width), nn.Flatten()]
            layers.append(nn.ReLU(inplace=True))
            inputs = width
        super().__init__(nn.Sequential(*layers), inputs, classes)
