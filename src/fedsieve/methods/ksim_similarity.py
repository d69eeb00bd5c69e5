"""K-similarity's contrast (Eq. 2) in one step forward and one back: it is computed for every batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _Similarity(torch.autograd.Function):
    """Eq. 2 with its gradient: ∂ℓ_i/∂s_ij is p_ij over all rows less p_ij over the neighbours, s_ij = ⟨z_i, z_j⟩/T."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, near: Tensor, temperature: float, with_self: bool) -> Tensor:
        products = z @ z.T / temperature
        if not with_self:
            products.fill_diagonal_(-torch.inf)
        logs = products.log_softmax(1)
        chosen = logs.gather(1, near)
        value = chosen.logsumexp(1)
        slope = logs.exp().scatter_add_(1, near, -(chosen - value[:, None]).exp())
        ctx.save_for_backward(z, slope / temperature)
        return -value

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        z, slope = ctx.saved_tensors
        weighted = slope * gradients[0][:, None]
        return (weighted + weighted.T) @ z, None, None, None


def k_similarity(z: Tensor, near: Tensor, temperature: float, with_self: bool) -> Tensor:
    """−log [Σ_{k∈N(i)} e^{⟨z_i, z_k⟩/T} / Σ_l e^{⟨z_i, z_l⟩/T}], one value a row (Eq. 2)."""
    value: Tensor = _Similarity.apply(z, near, temperature, with_self)  # type: ignore[no-untyped-call]
    return value
