"""Training at the server, with the very parts and the very loop that clients use."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import Field

from fedsieve.base.errors import CompositionError
from fedsieve.core import Const, Part, Plan, Reads, Server, Ups, Weights, defines


@dataclass(frozen=True, kw_only=True)
class ServerFit(Part):
    """After the models are combined, train each group's model on the server's own data."""

    parts: tuple[Part, ...]
    """Its loss and terms; exactly one has a loss."""
    on: Literal["clean", "noisy"] = "clean"
    """Which of the server's labelled sets it trains on."""
    epochs: Annotated[int, Field(ge=0)] = 1
    """Passes over the server's data in each round."""
    lr: Annotated[float, Field(gt=0)] | None = None
    """Learning rate; the clients' if not given."""
    batch: Annotated[int, Field(ge=1)] | None = None
    """Batch size; the clients' if not given."""
    sees = "sum"

    def data(self) -> Reads:
        return Reads.CLEAN if self.on == "clean" else Reads.NOISY

    def check(self, plan: Plan) -> None:
        losses = [part.name for part in self.parts if defines(part, "loss")]
        if len(losses) != 1:
            raise CompositionError(
                "FS103", f"ServerFit trains on exactly one loss, but its parts have {losses or 'none'}"
            )
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
            part.check(plan)

    def learn(self, s: Server, ups: Ups, w: Weights) -> None:
        lr = s.plan.fit.lr(s.round) if self.lr is None else self.lr
        fit = replace(s.plan.fit, epochs=self.epochs, lr=Const(lr), batch=self.batch or s.plan.fit.batch)
        if self.epochs:
            s.train_here(self.parts, fit, self.on)
