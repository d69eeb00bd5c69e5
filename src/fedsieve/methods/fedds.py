"""FedDS: a Dawid-Skene model of the clients' votes on unlabelled images says whom to trust (Dong et al., 2026)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedsieve.core import Exhibit, Method, Part, Reads, Server, Stage, Ups, Weights
from fedsieve.estimate.dawid_skene import DawidSkene


@dataclass(frozen=True, kw_only=True)
class DawidSkeneWeights(Part):
    """The reported models vote on the server's unlabelled images; each weighs as much as it is found reliable.

    Where the paper is silent: votes are cast in evaluation mode without augmentation, EM begins with the shares of the
    votes, and each cell of a confusion matrix has a pseudo-count. The last confusion matrix of each client is kept for
    the report.
    """

    votes: Literal["hard", "soft"] = "hard"
    """A model votes for its most probable class (paper), or shares its vote out by its probabilities."""
    iterations: Annotated[int, Field(ge=1)] = 500
    """EM iterations at most."""
    tol: Annotated[float, Field(ge=0)] = 1e-5
    """EM ends when no posterior changes by as much."""
    smoothing: Annotated[float, Field(ge=0)] = 0.01
    """Added to each count of a confusion matrix."""
    prior: bool = True
    """Weigh the classes by their estimated frequency (paper); off in the authors' code."""
    realign: bool = False
    """Rename the hidden classes to agree with the votes, where EM has switched them."""
    use_size: bool = False
    """Multiply the reliabilities by the clients' weights (their sizes); off in the paper."""

    assesses = Reads.UNLABELLED
    weighs = "replace"
    remembers = {"confusion": ("K", "C", "C")}
    writes = frozenset({"reliability"})
    verdict = "reliability"

    def weigh(self, s: Server, ups: Ups, w: Weights) -> Weights:
        model = self.fit([s.logits[k] for k in ups])
        if not model.converged_:
            s.log("FS217", f"EM has not converged in {model.n_iter_} iterations; raise fedds.iterations")
        if model.switched_ and not self.realign:
            s.log("FS218", f"EM has switched {model.switched_} classes; fedds.realign=true gives them back their names")
        for k, confusion in zip(ups, model.confusion_, strict=True):
            s.rows("confusion")[k] = torch.from_numpy(confusion).float()
        reliability = dict(zip(ups, model.reliability_.tolist(), strict=True))  # Eq. 7
        s.columns.write("reliability", reliability)
        return {k: r * (w[k] if self.use_size else 1.0) for k, r in reliability.items()}  # Eq. 8, before normalising

    def fit(self, logits: list[Tensor]) -> DawidSkene:
        """The model of the votes: items x clients (x classes)."""
        if self.votes == "hard":
            votes = torch.stack([each.argmax(1) for each in logits], 1).numpy()
        else:
            votes = torch.stack([each.double().softmax(1) for each in logits], 1).numpy()
        return DawidSkene(
            logits[0].shape[1],
            max_iter=self.iterations,
            tol=self.tol,
            smoothing=self.smoothing,
            realign=self.realign,
            prior=self.prior,
        ).fit(votes)

    def show(self, s: Server) -> list[Exhibit]:
        known = tuple(sorted(s.rows("confusion")))
        if not known:
            return []
        matrices = torch.stack([s.rows("confusion")[k] for k in known])
        return [
            Exhibit(
                "clients",
                "reliability of a client, when it last took part",
                s.columns["reliability"][list(known)],
                known,
            ),
            Exhibit("confusions", "confusion matrices: estimated class (rows) to vote (columns)", matrices, known),
        ]


def fedds(weights: DawidSkeneWeights) -> Method:
    """FedDS: the mean of the clients' models, weighted by their estimated reliability."""
    return Method("fedds", (Stage(parts=(weights,)),))
