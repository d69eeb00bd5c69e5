"""Who takes part in a round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field

from fedsieve.base.options import Choice
from fedsieve.base.rng import torch_rng
from fedsieve.core.server import Server


@dataclass(frozen=True, kw_only=True)
class Uniform(Choice):
    """A fraction of all clients (at least one), uniformly and without replacement, from those eligible."""

    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0

    def size(self, clients: int) -> int:
        """How many of so many clients that is."""
        return max(1, round(self.fraction * clients))

    def __call__(self, s: Server, ids: list[int]) -> list[int]:
        count = min(len(ids), self.size(s.plan.clients))
        order = torch.randperm(len(ids), generator=s.rng("sample"))
        return [ids[i] for i in order[:count].tolist()]


@dataclass(frozen=True, kw_only=True)
class Nobody(Choice):
    """A round of the server alone."""

    def __call__(self, s: Server, ids: list[int]) -> list[int]:
        return []


@dataclass(frozen=True, kw_only=True)
class Sweep(Choice):
    """`size` clients a round, so that every client has its turn in a fresh random order before any comes again."""

    size: Annotated[int, Field(ge=1)] = 1

    def turns(self, clients: int) -> int:
        """Rounds until so many clients have had their turn."""
        return -(-clients // self.size)

    def __call__(self, s: Server, ids: list[int]) -> list[int]:
        lap, turn = divmod(s.t, self.turns(len(ids)))
        order = torch.randperm(len(ids), generator=torch_rng(s.plan.seed, s.state.stage, "sweep", lap)).tolist()
        return [ids[i] for i in order[turn * self.size : (turn + 1) * self.size]]


def ends_lap(s: Server) -> bool:
    """Whether everybody has had a turn with this round; without a sweep every round is a lap."""
    sampler = s.plan.stages[s.state.stage].sampler
    return not isinstance(sampler, Sweep) or (s.t + 1) % sampler.turns(s.plan.clients) == 0
