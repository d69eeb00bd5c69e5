"""Who takes part in a round."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from pydantic import Field

from fedsieve.base.rng import torch_rng
from fedsieve.core.part import Sampler
from fedsieve.core.server import GROUP, Models, Server
from fedsieve.core.types import SERVER


@dataclass(frozen=True, kw_only=True)
class Uniform(Sampler):
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
class Nobody(Sampler):
    """A round of the server alone."""

    def __call__(self, s: Server, ids: list[int]) -> list[int]:
        return []

    def trains(self) -> bool:
        return False


@dataclass(frozen=True, kw_only=True)
class Sweep(Sampler):
    """`size` clients a round, so that every client has its turn in a fresh random order before any comes again."""

    size: Annotated[int, Field(ge=1)] = 1

    def turns(self, clients: int) -> int:
        return -(-clients // self.size)

    def __call__(self, s: Server, ids: list[int]) -> list[int]:
        lap, turn = divmod(s.t, self.turns(len(ids)))
        order = torch.randperm(len(ids), generator=torch_rng(s.plan.seed, s.state.stage, "sweep", lap)).tolist()
        return [ids[i] for i in order[turn * self.size : (turn + 1) * self.size]]


@dataclass(frozen=True, kw_only=True)
class Around(Sampler):
    """What another sampler chooses, and something to it."""

    sampler: Sampler | None = None
    """The other one; the experiment's `fraction` of all clients if not given."""

    def __call__(self, s: Server, ids: list[int]) -> list[int]:
        assert self.sampler is not None
        return self.sampler(s, ids)

    def trains(self) -> bool:
        return self.sampler is None or self.sampler.trains()

    def turns(self, clients: int) -> int | None:
        return None if self.sampler is None else self.sampler.turns(clients)

    def group_count(self) -> int:
        return 1 if self.sampler is None else self.sampler.group_count()

    def holding(self) -> str:
        return "" if self.sampler is None else self.sampler.holding()

    def replica(self, s: Server) -> Models:
        return s.models if self.sampler is None else self.sampler.replica(s)

    def filled(self, everyday: Sampler) -> Sampler:
        return replace(self, sampler=everyday if self.sampler is None else self.sampler.filled(everyday))


@dataclass(frozen=True, kw_only=True)
class WithServer(Around):
    """The server takes part too, with its own labelled data and the stage's parts.

    It trains in its own process as client -1, and as -2, -3... where there are further groups of models.
    """

    on: Literal["clean", "noisy"] = "clean"
    """Which of its sets it trains on."""
    begin: Literal["group", "mean"] = "group"
    """What each replica of it begins a round with: the model of its group, or the mean of all groups'."""

    def __call__(self, s: Server, ids: list[int]) -> list[int]:
        return [*super().__call__(s, ids), *(SERVER - group for group in s.state.groups())]

    def holding(self) -> str:
        return self.on

    def replica(self, s: Server) -> Models:
        return s.models if self.begin == "group" else s.mean()


@dataclass(frozen=True, kw_only=True)
class Grouped(Around):
    """A round's clients are dealt at random into groups of equal size, but for one, whose models are combined apart.

    Who is not chosen stays in the group of its last turn.
    """

    groups: Annotated[int, Field(ge=1)] = 2
    """Groups of models."""

    def __call__(self, s: Server, ids: list[int]) -> list[int]:
        chosen = sorted(super().__call__(s, ids))
        order = torch.randperm(len(chosen), generator=s.rng("deal")).tolist()
        s.columns.write(GROUP, {chosen[i]: float(place % self.groups) for place, i in enumerate(order)})
        return chosen

    def group_count(self) -> int:
        return self.groups


def ends_lap(s: Server) -> bool:
    """Whether everybody has had a turn with this round; where chance decides every round is a lap."""
    sampler = s.plan.stages[s.state.stage].sampler
    assert sampler is not None
    return (s.t + 1) % (sampler.turns(s.plan.clients) or 1) == 0
