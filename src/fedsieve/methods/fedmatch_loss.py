"""What FedMatch's clients minimise: votes of helpers, agreement with them, and penalties on ψ (Jeong et al. 2021)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, one_hot


def voted(predictions: Sequence[Tensor]) -> Tensor:
    """The class that most of these probabilities are largest in, one a row; the first of those with as many votes."""
    votes = torch.stack([one_hot(p.argmax(1), p.shape[1]) for p in predictions]).sum(0)
    return votes.argmax(1)


def disagreement(logits: Tensor, helpers: Sequence[Tensor]) -> Tensor:
    """(1/H) Σ_h KL(p_h ‖ p), one value a row; the p_h are constant, and without them it is zero."""
    log_p, total = log_softmax(logits, 1), logits.new_zeros(len(logits))
    for p in helpers:
        total = total + (torch.xlogy(p, p) - p * log_p).sum(1)
    return total / max(len(helpers), 1)


def mean_of_sure(losses: Tensor, sure: Tensor) -> Tensor:
    """The mean over the sure rows; zero if there is none."""
    return (losses * sure).sum() / sure.sum().clamp_min(1)


def penalty_slope(psi: Tensor, anchor: Tensor, lambda_1: float, lambda_2: float) -> Tensor:
    """The gradient of λ₁ Σ |ψ| + λ₂ Σ (anchor − ψ)²."""
    return lambda_1 * psi.sign() + 2.0 * lambda_2 * (psi - anchor)


def nearest(embeddings: dict[int, Tensor], client: int, count: int) -> list[int]:
    """The other clients whose embeddings are nearest to this one's, nearest first; of two as near the first."""
    others = sorted(embeddings.keys() - {client})
    if client not in embeddings or not others:
        return []
    distances = torch.stack([(embeddings[other] - embeddings[client]).norm() for other in others])
    return [others[i] for i in distances.argsort(stable=True).tolist()[:count]]
