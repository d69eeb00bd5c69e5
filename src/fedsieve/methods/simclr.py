"""SimCLR: encoders learnt from two views of each image, told apart from all others (Chen et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from fedsieve.core import Batch, Client, Method, Net
from fedsieve.parts.server_fit import ServerFit
from fedsieve.parts.two_views import AT_SERVER, PROJECTION, Learners, Perceptron, TwoViews


def nt_xent(one: Tensor, two: Tensor, temperature: float) -> Tensor:
    """−log [e^{cos(z_i, z_j)/T} / Σ_{k≠i} e^{cos(z_i, z_k)/T}] over the 2B views, j the other view of i (Eq. 1).

    One value a row: the mean of its two views.
    """
    z = normalize(torch.cat([one, two]), dim=1)
    rows = len(one)
    likeness = (z @ z.T / temperature).masked_fill(torch.eye(2 * rows, dtype=torch.bool, device=z.device), -torch.inf)
    partner = torch.arange(2 * rows, device=z.device).roll(rows)
    return cross_entropy(likeness, partner, reduction="none").view(2, rows).mean(0)


@dataclass(frozen=True, kw_only=True)
class Contrast(TwoViews):
    """Draws the projections of an image's two views together and away from those of all others in the batch.

    It reads no labels. The features that an encoder is used for are those before the projection.
    """

    temperature: Annotated[float, Field(gt=0)] = 0.5
    """T of the contrast."""
    heads = (PROJECTION,)

    def loss(self, c: Client, net: Net, batch: Batch) -> Tensor:
        one, two = (net.head(PROJECTION, batch, view) for view in self.both)
        return nt_xent(one, two, self.temperature)


def simclr(
    contrast: Contrast,
    learners: Learners,
    projector: Perceptron = Perceptron(width=128),
    server: ServerFit = AT_SERVER,
) -> Method:
    """SimCLR, federated by FedAvg over the clients' own images, or at the server; tested by probes of the features."""
    stage = learners.stage(contrast, server)
    return Method("simclr", (stage,), heads=(projector.head(PROJECTION),), test="probe")
