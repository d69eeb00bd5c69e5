"""Penalties that several methods share. What is quadratic in the weights is added as its gradient: one operation on
the flat vector instead of a graph over every tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from fedsieve.core import Batch, Client, Net, Part


@dataclass(frozen=True, kw_only=True)
class Prox(Part):
    """μ/2 ‖w − w_t‖² over the trainable parameters, that is, μ (w − w_t) added to the gradient."""

    mu: Annotated[float, Field(ge=0)] = 0.01
    """How strongly local models are held to the global one."""
    combined = True

    def gradient(self, c: Client, net: Net, batch: Batch) -> None:
        if self.mu:
            net.grad.add_(net.weights - net.received[: len(net.grad)], alpha=self.mu)
