"""The upper bound that the papers call Oracle."""

from __future__ import annotations

from dataclasses import dataclass

from fedsieve.core import Client, Labels, Method, Net, Part, Reads, Stage


@dataclass(frozen=True, kw_only=True)
class OnlyTrueLabels(Part):
    """Trains on the rightly labelled samples. The evaluator serves which they are: no other part may ask."""

    reads = Reads.TRUTH
    labels = True

    def relabel(self, c: Client, net: Net, labels: Labels) -> Labels:
        return labels.only(c.served, score=c.served.float())


def oracle(chosen: OnlyTrueLabels) -> Method:
    """FedAvg on the truly labelled samples, weighted by the size of the whole local set as the other methods are."""
    return Method("oracle", (Stage(parts=(chosen,)),))
