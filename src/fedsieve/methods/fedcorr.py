"""FedCorr: noisy clients show in the dimension of their outputs and mend their labels (Xu et al., CVPR 2022)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import one_hot

from fedsieve.core import (
    Ask,
    Batch,
    Client,
    Exhibit,
    Labels,
    Method,
    Moment,
    Net,
    Part,
    Payload,
    Role,
    Server,
    Stage,
    Sweep,
    Talk,
    Topic,
    Ups,
    Weights,
    at_least_zero,
    proportion,
)
from fedsieve.estimate.gmm1d import GaussianMixture1D
from fedsieve.estimate.lid import local_dimensions
from fedsieve.parts.credit import ROUNDING, by_group, column
from fedsieve.parts.losses import cross_entropy
from fedsieve.parts.mixup import MixUp
from fedsieve.parts.selection import SEPARATED, min_max

LAPS = (2, 5)
"""Iterations: the paper's five, but two at least, for the second is the first to use what was found."""
FEWEST_CLIENTS = 3
"""Fewer are not compared: one of two always scores higher."""
MOST_DIMENSIONS = 1e7
"""No estimate is larger, not even by the published formula, where equal distances make millions."""
ENOUGH_CLIENTS = 10
"""A smaller group is judged by the mixture over all clients; two components of so few say nothing."""
FEWEST_SAMPLES = 10
"""A client with fewer keeps its labels."""


def lower_hump(values: Tensor, fewest: int, *, guard: bool, published: bool) -> Tensor:
    """Posterior of the lower component of a two-component mixture; of fewer or equal values all belong to it.

    Values are scaled to [0, 1], so that their unit does not matter; `published` takes them as they are.
    """
    x = (values.double() if published else min_max(values.double())).numpy()
    mixture = GaussianMixture1D(reg_covar=1e-6, min_size=fewest) if published else GaussianMixture1D(min_size=fewest)
    if mixture.fit(x).split_ and guard and mixture.separation() < SEPARATED:
        return torch.ones(len(x), dtype=torch.float64)
    return torch.from_numpy(mixture.predict_proba(x)[:, 0])


def confident(logits: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """The predicted class of each row, and whether its probability exceeds the threshold."""
    probability, predicted = logits.softmax(1).max(1)
    return predicted, probability > threshold


def relabelled(labels: Labels, rows: Tensor, predicted: Tensor) -> Labels:
    """The table with these rows trained towards the predicted classes."""
    target = labels.target.clone()
    target[rows] = one_hot(predicted, target.shape[1]).to(target.dtype)
    return labels.towards(target)


def labelled_rows(c: Client) -> Tensor:
    return (c.labels.role == Role.LABELLED).nonzero().flatten()


def noise_levels(s: Server) -> Tensor:
    """μ̂_k by client; NaN where it is not known."""
    return 1.0 - column(s, "right")


@dataclass(frozen=True, kw_only=True)
class LidCorrection(Part):
    """Clients whose outputs spread over more dimensions are noisy; they estimate their noise and mend what they can.

    Where the paper is silent: the dimension and the losses are those of the client's new model, without augmentation
    and in evaluation mode; a client with no more samples than neighbours is not judged; a client's score is the mean
    over its visits, which is the sum if it missed none. Where clients are in groups, each group of ten or more has its
    own mixture; the clients of smaller ones are judged by that over all.
    """

    iterations: Annotated[int, Field(ge=1)] | None = None
    """Times that every client is visited; 5 if not given, or what fits into a quarter of the rounds, but 2 at least."""
    beta: Annotated[float, Field(ge=0)] = 5.0
    """Weight of the proximal term; times the client's estimated noise."""
    neighbours: Annotated[int, Field(ge=2)] = 20
    """Neighbours from which the local intrinsic dimension is estimated."""
    mend: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Share of the samples estimated wrong, those with the largest losses, whose labels may be changed."""
    confidence: Annotated[float, Field(ge=0, le=1)] = 0.5
    """A label is changed if the global model gives its prediction a larger probability."""
    guard: bool = False
    """Call nobody noisy, and no sample wrong, when a mixture's means are closer than two pooled standard deviations;
    off in the paper."""
    published: bool = False
    """As in the authors' code: the distance not squared and left out in each epoch's first batch, softmax applied twice
    in the losses, its formula for the dimension, mixtures on values that are not scaled."""

    down = {"noise": ()}
    up = {"dimension": at_least_zero(most=MOST_DIMENSIONS)}
    topics = {"noise": Topic({}, {"noise": proportion()})}
    keeps = {"losses": ("n",)}
    writes = frozenset({"dimension", "visits", "right", "labels"})
    verdict = "right"
    labels = True
    nets = 1

    # --- server half
    def brief(self, s: Server, client: int) -> Payload:
        return {"noise": float(noise_levels(s)[client].nan_to_num(0.0))}

    def learn(self, s: Server, ups: Ups, w: Weights) -> None:
        """A_k += the mean dimension of client k's outputs."""
        sums, visits = (column(s, name).nan_to_num(0.0) for name in ("dimension", "visits"))
        judged = {k: up for k, up in ups.items() if up.models is not None and up.n > self.neighbours}
        found = {k: float(up.notes[self.name]["dimension"]) for k, up in judged.items()}
        s.columns.write("dimension", {k: float(sums[k]) + each for k, each in found.items()})
        s.columns.write("visits", {k: float(visits[k]) + 1 for k in found})

    def talk(self, s: Server, moment: Moment) -> Talk:
        """After each iteration: the mixture on {A_k}; whom it finds noisy is asked, and mends its labels."""
        sampler = s.plan.stages[s.state.stage].sampler
        turns = sampler.turns(s.plan.clients) if sampler is not None else None
        if moment != "round_end" or (s.t + 1) % (turns or 1):
            return
        everyone = self.judged(s)
        noisy: list[int] = []
        for members in by_group(s, everyone).values():
            compared = members if len(members) >= ENOUGH_CLIENTS else everyone
            clean = lower_hump(self.scores(s)[compared], FEWEST_CLIENTS, guard=self.guard, published=self.published)
            verdict = dict(zip(compared, clean.tolist(), strict=True))
            noisy += [client for client in members if verdict[client] < 0.5]
        s.columns.write("right", {client: 1.0 for client in everyone if client not in noisy})
        if noisy:
            answers = yield Ask("noise", {client: {} for client in noisy}, models=True)
            s.columns.write("right", {client: 1.0 - float(answer["noise"]) for client, answer in answers.items()})

    def judged(self, s: Server) -> list[int]:
        return [client for client, score in enumerate(self.scores(s).tolist()) if math.isfinite(score)]

    def scores(self, s: Server) -> Tensor:
        sums = column(s, "dimension")
        return sums if self.published else sums / column(s, "visits")

    def show(self, s: Server) -> list[Exhibit]:
        known = tuple(self.judged(s))
        if not known:
            return []
        return [
            Exhibit("clients", "local intrinsic dimension of a client's outputs", self.scores(s)[list(known)], known),
            Exhibit("clients", "estimated share of wrong labels", noise_levels(s)[list(known)], known),
        ]

    # --- client half
    def gradient(self, c: Client, net: Net, batch: Batch) -> None:
        """That of β μ̂_k ‖w − w_t‖²."""
        strength = self.beta * float(c.brief(self)["noise"])
        if not strength:
            return
        drift = net.weights - net.received[: len(net.grad)]
        if not self.published:
            net.grad.add_(drift, alpha=2.0 * strength)
        elif c.scratch(self).get("epoch") == c.epoch:
            net.grad.add_(drift / drift.norm().clamp_min(1e-12), alpha=strength)
        c.scratch(self)["epoch"] = c.epoch

    def finish(self, c: Client) -> Payload:
        logits = c.outputs(c.nets[0]).logits.float().cpu()
        outputs = logits.softmax(1)
        c.keep(self)["losses"] = cross_entropy(outputs if self.published else logits, c.labels.target)
        dimensions = local_dimensions(outputs.numpy(), self.neighbours, self.published)
        return {"dimension": float(dimensions.mean())}

    def answer(self, c: Client, topic: str, question: Payload) -> Payload:
        """μ̂_k is the share of samples in the component with larger losses; the worst of them may be relabelled."""
        rows, losses = labelled_rows(c), c.keep(self).get("losses")
        if losses is None or not len(rows):
            return {"noise": 0.0}
        losses = losses[rows]
        clean = lower_hump(losses, FEWEST_SAMPLES, guard=self.guard, published=self.published)
        wrong = int((clean < 0.5).sum())
        worst = losses.argsort(descending=True, stable=True)[: int(wrong * self.mend + ROUNDING)]
        predicted, sure = confident(c.outputs(c.nets[0], rows).logits.float().cpu(), self.confidence)
        changed = worst[sure[worst]]
        score = c.labels.score.clone()
        score[rows] = clean.to(score.dtype)
        c.rewrite(relabelled(c.labels, rows[changed], predicted[changed]).replace(score=score))
        return {"noise": wrong / len(rows)}


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
    writes = frozenset({"labels"})
    needs = frozenset({"right"})
    sees = "sum"

    def talk(self, s: Server, moment: Moment) -> Talk:
        noisy = [client for client, noise in enumerate(noise_levels(s).tolist()) if noise > 0]
        if moment == "end" and noisy:
            yield Ask("correct", {client: {} for client in noisy}, models=True)

    def answer(self, c: Client, topic: str, question: Payload) -> Payload:
        """A label's score is now the probability that the global model gives it."""
        rows = labelled_rows(c)
        if len(rows):
            logits = c.outputs(c.nets[0], rows).logits.float().cpu()
            predicted, sure = confident(logits, self.confidence)
            score = c.labels.score.clone()
            score[rows] = logits.softmax(1).gather(1, c.labels.given[rows, None])[:, 0]
            c.rewrite(relabelled(c.labels, rows[sure], predicted[sure]).replace(score=score))
        return {}


def fedcorr(correction: LidCorrection, clean: OnlyClean, mix: MixUp) -> Method:
    """FedCorr: one client at a time, judged and mended; then the clean clients; then all, with mended labels."""
    given = correction.iterations
    laps, fraction = (LAPS, 0.25) if given is None else ((given, given), None)
    last = CorrectNoisy(confidence=correction.confidence)
    return Method(
        "fedcorr",
        (
            Stage("pre", parts=(mix, correction), sampler=Sweep(size=1), laps=laps, fraction=fraction),
            Stage("finetune", clean.finetune, fraction=0.5, parts=(mix, clean, last)),
            Stage(parts=(mix,)),
        ),
    )
