"""FedLSR's loss: two views of a sample are mixed, sharpened and compared (Jiang et al., CIKM 2022)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from torch import Tensor, logaddexp
from torch.nn.functional import log_softmax

from fedsieve.core import Batch, Client, Net, Part, Plan, Ramp
from fedsieve.data.augment import augmentation
from fedsieve.parts.losses import cross_entropy, entropy
from fedsieve.parts.mixup import mixing_weight
from fedsieve.parts.selection import warmup_rounds

SHARPENING = 2.0
"""p_s ∝ p^2, a temperature of 1/2."""
DISTILLATION = 3.0
"""Logits are multiplied by it before the views are compared, a temperature of 1/3."""


def log_sharpened_mix(z1: Tensor, z2: Tensor, weight: float) -> Tensor:
    """log p_s, p_s ∝ (λ p₁ + (1 − λ) p₂)^2, without leaving the logarithms."""
    first, second = z1.new_tensor([weight, 1.0 - weight]).log()
    log_p = logaddexp(log_softmax(z1, 1) + first, log_softmax(z2, 1) + second)
    return log_softmax(SHARPENING * log_p, 1)


def jensen_shannon(log_p: Tensor, log_q: Tensor) -> Tensor:
    """½ KL(p ‖ m) + ½ KL(q ‖ m), m = ½ (p + q); one value a row."""
    log_m = logaddexp(log_p, log_q) - math.log(2.0)
    return 0.5 * (log_p.exp() * (log_p - log_m) + log_q.exp() * (log_q - log_m)).sum(1)


@dataclass(frozen=True, kw_only=True)
class SelfRegularise(Part):
    """The label is compared with the sharpened mixture of two views' predictions, and the views with each other.

    Where the paper is silent: the first view is the experiment's own augmentation; each image has its own draw of the
    second one; λ is drawn once a batch.
    """

    gamma: Annotated[float, Field(ge=0)] = 0.4
    """Weight of the divergence between the two views, once it is fully there."""
    ramp: Annotated[int, Field(ge=0)] | None = None
    """Rounds over which that weight rises from 0; a fifth of the rounds if not given."""
    lambda_e: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the predictions' entropy: FedLSR+ with 0.6, for very noisy labels."""
    view: str | None = None
    """Augmentation of the second view; colour for images with three channels, rotate for others if not given."""

    labels = True

    def check(self, plan: Plan) -> None:
        augmentation(self.second(plan))

    def second(self, plan: Plan) -> str:
        """The view that the first one is mixed and compared with."""
        if self.view is not None:
            return self.view
        return "colour" if len(plan.sample_shape) == 3 and plan.sample_shape[0] == 3 else "rotate"

    def weight_now(self, t: int, rounds: int) -> float:
        """γ_t: from 0 in the first round, in a straight line."""
        return Ramp(0.0, self.gamma, warmup_rounds(rounds, self.ramp))(t)

    def loss(self, c: Client, net: Net, batch: Batch) -> Tensor:
        weight = mixing_weight(1.0, c.rng(self, "mix", net.index, c.epoch, int(batch.rows[0])))
        z1, z2 = net.logits(batch), net.logits(batch, f"{self.second(c.plan)}#second")
        return self.objective(z1, z2, net.target(batch), weight, self.weight_now(*c.clock(self)))

    def objective(self, z1: Tensor, z2: Tensor, target: Tensor, weight: float, gamma: float) -> Tensor:
        """CE(p_s, ỹ) + γ JS(p̃₁, p̃₂) + λ_e H, p̃ = softmax(3 z); one value a row."""
        log_p_s = log_sharpened_mix(z1, z2, weight)
        agreement = jensen_shannon(log_softmax(DISTILLATION * z1, 1), log_softmax(DISTILLATION * z2, 1))
        loss = cross_entropy(log_p_s, target) + gamma * agreement
        if not self.lambda_e:
            return loss
        return loss + 0.5 * self.lambda_e * (entropy(DISTILLATION * z1) + entropy(DISTILLATION * z2))
