"""MOON: model-contrastive federated learning (Li et al. 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cosine_similarity, softplus

from fedsieve.core import Batch, Client, Method, Net, Part, Payload, Projector, Stage


def contrast(z: Tensor, z_global: Tensor, z_previous: Tensor, tau: float) -> Tensor:
    """−log [e^{cos(z, z_g)/τ} / (e^{cos(z, z_g)/τ} + e^{cos(z, z_p)/τ})], one value a sample."""
    towards, away = cosine_similarity(z, z_global), cosine_similarity(z, z_previous)
    return softplus((away - towards) / tau)


@dataclass(frozen=True, kw_only=True)
class ModelContrast(Part):
    """Draws the projection of each sample to the global model's and away from the client's previous model's.

    A client that takes part for the first time has no previous model and no such term.
    """

    mu: Annotated[float, Field(ge=0)] = 5.0
    """Weight of the term: 5 for CIFAR-10 and 1 for CIFAR-100 in the paper."""
    tau: Annotated[float, Field(gt=0)] = 0.5
    """Temperature."""
    keeps = {"previous": ("V",), "stamp": ()}
    heads = ("projector",)
    combined = True

    def start(self, c: Client) -> None:
        for net in c.nets:
            kept = c.keep(self, net)
            if "previous" in kept:
                c.scratch(self)[str(net.index)] = (c.borrow(net.received), c.borrow(kept["previous"]))

    def term(self, c: Client, net: Net, batch: Batch) -> Tensor:
        frozen = c.scratch(self).get(str(net.index))
        if frozen is None:
            return net.grad.new_zeros(())
        with torch.no_grad():
            z_global, z_previous = (other.features(batch) for other in frozen)
        return self.mu * contrast(net.features(batch), z_global, z_previous, self.tau).mean()

    def finish(self, c: Client) -> Payload:
        for net in c.nets:
            kept = c.keep(self, net)
            kept["previous"] = net.vector
            kept["stamp"] = torch.tensor(c.round)
        return {}


def moon(contrast: ModelContrast, projector: Projector) -> Method:
    """MOON; the model gets its two-layer projection head (256 wide) between features and classifier."""
    return Method("moon", (Stage(parts=(contrast,)),), heads=(projector,))
