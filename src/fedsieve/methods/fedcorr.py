"""FedCorr: noisy clients show in the dimension of their outputs and mend their labels (Xu et al., CVPR 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field

from fedsieve.base.options import Choice
from fedsieve.core import Ask, Client, Method, Moment, Part, Payload, Server, Stage, Sweep, Talk, Told, Topic
from fedsieve.methods.fedcorr_lid import LidCorrection
from fedsieve.methods.fedcorr_noise import noise_levels
from fedsieve.methods.fedcorr_published import PublishedLidCorrection
from fedsieve.parts.credit import ROUNDING, by_group
from fedsieve.parts.mixup import MixUp
from fedsieve.parts.published import vary
from fedsieve.parts.selection import sure_predictions

LAPS = (2, 5)
"""Iterations: the paper's five, but two at least, for the second is the first to use what was found."""


@dataclass(frozen=True, kw_only=True)
class OnlyClean(Part):
    """Only clients with little estimated noise are sampled; in a group without any, those with the least, or all."""

    finetune: Annotated[int, Field(ge=0)] | None = None
    """Rounds over the clean clients alone; half of the rounds if not given, as in 500 of 1,000."""
    clean: Annotated[float, Field(ge=0, le=1)] = 0.1
    """A client is clean if its estimated noise is at most this."""

    needs = frozenset({"right"})

    def eligible(self, s: Server, ids: list[int]) -> list[int]:
        noise = noise_levels(s).nan_to_num(torch.inf)
        left: set[int] = set()
        for members in by_group(s, ids).values():
            bar = max(self.clean + ROUNDING, float(noise[members].min()))
            left |= {client for client in members if float(noise[client]) <= bar}
        return [client for client in ids if client in left]


@dataclass(frozen=True, kw_only=True)
class CorrectNoisy(Part):
    """At the end of the stage every noisy client takes over whatever the global model is sure of."""

    confidence: Annotated[float, Field(ge=0, le=1)] = 0.5
    """A label is changed if the global model gives its prediction a larger probability."""

    topics = {"correct": Topic({}, {})}
    corrects = True
    writes = frozenset({"labels"})
    needs = frozenset({"right"})
    sees = "sum"

    def talk(self, s: Server, moment: Moment) -> Talk:
        noisy = [client for client, noise in enumerate(noise_levels(s).tolist()) if noise > 0]
        if moment == "end" and noisy:
            yield Ask("correct", {client: {} for client in noisy}, models=True)

    def answer(self, c: Client, topic: str, question: Told) -> Payload:
        """A label's score is now the probability that the global model gives it."""
        rows = c.labels.labelled_rows()
        if len(rows):
            logits = c.logits(c.nets[0], rows)
            predicted, sure = sure_predictions(logits, self.confidence)
            fit = logits.softmax(1).gather(1, c.labels.given[rows, None])[:, 0]
            c.rewrite(c.labels.rename(rows[sure], predicted[sure]).rate(rows, fit))
        return {}


@dataclass(frozen=True, kw_only=True)
class Source(Choice):
    """Whom to follow where paper and code differ."""

    published: bool = False
    """As in the authors' code: the distance not squared and left out in each epoch's first batch, softmax applied twice
    in the losses, its formula for the dimension, mixtures on values that are not scaled."""


def fedcorr(correction: LidCorrection, source: Source, clean: OnlyClean, mix: MixUp) -> Method:
    """FedCorr: one client at a time, judged and mended; then the clean clients; then all, with mended labels."""
    given = correction.iterations
    laps, fraction = (LAPS, 0.25) if given is None else ((given, given), None)
    first = vary(correction, PublishedLidCorrection) if source.published else correction
    last = CorrectNoisy(confidence=correction.confidence)
    return Method(
        "fedcorr",
        (
            Stage("pre", parts=(mix, first), sampler=Sweep(size=1), laps=laps, fraction=fraction),
            Stage("finetune", clean.finetune, fraction=0.5, parts=(mix, clean, last)),
            Stage(parts=(mix,)),
        ),
    )
