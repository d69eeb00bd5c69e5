"""Training at the server, with the very parts and the very loop that clients use."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import Field

from fedsieve.base.errors import CompositionError
from fedsieve.base.options import settled
from fedsieve.core import ALL, Const, Names, Part, Plan, Reads, Server, Ups, Weights, defines

LABELLED = ("clean", "noisy")


@dataclass(frozen=True, kw_only=True)
class ServerFit(Part):
    """Train each group's model on the server's own data, after the reports are combined or before anybody trains.

    With the sampler `Nobody` it trains alone: a pre-training at the server. As a parameter of a method it gives the
    method its options (`METHOD.server.epochs`); the method says by `replace` with which parts it trains.
    """

    parts: tuple[Part, ...] = settled(())
    """Its loss and terms; exactly one has a loss."""
    train: Names = settled(ALL)
    """The sections of the model that it trains, whatever clients train."""
    when: Literal["learn", "round"] = settled("learn")
    """After the reports are combined, or at the start of a round."""
    on: Literal["clean", "noisy", "unlabelled", "public"] = "clean"
    """Which of the server's sets it trains on."""
    epochs: Annotated[int, Field(ge=0)] = 1
    """Passes over the server's data in each round."""
    lr: Annotated[float, Field(gt=0)] | None = None
    """Learning rate; the clients' if not given."""
    batch: Annotated[int, Field(ge=1)] | None = None
    """Batch size; the clients' if not given."""
    nested = True
    sees = "sum"

    def data(self) -> Reads:
        return Reads[self.on.upper()]

    def check(self, plan: Plan) -> None:
        losses = [part.name for part in self.parts if defines(part, "loss")]
        if len(losses) != 1:
            raise CompositionError(
                "FS103", f"ServerFit trains on exactly one loss, but its parts have {losses or 'none'}"
            )
        if not plan.share.down:
            raise CompositionError(
                "FS114", "ServerFit trains a model that no client receives (Share.down is empty). Leave one out"
            )
        if not plan.layout.count(self.train, trainable_only=True):
            raise CompositionError("FS116", "ServerFit.train chooses nothing of the model. Name a section")
        for part in self.parts:
            missing = [head for head in part.heads if head not in plan.method.head_names()]
            if missing:
                raise CompositionError(
                    "FS116", f"{part.name} needs the head '{missing[0]}'. Add it to the method's heads"
                )
            if part.down:
                raise CompositionError(
                    "FS110", f"{part.name} waits for a brief, which nobody gives the server. Leave it out of ServerFit"
                )
            if part.labels and self.on not in LABELLED:
                raise CompositionError(
                    "FS115",
                    f"{part.name} reads labels; the server's {self.on} data have none. Choose an unlabelled loss, or "
                    "train on clean or noisy data",
                )
            part.check(plan)

    def round(self, s: Server) -> None:
        if self.when == "round":
            self._fit(s)

    def learn(self, s: Server, ups: Ups, w: Weights) -> None:
        if self.when == "learn":
            self._fit(s)

    def _fit(self, s: Server) -> None:
        lr = s.plan.fit.lr(s.round) if self.lr is None else self.lr
        fit = replace(s.plan.fit, epochs=self.epochs, lr=Const(lr), batch=self.batch or s.plan.fit.batch)
        if self.epochs:
            s.train_here(self.parts, fit, self.on, self.train)
