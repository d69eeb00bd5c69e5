"""RSCFed's consensus: reports weigh by how far they lie from the mean of random subsets (Liang et al., CVPR 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedsieve.core import Part, Server, Ups, Weights


def distances(models: Tensor, shares: Tensor, layers: Sequence[slice]) -> Tensor:
    """d_i = Σ_l ‖w_i^l − w̄^l‖₂ from the mean w̄ by these shares."""
    apart = models - shares @ models
    return torch.stack([apart[:, layer].norm(dim=1) for layer in layers]).sum(0)


def coefficients(apart: Tensor, shares: Tensor, rows: Tensor, beta: float) -> Tensor:
    """c_i ∝ f_i exp(−β d_i / n_i), with sum 1 however small they are."""
    return (shares.log() - beta * apart / rows).softmax(0)


@dataclass(frozen=True, kw_only=True)
class Consensus(Part):
    """Reports weigh as they do on average in random subsets, so that their mean is the mean of the subsets' models.

    Where the server takes part it is in every subset. Distances are of parameters alone.
    """

    subsets: Annotated[int, Field(ge=1)] = 3
    """M, subsets that are drawn from the clients that reported."""
    size: Annotated[int, Field(ge=1)] = 3
    """Clients in each; all, where fewer reported."""
    dist_scale: Annotated[float, Field(ge=0)] = 1e4
    """β in a subset of clients alone."""
    sup_scale: Annotated[float, Field(ge=0)] = 100.0
    """β in a subset with the server."""
    w_mul: Annotated[float, Field(gt=0)] = 6.0
    """By how much the server's share is multiplied, and then its coefficient again."""
    nets = 1

    def weigh(self, s: Server, ups: Ups, w: Weights) -> Weights:
        known = [k for k in sorted(ups) if w[k] > 0]
        server, clients = [k for k in known if k < 0], [k for k in known if k >= 0]
        layers = [slice(entry.start, entry.stop) for entry in s.plan.layout.entries if entry.trainable]
        total = dict.fromkeys(ups, 0.0)
        for m in range(self.subsets):
            order = torch.randperm(len(clients), generator=s.rng("subset", m)).tolist()
            members = [*server, *sorted(clients[i] for i in order[: self.size])]
            models = torch.stack([s.complete(ups[k].models or ())[0] for k in members]).double()
            rows = torch.tensor([ups[k].n for k in members], dtype=torch.float64)
            more = torch.tensor([self.w_mul if k < 0 else 1.0 for k in members], dtype=torch.float64)
            shares = torch.tensor([w[k] for k in members], dtype=torch.float64) * more
            shares = shares / shares.sum()
            apart = distances(models, shares, layers)
            found = coefficients(apart, shares, rows, self.sup_scale if server else self.dist_scale) * more
            for k, one in zip(members, (found / found.sum()).tolist(), strict=True):
                total[k] += one / self.subsets
        return total
