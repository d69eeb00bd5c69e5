"""Frozen nets as feature maps: a module in memory, the model of a run, a net from elsewhere, the net in training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsieve.base.errors import ConfigError, DataError
from fedsieve.data.features.base import bytes_of, check_images, hash_of, refuse_size
from fedsieve.data.samples import EVALUATION_BATCH, Preprocess
from fedsieve.models.pretrained import Pretrained
from fedsieve.models.saved import SavedModels
from fedsieve.models.weights import Weights

Interpolation = Literal["bilinear", "bicubic"]


class Encoder:
    """The features of a module in evaluation mode: of its method `features`, or its output if it has none.

    Images are scaled to 0..1, standardised by `mean` and `std` per channel and, where `size` (height, width) is given,
    brought to that size. Grey images are repeated for a net that takes colour. The module is used as it is at each
    call: hand over a copy where it goes on learning.
    """

    def __init__(
        self,
        module: nn.Module,
        mean: Sequence[float],
        std: Sequence[float],
        *,
        size: tuple[int, int] | None = None,
        interpolation: Interpolation = "bilinear",
        name: str = "model",
    ) -> None:
        self.name = name
        self._module = module
        self._settings = (tuple(mean), tuple(std), size, interpolation)
        self._channels = len(mean)
        self._device = next((tensor.device for tensor in self._module.state_dict().values()), torch.device("cpu"))
        self._preprocess = Preprocess(mean, std, "none", self._device)

    @property
    def key(self) -> str:
        """Computed anew each time, for the weights may have changed."""
        kind = type(self._module)
        weights = [
            part
            for name, tensor in self._module.state_dict().items()
            for part in (
                f"{name}{tuple(tensor.shape)}{tensor.dtype}",
                bytes_of(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy()),
            )
        ]
        return hash_of(
            "encoder", f"{kind.__module__}.{kind.__qualname__}", repr(self._module), repr(self._settings), *weights
        )

    @torch.no_grad()
    def __call__(self, images: np.ndarray) -> np.ndarray:
        stored = self._stored(images)
        encode: Callable[[Tensor], Tensor] = getattr(self._module, "features", self._module)
        modes = {module: module.training for module in self._module.modules()}
        self._module.eval()
        try:
            parts = [encode(self._ready(part)) for part in torch.split(stored, EVALUATION_BATCH)]
        finally:
            for module, training in modes.items():
                module.training = training
        features = torch.cat(parts).float().cpu().numpy()
        if features.ndim != 2:
            raise ConfigError(
                "FS006", f"{self.name} gives features of shape {features.shape[1:]} a sample. Let it give one row each"
            )
        return features

    def _stored(self, images: np.ndarray) -> Tensor:
        if images.ndim != 2:  # the nets of tables take tables
            check_images(images, self.name)
            if images.shape[-1] == 1 < self._channels:
                images = np.repeat(images, self._channels, axis=-1)
        if images.shape[-1] != self._channels:
            raise DataError(
                "FS309",
                f"{self.name} takes {self._channels} channels, these samples have {images.shape[-1]}. Convert them",
            )
        return torch.from_numpy(np.ascontiguousarray(images))

    def _ready(self, part: Tensor) -> Tensor:
        x = self._preprocess(part, "clean", None)
        *_, size, interpolation = self._settings
        if size is None or x.ndim != 4 or x.shape[2:] == size:
            return x
        shrinks = size[0] < x.shape[2] or size[1] < x.shape[3]
        return F.interpolate(x, size, mode=interpolation, align_corners=False, antialias=shrinks)


def model_file(file: Path, size: int | None = None) -> Encoder:
    """The features of a model that a run left, or of a ResNet that others trained: the file says which it is."""
    weights = Weights.read(file)
    if weights.of_a_run:
        refuse_size(size, str(file), "images are brought to the size that the model knows")
        return _saved_model(SavedModels.of(weights))
    found = Pretrained.of(weights)
    side = size or found.images.size
    return Encoder(found.body(), found.images.mean, found.images.std, size=(side, side), name=file.name)


def saved_model(file: Path) -> Encoder:
    """The features of the model that a run left in model.safetensors; images are brought to the size it knows."""
    return _saved_model(SavedModels.read(file))


def _saved_model(saved: SavedModels) -> Encoder:
    size = saved.shape[1:] if len(saved.shape) == 3 else None
    return Encoder(saved.model(), saved.card["mean"], saved.card["std"], size=size, name=saved.file.name)
