"""Telling noisy clients from clean ones by their class losses, and averaging with caution what they send.

Both from FedNoRo (Wu et al., IJCAI 2023).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedsieve.core import (
    LARGEST,
    Ask,
    Client,
    Layout,
    Moment,
    Part,
    Payload,
    Sent,
    Server,
    Talk,
    Told,
    Topic,
    Ups,
    Weights,
)
from fedsieve.estimate.gmm import GaussianMixture, scattered_start
from fedsieve.parts.credit import by_group, column
from fedsieve.parts.few_rows import SMALLEST, enough
from fedsieve.parts.losses import cross_entropy
from fedsieve.parts.selection import min_max

UNSEEN = -1.0
"""In place of the loss of a class of which the client has no sample, or only a few."""
FEWEST = 3
"""Fewer clients are not compared: one of two always has the larger losses."""
PER_CLASS = 3
"""Clients per class below which a full covariance would be singular, or nearly so."""
ROUGH = 0.01
"""Added to the guard's variances: a component of a single client, which any outlier is worth, cannot win."""


def noisy_clients(s: Server) -> set[int]:
    """Who was found noisy; a client that was never judged counts as clean."""
    return {client for client, clean in enumerate(column(s, "clean").tolist()) if clean == 0.0}


def class_losses(logits: Tensor, target: Tensor, smallest: int = 1) -> Tensor:
    """L_c: the mean cross entropy of the samples labelled c; `UNSEEN` where there are fewer than `smallest`."""
    label = target.argmax(1)
    counts = torch.bincount(label, minlength=target.shape[1])
    sums = torch.zeros(target.shape[1], dtype=torch.float64)
    sums.index_add_(0, label, cross_entropy(logits.double(), target.double()))
    told = enough(label, target.shape[1], smallest)
    return torch.where(told, sums / counts.clamp_min(1), UNSEEN).float()


def seen_or_not(losses: Tensor) -> bool:
    """Whether each is a loss or `UNSEEN`."""
    return bool(((losses >= 0) | (losses == UNSEEN)).all())


def comparable(losses: Tensor, missing: Literal["minimum", "mean"]) -> Tensor:
    """Class losses (K, C) with gaps filled and each class scaled to [0, 1]; classes that nobody has are left out."""
    columns = []
    for each in losses.double().T:
        seen = each[each >= 0]
        if len(seen):
            filling = seen.min() if missing == "minimum" else seen.mean()
            columns.append(min_max(torch.where(each >= 0, each, filling)))
    return torch.stack(columns, 1) if columns else losses.new_zeros(len(losses), 0).double()


def noisier_half(points: Tensor, seeds: Sequence[int], covariance: Literal["full", "diagonal"], guard: bool) -> Tensor:
    """Which rows belong to the component with the larger sum of means, as most of the mixtures from these seeds say.

    Of sets that are found equally often the one with the largest likelihood is taken. With the guard nobody stands out
    if a single Gaussian describes the rows as well (Bayesian information criterion). Rows lie in [0, 1].
    """
    x = points.numpy()
    if len(x) < FEWEST or not x.size or not np.ptp(x, axis=0).any():
        return torch.zeros(len(x), dtype=torch.bool)
    votes: Counter[bytes] = Counter()
    likelihood: dict[bytes, float] = {}
    starts = [scattered_start(x, 2, np.random.default_rng(seed)) for seed in seeds]
    for start in starts:
        mixture = GaussianMixture(covariance).fit(x, start)
        noisy = int(mixture.means_.sum(axis=1).argmax())
        found = (mixture.predict_proba(x).argmax(axis=1) == noisy).tobytes()
        votes[found] += 1
        likelihood[found] = max(likelihood.get(found, -np.inf), mixture.lower_bound_)
    rough = GaussianMixture(covariance, reg_covar=ROUGH)
    if guard and rough.fit(x, np.ones((len(x), 1))).bic(x) <= min(rough.fit(x, start).bic(x) for start in starts):
        return torch.zeros(len(x), dtype=torch.bool)
    winner = max(votes, key=lambda found: (votes[found], likelihood[found]))
    return torch.from_numpy(np.frombuffer(winner, dtype=bool).copy())


@dataclass(frozen=True, kw_only=True)
class ClassLossDetector(Part):
    """Asks every client once how well the global model fits its labels, class by class, and splits the clients in two.

    `noisy_clients(s)` says afterwards who is noisy.
    """

    warm: Annotated[int, Field(ge=1)] | None = None
    """Rounds before the clients are judged; a tenth of the rounds if not given, as in 10 of 100."""
    starts: Annotated[int, Field(ge=1)] = 9
    """Mixtures from different random starts; the client set that most of them find is taken."""
    covariance: Literal["auto", "full", "diagonal"] = "auto"
    """Of the mixture: full (paper), diagonal, or full only with at least three clients per class (auto)."""
    missing: Literal["minimum", "mean"] = "minimum"
    """What a class counts that a client lacks: the least of the others' losses (authors' code), or their mean."""
    guard: bool = False
    """Find nobody noisy when one Gaussian fits the clients as well as two; off in the paper."""

    topics = {
        "class losses": Topic({}, {"losses": Sent(("C",), UNSEEN, LARGEST, holds=seen_or_not, kind="losses, or -1")})
    }
    writes = frozenset({"clean"})
    verdict = "clean"
    labels = True

    # --- server half
    def talk(self, s: Server, moment: Moment) -> Talk:
        if moment != "start":
            return
        answers = yield Ask("class losses", {client: {} for client in s.clients}, models=True)
        losses = {client: answer.tensor("losses") for client, answer in answers.items()}
        known = {k: each for k, each in losses.items() if bool((each >= 0).any())}
        for group, members in by_group(s, sorted(known)).items():
            points = comparable(torch.stack([known[k] for k in members]), self.missing)
            seeds = torch.randint(2**62, (self.starts,), generator=s.of(group).rng("starts")).tolist()
            noisy = noisier_half(points, seeds, self.shape(*points.shape), self.guard).tolist()
            s.columns.write("clean", {k: 0.0 if bad else 1.0 for k, bad in zip(members, noisy, strict=True)})

    def shape(self, clients: int, classes: int) -> Literal["full", "diagonal"]:
        if self.covariance != "auto":
            return self.covariance
        return "full" if clients >= PER_CLASS * classes else "diagonal"

    # --- client half
    def answer(self, c: Client, topic: str, question: Told) -> Payload:
        rows = c.labels.labelled_rows()
        if not len(rows):
            return {"losses": torch.full((c.n_classes,), UNSEEN)}
        return {"losses": class_losses(c.logits(c.nets[0], rows), c.labels.target[rows], SMALLEST)}


@dataclass(frozen=True, kw_only=True)
class DistanceAware(Part):
    """Scales weights by e^{−D_k}, D_k the distance of a noisy client's model to the nearest clean one, at most 1.

    Only this round's reports are compared. Where all of them are noisy, or none is, the weights stay as they are.
    """

    published: bool = False
    """Distances as in the authors' code: summed over tensors, running statistics included, not of the whole vector."""

    needs = frozenset({"clean"})

    def weigh(self, s: Server, ups: Ups, w: Weights) -> Weights:
        noisy = noisy_clients(s) & ups.keys()
        models = {k: s.complete(up.models) for k, up in ups.items() if up.models is not None}
        clean = [models[k] for k in sorted(models.keys() - noisy)]
        if not noisy or not clean:
            return w
        away = {k: min(self.distance(models[k], other, s.plan.layout) for other in clean) for k in sorted(noisy)}
        furthest = max(away.values())
        if not furthest:
            return w
        factor = {k: float(np.exp(-distance / furthest)) for k, distance in away.items()}
        return {k: weight * factor.get(k, 1.0) for k, weight in w.items()}

    def distance(self, one: Sequence[Tensor], other: Sequence[Tensor], layout: Layout) -> float:
        """Over all nets of a client."""
        differences = [a - b for a, b in zip(one, other, strict=True)]
        if self.published:
            return sum(float(entry.view(each).norm()) for each in differences for entry in layout.entries)
        return float(torch.cat([each[: layout.trainable] for each in differences]).norm())
