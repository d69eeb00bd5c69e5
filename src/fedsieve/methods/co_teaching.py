"""Co-teaching: two models pick the samples that the other one trains on (Han et al., NeurIPS 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedsieve.core import Batch, Client, Labels, Method, Net, Part, Payload, Ramp, Stage
from fedsieve.parts.losses import cross_entropy
from fedsieve.parts.selection import mean_of, rows_kept, smallest, warmup_rounds


@dataclass(frozen=True, kw_only=True)
class CoTeaching(Part):
    """Each net ranks the batch by its own cross entropy, and its peer trains on the rows with small losses.

    Where the paper is silent: one forget rate holds for all clients, whatever their noise; it rises with the rounds,
    not with local epochs; a batch keeps at least one row. A label's score is the share of this round's choices (two
    nets, every epoch) that kept it; it counts as kept if most of them did.
    """

    forget_rate: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """Share of each batch that is left out in the end. The paper takes the true noise rate, which nobody knows."""
    warmup: Annotated[int, Field(ge=0)] | None = None
    """Rounds over which the forget rate rises from 0; a fifth of the rounds if not given."""
    labels = True
    nets = 2

    def relabel(self, c: Client, net: Net, labels: Labels) -> Labels:
        """Every row stays in reach: what is left out is chosen batch by batch, and entered by `finish`."""
        c.scratch(self).setdefault("kept", torch.zeros(c.n))
        return labels

    def loss(self, c: Client, net: Net, batch: Batch) -> Tensor:
        peer = c.nets[1 - net.index]
        ranking = cross_entropy(peer.logits(batch).detach(), peer.target(batch))
        chosen = smallest(ranking, rows_kept(len(batch), self.forget(*c.clock(self))))
        c.scratch(self)["kept"][batch.rows[chosen.cpu()]] += 1
        return mean_of(chosen, cross_entropy(net.logits(batch), net.target(batch)), net.weight(batch))

    def forget(self, t: int, rounds: int) -> float:
        """1 − R(T) = min{T τ / T_k, τ}, T the rounds that have passed (Algorithm 1)."""
        return Ramp(0.0, self.forget_rate, warmup_rounds(rounds, self.warmup))(t)

    def finish(self, c: Client) -> Payload:
        kept = c.scratch(self).get("kept")
        if kept is not None:
            score = kept / (len(c.nets) * c.fit.epochs)
            for net in c.nets:
                net.labels = net.labels.only(score > 0.5, score)
        return {}


def co_teaching(teaching: CoTeaching) -> Method:
    """Co-teaching with two global models, both sent and averaged; the first one is tested."""
    return Method("co-teaching", (Stage(parts=(teaching,)),), nets=2, turns="together")
