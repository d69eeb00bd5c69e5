"""FedCR's contrastive regulariser as the server and the clients use it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedsieve.core import Batch, Client, Net, Payload, Plan, Server, Ups, Weights, at_least_zero, proportion
from fedsieve.data.augment import augmentation
from fedsieve.methods.fedcr_pairs import OwnBy, Singular, alike, density, pair_contrast, spread
from fedsieve.parts.guesses import refuse_readers
from fedsieve.parts.two_views import PREDICTOR, PROJECTOR, WithTarget, regression, still


@dataclass(frozen=True, kw_only=True)
class PairContrast(WithTarget):
    """Draws what the predictor makes of one view to what the target makes of another: of the same image, and of images
    that the classifier is sure belong to one class.

    The paper leaves open, and these options decide: what happens near a cosine of 1, where Eq. 4 has no bound; that a
    row's own views always count, by −cos; that each row is divided by its number of pairs; and which view and net make
    the mask: the weak view by the net in training, without gradient and without touching its running statistics.
    """

    weight: Annotated[float, Field(ge=0)] = 50.0
    """λ, its weight beside the loss on labels at the server; clients have nothing else. With 0 they do nothing."""
    eta: Annotated[float, Field(ge=0)] = 0.8
    """η, from which product of two guesses on their images count as alike; above 1 none do."""
    soft: bool = False
    """Whether pairs weigh by the product of their guesses, or all alike."""
    pairs: Literal["row", "raw", "mse"] = "row"
    """Divide each row by its number of pairs, sum over pairs as printed, or BYOL's distance instead (Table 5)."""
    own_by: OwnBy = "cosine"
    """How a row's own two views count: by −cos, or by log(1 − cos) as other pairs do."""
    singular: Singular = "clamp"
    """Near a cosine of 1: cut it at 1 − `eps`, go on as a line, or cut every component of the unit vectors (CTRR)."""
    eps: Annotated[float, Field(gt=0, lt=1)] = 1e-4
    """How near a cosine may come to 1."""
    symmetric: bool = False
    """Whether the views are also compared the other way round."""
    weak: str = "weak"
    """The view that the classifier guesses on."""
    mask_from: Literal["batch", "round"] = "batch"
    """Guesses by the net in training on each batch, or once a round by the net received, on images as stored."""
    heads = (PROJECTOR, PREDICTOR)

    def check(self, plan: Plan) -> None:
        super().check(plan)
        augmentation(self.weak)

    def start(self, c: Client) -> None:
        super().start(c)
        if self.mask_from == "round":
            c.scratch(self)["guesses"] = c.outputs(c.nets[0]).logits.softmax(1)
        c.scratch(self)["seen"] = []

    def contrast(self, c: Client, net: Net, batch: Batch) -> Tensor:
        """(B,), what is minimised; nothing for a second net, which is the target."""
        if net.index and self.travels:
            return still(net)
        first, second = self.both
        mask = alike(self.probabilities(c, net, batch), self.eta, self.soft)
        value = self._towards(c, net, batch, mask, first, second)
        return value + self._towards(c, net, batch, mask, second, first) if self.symmetric else value

    def _towards(self, c: Client, net: Net, batch: Batch, mask: Tensor, seen: str, other: str) -> Tensor:
        q = net.head(PREDICTOR, batch, seen)
        with torch.no_grad():
            z = self.target(c, net).head(PROJECTOR, batch, other)
        c.scratch(self)["seen"].append((density(mask), spread(z)))
        if self.pairs == "mse":
            return regression(q, z)
        return pair_contrast(q, z, mask, self.eps, self.singular, self.pairs == "raw", self.own_by)

    @torch.no_grad()
    def probabilities(self, c: Client, net: Net, batch: Batch) -> Tensor:
        """p, of the weak view; the running statistics of the net are left as they were."""
        if self.mask_from == "round":
            stored: Tensor = c.scratch(self)["guesses"]
            return stored[batch.rows].to(net.device)
        statistics = net.vector[len(net.grad) :].clone()
        p = net.logits(batch, self.weak).softmax(1)
        net.vector[len(net.grad) :] = statistics
        return p


@dataclass(frozen=True, kw_only=True)
class ContrastiveLoss(PairContrast):
    """At clients: the contrast alone. How full the mask is, and how far features point apart, is told to the server."""

    up = {"mask_density": proportion(), "spread": at_least_zero()}
    writes = frozenset({"mask_density", "spread"})

    def check(self, plan: Plan) -> None:
        super().check(plan)
        refuse_readers(plan, self)

    def loss(self, c: Client, net: Net, batch: Batch) -> Tensor:
        return self.contrast(c, net, batch)

    def finish(self, c: Client) -> Payload:
        super().finish(c)
        density, spread = torch.tensor(c.scratch(self)["seen"] or [(0.0, 0.0)]).mean(0).tolist()
        return {"mask_density": density, "spread": spread}

    def learn(self, s: Server, ups: Ups, w: Weights) -> None:
        for name in sorted(self.writes):
            s.columns.write(name, {k: note.number(name) for k, note in s.notes(ups).items()})


@dataclass(frozen=True, kw_only=True)
class ContrastiveTerm(PairContrast):
    """At the server: λ times the contrast beside the loss on its labels."""

    def term(self, c: Client, net: Net, batch: Batch) -> Tensor:
        if not self.weight:
            return still(net)
        return self.weight * self.contrast(c, net, batch).mean()
