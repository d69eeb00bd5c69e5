"""Learning alone, FedAvg and FedProx."""

from __future__ import annotations

from fedsieve.core.part import Method, Share, Stage
from fedsieve.parts.terms import Prox


def local() -> Method:
    """Each client trains its own model and shares nothing; tested is each client's model, on average."""
    return Method("local", share=Share(down=(), up=(), keep=("*",)), test="clients")


def fedavg() -> Method:
    """The round loop with nothing added: w ← Σ n_k w_k / Σ n_k (McMahan et al. 2017)."""
    return Method("fedavg")


def fedprox(prox: Prox) -> Method:
    """FedAvg with μ/2 ‖w − w_t‖² in each client's objective (Li et al. 2020). The FedDS paper states no μ."""
    return Method("fedprox", (Stage(parts=(prox,)),))
