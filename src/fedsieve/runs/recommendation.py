"""Which method to take for a federation, and why: rules on what can be known of it before any training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedsieve.data.federation import Federation
from fedsieve.runs.findings import Findings

FEW_WRONG = 0.1
"""The share of labels that look wrong below which they are not worth a method of their own.

Of right labels, where samples are hard to tell apart, the audit doubts almost as many.
"""


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


@dataclass(frozen=True)
class Advice:
    method: str
    why: str


def facts_of(federation: Federation, found: Sequence[Findings]) -> Facts:
    judged = sum(each.rows for each in found)
    return Facts(
        tuple(len(rows) for rows in federation.rows),
        federation.n_classes,
        tuple(each.wrong.share for each in found),
        sum(each.wrong.share * each.rows for each in found) / judged if judged else None,
        any(bool((given >= 0).any()) for given in federation.given),
        tuple(sorted(federation.server)),
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
    return Advice("sieve", "wrong labels can be told from the samples; sieve mends them before and during training")


def told(facts: Facts, chosen: Advice, again: str) -> str:
    """Five lines for a person; `again` are the settings of a run of the method on these data."""
    clients = f"{len(facts.rows)} owner{'s' if len(facts.rows) != 1 else ''}"
    sizes = f"{min(facts.rows)} to {max(facts.rows)} each"
    held = f"; the server holds {', '.join(facts.server)} data" if facts.server else ""
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
            f"take     method={chosen.method}",
            f"because  {chosen.why}",
            f"next     fedsieve run {again}",
        ]
    )
