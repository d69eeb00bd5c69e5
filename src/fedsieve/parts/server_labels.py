"""Labels at the server: it learns from its own, alone at first and then after each round of clients that have none."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field
from torch import Tensor

from fedsieve.base.options import Choice, settled
from fedsieve.core import Batch, Client, Net, Nobody, Part, Plan, Stage
from fedsieve.data.augment import augmentation
from fedsieve.parts.losses import generalised_cross_entropy
from fedsieve.parts.server_fit import ServerFit

TAUGHT = ServerFit(on="noisy", epochs=5)
"""What a server with a few labels, some of them wrong, does after each round unless its options say otherwise."""


SURELY_NOT = 1e-4
"""A label of less probability counts as wrong: with generalised cross entropy nothing is learnt from it."""


@dataclass(frozen=True, kw_only=True)
class ServerLabels(Part):
    """The server's loss on its labels: cross entropy on a weak view, or one that wrong labels harm less."""

    q: Annotated[float, Field(ge=0, le=1)] = 0.0
    """0 is cross entropy, as published; above it is generalised cross entropy, for wrong labels."""
    view: str = "weak"
    """Augmentation of the server's samples."""
    labels = True

    def check(self, plan: Plan) -> None:
        augmentation(self.view)

    def loss(self, c: Client, net: Net, batch: Batch) -> Tensor:
        return self.on_labels(net.logits(batch, self.view), net.target(batch))

    def on_labels(self, logits: Tensor, target: Tensor) -> Tensor:
        """One value a row."""
        return generalised_cross_entropy(logits, target, self.q, SURELY_NOT)


@dataclass(frozen=True, kw_only=True)
class LabelledServer(Part):
    """Before another loss: the server, where it takes part, has labels and learns from these instead."""

    labelled: ServerLabels = settled(ServerLabels())
    """The server's loss."""

    def loss(self, c: Client, net: Net, batch: Batch) -> Tensor:
        return self.labelled.loss(c, net, batch) if c.at_server else super().loss(c, net, batch)


@dataclass(frozen=True, kw_only=True)
class Pretraining(Choice):
    """How long the server learns alone before the first round."""

    pretrain: Annotated[int, Field(ge=0)] = 30
    """Epochs of the server on its labels before the first round, with one optimiser through all of them."""

    def before(self, fit: ServerFit, together: Stage) -> tuple[Stage, ...]:
        """First the server alone, in one round on top of the experiment's; then `together`."""
        alone = Stage("pretrain", rounds=1, extra=True, parts=(replace(fit, epochs=self.pretrain),), sampler=Nobody())
        return (alone, together) if self.pretrain else (together,)

    def stages(self, fit: ServerFit, together: Stage) -> tuple[Stage, ...]:
        """First the server alone; then `together`, with the server after each round."""
        return self.before(fit, replace(together, parts=(*together.parts, fit)))


def server_progress(c: Client) -> float:
    """At the server: the share of all its epochs on its own data that lie behind."""
    epochs = [sum(part.epochs for part in stage.parts if isinstance(part, ServerFit)) for stage in c.plan.stages]
    lengths = [(stage.rounds or 0) * each for stage, each in zip(c.plan.stages, epochs, strict=True)]
    done = sum(lengths[: c.stage]) + c.t * epochs[c.stage] + c.epoch
    return done / max(sum(lengths), 1)
