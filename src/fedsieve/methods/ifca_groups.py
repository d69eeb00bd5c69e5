"""Who joins which group, by the loss of each group's model on the client's data (IFCA, FB-NLL)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from torch import Tensor

Losses = Mapping[int, Tensor]
"""Per client, the loss of each group's model on the client's data."""


def closest(losses: Losses) -> dict[int, int]:
    """m_k = arg min_m F_k(w_m)."""
    return {client: int(row.argmin()) for client, row in losses.items()}


def refill(losses: Losses, sizes: Sequence[int]) -> dict[int, int]:
    """Group after group takes as many clients as its size: of those left, the ones with the smallest loss there."""
    left = sorted(losses)
    joined: dict[int, int] = {}
    for group, size in enumerate(sizes):
        left.sort(key=lambda client: (float(losses[client][group]), client))
        joined |= dict.fromkeys(left[:size], group)
        left = left[size:]
    return joined


def fill_empty(losses: Losses, groups: int) -> dict[int, int]:
    """Everyone in the closest group, but each empty group takes the client with the smallest loss there, where the
    client does not leave another group empty."""
    joined = closest(losses)
    for group in range(groups):
        sizes = Counter(joined.values())
        free = [client for client in sorted(joined) if sizes[joined[client]] > 1]
        if not sizes[group] and free:
            joined[min(free, key=lambda client: float(losses[client][group]))] = group
    return joined
