"""K-similarity's contrast (Eq. 2) in one step forward and one back: it is computed for every batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

SHORTEST = 1e-12
"""Features shorter than this are divided by it, as `torch.nn.functional.normalize` does."""


class _Similarity(torch.autograd.Function):
    """Eq. 2 with its gradient: ∂ℓ_i/∂s_ij is p_ij over all rows less p_ij over the neighbours, s_ij = ⟨v_i, v_j⟩/T.

    Where v = z/‖z‖, only what is at right angles to v in ∂ℓ/∂v reaches z, divided by ‖z‖.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, near: Tensor, temperature: float, with_self: bool, unit: bool) -> Tensor:
        lengths = torch.linalg.vector_norm(z, dim=1, keepdim=True).clamp_min_(SHORTEST) if unit else None
        v = z if lengths is None else z / lengths
        products = (v @ v.T).div_(temperature)
        if not with_self:
            products.fill_diagonal_(-torch.inf)
        logs = products.log_softmax(1)
        chosen = logs.gather(1, near)
        value = chosen.logsumexp(1)
        slope = logs.exp_().scatter_add_(1, near, -(chosen - value[:, None]).exp_())
        ctx.temperature = temperature
        ctx.save_for_backward(v, slope, lengths)
        return -value

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        v, slope, lengths = ctx.saved_tensors
        weighted = slope * (gradients[0] / ctx.temperature)[:, None]
        reaches = (weighted + weighted.T) @ v
        if lengths is not None:
            reaches = (reaches - (reaches * v).sum(1, keepdim=True) * v).div_(lengths)
        return reaches, None, None, None, None


def k_similarity(z: Tensor, near: Tensor, temperature: float, *, with_self: bool = False, unit: bool = True) -> Tensor:
    """−log [Σ_{k∈N(i)} e^{⟨v_i, v_k⟩/T} / Σ_l e^{⟨v_i, v_l⟩/T}], one value a row (Eq. 2).

    v is z brought to length one where it should be, and z otherwise.
    """
    value: Tensor = _Similarity.apply(z, near, temperature, with_self, unit)  # type: ignore[no-untyped-call]
    return value
