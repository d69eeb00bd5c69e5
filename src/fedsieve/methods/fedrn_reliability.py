"""FedRN's reliability: expertise, and likeness of the answers to one random input that all clients get."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from fedsieve.base.rng import torch_rng
from fedsieve.core import Exhibit, Plan
from fedsieve.parts.selection import min_max


def probe_input(plan: Plan) -> Tensor:
    """The one Gaussian input that all clients answer, drawn from the experiment's seed instead of being sent."""
    return torch.randn(1, *plan.sample_shape, generator=torch_rng(plan.seed, "probe"))


def similarities(one: Tensor, others: Tensor) -> Tensor:
    """Eq. 5, before scaling: the cosine of a client's answer with each of the others'."""
    return cosine_similarity(one[None], others)


def reliability(accuracy: Tensor, outputs: Tensor, alpha: float) -> Tensor:
    """R(c, n) = α Exp(n) + (1 − α) Sim(c, n) (Eq. 3) of the client itself, which comes first, and of the others."""
    expertise = min_max(accuracy)  # Eq. 4
    own = torch.ones(1, dtype=outputs.dtype)  # Sim(c, c) = 1
    similarity = min_max(torch.cat([own, similarities(outputs[0], outputs[1:])]))
    return alpha * expertise + (1 - alpha) * similarity


def indicators(accuracy: Tensor, probes: Mapping[int, Tensor]) -> list[Exhibit]:
    """What the paper's Figures 4 and 5 show."""
    known = tuple(sorted(probes))
    outputs = torch.stack([probes[client] for client in known]).double()
    alike = torch.stack([similarities(each, outputs) for each in outputs])
    return [
        Exhibit("clients", "training accuracy of a client", accuracy[list(known)], known),
        Exhibit("pairs", "similarity of two clients' answers to the probe", alike, known),
    ]
