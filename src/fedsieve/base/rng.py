"""Randomness is a stream named by what it is for, never a global seed.

A stream is keyed by a tuple such as (seed, stage, round, client, part, purpose). Drawing from one never shifts another,
so results do not depend on the order in which clients finish, on the number of workers, or on what other parts draw.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

Key = int | str


def stream(*key: Key) -> int:
    """A 63-bit number that stands for the key; distinct keys give unrelated numbers."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in key)
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def numpy_rng(*key: Key) -> np.random.Generator:
    return np.random.default_rng(stream(*key))


def torch_rng(*key: Key) -> torch.Generator:
    import torch

    return torch.Generator().manual_seed(stream(*key))
