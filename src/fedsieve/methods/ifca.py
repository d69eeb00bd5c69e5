"""IFCA-PFL: several models, and each client trains the one that fits its labels best.

After Ghosh et al. (IFCA, 2022), with the rules that keep every group alive by Ali and Arafa (FB-NLL, 2026).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedsieve.base.errors import CompositionError, ConfigError
from fedsieve.core import (
    GROUP,
    Answers,
    Ask,
    Client,
    Method,
    Models,
    Moment,
    Part,
    Payload,
    Plan,
    Server,
    Stage,
    Talk,
    Told,
    Topic,
    at_least_zero,
)
from fedsieve.methods.ifca_groups import closest, fill_empty, refill
from fedsieve.parts.losses import cross_entropy


@dataclass(frozen=True, kw_only=True)
class PickCluster(Part):
    """Clients tell how well each group's model fits their labels, and join the group whose model fits best.

    Losses are cross entropies in evaluation mode, without augmentation. A client without labelled samples has no
    preference: it tells the same loss for all, and stays where it is.
    """

    groups: Annotated[int, Field(ge=2)] = 2
    """Number of groups, each with a model of its own."""
    refill: bool = True
    """When a group would be left with nobody, deal all clients anew by the former sizes; False is the original IFCA."""
    tries: Annotated[int, Field(ge=1)] = 10
    """Draws of random first models before each empty group is given one client."""

    topics = {"losses": Topic({"models": ("groups", "N", "M")}, {"losses": at_least_zero("groups")})}
    writes = frozenset({GROUP})
    labels = True

    def check(self, plan: Plan) -> None:
        if plan.clients < self.groups:
            raise ConfigError(
                "FS002",
                f"ifca.groups={self.groups}, but there are {plan.clients} clients. Give at most one group per client",
            )
        if not plan.up_slices:
            raise CompositionError(
                "FS114",
                f"{self.name} chooses among the groups' models, but nothing is averaged (Share.up is empty). "
                "Leave one out",
            )

    # --- server half
    def talk(self, s: Server, moment: Moment) -> Talk:
        if moment == "start" and len(s.state.models) == 1:
            yield from self.begin(s)
        elif moment == "round_end":
            yield from self.associate(s)

    def begin(self, s: Server) -> Talk:
        """Procedure 3: draw first models until each is somebody's closest."""
        for attempt in range(self.tries):
            drawn = [s.plan.fresh(attempt * self.groups + group) for group in range(self.groups)]
            losses = yield from self.losses(s, drawn)
            if len(set(closest(losses).values())) == self.groups:
                break
        s.split(fill_empty(losses, self.groups))
        for group, models in enumerate(drawn):
            s.of(group).models = models

    def associate(self, s: Server) -> Talk:
        """Procedure 4: everyone to the closest of the new models, or anew by the former sizes if one has nobody."""
        losses = yield from self.losses(s, [s.of(group).models for group in range(self.groups)])
        joined = closest(losses)
        if self.refill and len(set(joined.values())) < self.groups:
            former = Counter(s.state.group_of(client) for client in losses)
            joined = refill(losses, [former[group] for group in range(self.groups)])
        s.columns.write(GROUP, {client: float(group) for client, group in joined.items()})

    def losses(self, s: Server, models: Sequence[Models]) -> Generator[Ask, Answers, dict[int, Tensor]]:
        """What the clients that have a preference say of these models."""
        question = {"models": torch.stack([s.sections(nets) for nets in models])}
        answers = yield Ask("losses", dict.fromkeys(s.clients, question))
        told = {client: answer.tensor("losses") for client, answer in answers.items()}
        return {client: losses for client, losses in told.items() if bool((losses != losses[0]).any())}

    # --- client half
    def answer(self, c: Client, topic: str, question: Told) -> Payload:
        rows = c.labels.labelled_rows()
        if not len(rows):
            return {"losses": torch.zeros(self.groups)}
        return {"losses": torch.stack([self.misfit(c, nets, rows) for nets in question.tensor("models")]).float()}

    def misfit(self, c: Client, models: Tensor, rows: Tensor) -> Tensor:
        """F_k(w_m): the mean cross entropy on the client's own labels, and over its nets where there are several."""
        losses = []
        for net, sections in zip(c.nets, models, strict=True):
            with net.holding(c.complete(net, sections, "down")):
                logits = c.logits(net, rows).double()
            losses.append(cross_entropy(logits, c.labels.target[rows]).mean())
        return torch.stack(losses).mean()


def ifca(cluster: PickCluster) -> Method:
    """FedAvg within each group, all clients with equal weight; who belongs together is found anew after every round."""
    return Method("ifca", (Stage(parts=(cluster,), base="equal"),))
