"""FedRN: reliable neighbours' models help each client pick its clean samples (Kim et al., CIKM 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedsieve.core import (
    Client,
    Declared,
    Exhibit,
    Labels,
    Method,
    Net,
    Payload,
    Sent,
    Server,
    Stage,
    Ups,
    Weights,
    probabilities,
    proportion,
)
from fedsieve.methods.fedrn_reliability import indicators, probe_input, reliability
from fedsieve.parts.head_tuning import tune_head
from fedsieve.parts.selection import LossMixture, in_warmup


@dataclass(frozen=True, kw_only=True)
class ReliableNeighbours(LossMixture):
    """Clients with expertise and with similar data lend their last models; k + 1 mixtures vote on every sample.

    Where the paper is silent: losses and training accuracy are taken without augmentation and in evaluation mode; a
    client that never trained is nobody's neighbour, and is itself stood in for by the global model and the mean
    accuracy; equal scores are scaled to 0; a client whose samples all look wrong trains on all of them.
    """

    k: Annotated[int, Field(ge=0)] = 2
    """Neighbours whose models a client receives."""
    alpha: Annotated[float, Field(ge=0, le=1)] = 0.6
    """Weight of expertise against similarity in the reliability."""
    warmup: Annotated[int, Field(ge=0)] | None = None
    """Rounds of plain FedAvg at the start; a fifth of the rounds if not given."""
    scorer: Literal["local", "global"] = "local"
    """The target client's own model: its last local one (as the authors' code has it), or the global one."""
    similarity: Literal["softmax", "logits"] = "softmax"
    """Outputs on the probe that are compared: softmax (paper) or logits (authors' code)."""
    neighbours: Literal["reliable", "random"] = "reliable"
    """Who helps: the most reliable clients, or random ones (the paper's ablation)."""
    finetune: bool = True
    """Fine-tune the neighbours' heads on the samples that the client alone finds clean."""

    down = {"models": ("<=k", "U"), "trust": ("<=scorers",)}
    up = {"accuracy": proportion(), "probe": probabilities("C")}
    keeps = {"logits": ("n", "C")}
    remembers = {"last": ("K", "U"), "probe": ("K", "C")}
    writes = frozenset({"accuracy"})
    verdict = "accuracy"
    combined = True
    labels = True
    nets = 1

    def sends(self) -> Declared:
        """Logits are no probabilities."""
        return self.up if self.similarity == "softmax" else {**self.up, "probe": Sent(("C",))}

    @property
    def scorers(self) -> int:
        return self.k + 1

    # --- server half
    def brief(self, s: Server, client: int) -> Payload:
        """The k most reliable neighbours (Eq. 3) and how far each scorer is trusted, the client itself first."""
        known = [n for n in s.members() if n != client and n in s.rows("last")]
        if in_warmup(*s.clock(), self.warmup) or not known:
            return {"models": torch.empty(0, s.plan.sizes["U"]), "trust": torch.ones(0)}
        trust = self.reliability(s, client, known)
        if self.neighbours == "random":
            order = torch.randperm(len(known), generator=s.rng("neighbours", client))
        else:
            order = trust[1:].argsort(descending=True, stable=True)
        chosen = order[: self.k]
        models = torch.cat([torch.empty(0, s.plan.sizes["U"]), *(s.rows("last")[known[i]][None] for i in chosen)])
        return {"models": models, "trust": torch.cat([trust[:1], trust[1:][chosen]]).float()}

    def reliability(self, s: Server, client: int, known: list[int]) -> Tensor:
        """Of the client, stood in for by the global model if it never answered, and of the known ones."""
        accuracy, probes = s.columns["accuracy"], s.rows("probe")
        own = accuracy[known].mean() if accuracy[client].isnan() else accuracy[client]
        mine = probes[client] if client in probes else self.probe(s.respond(s.models, probe_input(s.plan)))
        outputs = torch.stack([mine, *(probes[n] for n in known)])
        return reliability(torch.cat([own[None], accuracy[known]]), outputs.double(), self.alpha)

    def learn(self, s: Server, ups: Ups, w: Weights) -> None:
        notes = s.notes(ups)
        s.rows("last").update({k: up.models[0] for k, up in ups.items() if up.models is not None})
        s.rows("probe").update({k: note.tensor("probe") for k, note in notes.items()})
        s.columns.write("accuracy", {k: note.number("accuracy") for k, note in notes.items()})

    def show(self, s: Server) -> list[Exhibit]:
        return indicators(s.columns["accuracy"], s.rows("probe")) if s.rows("probe") else []

    # --- client half
    def relabel(self, c: Client, net: Net, labels: Labels) -> Labels:
        """Keep the samples that the k + 1 models together find clean."""
        if in_warmup(*c.clock(self), self.warmup):
            return labels
        brief = c.brief(self)
        models, trust = brief.tensor("models"), brief.tensor("trust")
        kept = c.keep(self).get("logits") if self.scorer == "local" else None
        votes = [self.clean_probability(c.logits(net) if kept is None else kept, labels.target)]  # Eq. 6
        auxiliary = (votes[0] > 0.5).nonzero().flatten()  # Eq. 9
        for number, model in enumerate(models):
            lent = c.borrow(c.complete(net, model, "up"))
            votes.append(self.clean_probability(self.adapt(c, lent, labels, auxiliary, number), labels.target))
        share = trust if float(trust.sum()) > 0 else torch.ones(len(votes))
        clean = (share / share.sum()) @ torch.stack(votes) if len(share) == len(votes) else votes[0]  # Eq. 7
        chosen = clean > 0.5  # Eq. 8
        return labels.only(chosen if bool(chosen.any()) else torch.ones_like(chosen), score=clean)

    def adapt(self, c: Client, lent: Net, labels: Labels, auxiliary: Tensor, number: int) -> Tensor:
        """A neighbour's logits after one epoch of its head alone on the auxiliary set."""
        if not self.finetune or not len(auxiliary):
            return c.logits(lent)
        return tune_head(c, lent, auxiliary, labels.target, c.rng(self, "head", number))

    def finish(self, c: Client) -> Payload:
        """Training accuracy on all of the client's labels as they stand, and the answer to the probe."""
        logits = c.logits(c.nets[0])
        c.keep(self)["logits"] = logits
        known = c.labels.given >= 0
        right = logits[known].argmax(1) == c.labels.target[known].argmax(1)
        answer = c.nets[0].respond(probe_input(c.plan))
        return {"accuracy": float(right.float().mean()) if len(right) else 0.0, "probe": self.probe(answer)}

    def probe(self, logits: Tensor) -> Tensor:
        """What is compared of an answer to the probe."""
        return logits.softmax(0) if self.similarity == "softmax" else logits


def fedrn(neighbours: ReliableNeighbours) -> Method:
    """FedRN: FedAvg on the samples that the client and its k reliable neighbours find clean."""
    return Method("fedrn", (Stage(parts=(neighbours,)),))
