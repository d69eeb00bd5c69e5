"""EfficientNet-Lite (Tan and Le 2019, in Google's variant for small devices): inverted residuals as in MobileNetV2.

Unlike EfficientNet, it has ReLU6 and no squeeze and excitation, and its first and last layers are never scaled.
"""

from __future__ import annotations

import math
from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from fedsieve.models.base import BodyAndHead, GlobalAverage
from fedsieve.models.mobilenet import InvertedResidual, conv_norm_relu

STAGES = (
    (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5), (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)  # fmt: skip
"""The paper's table 1 before scaling: expansion, output channels, blocks, stride of the first block, size."""
FIRST, LAST = 32, 1280
"""Channels of the first and the last convolution."""
EPSILON = 1e-3


class PaddedAsNeeded(nn.Conv2d):
    """As much padding as the last stride needs, the odd pixel to the right and below: TensorFlow's `SAME`."""

    def __init__(self, inputs: int, outputs: int, size: int, stride: int, groups: int) -> None:
        super().__init__(inputs, outputs, size, stride=stride, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        down, right = (
            max(0, (math.ceil(side / stride) - 1) * stride + size - side)
            for side, stride, size in zip(x.shape[2:], self.stride, self.kernel_size, strict=True)
        )
        return super().forward(F.pad(x, (right // 2, right - right // 2, down // 2, down - down // 2)))


class EfficientNetLite(BodyAndHead):
    """Widths and depths of the stages are multiplied; those of the first and the last stage's blocks are not."""

    def __init__(self, width: float, depth: float, classes: int) -> None:
        norm = partial(nn.BatchNorm2d, eps=EPSILON)
        layers = conv_norm_relu(3, FIRST, 3, norm, stride=2, conv=PaddedAsNeeded)
        inputs = FIRST
        for position, (expansion, channels, blocks, halving, size) in enumerate(STAGES):
            outputs = rounded(width * channels)
            scaled = blocks if position in (0, len(STAGES) - 1) else math.ceil(depth * blocks)
            for index in range(scaled):
                stride = halving if index == 0 else 1
                layers.append(InvertedResidual(inputs, outputs, stride, expansion, norm, size, PaddedAsNeeded))
                inputs = outputs
        layers += conv_norm_relu(inputs, LAST, 1, norm)
        super().__init__(nn.Sequential(*layers, GlobalAverage()), LAST, classes)


def rounded(channels: float, step: int = 8) -> int:
    """To a multiple of 8, but never more than a tenth below."""
    near = max(step, int(channels + step / 2) // step * step)
    return near if near >= 0.9 * channels else near + step
