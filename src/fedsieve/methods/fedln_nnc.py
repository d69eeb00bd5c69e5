"""FedLN-NNC: noisy clients take the labels that their samples' neighbours bear (Tsouvalas et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass

from fedsieve.core import Ask, Client, Method, Moment, Payload, Server, Stage, Talk, Told, Topic
from fedsieve.parts.neighbours import NeighbourVote


@dataclass(frozen=True, kw_only=True)
class TakeTheVote(NeighbourVote):
    """Noisy clients take over what the neighbours of each sample say, for good and before any training.

    All labels are scored by the share of neighbours that agree with the given one, those of clean clients too.
    """

    topics = {"vote": Topic({}, {})}
    corrects = True
    writes = frozenset({"labels"})
    sees = "sum"

    def talk(self, s: Server, moment: Moment) -> Talk:
        if moment == "start":
            yield Ask("vote", {client: {} for client in s.clients})

    def answer(self, c: Client, topic: str, question: Told) -> Payload:
        found = self.poll(c)
        labels = c.labels.rename(found.rows, found.elected) if found.noise else c.labels
        c.rewrite(labels.rate(found.rows, found.agreement))
        return {}


def fedln_nnc(vote: TakeTheVote) -> Method:
    """FedLN-NNC: noisy clients take their neighbours' labels, then any method trains; FedAvg alone."""
    return Method("fedln-nnc", (Stage("vote", 0, (vote,)),), alone=Stage())
