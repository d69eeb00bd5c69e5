"""RSCFed: teachers and students at clients, and a consensus of subsets of them at the server.

After Liang, Lin, Fu, Zhu and Li, CVPR 2022, with labels at the server.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal, cast

import torch
from pydantic import Field
from torch import Tensor

from fedsieve.base.options import Choice
from fedsieve.core import Batch, Client, Method, Net, Plan, Stage, WithServer
from fedsieve.methods.rscfed_consensus import Consensus
from fedsieve.parts.guesses import refuse_readers
from fedsieve.parts.server_fit import ServerFit
from fedsieve.parts.server_labels import TAUGHT, LabelledServer, Pretraining, ServerLabels
from fedsieve.parts.two_views import PacedTarget


def sharpen(logits: Tensor, temperature: float) -> Tensor:
    """p^(1/T) / Σ_c p_c^(1/T), which is softmax(z / T)."""
    return (logits / temperature).softmax(1)


def squared_error(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """|p − sharpened p′|², one value a row; no gradient reaches the teacher."""
    return (student.softmax(1) - sharpen(teacher.detach(), temperature)).square().sum(1)


@dataclass(frozen=True, kw_only=True)
class Student(PacedTarget):
    """A client's loss: what its teacher, a moving average of it, makes of another view, sharpened.

    The teacher is in evaluation mode, by the student's running statistics.
    """

    views: str = "weak"
    """The augmentation of which two views are drawn, for teacher and student; several may be joined by +."""
    decay: Annotated[float, Field(ge=0, le=1)] = 0.999
    """How much of the teacher's weights a step keeps, once min(1 − 1/(t + 1), decay) has risen to it."""
    temperature: Annotated[float, Field(gt=0)] = 0.5
    """T, by which the teacher's predictions are sharpened."""
    weight: Annotated[float, Field(ge=0)] = 0.02
    """λ_u, the weight of the loss."""
    nested = True
    guesses = True

    def check(self, plan: Plan) -> None:
        super().check(plan)
        refuse_readers(plan, self)

    def decay_at(self, step: int) -> float:
        return min(1.0 - 1.0 / (step + 1), self.decay)

    def start(self, c: Client) -> None:
        super().start(c)
        for net in c.nets:
            self.target(c, net).module.eval()
            self._measure(c, net)

    def stepped(self, c: Client, net: Net, batch: Batch) -> None:
        super().stepped(c, net, batch)
        self._measure(c, net)

    def loss(self, c: Client, net: Net, batch: Batch) -> Tensor:
        first, second = self.both
        with torch.no_grad():
            teacher = self.target(c, net).logits(batch, first)
        if net.index == 0:
            c.guess(self, batch.rows, teacher.argmax(1), torch.ones(len(batch), dtype=torch.bool))
        return self.weight * squared_error(net.logits(batch, second), teacher, self.temperature)

    def _measure(self, c: Client, net: Net) -> None:
        self.target(c, net).vector[len(net.grad) :] = net.vector[len(net.grad) :]


@dataclass(frozen=True, kw_only=True)
class StudentOrLabel(LabelledServer, Student):
    """A student at clients; the server, where it takes part, has labels."""


@dataclass(frozen=True, kw_only=True)
class Place(Choice):
    """When the server learns from its labels."""

    mode: Literal["alternate", "participant"] = "alternate"
    """After each round, on the consensus; or within it, as a member of every subset."""


def rscfed(
    client: StudentOrLabel,
    consensus: Consensus,
    loss: ServerLabels,
    place: Place,
    pretraining: Pretraining,
    server: ServerFit = TAUGHT,
) -> Method:
    """RSCFed: consistent predictions at clients, a consensus by distance, labels at the server."""
    fit = replace(server, parts=(loss,))
    together = Stage(parts=(replace(client, labelled=loss), consensus))
    if place.mode == "alternate":
        return Method("rscfed", pretraining.stages(fit, together))
    sampler = WithServer(on=cast(Literal["clean", "noisy"], server.on))
    return Method("rscfed", pretraining.before(fit, replace(together, sampler=sampler)))
