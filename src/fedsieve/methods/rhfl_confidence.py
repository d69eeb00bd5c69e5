"""RHFL's client confidence: how far the others follow a client, by the quality of its labels and its progress."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

TINY = 1e-12
MOST_GAIN = 1e6
"""A client that reports a loss of nothing would gain without end."""


def gain(before: Tensor, now: Tensor, drop: Literal["absolute", "relative"]) -> Tensor:
    """F_k: label quality, 1 / ℓ_t, times learning efficiency, the drop of the loss; NaN where a loss is not known."""
    efficiency = before - now
    if drop == "relative":
        efficiency = efficiency / before.clamp_min(TINY)
    return (efficiency / now.clamp_min(TINY)).clamp(-MOST_GAIN, MOST_GAIN)


def confidence(gains: Tensor, eta: float, *, guard: bool) -> Tensor:
    """W = softmax(1 / (N − 1) + η F / Σ F), NaN counting as no gain; the first summand cancels in the softmax.

    Losses rise as well as fall, so Σ F may be nearly 0, which makes the shares explode, or negative, which turns their
    order round. The guard takes losses that rose as no gain.
    """
    known = gains.nan_to_num(nan=0.0)
    if guard:
        known = known.clamp_min(0.0)
    total = known.sum()
    shares = known / total if abs(float(total)) > (TINY if guard else 0.0) else torch.zeros_like(known)
    return (eta * shares).softmax(0)
