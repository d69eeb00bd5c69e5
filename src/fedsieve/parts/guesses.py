"""Labels that a client guesses on a weak view of a sample and follows on a strong one, where it is sure of them.

Guesses are made anew for each batch (`GuessOnWeakView`), or once a round and stay (`GuessOnce`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedsieve.base.errors import CompositionError
from fedsieve.core import Batch, Client, Labels, Net, Part, Plan, defines
from fedsieve.data.augment import augmentation
from fedsieve.data.samples import EVALUATION_BATCH
from fedsieve.models.heads import LOGITS
from fedsieve.parts.losses import cross_entropy


def is_sure(logits: Tensor, threshold: float) -> Tensor:
    """Which rows have a class of at least this probability: max_c p_c ≥ t."""
    return logits.softmax(1).amax(1) >= threshold


def refuse_readers(plan: Plan, learner: Part) -> None:
    """FS115 where other parts would read the very labels that this one guesses or goes without."""
    for stage in plan.stages:
        trains = stage.sampler is None or stage.sampler.trains()
        for part in stage.parts:
            if part.labels and (trains or defines(part, "answer")):
                raise CompositionError(
                    "FS115",
                    f"{part.name} reads the labels of clients, and {learner.name} learns as if there were none. "
                    "Leave one out",
                )


@dataclass(frozen=True, kw_only=True)
class GuessOnViews(Part):
    """What is guessed on a weak view is what a strong one learns from."""

    weak: str = "weak"
    """Augmentation of the view that is guessed on."""
    strong: str = "strong"
    """Augmentation of the view that learns from the guess."""
    guesses = True

    def check(self, plan: Plan) -> None:
        augmentation(self.weak)
        augmentation(self.strong)
        refuse_readers(plan, self)


@dataclass(frozen=True, kw_only=True)
class GuessOnWeakView(GuessOnViews):
    """What the net makes of a weak view is what it learns to make of a strong one.

    Guesses are made anew for each batch by the net in training, without gradient. Both views pass through it apart, so
    that each is normalised by its own statistics where the model normalises batches.
    """

    threshold: Annotated[float, Field(ge=0)] = 0.95
    """Probability from which on a guess is followed; 0 follows all, above 1 none."""
    weight: Annotated[float, Field(ge=0)] = 1.0
    """λ_u, the weight of the loss."""

    def loss(self, c: Client, net: Net, batch: Batch) -> Tensor:
        with torch.no_grad():
            weak = net.logits(batch, self.weak).float()
        if net.index == 0:
            c.guess(self, batch.rows, weak.argmax(1), is_sure(weak, self.threshold))
        return self.weight * self.objective(weak, net.logits(batch, self.strong))

    def objective(self, weak: Tensor, strong: Tensor) -> Tensor:
        """One value a row, 0 where the guess is not sure, so that the mean is one over the full batch."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class GuessOnce(GuessOnViews):
    """The received model guesses on a weak view of every row; the guesses stay for the round, and strong views of the
    sure rows learn from them. A client that is sure of nothing reports no model."""

    def relabel(self, c: Client, net: Net, labels: Labels) -> Labels:
        guess, sure = self.judged(c, net)
        rows = torch.arange(c.n)
        if net.index == 0:
            c.guess(self, rows, guess, sure)
        if not sure.any():
            c.skip("no guess is sure")
        return labels.rename(rows, guess).only(sure)

    def judged(self, c: Client, net: Net) -> tuple[Tensor, Tensor]:
        """For every row the class that is guessed, and whether the guess is trained on."""
        raise NotImplementedError

    def seen(self, c: Client, net: Net, head: str = LOGITS) -> Tensor:
        """What the net makes of a weak view of every row, in evaluation mode: its logits, or what a head returns."""
        with torch.no_grad(), net.evaluating():
            some = torch.split(torch.arange(c.n), EVALUATION_BATCH)
            batches = [c.batch(rows, net.index) for rows in some]
            found = torch.cat([net.head(head, batch, f"{self.weak}#guess").float().cpu() for batch in batches])
        net.forget()
        return found

    def loss(self, c: Client, net: Net, batch: Batch) -> Tensor:
        return cross_entropy(net.logits(batch, self.strong), net.target(batch))
