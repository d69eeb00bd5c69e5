"""What a client of its own last training goes on with: rules that mix it with the model it receives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedsieve.core import Client, Net, Part, Payload, Plan
from fedsieve.parts.two_views import PREDICTOR


def encoder_kernels(plan: Plan) -> list[slice]:
    """Where the kernels of the convolutions lie, without heads; the matrices of a model that has no convolution."""
    heads = {"head", *plan.method.head_names()}
    entries = [e for e in plan.layout.entries if e.trainable and e.name.split(".")[0] not in heads]
    chosen = [e for e in entries if len(e.shape) == 4] or [e for e in entries if len(e.shape) == 2]
    return [slice(entry.start, entry.stop) for entry in chosen]


def divergence(one: Tensor, other: Tensor, kernels: list[slice]) -> float:
    """d = the mean over the layers of ‖W − W′‖₂."""
    return float(torch.stack([(one[part] - other[part]).double().norm() for part in kernels]).mean())


@dataclass(frozen=True, kw_only=True)
class Previous(Part):
    """What a client last trained is kept, and decides with the model received where its next training starts.

    A client that takes part for the first time starts from the model received. Running statistics always are those
    received.
    """

    measure: Literal["received", "drift"] = "received"
    """How far apart models are: the client's last model and the one received (the paper), or the start and the end of
    its last training (the authors' code)."""
    keeps = {"online": ("V",), "drift": ()}

    def start(self, c: Client) -> None:
        kernels = encoder_kernels(c.plan)
        for net in c.nets:
            kept = c.keep(self, net)
            if "online" in kept:
                own = kept["online"].to(net.device)
                apart = float(kept["drift"]) if self.measure == "drift" else divergence(net.received, own, kernels)
                self.mix(c, net, own, apart)

    def mix(self, c: Client, net: Net, own: Tensor, apart: float) -> None:
        """Bring the net to where its training starts; `own` is the client's last model."""

    def finish(self, c: Client) -> Payload:
        kernels = encoder_kernels(c.plan)
        for net in c.nets:
            kept = c.keep(self, net)
            kept["online"] = net.vector.clone()
            kept["drift"] = torch.tensor(divergence(net.begun, net.vector, kernels))
        return {}


@dataclass(frozen=True, kw_only=True)
class OwnPredictor(Previous):
    """FedU's rule: a client far from the global model keeps its own predictor (Zhuang et al. 2021)."""

    threshold: Annotated[float, Field(ge=0)] = 0.4
    """From this divergence on the client's own predictor is taken."""
    heads = (PREDICTOR,)

    def mix(self, c: Client, net: Net, own: Tensor, apart: float) -> None:
        if apart >= self.threshold:
            for part in c.plan.layout.slices((PREDICTOR,), trainable_only=True):
                net.vector[part] = own[part]


@dataclass(frozen=True, kw_only=True)
class OwnShare(Previous):
    """FedEMA's rule: θ ← μ θ_k + (1 − μ) θ with μ = min(1, λ_k d_k), λ_k = τ / d_k at the first measurement
    (Zhuang et al. 2022). The further a client is from the global model, the more it keeps of its own."""

    share: Annotated[float, Field(ge=0, le=1)] = 0.7
    """τ, the share μ of a client's own model when it is first measured."""
    selective: bool = False
    """Whether only a client that took part in the round before keeps a share; others start from the global model."""
    keeps = {**Previous.keeps, "scale": (), "stamp": ()}

    def mix(self, c: Client, net: Net, own: Tensor, apart: float) -> None:
        kept = c.keep(self, net)
        if apart == 0 or (self.selective and int(kept["stamp"]) != c.round - 1):
            return
        if "scale" not in kept:
            kept["scale"] = torch.tensor(self.share / apart, dtype=torch.float64)
        mu = min(1.0, float(kept["scale"]) * apart)
        net.weights.lerp_(own[: len(net.weights)], mu)

    def finish(self, c: Client) -> Payload:
        for net in c.nets:
            c.keep(self, net)["stamp"] = torch.tensor(c.round)
        return super().finish(c)
