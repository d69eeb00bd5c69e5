"""FedELC: noisy clients, found by their class losses, learn labels and model together (Jiang et al., CIKM 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import log_softmax

from fedsieve.core import Batch, Client, Labels, Method, Net, Part, Payload, Server, Stage
from fedsieve.parts.losses import AdjustedLogits, cross_entropy, entropy
from fedsieve.parts.noisy_clients import ClassLossDetector, DistanceAware, noisy_clients


def correction_loss(logits: Tensor, latent: Tensor, given: Tensor, alpha: float, beta: float) -> Tensor:
    """KL(p ‖ y^d) / C + α CE(y^d, y) + β H(p) / C with y^d = softmax(ỹ), one value a row."""
    log_p = log_softmax(logits, 1)
    compatibility = (log_p.exp() * (log_p - log_softmax(latent, 1))).sum(1)
    classes = logits.shape[1]
    return compatibility / classes + alpha * cross_entropy(latent, given) + beta * entropy(logits) / classes


def latent_gradient(p: Tensor, latent: Tensor, given: Tensor, alpha: float) -> Tensor:
    """∂/∂ỹ of each row's loss: (y^d − p) / C + α (y^d − y)."""
    learnt = latent.softmax(1)
    return (learnt - p) / p.shape[1] + alpha * (learnt - given)


@dataclass(frozen=True, kw_only=True)
class LaterDetector(ClassLossDetector):
    """FedNoRo's detector after a longer warm-up."""

    warm: Annotated[int, Field(ge=1)] | None = None
    """Rounds before the clients are judged; a sixth of the rounds if not given, as in 20 of 120."""


@dataclass(frozen=True, kw_only=True)
class LearnLabels(AdjustedLogits, Part):
    """Logit-adjusted cross entropy at clean clients; noisy ones keep a latent label of each sample and train that too.

    Where the paper is silent: the model's prediction that a round's labels are merged with is taken without
    augmentation and in evaluation mode. A label's score is the probability that the learnt label gives it.
    """

    alpha: Annotated[float, Field(ge=0)] = 0.5
    """Weight of the given label against the learnt one."""
    beta: Annotated[float, Field(ge=0)] = 0.2
    """Weight of the predictions' entropy."""
    label_lr: Annotated[float, Field(ge=0)] = 1000.0
    """Learning rate of the latent labels, which step once an epoch."""
    scale: Annotated[float, Field(gt=0)] = 10.0
    """What a latent label is multiplied by at the beginning of a visit."""

    corrects = True
    down = {"noisy": ()}
    keeps = {"latent": ("n", "C")}
    needs = frozenset({"clean"})
    every = "epoch"
    nets = 1

    def brief(self, s: Server, client: int) -> Payload:
        return {"noisy": client in noisy_clients(s)}

    def start(self, c: Client) -> None:
        super().start(c)
        if c.brief(self).flag("noisy"):
            latent = c.keep(self).get("latent", self.scale * c.labels.target)
            c.scratch(self).update(latent=latent, gradient=torch.zeros_like(latent))

    def relabel(self, c: Client, net: Net, labels: Labels) -> Labels:
        note = c.scratch(self)
        return learn_labels(labels, self.step_latent(note).softmax(1)) if "latent" in note else labels

    def loss(self, c: Client, net: Net, batch: Batch) -> Tensor:
        note = c.scratch(self)
        if "latent" not in note:
            return super().loss(c, net, batch)
        logits, weight = net.logits(batch).float(), net.weight(batch)
        latent, given = (table[batch.rows].to(net.device) for table in (note["latent"], c.labels.target))
        gradient = latent_gradient(logits.detach().softmax(1), latent, given, self.alpha)
        share = weight / weight.mean() / c.fit.batch  # also in an epoch's last batch, which may be smaller
        note["gradient"][batch.rows] = (gradient * share[:, None]).cpu()
        return correction_loss(logits, latent, given, self.alpha, self.beta)

    def finish(self, c: Client) -> Payload:
        """ỹ ← scale · ½ (softmax(ỹ) + p) for the next visit."""
        note, net = c.scratch(self), c.nets[0]
        if "latent" in note and c.fit.epochs:
            merged = 0.5 * (self.step_latent(note).softmax(1) + c.logits(net).softmax(1))
            c.keep(self)["latent"] = self.scale * merged
            net.labels = learn_labels(net.labels, merged)
        return {}

    def step_latent(self, note: dict[str, Tensor]) -> Tensor:
        """The latent labels after the last epoch's gradients, which are used up."""
        note["latent"] = note["latent"] - self.label_lr * note["gradient"]
        note["gradient"] = torch.zeros_like(note["latent"])
        return note["latent"]


def learn_labels(labels: Labels, target: Tensor) -> Labels:
    """The table with the learnt labels; each given one is scored by what is left of it."""
    known = labels.given >= 0
    unknown = labels.replace(score=torch.full((len(labels),), torch.nan))
    return unknown.towards(target).rate(known, target[known, labels.given[known]])


def fedelc(detector: LaterDetector, labels: LearnLabels, distances: DistanceAware) -> Method:
    """FedELC: logit-adjusted FedAvg; one question to every client; then noisy clients learn their labels anew."""
    adjusted = AdjustedLogits(tau=labels.tau, smoothing=labels.smoothing)
    return Method(
        "fedelc",
        (
            Stage("warm", detector.warm, fraction=1 / 6, parts=(adjusted,)),
            Stage("detect", 0, parts=(detector,)),
            Stage("correct", parts=(labels, distances)),
        ),
    )
