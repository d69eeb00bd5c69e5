"""FOCUS: clients count by their credibility, which both halves measure (Chen et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedsieve.core import Client, Method, Part, Payload, Reads, Server, Stage, Ups, Weights, at_least_zero
from fedsieve.parts.credit import scores_on_clean
from fedsieve.parts.losses import cross_entropy


def credibility(errors: Tensor, alpha: float) -> Tensor:
    """C_k = 1 − softmax_k(α E); an error that is not finite earns nothing, and a client that is alone is believed."""
    sane = errors.isfinite()
    if int(sane.sum()) < 2:
        return sane.double() if bool(sane.any()) else torch.ones(len(errors), dtype=torch.float64)
    trust = torch.zeros(len(errors), dtype=torch.float64)
    trust[sane] = 1.0 - (alpha * errors[sane].double()).softmax(0)
    return trust


@dataclass(frozen=True, kw_only=True)
class Credibility(Part):
    """Scales weights by 1 − softmax(α E), E_k = loss of k's new model here + loss of the global model on k's data."""

    alpha: Annotated[float, Field(ge=0)] = 1.0
    """Temperature: how much a larger error costs; 0 makes all clients equally credible."""

    up = {"local_loss": at_least_zero()}
    assesses = Reads.CLEAN
    labels = True
    writes = frozenset({"credibility"})
    verdict = "credibility"

    # --- client half
    def start(self, c: Client) -> None:
        """LL_k, taken before training: of the model as it came from the server."""
        rows = c.labels.labelled_rows()
        if not len(rows):
            c.skip("no labelled sample")
        logits = torch.stack([c.logits(net, rows).double() for net in c.nets]).mean(0)
        c.scratch(self)["local_loss"] = float(cross_entropy(logits, c.labels.target[rows]).mean())

    def finish(self, c: Client) -> Payload:
        return {"local_loss": c.scratch(self)["local_loss"]}

    # --- server half
    def weigh(self, s: Server, ups: Ups, w: Weights) -> Weights:
        notes = s.notes(ups)
        errors = [
            score.loss + notes[client].number("local_loss")  # E_k = LS_k + LL_k
            for client, score in scores_on_clean(s, ups).items()
        ]
        trust = dict(zip(ups, credibility(torch.tensor(errors, dtype=torch.float64), self.alpha).tolist(), strict=True))
        if len(trust) > 1:
            s.columns.write("credibility", trust)
        return {client: w[client] * trust[client] for client in ups}


def focus(credibility: Credibility) -> Method:
    """FOCUS: FedAvg weighted by size times credibility."""
    return Method("focus", (Stage(parts=(credibility,)),))
