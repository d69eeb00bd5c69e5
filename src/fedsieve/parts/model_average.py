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
    """Clients go on with the newest model; tested and saved is a mean of it and those before, without the mean's lag.

    Rounds pull the model to the clients that took part in them. The mean of several rounds has less of that, at no
    cost to a client. But it is behind, as much as its own mean is behind it: so that much is added (double exponential
    smoothing, Brown 1959). To running statistics half of themselves at most: a variance must not come near zero.
    """

    decay: Annotated[float, Field(ge=0, lt=1)] = 0.8
    """What a round's model weighs against the one after it."""
    combined = True
    sees = "sum"
    remembers = {"mean": ("N", "V"), "mean_of_means": ("N", "V"), "mass": ()}

    def recall(self, s: Server) -> dict[str, Tensor]:
        shape = s.plan.nets, s.plan.layout.size
        return {"mean": torch.zeros(shape), "mean_of_means": torch.zeros(shape), "mass": torch.zeros(())}

    def learn(self, s: Server, ups: Ups, w: Weights) -> None:
        """m ← (d M m + w) / (d M + 1), M ← d M + 1, so that the first rounds are not drawn to zero; m' of m alike."""
        past = self.decay * s.memory["mass"].double()
        newest = torch.stack(s.models).double()
        for name in ("mean", "mean_of_means"):
            newest = (past * s.memory[name].double() + newest) / (past + 1)
            s.memory[name] = newest.float()
        s.memory["mass"] = (past + 1).float()

    def deliver(self, s: Server, models: Models) -> Models:
        """m + (m − m')."""
        if s.memory["mass"] == 0:
            return models
        mean = s.memory["mean"]
        ahead = mean - s.memory["mean_of_means"]
        bound = mean[:, s.plan.layout.trainable :].abs() / 2
        ahead[:, s.plan.layout.trainable :].clamp_(-bound, bound)
        return tuple(mean + ahead)
