"""FedMatch with labels at the server (Jeong et al., ICLR 2021): clients that answer alike help each other guess."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedsieve.core import (
    Batch,
    Client,
    Exhibit,
    Method,
    Net,
    Payload,
    Plan,
    Server,
    Stage,
    Ups,
    Weights,
)
from fedsieve.data.augment import augmentation
from fedsieve.methods.fedmatch_loss import disagreement, mean_of_sure, nearest, voted
from fedsieve.methods.fedmatch_psi import NOT_NORM, AdditiveWeights, NonNegative, decomposed
from fedsieve.methods.fedrn_reliability import probe_input
from fedsieve.parts.guesses import is_sure, refuse_readers
from fedsieve.parts.server_fit import ServerFit
from fedsieve.parts.server_labels import Pretraining, ServerLabels


@dataclass(frozen=True, kw_only=True)
class SigmaLabels(ServerLabels):
    """The server's loss, weighted."""

    lambda_s: NonNegative = 10.0
    """λ_s, the weight of the server's loss."""

    def loss(self, c: Client, net: Net, batch: Batch) -> Tensor:
        return self.lambda_s * super().loss(c, net, batch)


@dataclass(frozen=True, kw_only=True)
class InterClient(AdditiveWeights):
    """Clients learn ψ from what they and their helpers, the clients that answer most like them, vote for.

    Helpers are σ + ψ_h, each with its own normalisation layers, and constant.
    """

    threshold: NonNegative = 0.75
    """Probability from which on a sample is followed."""
    helpers: Annotated[int, Field(ge=0)] = 2
    """H, other clients whose ψ a client receives in a round with helpers."""
    interval: Annotated[int, Field(ge=1)] = 10
    """Helpers are sent every so many rounds."""
    lambda_i: NonNegative = 0.01
    """λ_i, the weight of the agreement with helpers."""
    lambda_a: NonNegative = 0.01
    """λ_a, the weight of the voted label on the strong view."""
    weak: str = "none"
    """Augmentation of the view that is voted on."""
    strong: str = "strong"
    """Augmentation of the view that learns from the vote."""
    down = {**AdditiveWeights.down, "helpers": ("<=helpers", "V")}
    remembers = {**AdditiveWeights.remembers, "last": ("K", "V"), "embedding": ("K", "C")}
    guesses = True

    def check(self, plan: Plan) -> None:
        super().check(plan)
        augmentation(self.weak)
        augmentation(self.strong)
        refuse_readers(plan, self)

    # --- server half
    def brief(self, s: Server, client: int) -> Payload:
        due = (s.clock().t + 1) % self.interval == 0
        helping = nearest(dict(s.rows("embedding")), client, self.helpers) if due else []
        sent = [s.rows("last")[k] for k in helping]
        nobody = torch.zeros(0, s.plan.layout.size)
        return {**super().brief(s, client), "helpers": torch.stack(sent) if sent else nobody}

    def learn(self, s: Server, ups: Ups, w: Weights) -> None:
        """The last ψ of each client, and what σ + ψ_k makes of one image of noise."""
        for client, up in ups.items():
            if up.models is not None:
                (whole,) = s.complete(up.models)
                s.rows("embedding")[client] = s.respond((whole,), probe_input(s.plan)).softmax(0)
                whole[: s.plan.layout.trainable] -= s.memory["sigma"]
                s.rows("last")[client] = whole

    def show(self, s: Server) -> Sequence[Exhibit]:
        chosen, last = decomposed(s.plan.layout), dict(s.rows("last"))
        sizes = [float(psi[: len(chosen)][chosen].norm() / s.memory["sigma"].norm()) for psi in last.values()]
        return (Exhibit("clients", "|psi| / |sigma| of a client", torch.tensor(sizes), tuple(last)),) if last else ()

    # --- client half
    def start(self, c: Client) -> None:
        super().start(c)
        (net,), note = c.nets, c.scratch(self)
        sigma, sent = note["sigma"], c.brief(self).tensor("helpers").to(net.device)
        count = len(sigma)
        note["helpers"] = [c.borrow(torch.cat([sigma + each[:count], each[count:]])) for each in sent]

    def loss(self, c: Client, net: Net, batch: Batch) -> Tensor:
        """λ_i (1/H) Σ_h mean KL(p_h ‖ p) + λ_a mean CE(ŷ, p(S(x))), over the rows it is sure of."""
        others: list[Net] = c.scratch(self)["helpers"]
        with torch.no_grad():
            helping = [other.logits(batch, self.weak).softmax(1) for other in others]
        with torch.set_grad_enabled(bool(others)):
            logits = net.logits(batch, self.weak)
        guess, sure = voted([logits.detach().softmax(1), *helping]), is_sure(logits.detach(), self.threshold)
        c.guess(self, batch.rows, guess, sure)
        taught = cross_entropy(net.logits(batch, self.strong), guess, reduction="none")
        agreed = mean_of_sure(disagreement(logits, helping), sure)
        return self.lambda_i * agreed + self.lambda_a * mean_of_sure(taught, sure)


def fedmatch(
    match: InterClient,
    loss: SigmaLabels,
    pretraining: Pretraining,
    server: ServerFit = ServerFit(on="noisy", epochs=5, lr=0.005),
) -> Method:
    """FedMatch, labels at the server: clients weigh the same, the server trains all but normalisation layers."""
    fit = replace(server, parts=(loss,), train=NOT_NORM)
    return Method("fedmatch", pretraining.stages(fit, Stage(parts=(match,), base="equal")))
