"""A mixture of two Gaussians on losses from 0 to 1 as it travels: six numbers, or none."""

from __future__ import annotations

import torch
from torch import Tensor

from fedsieve.core import UNEVEN, Sent, sums_to_one
from fedsieve.estimate.gmm1d import GaussianMixture1D

COMPONENTS = 2
NARROWEST = 1e-4
"""No variance is smaller: `GaussianMixture1D` adds more to each."""


def tensor_of(mixture: GaussianMixture1D) -> Tensor:
    """(2, 3): mean, variance and weight of each component, the smaller mean first; (0, 3) of values not split."""
    columns = (mixture.means_, mixture.variances_, mixture.weights_)
    return torch.stack([torch.from_numpy(column) for column in columns], 1)[: COMPONENTS * mixture.split_].float()


def mixture_of(tensor: Tensor) -> GaussianMixture1D | None:
    """The other way; None for no components."""
    return GaussianMixture1D.of(*tensor.double().T.numpy()) if len(tensor) else None


def describes_losses(tensor: Tensor) -> bool:
    """Whether this is a mixture of two on values from 0 to 1, or none."""
    wide = bool((tensor[:, 1] >= NARROWEST).all())
    return len(tensor) == 0 or (len(tensor) == COMPONENTS and wide and sums_to_one(tensor[:, 2]))


SENT = Sent(("<=components", 3), -UNEVEN, 1 + UNEVEN, holds=describes_losses, kind="a mixture")
"""What a client may send for one; its part has `components`."""
