"""Client selection under label noise: accuracy on clean labels decides who counts (after Yang et al. 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field

from fedsieve.core import Method, Part, Reads, Server, Stage, Ups, Weights
from fedsieve.parts.credit import best, by_group, column, epsilon_greedy, only, scores_on_clean, share_of


@dataclass(frozen=True, kw_only=True)
class SelectByAccuracy(Part):
    """The accuracy of a client's models on the server's clean set stands for how few of its labels are wrong."""

    mode: Literal["post", "pre"] = "post"
    """post: all sampled clients train, the best are averaged; pre: only the best may be sampled."""
    keep: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Share that is best: of the round's reports in `post`, of all clients in `pre`."""
    score: Literal["mean", "ema"] = "mean"
    """A client's score: the mean of its accuracies so far, or their exponential moving average."""
    decay: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Weight of the past in the moving average; 0 takes the newest accuracy alone."""
    epsilon: Annotated[float, Field(ge=0, le=1)] = 0.1
    """In `pre`, the probability that a place goes to a random client instead of the best."""

    assesses = Reads.CLEAN
    writes = frozenset({"scored", "score"})
    verdict = "score"

    def eligible(self, s: Server, ids: list[int]) -> list[int]:
        """In `pre`, the best; clients that were never tried come before all others."""
        if self.mode == "post":
            return ids
        scores = column(s, "score").nan_to_num(nan=torch.inf).tolist()
        chosen: list[int] = []
        for group, members in by_group(s, ids).items():
            places = share_of(len(members), self.keep)
            rng = s.of(group).rng("select")
            chosen += epsilon_greedy({k: scores[k] for k in members}, places, self.epsilon, rng)
        return sorted(chosen)

    def weigh(self, s: Server, ups: Ups, w: Weights) -> Weights:
        """Scores are renewed here, where the reported models are at hand, so that `post` ranks by the newest."""
        times, past = column(s, "scored").nan_to_num(nan=0.0), column(s, "score")
        scores = {
            client: self.renew(float(past[client]), int(times[client]), score.accuracy)
            for client, score in scores_on_clean(s, ups).items()
        }
        s.columns.write("score", scores)
        s.columns.write("scored", {client: float(times[client]) + 1 for client in scores})
        return w if self.mode == "pre" else only(best(scores, share_of(len(scores), self.keep)), w)

    def learn(self, s: Server, ups: Ups, w: Weights) -> None:
        """Who was tried and had nothing to report is no longer unknown, or `pre` would try it for ever."""
        unknown = column(s, "score").isnan()
        s.columns.write("score", {k: 0.0 for k, up in ups.items() if up.models is None and unknown[k]})

    def renew(self, past: float, times: int, accuracy: float) -> float:
        """The score of a client that was scored so many times before."""
        if not times:
            return accuracy
        weight = self.decay if self.score == "ema" else times / (times + 1)
        return weight * past + (1 - weight) * accuracy


def client_selection(selection: SelectByAccuracy) -> Method:
    """FedAvg over the clients whose models do best on the server's clean set."""
    return Method("client-selection", (Stage(parts=(selection,)),))
