"""An average of the server's last models, which is what is tested and delivered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedsieve.core import Models, Part, Server, Ups, Weights


@dataclass(frozen=True, kw_only=True)
class ModelAverage(Part):
    """Clients go on with the newest model; tested and saved is the mean of it and those before, each a little less.

    Rounds pull the model to the clients that took part in them. The mean of several rounds has less of that, at no
    cost to a client.
    """

    decay: Annotated[float, Field(ge=0, lt=1)] = 0.8
    """What a round's model weighs against the one after it."""
    sees = "sum"
    remembers = {"mean": ("N", "V"), "mass": ()}

    def recall(self, s: Server) -> dict[str, Tensor]:
        return {"mean": torch.zeros(s.plan.nets, s.plan.layout.size), "mass": torch.zeros(())}

    def learn(self, s: Server, ups: Ups, w: Weights) -> None:
        """m ← (d M m + w) / (d M + 1), M ← d M + 1, so that the first rounds are not drawn towards zero."""
        past = self.decay * s.memory["mass"].double()
        total = past * s.memory["mean"].double() + torch.stack(s.models).double()
        s.memory["mean"], s.memory["mass"] = (total / (past + 1)).float(), (past + 1).float()

    def deliver(self, s: Server, models: Models) -> Models:
        return tuple(s.memory["mean"]) if s.memory["mass"] > 0 else models
