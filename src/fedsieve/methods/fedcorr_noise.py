"""How noisy FedCorr finds a client, and whom it finds noisy at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from fedsieve.core import Server
from fedsieve.parts.credit import by_group, column

FEWEST_CLIENTS = 3
"""Fewer are not compared: one of two always scores higher."""
ENOUGH_CLIENTS = 10
"""A smaller group is judged by the mixture over all clients; two components of so few say nothing."""


def noise_levels(s: Server) -> Tensor:
    """μ̂_k by client; NaN where it is not known."""
    return 1.0 - column(s, "right")


def clients_with_higher_scores(
    s: Server, scores: Mapping[int, float], clean_posterior: Callable[[Tensor, int], Tensor]
) -> list[int]:
    """The clients that a mixture on the scores puts into its higher component, group by group."""
    noisy: list[int] = []
    for members in by_group(s, list(scores)).values():
        compared = members if len(members) >= ENOUGH_CLIENTS else list(scores)
        values = torch.tensor([scores[client] for client in compared], dtype=torch.float64)
        clean = dict(zip(compared, clean_posterior(values, FEWEST_CLIENTS).tolist(), strict=True))
        noisy += [client for client in members if clean[client] < 0.5]
    return noisy
