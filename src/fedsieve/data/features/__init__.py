"""Feature maps: images as rows of numbers, without labels and without training. See docs/reference/features.md."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from fedsieve.base.errors import ConfigError, nearest
from fedsieve.data.features.base import FeatureMap, refuse_size
from fedsieve.data.features.cache import features_of
from fedsieve.data.features.encoders import Encoder, model_file, saved_model
from fedsieve.data.features.hog import Hog, hog
from fedsieve.data.features.pixels import Pixels

__all__ = [
    "Encoder",
    "FeatureMap",
    "Hog",
    "Pixels",
    "at_hand",
    "feature_map",
    "features_of",
    "has_weights",
    "hog",
    "is_registered",
    "saved_model",
]

HUB = "hf:"
MODEL_FILE = ".safetensors"
RANDOM = "random"
EFFICIENTNETS = ("efficientnet-lite0", "efficientnet-lite1", "efficientnet-lite2")
NAMES = ("hog", "pixels", RANDOM, "resnet50", *EFFICIENTNETS)


def feature_map(name: str, size: int | None = None) -> FeatureMap:
    """The map that a name stands for: one of `NAMES`, random:SEED, FILE.safetensors, or hf:NAME.

    `size` is the side to which images are brought, for all but hog, pixels and the model of a run.
    """
    if size is not None and size < 1:
        raise ConfigError("FS002", f"size={size}: images have a side of 1 pixel at least. Give a larger number")
    if name in ("hog", "pixels"):
        refuse_size(size, name, "it takes images as they are")
        return Hog() if name == "hog" else Pixels()
    if _is_random(name):
        from fedsieve.data.features.random_net import random_net

        return random_net(name, size)
    if name == "resnet50":
        from fedsieve.data.features.keras_resnet import imagenet_resnet50, keras_weights

        return imagenet_resnet50(keras_weights(), size)
    if name in EFFICIENTNETS:
        from fedsieve.data.features.efficientnet import efficientnet_lite

        return efficientnet_lite(name, size)
    if name.startswith(HUB):
        from fedsieve.data.features.hub import hub_model

        return hub_model(name.removeprefix(HUB), size)
    if name.endswith(MODEL_FILE):
        return model_file(Path(name).expanduser(), size)
    raise ConfigError(
        "FS004", f"unknown feature map '{name}'. {nearest(name, (*NAMES, 'hf:NAME', 'FILE.safetensors'))}"
    )


def at_hand() -> tuple[str, ...]:
    """Of the encoders trained on ImageNet those whose weights are on this machine; none of them is read."""
    from fedsieve.data.features.efficientnet import weights_file
    from fedsieve.data.features.keras_resnet import FILE
    from fedsieve.data.sources.base import cache_folder

    files: dict[str, Callable[[], Path]] = {name: partial(weights_file, name) for name in EFFICIENTNETS}
    files["resnet50"] = lambda: cache_folder() / FILE
    return tuple(name for name, file in files.items() if _is_there(file))


def _is_there(file: Callable[[], Path]) -> bool:
    try:
        return file().is_file()
    except ConfigError:  # the package is not installed
        return False


def is_registered(name: str) -> bool:
    """Whether a name stands for a map that opens no file and loads nothing but what is installed here under it."""
    return name in NAMES or _is_random(name)


def has_weights(name: str) -> bool:
    """Whether a name stands for a map whose numbers depend on weights, which may differ from machine to machine."""
    learnt = is_registered(name) and name not in ("hog", "pixels")
    return learnt or name.startswith(HUB) or name.endswith(MODEL_FILE)


def _is_random(name: str) -> bool:
    kind, _, seed = name.partition(":")
    return kind == RANDOM and (name == RANDOM or (seed.isdecimal() and seed.isascii() and len(seed) < 10))
