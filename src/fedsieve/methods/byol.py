"""BYOL (Grill et al. 2020) over clients: plain, as FedU (Zhuang et al. 2021) and as FedEMA (Zhuang et al. 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from fedsieve.core import Batch, Client, Head, Method, Net, Payload, Stage
from fedsieve.parts.previous import OwnPredictor, OwnShare
from fedsieve.parts.server_fit import ServerFit
from fedsieve.parts.two_views import AT_SERVER, PREDICTOR, PROJECTION, Learners, OwnTarget, Perceptron

PROJECTOR = Perceptron(times=8, widen=4)
PREDICTOR_SIZE = Perceptron(times=2)
"""With the 512 features of a ResNet-18, as in the papers: 4096 hidden and 2048 out, both."""


def regression(predicted: Tensor, target: Tensor) -> Tensor:
    """2 − 2 cos(q, z), one value a row; no gradient reaches the target."""
    return 2.0 - 2.0 * cosine_similarity(predicted, target.detach(), dim=1)


@dataclass(frozen=True, kw_only=True)
class Bootstrap(OwnTarget):
    """Predicts from one view of an image what a slowly following target net makes of the other.

    It reads no labels. No negative pairs hold features apart: where they collapse, `feature_spread` shows it.
    """

    symmetric: bool = True
    """Whether each view is predicted from the other, or only the second from the first."""
    target_from: Literal["own", "received"] = "own"
    """Where the target begins a round: as the client's own was at the end of its last, or as the model received."""
    heads = (PROJECTION, PREDICTOR)

    def first_target(self, c: Client, net: Net) -> Tensor:
        return super().first_target(c, net) if self.target_from == "own" else net.received

    def loss(self, c: Client, net: Net, batch: Batch) -> Tensor:
        first, second = self.views
        loss = self._towards(c, net, batch, first, second)
        return loss + self._towards(c, net, batch, second, first) if self.symmetric else loss

    def _towards(self, c: Client, net: Net, batch: Batch, seen: str, other: str) -> Tensor:
        with torch.no_grad():
            target = self.target(c, net).head(PROJECTION, batch, other)
        return regression(net.head(PREDICTOR, batch, seen), target)

    def finish(self, c: Client) -> Payload:
        return super().finish(c) if self.target_from == "own" else {}


def _heads(projector: Perceptron, predictor: Perceptron) -> tuple[Head, Head]:
    return projector.head(PROJECTION), predictor.head(PREDICTOR, base=PROJECTION)


def byol(
    bootstrap: Bootstrap,
    learners: Learners,
    projector: Perceptron = PROJECTOR,
    predictor: Perceptron = PREDICTOR_SIZE,
    server: ServerFit = AT_SERVER,
) -> Method:
    """BYOL: clients start from the global net and predictor and keep their target; or the server learns alone."""
    stage = learners.stage(bootstrap, server)
    return Method("byol", (stage,), heads=_heads(projector, predictor), test="probe")


def fedu(
    bootstrap: Bootstrap,
    own: OwnPredictor,
    projector: Perceptron = PROJECTOR,
    predictor: Perceptron = PREDICTOR_SIZE,
) -> Method:
    """FedU: BYOL whose clients keep their own predictor while they are far from the global model."""
    stage = Stage(parts=(own, bootstrap))
    return Method("fedu", (stage,), heads=_heads(projector, predictor), test="probe")


def fedema(
    bootstrap: Bootstrap,
    own: OwnShare,
    projector: Perceptron = PROJECTOR,
    predictor: Perceptron = PREDICTOR_SIZE,
) -> Method:
    """FedEMA: BYOL whose clients start between the global model and their own, by how far these are apart."""
    stage = Stage(parts=(own, bootstrap))
    return Method("fedema", (stage,), heads=_heads(projector, predictor), test="probe")
