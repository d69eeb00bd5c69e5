"""Learning alone, FedAvg and FedProx."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedsieve.base.options import Choice
from fedsieve.core import Method, Share, Stage
from fedsieve.parts.terms import Prox


@dataclass(frozen=True, kw_only=True)
class Weighting(Choice):
    """What clients count for before any part weighs them."""

    weights: Literal["size", "equal"] = "size"
    """Clients weigh by their number of samples, or all the same."""


def local() -> Method:
    """Each client trains its own model and shares nothing; tested is each client's model, on average."""
    return Method("local", share=Share(down=(), up=(), keep=("*",)), test="clients")


def fedavg(weighting: Weighting) -> Method:
    """The round loop with nothing added: w ← Σ n_k w_k / Σ n_k (McMahan et al. 2017)."""
    return Method("fedavg", (Stage(base="equal" if weighting.weights == "equal" else None),))


def fedprox(prox: Prox) -> Method:
    """FedAvg with μ/2 ‖w − w_t‖² in each client's objective (Li et al. 2020). The FedDS paper states no μ."""
    return Method("fedprox", (Stage(parts=(prox,)),))
