"""A client's own look at its labels: what the nearest neighbours of each sample say, in features that no training
changes. From FedLN (Tsouvalas et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from fedsieve.core import Client, Part
from fedsieve.estimate.neighbours import elected, nearest, share_outvoted, votes
from fedsieve.parts.frozen import AUTO, FrozenViews


class Poll(NamedTuple):
    """What the neighbours say of a client's labels."""

    rows: Tensor
    """(n,) which rows have a label; the others take no part."""
    elected: Tensor
    """For each of these, the class with the most votes."""
    agreement: Tensor
    """For each of these, the share of the neighbours that bear its given label; NaN where it has no neighbours."""
    noise: float
    """Share of the labels that are outvoted; 0 where it is below the threshold."""


@dataclass(frozen=True, kw_only=True)
class NeighbourVote(Part):
    """Each sample's label against the vote of its nearest neighbours among the client's own samples.

    Labels are those that stand, also after a correction. The authors let a sample vote for itself, which makes a client
    look cleaner than it is.
    """

    k: PositiveInt = 10
    """Neighbours that vote on a label, each with one vote; all others where the client has fewer."""
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.15
    """Share of outvoted labels below which a client counts as clean."""
    with_self: bool = False
    """Whether a sample is among its own neighbours, as in the authors' code."""
    features: str = AUTO
    """The frozen encoder: auto (HOG), pixels, resnet50, hf:NAME, or FILE.safetensors of a run."""
    size: PositiveInt | None = None
    """Side in pixels to which images are brought for the encoder, where it takes a choice."""

    labels = True

    def poll(self, c: Client) -> Poll:
        known = c.labels.given >= 0
        label, given = c.labels.target[known].argmax(1).numpy(), c.labels.given[known]
        shares = votes(label, self.neighbours(c, known).numpy(), c.n_classes)
        agreement = torch.from_numpy(shares).gather(1, given[:, None])[:, 0]
        agreement[torch.from_numpy(~shares.any(axis=1))] = torch.nan
        noise = share_outvoted(label, shares)
        chosen = torch.from_numpy(elected(label, shares))
        return Poll(known, chosen, agreement, noise if noise >= self.threshold else 0.0)

    def neighbours(self, c: Client, known: Tensor) -> Tensor:
        """(rows, k) of the rows with a label, counted among these."""
        return torch.from_numpy(nearest(self.views(c).stored[known].numpy(), self.k, self.with_self))

    def views(self, c: Client) -> FrozenViews:
        """The client's frozen features, for as long as the message lasts."""
        views: FrozenViews = c.scratch(self).setdefault("views", FrozenViews(c.samples, self.features, self.size))
        return views
