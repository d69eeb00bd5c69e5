"""FedAvg with another loss. Each also composes with whatever brings no loss of its own: `scaffold+gce`."""

from __future__ import annotations

from fedsieve.core import Method, Stage
from fedsieve.parts.losses import (
    AdjustedLogits,
    ClippedLogits,
    CrossEntropy,
    GeneralisedCrossEntropy,
    MeanAbsoluteError,
    SymmetricCrossEntropy,
)


def ce(loss: CrossEntropy) -> Method:
    """Cross entropy, said aloud."""
    return Method("ce", (Stage(parts=(loss,)),))


def symce(loss: SymmetricCrossEntropy) -> Method:
    """Symmetric cross entropy."""
    return Method("symce", (Stage(parts=(loss,)),))


def gce(loss: GeneralisedCrossEntropy) -> Method:
    """Generalised cross entropy."""
    return Method("gce", (Stage(parts=(loss,)),))


def mae(loss: MeanAbsoluteError) -> Method:
    """Mean absolute error."""
    return Method("mae", (Stage(parts=(loss,)),))


def logitclip(loss: ClippedLogits) -> Method:
    """Cross entropy on clipped logits."""
    return Method("logitclip", (Stage(parts=(loss,)),))


def logit_adjust(loss: AdjustedLogits) -> Method:
    """Logit-adjusted cross entropy."""
    return Method("logit-adjust", (Stage(parts=(loss,)),))
