"""SELFIE: train on small losses, and on the samples whose label can be refurbished (Song et al., ICML 2019)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import one_hot

from fedsieve.core import Batch, Client, Labels, Method, Net, Part, Payload, Stage
from fedsieve.parts.losses import cross_entropy
from fedsieve.parts.selection import ROUNDING, enqueue, in_warmup, mean_of, smallest


def vote_shares(history: Tensor, n_classes: int) -> Tensor:
    """(n, C): how often each class was predicted, out of the (slots, n) predictions there are."""
    votes = torch.zeros(history.shape[1], n_classes)
    return votes.scatter_add(1, history.T.long(), torch.ones(history.T.shape)) / len(history)


def uncertainty(shares: Tensor) -> Tensor:
    """−Σ_c P_c log P_c / log C: 0 if all predictions agree, 1 if they are spread evenly."""
    entropy = -torch.xlogy(shares, shares).sum(1)
    return entropy / math.log(max(shares.shape[1], 2))


def clean_rows(rows: int, forget: float) -> int:
    """⌈(1 − τ) B⌉ rows of a batch."""
    return math.ceil((1.0 - forget) * rows - ROUNDING)


@dataclass(frozen=True, kw_only=True)
class Refurbish(Part):
    """A batch trains on its small losses and on its refurbishable rows, whose label is the one mostly predicted lately.

    Where the sources are silent: predictions are recorded at the end of every local epoch, warm-up included, in one
    more pass without augmentation and in evaluation mode; only a full queue can refurbish, and a sample on which it no
    longer agrees gets its own label back. Small losses are those of the given labels. The paper's restarts are left
    out, as in FedRN's comparison. A label's score is the share of the recorded predictions that agree with it.
    """

    forget_rate: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """Share of each batch that does not count as clean. The paper takes the true noise rate, which nobody knows."""
    history: Annotated[int, Field(ge=1)] = 15
    """Epochs whose predicted label a client keeps of each sample."""
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Largest uncertainty of the predictions at which a label is refurbished."""
    warmup: Annotated[int, Field(ge=0)] | None = None
    """Rounds of plain training at the start; a fifth of the rounds if not given."""
    corrects = True
    keeps = {"history": ("<=history", "n")}
    labels = True
    nets = 1
    every = "epoch"

    def relabel(self, c: Client, net: Net, labels: Labels) -> Labels:
        """Refurbished labels for this epoch; what is left out is chosen batch by batch, and entered by `finish`."""
        if c.epoch:
            self.record(c, net)
        warm = in_warmup(*c.clock(self), self.warmup)
        nobody = torch.zeros(c.n, dtype=torch.bool)
        c.scratch(self).update(chosen=torch.full_like(nobody, warm), refurbished=nobody)
        history = c.keep(self).get("history")
        if history is None:
            return labels
        shares = vote_shares(history, c.n_classes)
        labels = labels.replace(score=(shares * c.labels.target).sum(1))
        if warm or len(history) < self.history:
            return labels
        sure = uncertainty(shares) <= self.threshold
        c.scratch(self)["refurbished"] = sure
        mode = one_hot(shares.argmax(1), c.n_classes).float()
        return labels.towards(torch.where(sure[:, None], mode, c.labels.target))

    def loss(self, c: Client, net: Net, batch: Batch) -> Tensor:
        """The mean over the refurbishable rows and the clean ones (the paper's update rule)."""
        losses = cross_entropy(net.logits(batch), net.target(batch))
        if in_warmup(*c.clock(self), self.warmup):
            return losses
        note = c.scratch(self)
        given = c.labels.target[batch.rows].to(net.device)
        clean = smallest(cross_entropy(net.logits(batch).detach(), given), clean_rows(len(batch), self.forget_rate))
        chosen = clean | note["refurbished"][batch.rows].to(net.device)
        note["chosen"][batch.rows[chosen.cpu()]] = True
        return mean_of(chosen, losses, net.weight(batch))

    def finish(self, c: Client) -> Payload:
        if c.fit.epochs:
            net = c.nets[0]
            self.record(c, net)
            net.labels = net.labels.only(c.scratch(self)["chosen"])
        return {}

    def record(self, c: Client, net: Net) -> None:
        kept = c.keep(self)
        predicted = c.logits(net).argmax(1).to(torch.int16)
        kept["history"] = enqueue(kept.get("history"), predicted, self.history)


def selfie(refurbish: Refurbish) -> Method:
    """SELFIE at every client, FedAvg between them."""
    return Method("selfie", (Stage(parts=(refurbish,)),))
