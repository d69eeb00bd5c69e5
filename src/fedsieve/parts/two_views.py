"""Learning from two augmented views of the same images, without labels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cosine_similarity

from fedsieve.base.errors import CompositionError, ConfigError
from fedsieve.base.options import Choice, settled
from fedsieve.core import Batch, Client, Net, Nobody, Part, Payload, Plan, Projector, SideHead, Stage
from fedsieve.data.augment import augmentation
from fedsieve.models.heads import FEATURES, HeadName, Width
from fedsieve.parts.server_fit import ServerFit

PROJECTION, PROJECTOR, PREDICTOR = "projection", "projector", "predictor"


def regression(predicted: Tensor, target: Tensor) -> Tensor:
    """2 − 2 cos(q, z), one value a row; no gradient reaches the target."""
    return 2.0 - 2.0 * cosine_similarity(predicted, target.detach(), dim=1)


def still(net: Net) -> Tensor:
    """A loss of zero, by which a net learns nothing."""
    return torch.stack([parameter.sum() for parameter in net.module.parameters()]).sum() * 0.0


@dataclass(frozen=True, kw_only=True)
class TwoViews(Part):
    """What looks at each image twice, in independent draws of one augmentation."""

    views: str = "contrastive"
    """The augmentation of which two views are drawn; several may be joined by +."""
    smallest_batch = 2

    @property
    def both(self) -> tuple[str, str]:
        return f"{self.views}#1", f"{self.views}#2"

    def check(self, plan: Plan) -> None:
        augmentation(self.views)
        if len(plan.sample_shape) != 3:
            raise CompositionError(
                "FS119", f"{self.name} needs views of images, and the samples are rows of a table. Take another method"
            )


@dataclass(frozen=True, kw_only=True)
class WithTarget(TwoViews):
    """What compares a net with a target net of the same kind, whose weights follow it and never learn.

    After every step ξ ← τ ξ + (1 − τ) θ, over the parameters alone. Like the net, the target normalises by the
    statistics of its batches, and has running ones of its own.
    """

    decay: Annotated[float, Field(ge=0, le=1)] = 0.99
    """τ, how much of the target's weights a step keeps; with 0 the target is the net itself, without a gradient."""

    target_from: Literal["own", "received"] = settled("received")
    """Where the target begins: as one's own was at the end of the last training, or as the model received."""
    travels: bool = settled(False)
    """Whether the target is the second of two nets, which travels and is averaged like the first."""
    keeps = {"target": ("V",)}

    def check(self, plan: Plan) -> None:
        super().check(plan)
        if self.travels and plan.fit.weight_decay:
            raise ConfigError(
                "FS002", f"{self.name}: weight_decay would shrink the target, which learns nothing. Set weight_decay=0"
            )

    def start(self, c: Client) -> None:
        if self.travels:
            if c.round == 0:  # both nets were drawn apart
                c.nets[1].vector.copy_(c.nets[0].vector)
            return
        for net in c.nets:
            kept = c.keep(self, net)
            own = "target" in kept and self.target_from == "own"
            target = c.borrow(kept["target"] if own else net.received)
            target.module.train()
            c.scratch(self)[f"target {net.index}"] = target

    def target(self, c: Client, net: Net) -> Net:
        found: Net = c.nets[1] if self.travels else c.scratch(self)[f"target {net.index}"]
        return found

    def stepped(self, c: Client, net: Net, batch: Batch) -> None:
        if not (self.travels and net.index):
            self.target(c, net).weights.lerp_(net.weights, 1.0 - self.decay)

    def finish(self, c: Client) -> Payload:
        if self.target_from == "own" and not self.travels:
            for net in c.nets:
                c.keep(self, net)["target"] = self.target(c, net).vector.clone()
        return {}


@dataclass(frozen=True, kw_only=True)
class OwnTarget(WithTarget):
    """A target that stays where it is trained from round to round; it first begins as the model received."""

    target_from: Literal["own", "received"] = settled("own")


@dataclass(frozen=True, kw_only=True)
class PacedTarget(OwnTarget):
    """A target that follows faster or slower by how many steps it has followed, in all rounds together."""

    keeps = {**WithTarget.keeps, "steps": ()}

    def decay_at(self, step: int) -> float:
        """τ of a step, counted from 0."""
        raise NotImplementedError

    def stepped(self, c: Client, net: Net, batch: Batch) -> None:
        kept = c.keep(self, net)
        done = int(kept.get("steps", torch.tensor(0)))
        self.target(c, net).weights.lerp_(net.weights, 1.0 - self.decay_at(done))
        kept["steps"] = torch.tensor(done + 1)


@dataclass(frozen=True, kw_only=True)
class Perceptron(Choice):
    """A head of two linear layers with normalisation and ReLU between them, at the side of the features."""

    nested = True

    hidden: Width | None = None
    """Width of the head's hidden layer; `times` that of its input if not given."""
    times: Annotated[int, Field(ge=1, le=16)] = 1
    """How many times as wide as its input the head's hidden layer is, where `hidden` is not given."""
    width: Width | None = None
    """How many numbers the head returns; `widen` times as many as it takes if not given."""
    widen: Annotated[int, Field(ge=1, le=16)] = 1
    """How many times as many numbers the head returns as it takes, where `width` is not given."""

    def in_line(self) -> Projector:
        """Between the features and the classifier instead."""
        return Projector(norm="batch", hidden=self.hidden, times=self.times, width=self.width, widen=self.widen)

    def head(self, name: HeadName, base: HeadName = FEATURES) -> SideHead:
        return SideHead(
            name=name,
            base=base,
            norm="batch",
            hidden=self.hidden,
            times=self.times,
            width=self.width,
            widen=self.widen,
        )


@dataclass(frozen=True, kw_only=True)
class Learners(Choice):
    """Whose images an encoder is learnt from."""

    at: Literal["clients", "server"] = "clients"
    """At the clients, whose models are averaged, or at the server alone, on images of its own (`server.unlabelled`)."""

    def stage(self, part: Part, server: ServerFit) -> Stage:
        """Rounds in which clients train by this loss, or the server does."""
        if self.at == "clients":
            return Stage(parts=(part,))
        return Stage(parts=(replace(server, parts=(part,)),), sampler=Nobody())


AT_SERVER = ServerFit(on="unlabelled")
