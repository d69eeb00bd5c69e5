"""Hooks that do what they did, and are watched meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedsieve.core.client import Client
from fedsieve.core.net import Batch, Net
from fedsieve.core.part import Part
from fedsieve.core.server import Server


def probing(part: Part, hook: str, reached: dict[str, float]) -> Callable[..., Tensor]:
    """The hook itself, and a note of how large its gradient is."""
    original = getattr(type(part), hook)
    key = f"{part.name}.{hook}"

    def probed(self: Part, c: Client, net: Net, batch: Batch) -> Tensor:
        value: Tensor = original(self, c, net, batch)
        if value.requires_grad and not reached[key]:
            parameters = [p for p in net.module.parameters() if p.requires_grad]
            gradients = torch.autograd.grad(value.sum(), parameters, retain_graph=True, allow_unused=True)
            reached[key] = max((float(g.abs().max()) for g in gradients if g is not None), default=0.0)
        return value

    return probed


def probing_edits(part: Part, reached: dict[str, float]) -> Callable[..., None]:
    original = type(part).gradient
    key = f"{part.name}.gradient"

    def probed(self: Part, c: Client, net: Net, batch: Batch) -> None:
        before = net.grad.clone()
        original(self, c, net, batch)
        reached[key] = max(reached[key], float((net.grad - before).abs().max()))

    return probed


def guarding_models(part: Part, hook: str) -> Callable[..., Any]:
    """The hook itself, and a look at the models that it was handed when it is done."""
    original = getattr(type(part), hook)

    def guarding(self: Part, s: Server, *given: Any) -> Any:
        handed = [
            net for models in (*s.state.models.values(), *given[:2]) if isinstance(models, tuple) for net in models
        ]
        before = [net.clone() for net in handed]
        result = original(self, s, *given)
        same = all(torch.equal(net, then) for net, then in zip(handed, before, strict=True))
        assert same, f"{part.name}.{hook} changes a model in place. Make a new tensor"
        return result

    return guarding
