"""FedLN's NA-FedAvg: clients whose samples the model becomes sure of too soon weigh less (Tsouvalas et al. 2024)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field
from torch import Tensor

from fedsieve.base.errors import ConfigError
from fedsieve.core import Client, Method, Part, Payload, Plan, Server, Stage, Uniform, Ups, Weights
from fedsieve.parts.credit import ROUNDING, column, known_values


def energies(logits: Tensor) -> Tensor:
    """log Σ_c e^{z_c}, one value a row: the larger, the surer the model is of a sample."""
    return logits.logsumexp(1)


def shares_above(scores: Mapping[int, tuple[Tensor, Tensor]], percentile: float) -> dict[int, float]:
    """By client, the share of its scores after training that exceed this percentile of everybody's before it."""
    before = np.concatenate([first.double().numpy() for first, _ in scores.values()])
    bar = float(np.percentile(before, percentile))
    return {k: float((after.double() > bar).double().mean()) for k, (_, after) in scores.items()}


@dataclass(frozen=True, kw_only=True)
class WeighNoisyLess(Part):
    """A client found noisy counts as if it held only what seems right, and a tenth of its samples at most.

    A client that was never judged counts as clean.
    """

    threshold: Annotated[float, Field(ge=0, le=1)] = 0.15
    """Estimated noise below which a client counts as clean."""
    most: Annotated[float, Field(gt=0, le=1)] = 0.1
    """The part of its size that a noisy client counts at most."""

    needs = frozenset({"right"})

    def weigh(self, s: Server, ups: Ups, w: Weights) -> Weights:
        noise = self.noise(s, ups)
        return {k: weight * self.part_counted(noise.get(k, 0.0)) for k, weight in w.items()}

    def part_counted(self, noise: float) -> float:
        """min(most · n, n − n_noisy) / n for a noisy client."""
        return 1.0 if noise < self.threshold - ROUNDING else min(self.most, 1.0 - noise)

    def noise(self, s: Server, ups: Ups) -> dict[int, float]:
        """By client, as far as it is known."""
        return {k: 1.0 - right for k, right in known_values(column(s, "right")).items()}


@dataclass(frozen=True, kw_only=True)
class JudgeByEnergy(WeighNoisyLess):
    """In one round every client trains and reports how sure the model is of each of its samples, before and after.

    A sample of which the model is surer after training than of most samples before counts as a wrong label learnt by
    heart. The round's own mean is weighed by what it finds. Scores are taken in evaluation mode, without augmentation.
    """

    warm: Annotated[int, Field(ge=1)] | None = None
    """Rounds before the clients are judged; a quarter of the rounds if not given, as in 25 of 100."""
    percentile: Annotated[float, Field(ge=0, le=100)] = 75.0
    """Of all clients' scores before training, the percentile that a score after it must exceed to count as noise."""

    up = {"before": ("n",), "after": ("n",)}
    writes = frozenset({"right"})
    verdict = "right"
    needs = frozenset()

    def check(self, plan: Plan) -> None:
        weighing = [stage for stage in plan.stages if WeighNoisyLess.__name__ in stage.names()]
        if self.warm is not None and not any(stage.rounds for stage in weighing):
            raise ConfigError(
                "FS002",
                f"fedln-na.warm={self.warm}: the run ends before clients are weighed by what is found of them. "
                "Give fewer rounds of warm-up, or more rounds",
            )

    # --- client half
    def start(self, c: Client) -> None:
        c.scratch(self)["before"] = energies(c.logits(c.nets[0]))

    def finish(self, c: Client) -> Payload:
        return {"before": c.scratch(self)["before"], "after": energies(c.logits(c.nets[0]))}

    # --- server half
    def noise(self, s: Server, ups: Ups) -> dict[int, float]:
        """What this round's reports say, client by client."""
        told = s.notes(ups)
        scores = {k: (note.tensor("before"), note.tensor("after")) for k, note in told.items()}
        return shares_above(scores, self.percentile) if scores else {}

    def learn(self, s: Server, ups: Ups, w: Weights) -> None:
        s.columns.write("right", {k: 1.0 - noise for k, noise in self.noise(s, ups).items()})


def fedln_na(judge: JudgeByEnergy) -> Method:
    """NA-FedAvg: FedAvg; one round with everybody, who is judged by it; then noisy clients count less."""
    weigh = WeighNoisyLess(threshold=judge.threshold, most=judge.most)
    return Method(
        "fedln-na",
        (
            Stage("warm", judge.warm, fraction=0.25),
            Stage("judge", 1, parts=(judge,), sampler=Uniform(fraction=1.0)),
            Stage("weighed", parts=(weigh,)),
        ),
    )
