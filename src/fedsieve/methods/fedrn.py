"""FedRN: reliable neighbours' models help each client pick its clean samples (Kim et al., CIKM 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cosine_similarity

from fedsieve.base.rng import torch_rng
from fedsieve.core import (
    Client,
    Declared,
    Exhibit,
    Labels,
    Method,
    Net,
    Part,
    Payload,
    Plan,
    Sent,
    Server,
    Stage,
    Ups,
    Weights,
    probabilities,
    proportion,
)
from fedsieve.parts.losses import cross_entropy
from fedsieve.parts.selection import clean_probability, min_max, warming


@dataclass(frozen=True, kw_only=True)
class ReliableNeighbours(Part):
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
    guard: bool = False
    """Keep everything where the losses form one hump and the model predicts most of the labels; off in the paper."""
    tol: Annotated[float, Field(gt=0)] = 1e-2
    """The mixture is fitted until its mean log-likelihood rises by less (authors' code)."""
    max_iter: Annotated[int, Field(ge=1)] = 100
    """Iterations of that fit at most (authors' code)."""
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
        if warming(*s.clock(), self.warmup) or not known:
            return {"models": torch.empty(0, s.plan.sizes["U"]), "trust": torch.ones(0)}
        reliability = self.reliability(s, client, known)
        if self.neighbours == "random":
            order = torch.randperm(len(known), generator=s.rng("neighbours", client))
        else:
            order = reliability[1:].argsort(descending=True, stable=True)
        chosen = order[: self.k]
        models = [s.rows("last")[known[i]] for i in chosen.tolist()]
        trust = torch.cat([reliability[:1], reliability[1:][chosen]])
        return {"models": torch.stack(models) if models else torch.empty(0, s.plan.sizes["U"]), "trust": trust.float()}

    def reliability(self, s: Server, client: int, known: list[int]) -> Tensor:
        """R(c, n) = α Exp(n) + (1 − α) Sim(c, n) (Eq. 3) of the client itself and then of the known ones."""
        accuracy = s.columns["accuracy"]
        others = accuracy[known]
        own = others.mean() if accuracy[client].isnan() else accuracy[client]
        expertise = min_max(torch.cat([own[None], others]))  # Eq. 4
        outputs = torch.stack([s.rows("probe")[n] for n in known]).double()
        mine = s.rows("probe").get(client)
        mine = self.global_probe(s) if mine is None else mine
        similarity = cosine_similarity(mine.double()[None], outputs)  # Eq. 5
        similarity = min_max(torch.cat([torch.ones(1, dtype=torch.float64), similarity]))  # Sim(c, c) = 1
        return self.alpha * expertise + (1 - self.alpha) * similarity

    def global_probe(self, s: Server) -> Tensor:
        """What the global model makes of the probe, for a client that never answered."""
        return self.compared(s.respond(s.models, self.probe_input(s.plan)))

    def learn(self, s: Server, ups: Ups, w: Weights) -> None:
        reported = {k: up for k, up in ups.items() if up.models is not None}
        for client, up in reported.items():
            assert up.models is not None
            probe = up.notes[self.name]["probe"]
            assert isinstance(probe, Tensor)
            s.rows("last")[client] = up.models[0]
            s.rows("probe")[client] = probe
        s.columns.write("accuracy", {k: float(up.notes[self.name]["accuracy"]) for k, up in reported.items()})

    def show(self, s: Server) -> list[Exhibit]:
        """The two indicators: what the paper's Figures 4 and 5 show."""
        known = tuple(sorted(s.rows("probe")))
        if not known:
            return []
        outputs = torch.stack([s.rows("probe")[k] for k in known]).double()
        similarity = cosine_similarity(outputs[:, None], outputs[None], dim=2)  # Eq. 5, before scaling
        return [
            Exhibit("clients", "training accuracy of a client", s.columns["accuracy"][list(known)], known),
            Exhibit("pairs", "similarity of two clients' answers to the probe", similarity, known),
        ]

    # --- client half
    def relabel(self, c: Client, net: Net, labels: Labels) -> Labels:
        """Keep the samples that the k + 1 models together find clean."""
        if warming(*c.clock(self), self.warmup):
            return labels
        brief = c.brief(self)
        models, trust = brief["models"], brief["trust"]
        assert isinstance(models, Tensor)
        assert isinstance(trust, Tensor)
        kept = c.keep(self).get("logits") if self.scorer == "local" else None
        own = c.outputs(net).logits if kept is None else kept
        votes = [self.clean(own, labels.target)]  # Eq. 6
        auxiliary = (votes[0] > 0.5).nonzero().flatten()  # Eq. 9
        for number, model in enumerate(models):
            lent = c.borrow(c.completed(net, model))
            logits = self.adapted(c, lent, labels, auxiliary, number)
            votes.append(self.clean(logits, labels.target))
        share = trust if float(trust.sum()) > 0 else torch.ones(len(votes))
        clean = (share / share.sum()) @ torch.stack(votes) if len(share) == len(votes) else votes[0]  # Eq. 7
        chosen = clean > 0.5  # Eq. 8
        return labels.only(chosen if bool(chosen.any()) else torch.ones_like(chosen), score=clean)

    def clean(self, logits: Tensor, target: Tensor) -> Tensor:
        return clean_probability(logits, target, guard=self.guard, tol=self.tol, max_iter=self.max_iter)

    def adapted(self, c: Client, lent: Net, labels: Labels, auxiliary: Tensor, number: int) -> Tensor:
        """A neighbour's logits after one epoch of its head alone on the auxiliary set; features are computed once."""
        out = c.outputs(lent)
        if not self.finetune or not len(auxiliary):
            return out.logits
        head = lent.module.head
        assert isinstance(head, torch.nn.Linear)
        optimizer = torch.optim.SGD(head.parameters(), c.lr, momentum=c.fit.momentum)
        order = auxiliary[torch.randperm(len(auxiliary), generator=c.rng(self, "head", number))]
        features, target = out.features.detach(), labels.target.to(lent.device)
        with torch.enable_grad():
            for rows in torch.split(order, c.fit.batch):
                lent.grad.zero_()
                cross_entropy(head(features[rows]), target[rows]).mean().backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        with torch.no_grad():
            logits: Tensor = head(features)
        return logits

    def finish(self, c: Client) -> Payload:
        """Training accuracy on all of the client's labels as they stand, and the answer to the probe."""
        net = c.nets[0]
        logits = c.outputs(net).logits.cpu()
        c.keep(self)["logits"] = logits
        known = c.labels.given >= 0
        right = logits[known].argmax(1) == c.labels.target[known].argmax(1)
        probe = net.respond(self.probe_input(c.plan))
        return {"accuracy": float(right.float().mean()) if len(right) else 0.0, "probe": self.compared(probe)}

    def compared(self, logits: Tensor) -> Tensor:
        return logits.softmax(0) if self.similarity == "softmax" else logits

    @staticmethod
    def probe_input(plan: Plan) -> Tensor:
        """The one Gaussian input that all clients answer, drawn from the experiment's seed instead of being sent."""
        return torch.randn(1, *plan.sample_shape, generator=torch_rng(plan.seed, "probe"))


def fedrn(neighbours: ReliableNeighbours) -> Method:
    """FedRN: FedAvg on the samples that the client and its k reliable neighbours find clean."""
    return Method("fedrn", (Stage(parts=(neighbours,)),))
