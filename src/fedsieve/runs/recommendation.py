"""Which method to take for a federation, and why: rules on what can be known of it before any training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedsieve.data.features import at_hand
from fedsieve.data.federation import Federation
from fedsieve.runs.findings import Findings

FEW_WRONG = 0.1
"""The share of labels that look wrong below which they are not worth a method of their own.

Of right labels, where samples are hard to tell apart, the audit doubts almost as many.
"""
MOST_WRONG = 0.6
"""The share of labels that look wrong from which some right ones at the server were worth most."""
BETTER = {"features": "resnet50", "size": 96}
"""An encoder with which sieve was above itself with HOG on all images on which both were tried."""
TABLE = 2
"""Axes of samples that are rows of a table."""


@dataclass(frozen=True)
class Facts:
    """Of a federation, as far as they decide."""

    rows: tuple[int, ...]
    """Of each owner."""
    classes: int
    shares: tuple[float, ...]
    """Of the owners whose labels could be judged, the share that looks wrong."""
    wrong: float | None
    """Of all judged labels; None where none could be judged."""
    labelled: bool
    """Whether clients have labels."""
    server: tuple[str, ...]
    """Kinds of data that the server holds."""
    encoders: tuple[str, ...] = ()
    """Trained on photographs, with weights on this machine; none where samples are no images."""
    look: Mapping[str, Any] = field(default_factory=dict)
    """Options with which the labels were audited, where they are not the usual ones."""


@dataclass(frozen=True)
class Advice:
    method: str
    why: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the method's own, to be given with it."""

    def keys(self) -> list[str]:
        """As a run takes them."""
        return [f"method={self.method}", *(f"{key}={value}" for key, value in self.options.items())]


def facts_of(federation: Federation, found: Sequence[Findings], look: Mapping[str, Any]) -> Facts:
    are_images = federation.images.ndim > TABLE
    judged = sum(each.rows for each in found)
    return Facts(
        tuple(len(rows) for rows in federation.rows),
        federation.n_classes,
        tuple(each.wrong.share for each in found),
        sum(each.wrong.share * each.rows for each in found) / judged if judged else None,
        any(bool((given >= 0).any()) for given in federation.given),
        tuple(sorted(federation.server)),
        at_hand() if are_images else (),
        look,
    )


def advice(facts: Facts) -> Advice:
    """The first rule that applies."""
    if not facts.labelled:
        if "noisy" in facts.server or "clean" in facts.server:
            return Advice("semifl", "only the server has labels; semifl was level with the server alone or above it")
        return Advice("simclr", "nobody has labels: an encoder can be learnt, a classifier cannot")
    if facts.wrong is None:
        return Advice(
            "symce", "no class has rows enough to judge its labels; a loss that bears wrong ones costs nothing"
        )
    if facts.wrong < FEW_WRONG:
        return Advice(
            "fedavg", f"fewer than {100 * FEW_WRONG:.0f} % of the labels look wrong; look at those that are flagged"
        )
    why, look = "wrong labels can be told from the samples", dict(facts.look)
    if BETTER["features"] in facts.encoders and "features" not in look:
        why += f" ({BETTER['features']}, which is at hand, told more than HOG wherever both were tried)"
        look |= BETTER
    options = {f"sieve.{name}": value for name, value in look.items()}
    why += "; sieve mends them before and during training"
    if "clean" in facts.server:
        why += ", by the server's right labels too"
    elif facts.wrong >= MOST_WRONG:
        why += ". A few hundred right labels at the server (server.clean) would help it"
    return Advice("sieve", why, options)


def told(facts: Facts, chosen: Advice, again: str) -> str:
    """Five lines for a person; `again` are the settings of a run of the method on these data."""
    clients = f"{len(facts.rows)} owner{'s' if len(facts.rows) != 1 else ''}"
    sizes = f"{min(facts.rows)} to {max(facts.rows)} each"
    held = f"; the server holds {', '.join(facts.server)} data" if facts.server else ""
    held += f"; at hand: {', '.join(facts.encoders)}" if facts.encoders else ""
    labels = "labels   none at the owners" if not facts.labelled else "labels   could not be judged"
    if facts.labelled and facts.wrong is not None:
        labels = (
            f"labels   about {100 * facts.wrong:.0f} % look wrong, "
            f"{100 * min(facts.shares):.0f} to {100 * max(facts.shares):.0f} % from owner to owner"
        )
    return "\n".join(
        [
            f"data     {sum(facts.rows)} rows of {clients}, {sizes}, {facts.classes} classes{held}",
            labels,
            f"take     {' '.join(chosen.keys())}",
            f"because  {chosen.why}",
            f"next     fedsieve run {again}",
        ]
    )
