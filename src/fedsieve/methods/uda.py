"""UDA at clients without labels, between steps of a server with a few (Xie et al. 2020; FedAvg-UDA)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor
from torch.nn.functional import kl_div, log_softmax

from fedsieve.core import Batch, Client, Method, Net, Stage
from fedsieve.parts.guesses import GuessOnWeakView, is_sure
from fedsieve.parts.server_fit import ServerFit
from fedsieve.parts.server_labels import TAUGHT, Pretraining, ServerLabels, server_progress

Annealing = Literal["off", "linear", "log", "exp"]


def uda_loss(weak: Tensor, strong: Tensor, threshold: float, temperature: float) -> Tensor:
    """1[max p(w) ≥ t] · KL(softmax(w / T) ‖ p(s)), one value a row; no gradient reaches w."""
    weak = weak.detach()
    sharpened = log_softmax(weak / temperature, 1)
    divergence = kl_div(log_softmax(strong, 1), sharpened, reduction="none", log_target=True).sum(1)
    return is_sure(weak, threshold) * divergence


def annealed(progress: float, classes: int, how: Annealing) -> float:
    """η_t = a(t) (1 − 1/C) + 1/C: labels that are predicted with more than this are left out at progress t."""
    ways = {"linear": progress, "log": 1.0 - math.exp(-5.0 * progress), "exp": math.exp(5.0 * (progress - 1.0))}
    return ways.get(how, 1.0) * (1.0 - 1.0 / classes) + 1.0 / classes


@dataclass(frozen=True, kw_only=True)
class AnnealedLabels(ServerLabels):
    """The server's loss, where asked for only on labels that it does not predict too surely yet.

    Progress is counted in the server's epochs, those before the first round among them.
    """

    tsa: Annealing = "off"
    """Training-signal annealing: how the probability beyond which a label is left out rises from 1/C to 1."""

    def loss(self, c: Client, net: Net, batch: Batch) -> Tensor:
        losses = super().loss(c, net, batch)
        if self.tsa == "off":
            return losses
        predicted = (net.logits(batch, self.view).detach().softmax(1) * net.target(batch)).sum(1)
        kept = predicted <= annealed(server_progress(c), c.n_classes, self.tsa)
        return (losses * kept).sum() / kept.sum().clamp_min(1)


@dataclass(frozen=True, kw_only=True)
class Consistency(GuessOnWeakView):
    """Where it is sure, the sharpened prediction of the weak view is the target of the strong one."""

    threshold: Annotated[float, Field(ge=0)] = 0.8
    """Probability from which on a guess is followed; 0 follows all, above 1 none."""
    temperature: Annotated[float, Field(gt=0)] = 0.4
    """T, by which the weak view's logits are divided."""

    def objective(self, weak: Tensor, strong: Tensor) -> Tensor:
        return uda_loss(weak, strong, self.threshold, self.temperature)


def uda(guess: Consistency, loss: AnnealedLabels, pretraining: Pretraining, server: ServerFit = TAUGHT) -> Method:
    """Server and clients take turns: labels there, consistent predictions here. FedProx-UDA is `fedprox+uda`."""
    fit = replace(server, parts=(loss,))
    return Method("uda", pretraining.stages(fit, Stage(parts=(guess,))))
