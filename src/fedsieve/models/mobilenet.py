"""MobileNetV2 (Sandler et al. 2018): inverted residuals with depthwise convolutions."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from fedsieve.models.base import BodyAndHead, GlobalAverage, image_shape, kaiming
from fedsieve.models.norm import NormLayer
from fedsieve.models.resnet import Start, is_small

STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""The paper's table 2: expansion, output channels, blocks, stride of the first block."""


MakeConv = Callable[[int, int, int, int, int], nn.Conv2d]
"""Input channels, output channels, size, stride, groups."""


def _evenly_padded(inputs: int, outputs: int, size: int, stride: int, groups: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, groups=groups, bias=False)


def conv_norm_relu(
    inputs: int,
    outputs: int,
    size: int,
    norm: NormLayer,
    stride: int = 1,
    groups: int = 1,
    conv: MakeConv = _evenly_padded,
) -> list[nn.Module]:
    return [conv(inputs, outputs, size, stride, groups), norm(outputs), nn.ReLU6(inplace=True)]


class InvertedResidual(nn.Module):
    """Widen, filter each channel, narrow without activation; a shortcut where the shape stays."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        stride: int,
        expansion: int,
        norm: NormLayer,
        size: int = 3,
        conv: MakeConv = _evenly_padded,
    ) -> None:
        super().__init__()
        wide = expansion * inputs
        widen = conv_norm_relu(inputs, wide, 1, norm) if expansion > 1 else []
        self.residual = nn.Sequential(
            *widen,
            *conv_norm_relu(wide, wide, size, norm, stride, wide, conv),
            nn.Conv2d(wide, outputs, 1, bias=False),
            norm(outputs),
        )
        self.keeps_shape = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.residual(x)
        return x + out if self.keeps_shape else out


class MobileNetV2(BodyAndHead):
    """Width 1, without dropout. On small images the first two halvings are left out."""

    def __init__(self, shape: tuple[int, ...], classes: int, norm: NormLayer, stem: Start = "auto") -> None:
        channels, height, width = image_shape("mobilenetv2", shape)
        small = is_small(stem, height, width)
        layers = conv_norm_relu(channels, 32, 3, norm, stride=1 if small else 2)
        inputs = 32
        for position, (expansion, outputs, blocks, halving) in enumerate(STAGES):
            for index in range(blocks):
                stride = 1 if index > 0 or (small and position == 1) else halving
                layers.append(InvertedResidual(inputs, outputs, stride, expansion, norm))
                inputs = outputs
        layers += conv_norm_relu(inputs, 1280, 1, norm)
        super().__init__(nn.Sequential(*layers, GlobalAverage()), 1280, classes)
        kaiming(self)
