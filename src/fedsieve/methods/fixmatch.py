"""FixMatch at clients without labels, between steps of a server with a few (Sohn et al. 2020; FedAvg-FixMatch)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor
from torch.nn.functional import cross_entropy

from fedsieve.core import Method, Stage
from fedsieve.parts.guesses import GuessOnWeakView, is_sure
from fedsieve.parts.server_fit import ServerFit
from fedsieve.parts.server_labels import TAUGHT, Pretraining, ServerLabels


def fixmatch_loss(weak: Tensor, strong: Tensor, threshold: float) -> Tensor:
    """1[max p(w) ≥ t] · CE(p(s), argmax p(w)), one value a row; no gradient reaches w."""
    weak = weak.detach()
    return is_sure(weak, threshold) * cross_entropy(strong, weak.argmax(1), reduction="none")


@dataclass(frozen=True, kw_only=True)
class FixMatch(GuessOnWeakView):
    """A sure guess on the weak view is the label of the strong one."""

    def objective(self, weak: Tensor, strong: Tensor) -> Tensor:
        return fixmatch_loss(weak, strong, self.threshold)


def fixmatch(guess: FixMatch, loss: ServerLabels, pretraining: Pretraining, server: ServerFit = TAUGHT) -> Method:
    """Server and clients take turns: labels there, sure guesses here. FedProx-FixMatch is `fedprox+fixmatch`."""
    fit = replace(server, parts=(loss,))
    return Method("fixmatch", pretraining.stages(fit, Stage(parts=(guess,))))
