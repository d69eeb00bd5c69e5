"""FedLSR: two views of a sample must be predicted alike, and sharply (Jiang et al., CIKM 2022)."""

from __future__ import annotations

from dataclasses import dataclass

from fedsieve.base.options import Choice
from fedsieve.core import Method, Stage
from fedsieve.methods.fedlsr_loss import SelfRegularise
from fedsieve.methods.fedlsr_published import PublishedSelfRegularise
from fedsieve.parts.published import vary


@dataclass(frozen=True, kw_only=True)
class Source(Choice):
    """Whom to follow where paper and code differ."""

    published: bool = False
    """Compute the terms as the authors' code does: a second softmax in two of them, the divergence divided by C."""


def fedlsr(regularise: SelfRegularise, source: Source) -> Method:
    """FedLSR: local self-regularisation at every client, FedAvg between them."""
    part = vary(regularise, PublishedSelfRegularise) if source.published else regularise
    return Method("fedlsr", (Stage(parts=(part,)),))
