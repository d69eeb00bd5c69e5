"""FedCorr's first stage: who is noisy, how noisy, and which of the labels can be mended (Xu et al., CVPR 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedsieve.core import (
    Ask,
    Batch,
    Client,
    Exhibit,
    Moment,
    Net,
    Part,
    Payload,
    Server,
    Talk,
    Told,
    Topic,
    Ups,
    Weights,
    at_least_zero,
    ends_lap,
    proportion,
)
from fedsieve.estimate.gmm1d import GaussianMixture1D
from fedsieve.estimate.lid import MOST_DIMENSIONS, local_dimensions
from fedsieve.methods.fedcorr_noise import clients_with_higher_scores, noise_levels
from fedsieve.parts.credit import ROUNDING, column, known_values
from fedsieve.parts.losses import cross_entropy
from fedsieve.parts.selection import lower_hump, min_max, sure_predictions

FEWEST_SAMPLES = 10
"""A client with fewer keeps its labels."""


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

    corrects = True
    down = {"noise": ()}
    up = {"dimension": at_least_zero(most=MOST_DIMENSIONS)}
    topics = {"noise": Topic({}, {"noise": proportion()})}
    keeps = {"losses": ("n",)}
    writes = frozenset({"dimension", "visits", "right", "labels"})
    verdict = "right"
    labels = True
    combined = True
    nets = 1

    # --- server half
    def brief(self, s: Server, client: int) -> Payload:
        return {"noise": float(noise_levels(s)[client].nan_to_num(0.0))}

    def learn(self, s: Server, ups: Ups, w: Weights) -> None:
        """A_k += the mean dimension of client k's outputs."""
        sums, visits = (column(s, name).nan_to_num(0.0) for name in ("dimension", "visits"))
        found = {k: note.number("dimension") for k, note in s.notes(ups).items() if ups[k].n > self.neighbours}
        s.columns.write("dimension", {k: float(sums[k]) + each for k, each in found.items()})
        s.columns.write("visits", {k: float(visits[k]) + 1 for k in found})

    def talk(self, s: Server, moment: Moment) -> Talk:
        """After each iteration: the mixture on {A_k}; whom it finds noisy is asked, and mends its labels."""
        if moment != "round_end" or not ends_lap(s):
            return
        scores = self.scores(s)
        noisy = clients_with_higher_scores(s, scores, self.clean_posterior)
        s.columns.write("right", {client: 1.0 for client in scores if client not in noisy})
        if noisy:
            answers = yield Ask("noise", {client: {} for client in noisy}, models=True)
            s.columns.write("right", {client: 1.0 - answer.number("noise") for client, answer in answers.items()})

    def scores(self, s: Server) -> dict[int, float]:
        """Of every client that was judged."""
        return known_values(column(s, "dimension") / column(s, "visits"))

    def clean_posterior(self, values: Tensor, fewest: int) -> Tensor:
        """Of the lower of two components; values are scaled, so that their unit does not matter."""
        return lower_hump(min_max(values.double()), GaussianMixture1D(min_size=fewest), guard=self.guard)

    def show(self, s: Server) -> list[Exhibit]:
        scores = self.scores(s)
        if not scores:
            return []
        clients, dimensions = tuple(scores), torch.tensor([*scores.values()], dtype=torch.float64)
        return [
            Exhibit("clients", "local intrinsic dimension of a client's outputs", dimensions, clients),
            Exhibit("clients", "estimated share of wrong labels", noise_levels(s)[list(clients)], clients),
        ]

    # --- client half
    def gradient(self, c: Client, net: Net, batch: Batch) -> None:
        """That of β μ̂_k ‖w − w_t‖²."""
        strength = self.beta * c.brief(self).number("noise")
        if strength:
            net.grad.add_(net.weights - net.received[: len(net.grad)], alpha=2.0 * strength)

    def finish(self, c: Client) -> Payload:
        logits = c.logits(c.nets[0])
        c.keep(self)["losses"] = self.losses(logits, c.labels.target)
        return {"dimension": self.dimension(logits.softmax(1))}

    def losses(self, logits: Tensor, target: Tensor) -> Tensor:
        return cross_entropy(logits, target)

    def dimension(self, outputs: Tensor) -> float:
        return float(local_dimensions(outputs.numpy(), self.neighbours).mean())

    def answer(self, c: Client, topic: str, question: Told) -> Payload:
        """μ̂_k is the share of samples in the component with larger losses; the worst of them may be relabelled."""
        rows, losses = c.labels.labelled_rows(), c.keep(self).get("losses")
        if losses is None or not len(rows):
            return {"noise": 0.0}
        losses = losses[rows]
        clean = self.clean_posterior(losses, FEWEST_SAMPLES)
        wrong = int((clean < 0.5).sum())
        worst = losses.argsort(descending=True, stable=True)[: int(wrong * self.mend + ROUNDING)]
        predicted, sure = sure_predictions(c.logits(c.nets[0], rows), self.confidence)
        changed = worst[sure[worst]]
        c.rewrite(c.labels.rename(rows[changed], predicted[changed]).rate(rows, clean))
        return {"noise": wrong / len(rows)}
