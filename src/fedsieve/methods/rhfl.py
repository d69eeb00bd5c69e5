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
    Net,
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
)
from fedsieve.core.local_training import Stepper
from fedsieve.data.samples import EVALUATION_BATCH
from fedsieve.parts.credit import column
from fedsieve.parts.losses import SymmetricCrossEntropy, cross_entropy

TINY = 1e-12
MOST_GAIN = 1e6
"""A client that reports a loss of nothing would gain without end."""


def gain(before: Tensor, now: Tensor, drop: Literal["absolute", "relative"]) -> Tensor:
    """F_k: label quality, 1 / ℓ_t, times learning efficiency, the drop of the loss; NaN where a loss is not known."""
    efficiency = before - now
    if drop == "relative":
        efficiency = efficiency / before.clamp_min(TINY)
    return (efficiency / now.clamp_min(TINY)).clamp(-MOST_GAIN, MOST_GAIN)


def confidence(gains: Tensor, eta: float, *, guard: bool) -> Tensor:
    """W = softmax(1 / (N − 1) + η F / Σ F), NaN counting as no gain; the first summand cancels in the softmax.

    Losses rise as well as fall, so Σ F may be nearly 0, which makes the shares explode, or negative, which turns their
    order round. The guard takes losses that rose as no gain.
    """
    known = gains.nan_to_num(nan=0.0)
    if guard:
        known = known.clamp_min(0.0)
    total = known.sum()
    shares = known / total if abs(float(total)) > (TINY if guard else 0.0) else torch.zeros_like(known)
    return (eta * shares).softmax(0)


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
        notes = {k: up.notes[self.name] for k, up in ups.items() if self.name in up.notes}
        here = {*s.members()}
        known = {k: row for k, row in self.remembered(s).items() if k in here}
        for client, note in notes.items():
            assert isinstance(note["logits"], Tensor)
            known[client] = note["logits"]
        if not known:
            return
        whose = sorted(known)
        s.memory["whose"] = torch.tensor(whose)
        s.memory["logits"] = torch.stack([known[k] for k in whose])
        before, now = column(s, "loss"), column(s, "loss").clone()
        for client, note in notes.items():
            now[client] = float(note["loss"])
        gains = gain(before, now, self.drop)
        s.columns.write("loss", {k: float(now[k]) for k in notes})
        s.columns.write("gain", {k: float(gains[k]) for k in notes})
        s.columns.write("confidence", dict(zip(whose, self.confidences(s, whose).tolist(), strict=True)))

    def remembered(self, s: Server) -> dict[int, Tensor]:
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
        brief, (net,) = c.brief(self), c.nets
        logits, trust = brief["logits"], brief["trust"]
        assert isinstance(logits, Tensor)
        assert isinstance(trust, Tensor)
        assert c.public is not None
        if not bool((trust > 0).any()):
            return
        # Cross entropy with Σ_j W_j p_j differs from Σ_j W_j KL(p_j ‖ p_i) by the p_j's entropies alone.
        target = torch.einsum("j,jpc->pc", trust, logits.softmax(2)).to(net.device)
        net.module.train()
        step = self.stepper(c)
        order = torch.randperm(len(c.public), generator=c.rng(self, "order"))
        for rows in torch.split(order, c.fit.batch):
            with step.autocast():
                loss = cross_entropy(net.logits(Batch(rows, c.public.view), "clean"), target[rows]).mean()
            step.zero_grad(c.nets)
            loss.backward()  # type: ignore[no-untyped-call]
            net.forget()
            step(c.nets)
            if self.fresh:
                step = self.stepper(c)

    @staticmethod
    def stepper(c: Client) -> Stepper:
        return Stepper(c.nets, c.fit, c.lr, c.plan.share.train)

    def finish(self, c: Client) -> Payload:
        (net,) = c.nets
        return {"logits": c.outputs(net, samples=c.public).logits.float().cpu(), "loss": own_loss(c, net)}


@torch.no_grad()
def own_loss(c: Client, net: Net) -> float:
    """The mean of the stage's loss over the rows the client trains on, as they are and in evaluation mode."""
    (part,) = c.plan.hooks[c.stage].loss
    rows, total = net.labels.training_rows(), 0.0
    net.module.eval()
    for some in torch.split(rows, EVALUATION_BATCH):
        total += len(some) * float(part.loss(c, net, Batch(some, lambda r, _: c.samples.view(r))).mean())
    net.forget()
    return total / len(rows)


def rhfl(loss: SymmetricCrossEntropy, align: AlignLogits) -> Method:
    """Each client learns alone for a round, then all align their outputs on public images before each round."""
    alone = Stage("local", rounds=1, epochs=align.pretrain, parts=(loss, align), sampler=Uniform(fraction=1.0))
    together = Stage(parts=(loss, align))
    return Method("rhfl", (alone, together), share=Share(down=(), up=(), keep=("*",)), test="clients")
