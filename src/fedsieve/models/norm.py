"""The normalisation of a model's layers, chosen by the key `norm`.

`average` and `local` are the same layer: they differ in what travels, which is the round loop's business.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from fedsieve.base.errors import ConfigError, nearest

NormLayer = Callable[[int], nn.Module]

NORM_TYPES: tuple[type[nn.Module], ...] = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.GroupNorm,
    nn.LayerNorm,
)
"""The layers that `norm=local` keeps at home, in own models too."""


def _batch_statistics(channels: int) -> nn.Module:
    return nn.BatchNorm2d(channels, track_running_stats=False)


def _group(channels: int) -> nn.Module:
    """Up to 32 groups, of two channels at least: a group of one channel on a 1 x 1 map is always zero."""
    return nn.GroupNorm(min(math.gcd(32, channels), max(1, channels // 2)), channels)


NORMS: dict[str, NormLayer] = {
    "average": nn.BatchNorm2d,
    "local": nn.BatchNorm2d,
    "batch": _batch_statistics,
    "group": _group,
}


def norm_layer(policy: str) -> NormLayer:
    """The layer of a policy, to be called with the number of channels."""
    if policy not in NORMS:
        raise ConfigError("FS004", f"unknown norm '{policy}'. {nearest(policy, NORMS)}")
    return NORMS[policy]


def normalises_batches(model: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether a batch of one sample of this shape is too small for a layer, be it one that only a method calls."""
    if any(isinstance(layer, nn.BatchNorm1d) for layer in model.modules()):
        return True
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            model.train()(torch.zeros(1, *shape))
        except ValueError:  # PyTorch's word for one value a channel
            return True
    return False
