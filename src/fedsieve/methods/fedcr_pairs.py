"""FedCR's contrast between the images of a batch (Eq. 4), and how to see that it has not collapsed."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

Singular = Literal["clamp", "taylor", "components"]
OwnBy = Literal["cosine", "log"]


def alike(p: Tensor, eta: float, soft: bool) -> Tensor:
    """M_jk = 1[p_j · p_k ≥ η], or p_j · p_k itself there; 1 for a row with itself."""
    products = p @ p.T
    chosen = products >= eta
    mask = torch.where(chosen, products, 0.0) if soft else chosen.to(p.dtype)
    return mask.fill_diagonal_(1.0)


def log_apart(s: Tensor, eps: float, singular: Singular) -> Tensor:
    """log(1 − s) made finite near s = 1: constant beyond 1 − ε, or going on as a line."""
    near = torch.log1p(-s.clamp(max=1.0 - eps))
    return near - (s - (1.0 - eps)).clamp(min=0.0) / eps if singular == "taylor" else near


def pair_contrast(
    q: Tensor, z: Tensor, mask: Tensor, eps: float, singular: Singular, raw: bool, own_by: OwnBy = "cosine"
) -> Tensor:
    """Σ_k M_jk ℓ_jk / Σ_k M_jk with ℓ_jj = −S_jj and ℓ_jk = log(1 − S_jk), S = cos(q_j, z_k), one value a row (Eq. 4).

    `raw` is the sum over pairs as printed, without the diagonal; its mean over the rows is that sum. With `own_by` of
    "log" ℓ_jj is as all others.
    """
    q, z = normalize(q, dim=1), normalize(z.detach(), dim=1)
    if singular == "components":
        q, z = q.clamp(1e-4, 1.0 - 1e-4), z.clamp(1e-4, 1.0 - 1e-4)
    s = q @ z.T
    own = torch.eye(len(s), dtype=torch.bool, device=s.device)
    values = log_apart(s, eps, singular)
    if raw:
        return len(s) * (mask * values).masked_fill(own, 0.0).sum(1)
    if own_by == "cosine":
        values = torch.where(own, -s, values)
    return (mask * values).sum(1) / mask.sum(1)


def density(mask: Tensor) -> float:
    """The share of the pairs of different images that count as alike."""
    rows = len(mask)
    return float(((mask > 0).sum() - rows) / max(rows * (rows - 1), 1))


def spread(z: Tensor) -> float:
    """√d times the mean standard deviation of a coordinate of z / |z|: about 1 is healthy, 0 a collapse."""
    unit = normalize(z.detach(), dim=1)
    return float(unit.std(0, correction=0).mean() * unit.shape[1] ** 0.5)
