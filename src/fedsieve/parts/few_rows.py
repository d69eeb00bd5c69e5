"""The statistics of a few rows are nearly the rows themselves: an eigenvector of one sample is the sample.

What a part tells of single classes it tells only of classes with so many rows; of the others it says nothing, as if the
client had none.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

SMALLEST = 5
"""Rows from which a class, or a client, is spoken of."""
Smallest = Annotated[int, Field(ge=1)]


def enough(labels: Tensor, n_classes: int, smallest: int = SMALLEST) -> Tensor:
    """(C,) which classes have so many rows."""
    return torch.bincount(labels, minlength=n_classes) >= smallest
