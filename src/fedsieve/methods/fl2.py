"""(FL)²: thresholds of each client's own, consistency under the worst weights nearby, and weights by learning status.

After Lee, Le, Shin and Lee, NeurIPS 2024.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import kl_div, log_softmax

from fedsieve.core import Batch, Client, Layout, Method, Net, Payload, Server, Stage, Ups, Weights, proportion
from fedsieve.parts.guesses import GuessOnce
from fedsieve.parts.losses import cross_entropy
from fedsieve.parts.server_fit import ServerFit
from fedsieve.parts.server_labels import TAUGHT, Pretraining, ServerLabels
from fedsieve.parts.server_momentum import ServerMomentum
from fedsieve.parts.static_norm import StaticNorm

SMALLEST = 0.01
"""Added to the size of a weight, so that one of zero may move too."""


def status(p: Tensor) -> Tensor:
    """τ_k = mean_i max_c p_i(c), how sure a model is of a client's samples; rounding lifts it above no row's maximum
    where all are equal."""
    sureness = p.amax(1)
    return sureness.mean().clamp_max(sureness.max())


def class_thresholds(p: Tensor) -> Tensor:
    """τ_kc = τ_k · p̄_c / max_c' p̄_c', p̄ the mean prediction: classes that are seldom predicted are held to less."""
    mean = p.mean(0)
    return status(p) * mean / mean.max()


def ascent(weights: Tensor, slope: Tensor, layout: Layout, rho: float) -> Tensor:
    """ε = ρ T² g / |T g|, T = |w| + 0.01 for weights and 1 for biases (ASAM): uphill, by the size of each weight."""
    scale = torch.ones_like(weights)
    for entry in layout.entries:
        if entry.trainable and entry.name.endswith("weight"):
            scale[entry.start : entry.stop] = weights[entry.start : entry.stop].abs() + SMALLEST
    length = (scale * slope).norm()
    return rho * scale.square() * slope / length if length > 0 else torch.zeros_like(slope)


def shares(sureness: Mapping[int, float]) -> dict[int, float]:
    """c_k = (1 − τ_k) / Σ_j (1 − τ_j): who is less sure counts more; all alike where everybody is quite sure."""
    doubt = {k: 1.0 - tau for k, tau in sureness.items()}
    total = sum(doubt.values())
    return {k: each / total if total > 0 else 1.0 / len(doubt) for k, each in doubt.items()}


@dataclass(frozen=True, kw_only=True)
class SharpnessAware(GuessOnce):
    """Guesses are accepted by thresholds of the client and of the class. Of those that are surest, predictions must not
    change where weights are moved uphill."""

    threshold: Annotated[float, Field(ge=0)] | None = None
    """One probability for all clients and classes from which on a guess is accepted; each client's own if not given."""
    strict: Annotated[float, Field(ge=0)] = 0.95
    """Probability from which on a guess takes part in the consistency."""
    rho: Annotated[float, Field(ge=0)] = 0.1
    """ρ, how far weights are moved: 0.1 for CIFAR-10 and SVHN, 1 for CIFAR-100 in the paper; 0 leaves it out."""
    weights: Literal["status", "equal"] = "status"
    """Whether clients that are less sure weigh more, or all the same."""
    up = {"status": proportion()}
    weighs = "replace"

    # --- client half
    def start(self, c: Client) -> None:
        for net in c.nets:
            c.scratch(self)[f"{net.index}"] = self.seen(c, net).double().softmax(1)

    def judged(self, c: Client, net: Net) -> tuple[Tensor, Tensor]:
        p: Tensor = c.scratch(self)[f"{net.index}"]
        surest, guess = p.max(1)
        wanted = class_thresholds(p)[guess] if self.threshold is None else self.threshold
        return guess, surest >= wanted

    def gradient(self, c: Client, net: Net, batch: Batch) -> None:
        strict = (c.scratch(self)[f"{net.index}"][batch.rows].amax(1) >= self.strict).to(net.device)
        if self.rho == 0 or not strict.any():
            return
        with net.holding(net.vector):  # running statistics follow the plain pass alone
            logits = net.logits(batch, self.strong).float()
            slope = net.gradient_of((strict * cross_entropy(logits, net.target(batch))).sum())
        uphill = net.vector.clone()
        uphill[: len(slope)] += ascent(net.weights, slope, net.layout, self.rho)
        with net.holding(uphill):
            moved = log_softmax(net.logits(batch, self.strong).float(), 1)
            still = log_softmax(logits.detach(), 1)
            divergence = kl_div(moved, still, reduction="none", log_target=True).sum(1)
            slope = net.gradient_of((strict * divergence).sum() / len(batch))
        net.grad.add_(slope)

    def finish(self, c: Client) -> Payload:
        return {"status": float(status(c.scratch(self)["0"]))}

    # --- server half
    def weigh(self, s: Server, ups: Ups, w: Weights) -> Weights:
        told = s.notes(ups)
        same = self.weights == "equal"
        return shares({k: 0.0 if same else told[k].number("status") for k in w})


def fl2(
    guess: SharpnessAware,
    momentum: ServerMomentum,
    loss: ServerLabels,
    norm: StaticNorm,
    pretraining: Pretraining,
    server: ServerFit = TAUGHT,
) -> Method:
    """(FL)²: the server steps with momentum, trains on its labels and measures running statistics, as in SemiFL."""
    fit = replace(server, parts=(loss, norm))
    return Method("fl2", pretraining.stages(fit, Stage(parts=(guess, momentum))))
