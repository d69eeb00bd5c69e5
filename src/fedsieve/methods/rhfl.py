"""RHFL: no model travels; clients learn from each other's answers to public images (Fang & Ye, CVPR 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedsieve.core import (
    Batch,
    Client,
    Method,
    Part,
    Payload,
    Reads,
    Sent,
    Server,
    Share,
    Stage,
    Uniform,
    Ups,
    Weights,
    at_least_zero,
    mean_loss,
    train_on,
)
from fedsieve.methods.rhfl_confidence import confidence, gain
from fedsieve.parts.credit import column
from fedsieve.parts.losses import SymmetricCrossEntropy, cross_entropy


@dataclass(frozen=True, kw_only=True)
class AlignLogits(Part):
    """Before it trains, each client draws its outputs on the public images towards those of the others.

    All steps of a round follow what the others said at the end of the round before: a round is one message. The loss
    that confidence is built on is the stage's own, on the client's labels, in evaluation mode, without augmentation.
    """

    pretrain: Annotated[int, Field(ge=1)] | None = None
    """Epochs of the first round, in which clients learn alone; the experiment's `epochs` if not given (paper: 40)."""
    eta: Annotated[float, Field(ge=0)] = 0.5
    """How much a client's gain counts in the confidence that the others have in it; 0 makes all equal."""
    drop: Literal["absolute", "relative"] = "absolute"
    """A client's gain is the drop of its loss over its loss; `relative` divides the drop by the former loss too."""
    guard: bool = True
    """Take losses that rose as no gain; without it (authors' code) confidence can fall to one client, or turn round."""
    fresh: bool = False
    """A new optimiser for every public batch, so that its moments never build up (authors' code)."""

    down = {"logits": ("<=K", "P", "C"), "trust": ("<=K",)}
    up = {"logits": Sent(("P", "C")), "loss": at_least_zero()}
    remembers = {"logits": ("<=K", "P", "C"), "whose": ("<=K",)}
    reads = Reads.PUBLIC
    writes = frozenset({"loss", "gain", "confidence"})
    verdict = "confidence"
    labels = True
    nets = 1

    # --- server half
    def brief(self, s: Server, client: int) -> Payload:
        """What all said, in one tensor for all, and how far this client is to follow each: not at all itself."""
        whose = s.memory.get("whose")
        if whose is None:
            return {"logits": torch.zeros(0, s.plan.public_rows, s.plan.n_classes), "trust": torch.zeros(0)}
        trust, peers = s.columns["confidence"], {*s.members()} - {client}
        weights = [float(trust[k]) if k in peers else 0.0 for k in whose.tolist()]
        return {"logits": s.memory["logits"], "trust": torch.tensor(weights)}

    def learn(self, s: Server, ups: Ups, w: Weights) -> None:
        notes, here = s.notes(ups), {*s.members()}
        known = {k: row for k, row in self.last_said(s).items() if k in here}
        known |= {k: note.tensor("logits") for k, note in notes.items()}
        if not known:
            return
        whose = sorted(known)
        s.memory["whose"] = torch.tensor(whose)
        s.memory["logits"] = torch.stack([known[k] for k in whose])
        before, now = column(s, "loss"), column(s, "loss").clone()
        for client, note in notes.items():
            now[client] = note.number("loss")
        gains = gain(before, now, self.drop)
        s.columns.write("loss", {k: float(now[k]) for k in notes})
        s.columns.write("gain", {k: float(gains[k]) for k in notes})
        s.columns.write("confidence", dict(zip(whose, self.confidences(s, whose).tolist(), strict=True)))

    def last_said(self, s: Server) -> dict[int, Tensor]:
        """What each client last said."""
        whose = s.memory.get("whose")
        return {} if whose is None else dict(zip(whose.tolist(), s.memory["logits"], strict=True))

    def confidences(self, s: Server, clients: list[int]) -> Tensor:
        """W of these clients; 1 / (N − 1) for each as long as nobody has a gain to show."""
        gains = s.columns["gain"][clients]
        if bool(gains.isnan().all()):
            return torch.full_like(gains, 1.0 / max(len(clients) - 1, 1))
        return confidence(gains, self.eta, guard=self.guard)

    # --- client half
    def start(self, c: Client) -> None:
        """One pass over the public images: argmin Σ_j W_j KL(p_j ‖ p_i)."""
        brief, (net,), public = c.brief(self), c.nets, c.public
        trust = brief.tensor("trust")
        if not bool((trust > 0).any()):
            return
        # Cross entropy with Σ_j W_j p_j differs from Σ_j W_j KL(p_j ‖ p_i) by the p_j's entropies alone.
        target = torch.einsum("j,jpc->pc", trust, brief.tensor("logits").softmax(2)).to(net.device)

        def distance(rows: Tensor) -> Tensor:
            return cross_entropy(net.logits(Batch(rows, public.view), "clean"), target[rows])

        train_on(c, net, torch.arange(len(public)), distance, c.rng(self, "order"), fresh=self.fresh)

    def finish(self, c: Client) -> Payload:
        (net,) = c.nets
        return {"logits": c.logits(net, samples=c.public), "loss": mean_loss(c, net)}


def rhfl(loss: SymmetricCrossEntropy, align: AlignLogits) -> Method:
    """Each client learns alone for a round, then all align their outputs on public images before each round."""
    alone = Stage("local", rounds=1, epochs=align.pretrain, parts=(loss, align), sampler=Uniform(fraction=1.0))
    together = Stage(parts=(loss, align))
    return Method("rhfl", (alone, together), share=Share(down=(), up=(), keep=("*",)), test="clients")
