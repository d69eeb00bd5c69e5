"""The federated label audit: owners learn which of their labels are wrong, from sums alone, before any training."""

from __future__ import annotations

from fedsieve.core import Method, Stage
from fedsieve.parts.frozen import MODEL
from fedsieve.parts.label_audit import LabelAudit


def audit(part: LabelAudit) -> Method:
    """The audit before any training method; FedAvg alone. Features of the model itself need rounds before it."""
    judged = Stage("audit", 0, (part,))
    if part.features == MODEL:
        return Method("audit", (Stage("before", part.rounds, extra=True), judged, Stage()))
    return Method("audit", (judged,), alone=Stage())
