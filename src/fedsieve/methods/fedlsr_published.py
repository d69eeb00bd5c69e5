"""FedLSR's loss as in the authors' code."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedsieve.methods.fedlsr_loss import DISTILLATION, SelfRegularise, jensen_shannon, log_sharpened_mix
from fedsieve.parts.losses import cross_entropy, entropy
from fedsieve.parts.published import Published

FLOOR = 1e-6
"""Smallest probability that is compared."""


@dataclass(frozen=True, kw_only=True)
class PublishedSelfRegularise(Published, SelfRegularise):
    """A second softmax in two of the terms, the divergence divided by C, and the entropy of the first view alone."""

    def objective(self, z1: Tensor, z2: Tensor, target: Tensor, weight: float, gamma: float) -> Tensor:
        p1, p2 = ((DISTILLATION * z).softmax(1).clamp_min(FLOOR) for z in (z1, z2))
        agreement = jensen_shannon(p1.log(), p2.log()) / z1.shape[1]
        supervised = cross_entropy(log_sharpened_mix(z1, z2, weight).exp(), target)
        return supervised + gamma * agreement + self.lambda_e * entropy(p1)
