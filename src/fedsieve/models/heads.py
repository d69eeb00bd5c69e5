"""Heads that a method asks for, put between a model's features and its classifier."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from fedsieve.base.errors import CompositionError, nearest
from fedsieve.models.base import Classifier


class Projected(Classifier):
    """MOON's projection head: the features are the projection, and the classifier stands on it."""

    def __init__(self, encoder: Classifier, dim: int = 256) -> None:
        super().__init__()
        width, classes = encoder.head.in_features, encoder.head.out_features
        del encoder.head  # its parameters would travel and never learn
        self.encoder = encoder
        self.projector = nn.Sequential(nn.Linear(width, width), nn.ReLU(inplace=True), nn.Linear(width, dim))
        self.head = nn.Linear(dim, classes)

    def features(self, x: Tensor) -> Tensor:
        projection: Tensor = self.projector(self.encoder.features(x))
        return projection


HEADS: dict[str, Callable[[Classifier], Classifier]] = {"projector": Projected}


def with_head(model: Classifier, name: str) -> Classifier:
    """The model with a head put in; the model handed over is taken apart for it."""
    if name not in HEADS:
        raise CompositionError("FS116", f"unknown head '{name}'. {nearest(name, HEADS)}")
    return HEADS[name](model)
