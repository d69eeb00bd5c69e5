"""FedLN-AKD: noisy clients learn the features of a frozen encoder beside their labels (Tsouvalas et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import l1_loss

from fedsieve.core import Batch, Client, Method, Net, Share, Stage
from fedsieve.parts.frozen import FrozenHead
from fedsieve.parts.neighbours import NeighbourVote

MIMIC = "mimic"
"""The head that imitates the encoder."""


@dataclass(frozen=True, kw_only=True)
class Distil(NeighbourVote):
    """A linear head on a noisy client's features imitates those of a frozen encoder, which no label has misled.

    A client decides by itself whether it is noisy, anew whenever it takes part. The head stays with it and goes on
    where it was. Where the paper is silent: the encoder sees the stored image, whose features are computed once.
    """

    alpha: Annotated[float, Field(ge=0)] = 10.0
    """α, the weight of the imitation beside the loss; 3 where all clients are noisy, in the K-similarity paper."""
    l2: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the sum of the head's squared weights, biases left out, where the term is."""
    all_clients: bool = False
    """Whether clients that were not found noisy imitate the encoder too."""
    reference: Literal["stored", "augmented"] = "stored"
    """What the encoder sees: the images as they are stored, once, or each batch as it is augmented."""

    keeps = {"near": ("<=n", "<=k")}
    heads = (MIMIC,)

    def start(self, c: Client) -> None:
        c.scratch(self)["taught"] = self.all_clients or self.poll(c).noise > 0

    def term(self, c: Client, net: Net, batch: Batch) -> Tensor:
        if not c.scratch(self)["taught"]:
            return net.grad.new_zeros(())
        seen = self.views(c).of(batch, "clean" if self.reference == "stored" else "train").to(net.device)
        term = self.alpha * l1_loss(net.head(MIMIC, batch).float(), seen)
        if self.l2:
            matrices = [each for each in net.module.get_submodule(MIMIC).parameters() if each.dim() == 2]
            term = term + self.l2 * torch.stack([each.square().sum() for each in matrices]).sum()
        return term

    def neighbours(self, c: Client, known: Tensor) -> Tensor:
        """Labels may change, neighbours never do."""
        kept = c.keep(self)
        if "near" not in kept:
            kept["near"] = super().neighbours(c, known)
        return kept["near"]


def fedln_akd(distil: Distil) -> Method:
    """FedLN-AKD: noisy clients learn a frozen encoder's features beside their labels."""
    head = FrozenHead(name=MIMIC, features=distil.features, size=distil.size)
    travels = ("*", f"-{MIMIC}")
    share = Share(down=travels, up=travels, keep=(MIMIC,))
    return Method("fedln-akd", (Stage(parts=(distil,)),), heads=(head,), share=share)
