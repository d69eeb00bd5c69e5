"""A net that never learnt anything as a feature map: the control that an encoder must beat."""

from __future__ import annotations

import torch

from fedsieve.base.rng import stream
from fedsieve.data.features.encoders import Encoder
from fedsieve.models import build_model


def random_net(name: str, size: int | None = None) -> Encoder:
    """512 features by `random` or `random:SEED`: ResNet-10 as it is drawn, on images as they are or of `size`."""
    seed = int(name.partition(":")[2] or 0)
    with torch.random.fork_rng(devices=[]):
        torch.random.manual_seed(stream(seed, "random encoder"))
        net = build_model("resnet10", (3, 32, 32), 2, options={"stem": "cifar"})
    side = (size, size) if size else None
    return Encoder(net.get_submodule("body"), (0.5,) * 3, (0.25,) * 3, size=side, name=name)
