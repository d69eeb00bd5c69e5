"""The federated label audit: owners learn which of their labels are wrong, from sums alone, before any training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from fedsieve.base.options import Choice
from fedsieve.core import Method, Stage
from fedsieve.parts.frozen import MODEL
from fedsieve.parts.label_audit import LabelAudit


@dataclass(frozen=True, kw_only=True)
class Beforehand(Choice):
    """How long the model learns whose features the audit looks at."""

    rounds: Annotated[int, Field(ge=1)] = 5
    """With `features=model`: rounds of training before the audit, on top of the experiment's."""


def audit(part: LabelAudit, before: Beforehand = Beforehand()) -> Method:
    """The audit before any training method; FedAvg alone. Features of the model itself need rounds before it."""
    judged = Stage("audit", 0, (part,))
    if part.features == MODEL:
        return Method("audit", (Stage("before", before.rounds, extra=True), judged, Stage()))
    return Method("audit", (judged,), alone=Stage())
