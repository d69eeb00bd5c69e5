"""ResNet-50 with the ImageNet weights that Keras publishes, held by our own ResNet-50.

Our net has no biases, another epsilon in its normalisation layers and takes RGB. None of this needs options: a bias
before a normalisation layer is subtracted from its running mean, the difference in epsilon is added to its running
variance, and the first kernel's input channels are turned around.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fedsieve.base.array_files import BROKEN
from fedsieve.base.errors import DataError
from fedsieve.data.features.encoders import Encoder
from fedsieve.data.sources.base import cache_folder
from fedsieve.models import build_model

Arrays = Mapping[str, np.ndarray]

FILE = "resnet50.npz"
DEPTHS = (3, 4, 6, 3)
CLASSES = 1000
SIZE = 224
"""Side of the images the weights were learnt on."""
MEAN = tuple(value / 255 for value in (123.68, 116.779, 103.939))
STD = (1 / 255,) * 3
"""The weights expect pixels of 0..255 less the mean colour, not divided by anything."""
MAKE_FILE = "Write it from keras.applications.ResNet50 as docs/reference/features.md shows"


@dataclass(frozen=True)
class Naming:
    """How a generation of Keras names the layers, and its epsilon."""

    epsilon: float
    stem: tuple[str, str]
    block: str
    """The layers of a block: to be filled with stage (2 to 5), block (from 0) and branch."""
    branches: tuple[str, str, str, str]
    """The three convolutions of the residual branch, then the shortcut's."""
    normalisation: tuple[str, str]
    """What is replaced by what in a convolution's name to name the normalisation layer after it."""
    head: str


OLD = Naming(
    1e-3, ("conv1", "bn_conv1"), "res{stage}{letter}_branch{branch}", ("2a", "2b", "2c", "1"), ("res", "bn"), "fc1000"
)
NEW = Naming(
    1.001e-5,
    ("conv1_conv", "conv1_bn"),
    "conv{stage}_block{number}_{branch}_conv",
    ("1", "2", "3", "0"),
    ("_conv", "_bn"),
    "predictions",
)


def imagenet_resnet50(arrays: Arrays, size: int | None = None) -> Encoder:
    """2,048 features an image, which is brought to `size` x `size` first: a smaller size is faster, and less exact."""
    side = size or SIZE
    return Encoder(convert(arrays), MEAN, STD, size=(side, side), name="resnet50")


def convert(arrays: Arrays) -> nn.Module:
    """Our ResNet-50 with these weights, for evaluation: RGB in, 1,000 classes out."""
    naming = OLD if f"{OLD.stem[0]}/kernel" in arrays else NEW
    with torch.device("meta"):  # no memory, and nothing drawn at random, for weights that are replaced at once
        model = build_model("resnet50", (3, SIZE, SIZE), CLASSES, options={"stem": "imagenet"})
    weights = {name: torch.tensor(0) for name in model.state_dict() if name.endswith("num_batches_tracked")}
    try:
        for name, value in _state(arrays, naming):
            weights[name] = torch.from_numpy(np.ascontiguousarray(value, np.float32))
        model.load_state_dict(weights, assign=True)
    except KeyError as missing:
        raise DataError("FS302", f"{FILE}: lacks {missing}. {MAKE_FILE}") from None
    except RuntimeError as problem:
        reason = " ".join(str(problem).split())
        raise DataError("FS302", f"{FILE}: is not a ResNet-50 ({reason[:200]}). {MAKE_FILE}") from None
    return model.eval()


def keras_weights(file: Path | None = None) -> dict[str, np.ndarray]:
    """Named arrays as Keras has them, from a file; that of the cache folder if none is given."""
    file = file or cache_folder() / FILE
    if not file.is_file():
        raise DataError("FS301", f"{file}: no such file. {MAKE_FILE}")
    try:
        with np.load(file, allow_pickle=False) as arrays:
            return {name.removesuffix(":0"): arrays[name] for name in arrays.files}
    except BROKEN as problem:
        raise DataError("FS302", f"{file}: not a readable .npz file ({problem}). {MAKE_FILE}") from None


def _state(arrays: Arrays, naming: Naming) -> Iterator[tuple[str, np.ndarray]]:
    """The entries of our state dict; the counters of batches are not among them."""
    turned = dict(arrays)
    kernel = f"{naming.stem[0]}/kernel"
    turned[kernel] = arrays[kernel][:, :, ::-1]
    yield from _layer("body.stem.0", "body.stem.1", turned, *naming.stem, naming.epsilon)
    for stage, depth in enumerate(DEPTHS):
        for number in range(depth):
            at = f"body.stages.{stage}.{number}"
            for place, branch in enumerate(naming.branches if number == 0 else naming.branches[:3]):
                name = naming.block.format(stage=stage + 2, letter="abcdef"[number], number=number + 1, branch=branch)
                first = f"{at}.residual.{3 * place}" if place < 3 else f"{at}.shortcut.0"
                second = f"{at}.residual.{3 * place + 1}" if place < 3 else f"{at}.shortcut.1"
                yield from _layer(first, second, turned, name, name.replace(*naming.normalisation), naming.epsilon)
    yield "head.weight", arrays[f"{naming.head}/kernel"].T
    yield "head.bias", arrays[f"{naming.head}/bias"]


def _layer(
    convolution: str, normalisation: str, arrays: Arrays, kernel: str, statistics: str, epsilon: float
) -> Iterator[tuple[str, np.ndarray]]:
    """One convolution without bias and the normalisation after it, which takes bias and epsilon over."""
    extra = epsilon - nn.BatchNorm2d(1).eps
    yield f"{convolution}.weight", arrays[f"{kernel}/kernel"].transpose(3, 2, 0, 1)
    yield f"{normalisation}.weight", arrays[f"{statistics}/gamma"]
    yield f"{normalisation}.bias", arrays[f"{statistics}/beta"]
    yield f"{normalisation}.running_mean", arrays[f"{statistics}/moving_mean"] - arrays[f"{kernel}/bias"]
    yield f"{normalisation}.running_var", arrays[f"{statistics}/moving_variance"] + extra
