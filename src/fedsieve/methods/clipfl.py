"""ClipFL: screen the clients on clean labels, then train without those under suspicion (Morafah et al. 2025)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from fedsieve.core.part import Method, Part, Stage
from fedsieve.core.server import Server
from fedsieve.core.types import Reads, Ups, Weights
from fedsieve.parts.credit import ROUNDING, best, by_group, column, only, scores_on_clean, share_of


def screen_rounds(rounds: int, screen: int | None) -> int:
    """How many of a stage's rounds screen: `screen`, or a quarter if not given, as in 20 of 80."""
    return math.ceil(rounds / 4) if screen is None else screen


@dataclass(frozen=True, kw_only=True)
class Suspicion(Part):
    """At first, whoever is in the worse part of a round is left out and noted; later the most noted are not sampled.

    Screening and training are two spans of one stage: a stage's length must be a number when the method is built, and
    the screen's is a share of the run. So a run never grows longer than asked for.
    """

    screen: Annotated[int, Field(ge=1)] | None = None
    """Rounds that screen; a quarter of the rounds if not given."""
    keep: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Share of a screening round's reports, the most accurate, that is averaged; the others are under suspicion."""
    prune: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Share of the clients, the most suspected, that takes no part after the screen."""

    reads = Reads.CLEAN
    writes = frozenset({"suspected", "screened", "reliability"})

    def screening(self, s: Server) -> bool:
        return s.t < screen_rounds(s.rounds, self.screen)

    def eligible(self, s: Server, ids: list[int]) -> list[int]:
        """After the screen, all but the most suspected; nobody is pruned who was never suspected, or not screened."""
        if self.screening(s):
            return ids
        trust = column(s, "reliability").nan_to_num(nan=1.0).tolist()
        left: set[int] = set()
        for members in by_group(s, s.clients).values():
            pruned = int(self.prune * len(members) + ROUNDING)
            left |= best({client: trust[client] for client in members}, len(members) - pruned)
        return [client for client in ids if client in left]

    def weigh(self, s: Server, ups: Ups, w: Weights) -> Weights:
        """The noise candidacy score is kept here, where the reported models are at hand."""
        if not self.screening(s):
            return w
        accuracy = {client: score.accuracy for client, score in scores_on_clean(s, ups).items()}
        better = best(accuracy, share_of(len(accuracy), self.keep))
        suspected, screened = (column(s, name).nan_to_num(nan=0.0) for name in ("suspected", "screened"))
        marks = {client: float(suspected[client]) + (client not in better) for client in accuracy}  # NCS
        times = {client: float(screened[client]) + 1 for client in accuracy}
        s.columns.write("suspected", marks)
        s.columns.write("screened", times)
        s.columns.write("reliability", {client: 1.0 - marks[client] / times[client] for client in accuracy})
        return only(better, w)


def clipfl(suspicion: Suspicion) -> Method:
    """ClipFL: FedAvg of each round's better part, then FedAvg without the most suspected clients."""
    return Method("clipfl", (Stage(parts=(suspicion,)),))
