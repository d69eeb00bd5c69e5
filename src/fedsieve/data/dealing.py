"""How rows are dealt to clients, as an array that names the client of each row."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def rows_of(client_of: NDArray[np.int64], clients: int) -> list[NDArray[np.int64]]:
    ends = np.cumsum(np.bincount(client_of, minlength=clients))
    return np.split(np.argsort(client_of, kind="stable"), ends[:-1])


def deal(order: NDArray[np.int64], clients: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """The client of each row when rows are dealt one by one in this order, clients taking turns in a random order."""
    client_of = np.empty(len(order), np.int64)
    client_of[order] = rng.permutation(clients)[np.arange(len(order)) % clients]
    return client_of


def by_label(labels: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Row numbers sorted by label, at random within a label."""
    order = rng.permutation(len(labels))
    return order[np.argsort(labels[order], kind="stable")]


def spread_order(labels: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """A random order of rows in which every run of consecutive ones holds the classes in proportion."""
    order = rng.permutation(len(labels))
    within = np.empty(len(labels))
    for c in range(int(labels.min(initial=0)), int(labels.max(initial=-1)) + 1):  # -1 is that of rows without a label
        mine = order[labels[order] == c]
        within[mine] = (np.arange(len(mine)) + rng.random()) / max(len(mine), 1)
    return np.argsort(within, kind="stable")


def even_order(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """An order in which the first so many rows hold each class as often as any other, as far as the classes go."""
    grouped = np.argsort(labels, kind="stable")
    turn = np.empty(len(labels), np.int64)
    turn[grouped] = np.arange(len(labels)) - np.searchsorted(labels[grouped], labels[grouped])
    return np.argsort(turn, kind="stable")


def even_blocks(n: int, blocks: int) -> NDArray[np.int64]:
    """The block of each of n positions when they are cut into consecutive blocks as equal as possible."""
    return np.arange(n) * blocks // n


def proportions(alpha: float, open_to: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.float64]:
    """Dirichlet proportions over all clients, then only over those open to it; equal ones where nothing is left."""
    drawn = np.where(open_to, rng.dirichlet(np.full(len(open_to), alpha)), 0.0)
    total = drawn.sum()
    shares: NDArray[np.float64] = drawn / total if total > 0 else open_to / open_to.sum()
    return shares


def whole_part(share: float, n: int) -> int:
    """The whole part of share times n; 0.29 of 100 is 29, whatever binary floating point makes of it."""
    return int(share * n + 1e-9)


def top_up(
    client_of: NDArray[np.int64], clients: int, minimum: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], list[str]]:
    """Move random rows from the largest clients to those below the minimum, with a note if any moved."""
    sizes = np.bincount(client_of, minlength=clients)
    short = np.flatnonzero(sizes < minimum)
    if not len(short):
        return client_of, []
    piles = [rng.permutation(rows).tolist() for rows in rows_of(client_of, clients)]
    client_of = client_of.copy()
    takers = short.repeat(minimum - sizes[short])
    for client in takers:
        donor = int(sizes.argmax())
        client_of[piles[donor].pop()] = client
        sizes[donor] -= 1
        sizes[client] += 1
    return client_of, [f"Rows moved from the largest clients to those with fewer than {minimum}: {len(takers)}."]
