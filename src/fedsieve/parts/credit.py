"""How reported models do on the server's own clean labels, and whom that puts first."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedsieve.core import Server, Ups, Weights

ROUNDING = 1e-9
"""Keeps 0.1 · 30 from counting as more than three."""


class CleanScore(NamedTuple):
    """One reported model on the server's clean set."""

    loss: float
    """Mean cross entropy."""
    accuracy: float


def clean_score(logits: Tensor, labels: Tensor) -> CleanScore:
    loss = cross_entropy(logits.double(), labels)
    return CleanScore(float(loss), float((logits.argmax(1) == labels).double().mean()))


def scores_on_clean(s: Server, ups: Ups) -> dict[int, CleanScore]:
    """Each report's model on the server's clean set; for a part that assesses models there."""
    labels = s.clean.labels
    return {k: clean_score(s.logits[k], labels) for k, up in ups.items() if up.models is not None}


def share_of(count: int, share: float) -> int:
    """So many of `count`, rounded up: a share never comes to nobody."""
    return max(1, math.ceil(share * count - ROUNDING))


def best(scores: Mapping[int, float], count: int) -> set[int]:
    """The clients with the `count` highest scores, and all who equal the last of them: numbers decide no tie."""
    bar = sorted(scores.values(), reverse=True)[count - 1]
    return {client for client, score in scores.items() if score >= bar}


def epsilon_greedy(scores: Mapping[int, float], places: int, epsilon: float, generator: torch.Generator) -> list[int]:
    """Each place goes to the best client left or, with probability ε, to any one left; equal ones in random order."""
    ids = sorted(scores)
    shuffled = [ids[i] for i in torch.randperm(len(ids), generator=generator).tolist()]
    left = sorted(shuffled, key=lambda client: -scores[client])
    chosen = []
    for draw in torch.rand(places, generator=generator).tolist():
        at = int(torch.randint(len(left), (1,), generator=generator)) if draw < epsilon else 0
        chosen.append(left.pop(at))
    return chosen


def only(chosen: set[int], w: Weights) -> Weights:
    """The weights of the chosen clients; the others have none."""
    return {client: weight if client in chosen else 0.0 for client, weight in w.items()}


def column(s: Server, name: str) -> Tensor:
    """A column of the client table, all unknown (NaN) before anybody wrote it."""
    return s.columns.get(name, torch.full((s.plan.clients,), torch.nan, dtype=torch.float64))


def known_values(values: Tensor) -> dict[int, float]:
    """A column's clients of which it says something."""
    return {client: value for client, value in enumerate(values.tolist()) if math.isfinite(value)}


def by_group(s: Server, ids: list[int]) -> dict[int, list[int]]:
    """These clients by their group: only models of one group can be compared."""
    groups: dict[int, list[int]] = {}
    for client in ids:
        groups.setdefault(s.state.group_of(client), []).append(client)
    return groups
