"""IFCA-PFL: several models, and each client trains the one that fits its labels best.

After Ghosh et al. (IFCA, 2022), with the rules that keep every group alive by Ali and Arafa (FB-NLL, 2026).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedsieve.base.errors import CompositionError, ConfigError
from fedsieve.core import (
    Answers,
    Ask,
    Client,
    Method,
    Models,
    Moment,
    Part,
    Payload,
    Plan,
    Role,
    Server,
    Stage,
    Talk,
    Topic,
    at_least_zero,
)
from fedsieve.core.layout import pack, unpack_
from fedsieve.core.server import GROUP
from fedsieve.parts.losses import cross_entropy

Losses = Mapping[int, Tensor]
"""Per client, the loss of each group's model on the client's data."""


def closest(losses: Losses) -> dict[int, int]:
    """m_k = arg min_m F_k(w_m)."""
    return {client: int(row.argmin()) for client, row in losses.items()}


def refilled(losses: Losses, sizes: Sequence[int]) -> dict[int, int]:
    """Group after group takes as many clients as its size: of those left, the ones with the smallest loss there."""
    left = sorted(losses)
    joined: dict[int, int] = {}
    for group, size in enumerate(sizes):
        left.sort(key=lambda client: (float(losses[client][group]), client))
        joined |= dict.fromkeys(left[:size], group)
        left = left[size:]
    return joined


def forced(losses: Losses, groups: int) -> dict[int, int]:
    """Everyone in the closest group, but each empty group takes the client with the smallest loss there, where the
    client does not leave another group empty."""
    joined = closest(losses)
    for group in range(groups):
        sizes = Counter(joined.values())
        free = [client for client in sorted(joined) if sizes[joined[client]] > 1]
        if not sizes[group] and free:
            joined[min(free, key=lambda client: float(losses[client][group]))] = group
    return joined


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
        s.split(forced(losses, self.groups))
        for group, models in enumerate(drawn):
            s.of(group).models = models

    def associate(self, s: Server) -> Talk:
        """Procedure 4: everyone to the closest of the new models, or anew by the former sizes if one has nobody."""
        losses = yield from self.losses(s, [s.of(group).models for group in range(self.groups)])
        joined = closest(losses)
        if self.refill and len(set(joined.values())) < self.groups:
            former = Counter(s.state.group_of(client) for client in losses)
            joined = refilled(losses, [former[group] for group in range(self.groups)])
        s.columns.write(GROUP, {client: float(group) for client, group in joined.items()})

    def losses(self, s: Server, models: Sequence[Models]) -> Generator[Ask, Answers, dict[int, Tensor]]:
        """What the clients that have a preference say of these models."""
        sections = [torch.stack([pack(net, s.plan.down_slices) for net in nets]) for nets in models]
        question = {"models": torch.stack(sections)}
        answers = yield Ask("losses", dict.fromkeys(s.clients, question))
        found: dict[int, Tensor] = {}
        for client, answer in answers.items():
            told = answer["losses"]
            assert isinstance(told, Tensor)
            if bool((told != told[0]).any()):
                found[client] = told
        return found

    # --- client half
    def answer(self, c: Client, topic: str, question: Payload) -> Payload:
        models = question["models"]
        assert isinstance(models, Tensor)
        rows = ((c.labels.role == Role.LABELLED) & (c.labels.weight > 0)).nonzero().flatten()
        if not len(rows):
            return {"losses": torch.zeros(self.groups)}
        return {"losses": torch.stack([self.misfit(c, nets, rows) for nets in models]).float()}

    def misfit(self, c: Client, models: Tensor, rows: Tensor) -> Tensor:
        """F_k(w_m): the mean cross entropy on the client's own labels, and over its nets where there are several."""
        losses = []
        for net, sections in zip(c.nets, models, strict=True):
            net.load(unpack_(net.received.clone(), c.plan.down_slices, sections.to(net.device)))
            logits = c.outputs(net, rows).logits.double().cpu()
            losses.append(cross_entropy(logits, c.labels.target[rows]).mean())
        return torch.stack(losses).mean()


def ifca(cluster: PickCluster) -> Method:
    """FedAvg within each group, all clients with equal weight; who belongs together is found anew after every round."""
    return Method("ifca", (Stage(parts=(cluster,), base="equal"),))
