"""FedMatch's additive decomposition: W = σ + ψ, of which the server learns σ and clients ψ (Jeong et al. 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedsieve.base.errors import CompositionError
from fedsieve.core import Batch, Client, Layout, Models, Net, Part, Payload, Plan, Server
from fedsieve.methods.fedmatch_loss import penalty_slope

NOT_NORM = ("*", "-@norm")
"""What is decomposed; normalisation layers are ψ's alone."""
NonNegative = Annotated[float, Field(ge=0)]


def decomposed(layout: Layout) -> Tensor:
    """Which trainable numbers are sums of σ and ψ."""
    chosen = torch.zeros(layout.trainable, dtype=torch.bool)
    for part in layout.slices(NOT_NORM, trainable_only=True):
        chosen[part] = True
    return chosen


@dataclass(frozen=True, kw_only=True)
class AdditiveWeights(Part):
    """The model is W = σ + ψ throughout. The server remembers ψ, which its own training leaves as it is; σ is the rest,
    which clients leave as it is. Clients hold ψ small and near to σ."""

    psi: NonNegative = 0.2
    """ψ is so many times σ at the beginning."""
    lambda_1: NonNegative = 1e-5
    """λ₁, the weight of Σ |ψ|."""
    lambda_2: NonNegative = 10.0
    """λ₂, the weight of the squared distance of ψ from `anchor`."""
    anchor: Literal["sigma", "received"] = "sigma"
    """What ψ is held to: σ (authors' code), or ψ as it was received."""
    sparse: NonNegative = 1e-5
    """Entries of the mean ψ up to this size become zero."""
    down = {"psi": ("W",)}
    remembers = {"psi": ("W",), "sigma": ("W",)}
    nets = 1

    def check(self, plan: Plan) -> None:
        if plan.layout.count(plan.share.down) < plan.layout.size or plan.share.down != plan.share.up:
            raise CompositionError(
                "FS114",
                f"{self.name} tells σ from ψ in the whole model, of which a part stays with clients. Leave one out",
            )

    # --- server half
    def recall(self, s: Server) -> dict[str, Tensor]:
        """Of the very first model: what the server learnt since is σ's."""
        whole = s.plan.initial[0][: s.plan.layout.trainable]
        psi = torch.where(decomposed(s.plan.layout), whole * (self.psi / (1.0 + self.psi)), whole)
        return {"psi": psi, "sigma": whole - psi}

    def brief(self, s: Server, client: int) -> Payload:
        return {"psi": s.memory["psi"]}

    def step(self, s: Server, before: Models, after: Models) -> Models:
        """ψ ← mean ψ_k, without its smallest entries."""
        count, whole = s.plan.layout.trainable, after[0]
        sigma = before[0][:count] - s.memory["psi"]
        psi = whole[:count] - sigma
        gone = decomposed(s.plan.layout) & (psi.abs() <= self.sparse)
        s.memory.update(sigma=sigma, psi=psi.masked_fill(gone, 0.0))
        return (torch.cat([torch.where(gone, sigma, whole[:count]), whole[count:]]),)

    # --- client half
    def start(self, c: Client) -> None:
        (net,), chosen = c.nets, decomposed(c.plan.layout)
        psi = c.brief(self).tensor("psi").to(net.device)
        sigma = net.received[: len(psi)] - psi
        anchor = sigma if self.anchor == "sigma" else psi
        c.scratch(self).update(sigma=sigma, anchor=anchor, chosen=chosen.to(net.device))

    def gradient(self, c: Client, net: Net, batch: Batch) -> None:
        note = c.scratch(self)
        slope = penalty_slope(net.weights - note["sigma"], note["anchor"], self.lambda_1, self.lambda_2)
        net.grad.add_(slope * note["chosen"])
