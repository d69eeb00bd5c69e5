"""From reports to the next model of a group: weights, and a mean that is summed as reports come."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from fedsieve.base.errors import RunError
from fedsieve.core.layout import pack, unpack_
from fedsieve.core.limits import Limits
from fedsieve.core.part import Hooks, Part, Stage
from fedsieve.core.plan import Plan
from fedsieve.core.sent import finite
from fedsieve.core.server import Models, Server
from fedsieve.core.types import Up, Weights


class RunningMean:
    """A weighted mean of vectors in float64, without keeping them."""

    def __init__(self) -> None:
        self._total = 0.0
        self._sums: list[Tensor] = []

    def add(self, models: Models, weight: float) -> None:
        self._total += weight
        if not self._sums:
            self._sums = [torch.zeros(len(model), dtype=torch.float64) for model in models]
        for total, model in zip(self._sums, models, strict=True):
            total.add_(model, alpha=weight)

    def result(self) -> Models:
        return tuple((total / self._total).float() for total in self._sums)


class Tally:
    """One group's reports of a round. Keeps whole reports only where a part or the combiner needs them."""

    def __init__(self, plan: Plan, stage: Stage, h: Hooks) -> None:
        assert stage.combine is not None
        self._plan, self._stage, self._h = plan, stage, h
        self._streams = (
            stage.combine.streams and not h.weigh and not h.assessed and all(part.sees == "sum" for part in h.learn)
        )
        self._mean = RunningMean()
        self.ups: dict[int, Up] = {}
        self.weights: Weights = {}

    def add(self, up: Up) -> None:
        """Reports are added in the order of their clients' ids. A combiner that ignores weights has equal ones."""
        assert self._stage.combine is not None
        if up.models is not None:
            by_size = self._stage.base == "size" and self._stage.combine.weighted
            weight = float(up.n) if by_size else 1.0
            self.weights[up.client] = weight
            if self._streams:
                self._mean.add(up.models, weight)
                up = replace(up, models=())
        self.ups[up.client] = up

    def drop(self, client: int) -> None:
        """Take a report out again that was kept whole."""
        del self.ups[client], self.weights[client]

    def settle(self, s: Server, limits: Limits | None = None) -> Weights:
        """Weigh and combine; returns the weights, which sum to one. Without reports the model stays as it is.

        So it does where the combined model is not finite or beyond the limits, or a part steps to one that is no model.
        """
        assert self._stage.combine is not None
        live = {k: up for k, up in self.ups.items() if up.models is not None}
        if not live:
            return {}
        for part in self._h.weigh:
            weighed = part.weigh(s.by(part), live, dict(self.weights))
            self.weights = _usable(weighed, self.weights, part, s.log)
        if not self._plan.up_slices:
            return _normalise(self.weights)
        if self._streams:
            combined = write_sections(s, self._mean.result())
        else:
            combined = self._stage.combine(s, s.models, live, self.weights)
        fault = limits.too_far(s.group, combined) if limits else ""
        if fault:
            s.log("FS231", f"group {s.group}: the combined model {fault}; the old one stays")
        else:
            self._step(s, combined)
        return _normalise(self.weights)

    def _step(self, s: Server, combined: Models) -> None:
        """Each part's step from the old models; what a step that is not taken wanted to remember is forgotten."""
        before, models, memory = s.models, combined, s.state.copy().memory
        for part in self._h.step:
            models = part.step(s.by(part), before, models)
            if fault := _no_models(models, before, self._plan):
                s.log("FS231", f"group {s.group}: {part.name} steps to a model that {fault}; the old one stays")
                s.state.memory = memory
                return
        s.models = models


def _no_models(models: Models, before: Models, plan: Plan) -> str:
    """What is wrong with what a step returns; empty if it may replace the old models."""
    if [(net.shape, net.dtype) for net in models] != [(net.shape, net.dtype) for net in before]:
        return f"has the shapes {[tuple(net.shape) for net in models]}, {[tuple(net.shape) for net in before]} is right"
    if not all(finite(net) for net in models):
        return "holds NaN or infinity"
    if any(bool((pack(net, plan.up_slices)[plan.variances] < 0).any()) for net in models):
        return "holds a negative variance"
    return ""


def write_sections(s: Server, sections: Models) -> Models:
    """The group's models with the sections that travelled up replaced."""
    pairs = zip(s.models, sections, strict=True)
    return tuple(unpack_(mine.clone(), s.plan.up_slices, theirs) for mine, theirs in pairs)


def _usable(weighed: Weights, former: Weights, part: Part, log: Callable[..., None]) -> Weights:
    """FS207 for a weight that cannot be one; all zero falls back to the former weights and says so."""
    for client, weight in weighed.items():
        if not math.isfinite(weight) or weight < 0:
            raise RunError(
                "FS207", f"{part.name} gives client {client} the weight {weight}. Weights are finite and not negative"
            )
    if weighed.keys() != former.keys():
        raise RunError("FS207", f"{part.name} weighs clients {sorted(weighed)}, but {sorted(former)} reported")
    if not any(weighed.values()):
        log("FS208", f"{part.name} gives every report the weight 0; the former weights are used")
        return former
    return weighed


def _normalise(weights: Weights) -> Weights:
    total = sum(weights.values())
    return {client: weight / total for client, weight in weights.items()}
