"""ClipFL: screen the clients on clean labels, then train without those under suspicion (Morafah et al. 2025)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from fedsieve.core import Method, Part, Reads, Server, Stage, Ups, Weights
from fedsieve.parts.credit import ROUNDING, best, by_group, column, only, scores_on_clean, share_of


@dataclass(frozen=True, kw_only=True)
class Suspicion(Part):
    """Whoever is in the worse part of a round is left out of the mean and noted."""

    screen: Annotated[int, Field(ge=1)] | None = None
    """Rounds that screen; a quarter of the rounds if not given, as in 20 of 80."""
    keep: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Share of a screening round's reports, the most accurate, that is averaged; the others are under suspicion."""

    assesses = Reads.CLEAN
    writes = frozenset({"suspected", "screened", "standing"})
    verdict = "standing"

    def weigh(self, s: Server, ups: Ups, w: Weights) -> Weights:
        """The noise candidacy score is kept here, beside the choice that it follows from."""
        accuracy = {client: score.accuracy for client, score in scores_on_clean(s, ups).items()}
        better = best(accuracy, share_of(len(accuracy), self.keep))
        suspected, screened = (column(s, name).nan_to_num(nan=0.0) for name in ("suspected", "screened"))
        marks = {client: float(suspected[client]) + (client not in better) for client in accuracy}  # NCS
        times = {client: float(screened[client]) + 1 for client in accuracy}
        s.columns.write("suspected", marks)
        s.columns.write("screened", times)
        s.columns.write("standing", {client: 1.0 - marks[client] / times[client] for client in accuracy})
        return only(better, w)


@dataclass(frozen=True, kw_only=True)
class WithoutSuspects(Part):
    """The most suspected clients are not sampled."""

    prune: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Share of the clients, the most suspected, that takes no part after the screen."""

    needs = frozenset({"standing"})

    def eligible(self, s: Server, ids: list[int]) -> list[int]:
        """Nobody is pruned who was never suspected, or not screened."""
        trust = column(s, "standing").nan_to_num(nan=1.0).tolist()
        left: set[int] = set()
        for members in by_group(s, s.clients).values():
            pruned = int(self.prune * len(members) + ROUNDING)
            left |= best({client: trust[client] for client in members}, len(members) - pruned)
        return [client for client in ids if client in left]


def clipfl(suspicion: Suspicion, pruning: WithoutSuspects) -> Method:
    """ClipFL: FedAvg of each round's better part, then FedAvg without the most suspected clients."""
    screen = Stage("screen", suspicion.screen, fraction=0.25, parts=(suspicion,))
    return Method("clipfl", (screen, Stage(parts=(pruning,))))
