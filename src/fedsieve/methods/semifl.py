"""SemiFL: clients guess once a round with the server's model and mix what they are sure of with the rest.

After Diao, Ding and Tarokh, NeurIPS 2022 (alternate training).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedsieve.core import Batch, Client, Labels, Method, Net, Stage
from fedsieve.parts.guesses import GuessOnce, is_sure
from fedsieve.parts.mixup import mixing_weight
from fedsieve.parts.server_fit import ServerFit
from fedsieve.parts.server_labels import TAUGHT, Pretraining, ServerLabels
from fedsieve.parts.server_momentum import ServerMomentum
from fedsieve.parts.static_norm import StaticNorm


def mix_loss(logits: Tensor, fixed: Tensor, mixed: Tensor, weight: float) -> Tensor:
    """λ CE(x_mix, y_f) + (1 − λ) CE(x_mix, y_m), one value a row."""
    first, second = (cross_entropy(logits, labels, reduction="none") for labels in (fixed, mixed))
    return weight * first + (1.0 - weight) * second


@dataclass(frozen=True, kw_only=True)
class FixAndMix(GuessOnce):
    """The sure guesses of a round are D_fix, and as many draws from all rows, sure or not, are D_mix."""

    threshold: Annotated[float, Field(ge=0)] = 0.95
    """Probability from which on a guess belongs to D_fix."""
    alpha: Annotated[float, Field(gt=0)] = 0.75
    """MixUp's λ ~ Beta(α, α)."""
    weak: str = "weak"
    """Augmentation of the views that are guessed on and mixed."""

    def judged(self, c: Client, net: Net) -> tuple[Tensor, Tensor]:
        logits = self.seen(c, net)
        return logits.argmax(1), is_sure(logits, self.threshold)

    def relabel(self, c: Client, net: Net, labels: Labels) -> Labels:
        fixed = super().relabel(c, net, labels)
        sure = fixed.weight > 0
        drawn = torch.randint(c.n, (int(sure.sum()),), generator=c.rng(self, "mix", net.index))
        c.scratch(self)[f"{net.index}"] = fixed.target.argmax(1), sure, drawn
        return fixed

    def partners(self, c: Client, net: Net, rows: Tensor) -> Tensor:
        """The rows of D_mix that meet these of D_fix, in another order each epoch."""
        sure: Tensor
        drawn: Tensor
        _, sure, drawn = c.scratch(self)[f"{net.index}"]
        order = torch.randperm(len(drawn), generator=c.rng(self, "pair", net.index, c.epoch))
        return drawn[order][sure.cumsum(0)[rows] - 1]

    def loss(self, c: Client, net: Net, batch: Batch) -> Tensor:
        guess, _, _ = c.scratch(self)[f"{net.index}"]
        other = c.batch(self.partners(c, net, batch.rows), net.index)
        fixed, mixed = (guess[each.rows].to(net.device) for each in (batch, other))
        weight = mixing_weight(self.alpha, c.rng(self, "weight", net.index, c.epoch, int(batch.rows[0])))
        x = other.images(f"{self.weak}#mixed").lerp(batch.images(f"{self.weak}#fixed"), weight)
        learnt = cross_entropy(net.logits(batch, self.strong), fixed, reduction="none")
        return learnt + mix_loss(net.module(x).float(), fixed, mixed, weight)


def semifl(
    guess: FixAndMix,
    momentum: ServerMomentum,
    loss: ServerLabels,
    norm: StaticNorm,
    pretraining: Pretraining,
    server: ServerFit = TAUGHT,
) -> Method:
    """SemiFL: clients weigh the same, the server steps with momentum and then trains on its labels."""
    fit = replace(server, parts=(loss, norm))
    return Method("semifl", pretraining.stages(fit, Stage(parts=(guess, momentum), base="equal")))
