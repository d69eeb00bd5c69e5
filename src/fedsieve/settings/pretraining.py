"""Settings of runs that learn an encoder without labels, where they differ from those of other runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsieve.settings.config import flatten

ENCODERS = ("simclr", "byol", "fedu", "fedema")
"""Methods that learn encoders."""
PRETRAINING: Mapping[str, Any] = {
    "method": "simclr",
    "model": "resnet10",
    "model.width": 16,
    "model.stem": "half",
    "optimizer": "adam",
    "lr": 0.001,
    "batch": 256,
    "epochs": 1,
    "client_labels": False,
}
"""A net that a processor can train, and steps that suit it. Labels are taken away, so that nothing can read them."""


def for_pretraining(settings: Mapping[str, Any]) -> dict[str, Any]:
    """These settings, and those of pre-training where they say nothing; options go with the model they are for."""
    given = dict(flatten(settings))
    own_model = "model" in given
    return {key: value for key, value in PRETRAINING.items() if not (own_model and key.startswith("model."))} | given
