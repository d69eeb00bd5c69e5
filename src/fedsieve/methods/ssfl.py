"""SSFL: FixMatch at clients in groups, each with a replica of the server beside them.

After Zhang et al., *Improving semi-supervised federated learning by reducing the gradient diversity of models*, 2021.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import Field

from fedsieve.base.options import Choice
from fedsieve.core import Grouped, Method, Part, Server, Stage, WithServer
from fedsieve.methods.fixmatch import FixMatch
from fedsieve.parts.server_fit import ServerFit
from fedsieve.parts.server_labels import LabelledServer, Pretraining, ServerLabels


@dataclass(frozen=True, kw_only=True)
class GuessOrLabel(LabelledServer, FixMatch):
    """FixMatch at clients; the server, which takes part, has labels."""


@dataclass(frozen=True, kw_only=True)
class Rejoin(Part):
    """All groups begin a round with the mean of their models."""

    def round(self, s: Server) -> None:
        groups = s.state.groups()
        if s.group == groups[0]:
            mean = s.mean()
            for group in groups:
                s.of(group).models = mean


@dataclass(frozen=True, kw_only=True)
class Grouping(Choice):
    """How clients are dealt into groups, and what groups have in common."""

    groups: Annotated[int, Field(ge=1)] = 2
    """G, groups into which a round's clients are dealt."""
    mode: Literal["parallel", "alternate"] = "parallel"
    """What clients begin a round with: the model of their group (the paper), or the mean of all groups'."""
    on: Literal["clean", "noisy"] = "noisy"
    """Which of the server's sets it trains on."""

    def stage(self, guess: GuessOrLabel) -> Stage:
        """In a group all count the same, the server's replica among them; replicas begin with the mean of groups."""
        parts = (guess,) if self.mode == "parallel" else (guess, Rejoin())
        sampler = WithServer(sampler=Grouped(groups=self.groups), on=self.on, begin="mean")
        return Stage(parts=parts, sampler=sampler, base="equal")


def ssfl(guess: GuessOrLabel, loss: ServerLabels, grouping: Grouping, pretraining: Pretraining) -> Method:
    """Sure guesses at clients, labels at the server's replicas, a mean in each group; meant for `norm=group`."""
    fit = ServerFit(on=grouping.on, parts=(loss,))
    stages = pretraining.before(fit, grouping.stage(replace(guess, labelled=loss)))
    return Method("ssfl", stages, test="mean")
