"""Momentum at the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedsieve.core import Models, Part, Server


@dataclass(frozen=True, kw_only=True)
class ServerMomentum(Part):
    """What the reports change is a gradient, on which the server takes a step of SGD with momentum.

    v ← β v + (w − w̄), w ← w − η v (FedAvgM, Hsu et al. 2019; SemiFL, Diao et al. 2022). It moves weights alone:
    running statistics are those that were combined, since beyond these they would be nobody's.
    """

    beta: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """How much of the last step the next one keeps."""
    eta: Annotated[float, Field(gt=0)] = 1.0
    """The server's learning rate."""
    remembers = {"velocity": ("N", "W")}

    def recall(self, s: Server) -> dict[str, Tensor]:
        return {"velocity": torch.zeros(s.plan.nets, s.plan.layout.trainable)}

    def step(self, s: Server, before: Models, after: Models) -> Models:
        trainable, velocity, stepped = s.plan.layout.trainable, [], []
        for last, old, new in zip(s.memory["velocity"], before, after, strict=True):
            change = old[:trainable].double() - new[:trainable].double()
            velocity.append(self.beta * last.double() + change)
            beyond = self.eta * velocity[-1] - change  # w − η v without cancelling what is the mean anyway
            stepped.append(torch.cat([(new[:trainable].double() - beyond).float(), new[trainable:]]))
        s.memory["velocity"] = torch.stack(velocity).float()
        return tuple(stepped)
