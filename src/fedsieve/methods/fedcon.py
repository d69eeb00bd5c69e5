"""FedCon: one body and two heads, a classifier that stays at the server and a predictor that stays at each client.

After Long, Wang, Wang, Xiao and Ma 2021, with labels at the server.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cosine_similarity, kl_div, log_softmax

from fedsieve.base.errors import CompositionError
from fedsieve.base.options import settled
from fedsieve.core import Batch, Client, Method, Net, Plan, Share, Stage, rise
from fedsieve.parts.guesses import refuse_readers
from fedsieve.parts.server_fit import ServerFit
from fedsieve.parts.server_labels import TAUGHT, Pretraining, ServerLabels
from fedsieve.parts.two_views import PREDICTOR, OwnTarget, PacedTarget, Perceptron

BODY = ("*", "-head", f"-{PREDICTOR}")
"""What server and clients have in common, and all that travels."""


def disagreement(predicted: Tensor, target: Tensor) -> Tensor:
    """−cos(h, z), one value a row; no gradient reaches the target."""
    return -cosine_similarity(predicted, target.detach(), dim=1)


def consistency(teacher: Tensor, student: Tensor) -> Tensor:
    """KL(softmax s ‖ softmax t), one value a row; no gradient reaches the teacher."""
    known = log_softmax(teacher.detach(), 1)
    return kl_div(log_softmax(student, 1), known, reduction="none", log_target=True).sum(1)


@dataclass(frozen=True, kw_only=True)
class BodyContrast(OwnTarget):
    """A client's loss: its predictor makes of one view what a target body of its own makes of the other.

    There is no classifier here and no projection: target and predictor work on the features themselves.
    """

    views: str = "weak"
    """The augmentation of which two views are drawn; several may be joined by +."""
    decay: Annotated[float, Field(ge=0, le=1)] = 0.999
    """τ, how much of the target's weights a step keeps."""
    times: Annotated[int, Field(ge=1, le=16)] = 3
    """How many times as wide as the features the predictor's hidden layer is."""
    nested = True
    heads = (PREDICTOR,)

    def check(self, plan: Plan) -> None:
        super().check(plan)
        refuse_readers(plan, self)
        if plan.method.test == "clients":
            raise CompositionError(
                "FS101", f"{self.name}: clients have no classifier, so their own models cannot be tested. Change norm"
            )

    def loss(self, c: Client, net: Net, batch: Batch) -> Tensor:
        first, second = self.both
        return 0.5 * (self._towards(c, net, batch, first, second) + self._towards(c, net, batch, second, first))

    def _towards(self, c: Client, net: Net, batch: Batch, seen: str, other: str) -> Tensor:
        with torch.no_grad():
            target = self.target(c, net).features(batch, other)
        return disagreement(net.head(PREDICTOR, batch, seen), target)


@dataclass(frozen=True, kw_only=True)
class MeanTeacher(PacedTarget, ServerLabels):
    """The server's loss: its labels on two views, and what a moving average of the net makes of the other view."""

    views: str = "weak"
    """Augmentation of the server's samples, of which two views are drawn."""
    view: str = settled("weak")
    """Of no effect here."""
    decay: Annotated[float, Field(ge=0, le=1)] = 0.9996
    """How much of the average's weights the first step keeps; it rises to 1."""
    decay_steps: Annotated[int, Field(ge=1)] = 20_000
    """K, steps of the server in which it does."""
    rampup: Annotated[int, Field(ge=1)] = 100
    """R, rounds in which the weight of consistency rises from exp(−5) to 1."""
    teacher: Literal["average", "net"] = "average"
    """Whose predictions the net follows: the moving average's, or its own, as the authors' code does."""

    def decay_at(self, step: int) -> float:
        """1 − (1 − τ) (cos(π k / K) + 1) / 2."""
        done = min(step / self.decay_steps, 1.0)
        return 1.0 - (1.0 - self.decay) * (math.cos(math.pi * done) + 1.0) / 2.0

    def loss(self, c: Client, net: Net, batch: Batch) -> Tensor:
        student = [net.logits(batch, view) for view in self.both]
        with torch.no_grad():
            teacher = [self.target(c, net).logits(batch, view) for view in self.both]
        first, second = teacher if self.teacher == "average" else student
        labelled = sum(self.on_labels(each, net.target(batch)) for each in student)
        consistent = consistency(second, student[0]) + consistency(first, student[1])
        return 0.5 * (labelled + rise(c.clock(self).t, self.rampup) * consistent)


def fedcon(
    client: BodyContrast,
    loss: MeanTeacher,
    pretraining: Pretraining,
    server: ServerFit = TAUGHT,
) -> Method:
    """Only the body travels: clients learn it from two views, the server from labels and its own moving average."""
    fit = replace(server, parts=(loss,), train=("*", f"-{PREDICTOR}"))
    share = Share(down=BODY, up=BODY, train=("*", "-head"), keep=(PREDICTOR,))
    stages = pretraining.stages(fit, Stage(parts=(client,)))
    return Method("fedcon", stages, heads=(Perceptron(times=client.times).head(PREDICTOR),), share=share)
