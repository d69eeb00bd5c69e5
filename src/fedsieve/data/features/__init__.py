"""Feature maps: images as rows of numbers, without labels and without training. See docs/reference/features.md."""

from __future__ import annotations

from pathlib import Path

from fedsieve.base.errors import ConfigError, nearest
from fedsieve.data.features.base import FeatureMap, refuse_size
from fedsieve.data.features.cache import features_of
from fedsieve.data.features.encoders import Encoder, saved_model
from fedsieve.data.features.hog import Hog, hog
from fedsieve.data.features.pixels import Pixels

__all__ = ["Encoder", "FeatureMap", "Hog", "Pixels", "feature_map", "features_of", "hog", "saved_model"]

HUB = "hf:"
MODEL_FILE = ".safetensors"
NAMES = ("hog", "pixels", "resnet50")


def feature_map(name: str, size: int | None = None) -> FeatureMap:
    """The map that a name stands for: hog, pixels, resnet50, FILE.safetensors of a run, or hf:NAME.

    `size` is the side to which images are brought, for resnet50 and hf:NAME.
    """
    if size is not None and size < 1:
        raise ConfigError("FS002", f"size={size}: images have a side of 1 pixel at least. Give a larger number")
    if name in ("hog", "pixels"):
        refuse_size(size, name, "it takes images as they are")
        return Hog() if name == "hog" else Pixels()
    if name == "resnet50":
        from fedsieve.data.features.keras_resnet import imagenet_resnet50, keras_weights

        return imagenet_resnet50(keras_weights(), size)
    if name.startswith(HUB):
        from fedsieve.data.features.hub import hub_model

        return hub_model(name.removeprefix(HUB), size)
    if name.endswith(MODEL_FILE):
        refuse_size(size, name, "images are brought to the size that the model knows")
        return saved_model(Path(name).expanduser())
    raise ConfigError(
        "FS004", f"unknown feature map '{name}'. {nearest(name, (*NAMES, 'hf:NAME', 'FILE.safetensors'))}"
    )
