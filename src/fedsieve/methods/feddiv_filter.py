"""FedDiv's filter: a mixture on losses that the clients learn together, and what each makes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import one_hot

from fedsieve.core import Client, Labels, Net, Part, Payload, Server, Ups, Weights
from fedsieve.estimate.gmm1d import GaussianMixture1D
from fedsieve.parts.losses import PROBABILITY_FLOOR, cross_entropy
from fedsieve.parts.mixtures import COMPONENTS, SENT, mixture_of, tensor_of
from fedsieve.parts.selection import min_max


def scaled_losses(logits: Tensor, target: Tensor) -> Tensor:
    """Cross entropy, scaled to [0, 1] over the client's samples; 0 for all if they do not differ."""
    return min_max(cross_entropy(logits, target))


def mean_mixture(mixtures: Tensor, shares: Tensor) -> Tensor:
    """Σ_k n_k/n of each number of the (m, 2, 3) mixtures, the component with the smaller mean first."""
    ordered = torch.stack([each[each[:, 0].argsort(stable=True)] for each in mixtures.double()])
    return (shares.double()[:, None, None] * ordered).sum(0)


def debias(logits: Tensor, prior: Tensor, strength: float) -> Tensor:
    """z − ξ log p̂: a class that the client's model predicts often has to be more certain."""
    return logits - strength * prior.clamp_min(PROBABILITY_FLOOR).log()


@dataclass(frozen=True, kw_only=True)
class SharedFilter(Part):
    """A mixture of two Gaussians on losses, averaged over the clients, says whose labels are clean; others are guessed.

    Where the paper is silent: before any client reported a mixture, a client takes one of its own losses; losses and
    predictions are taken without augmentation and in evaluation mode; a client whose losses do not differ keeps all,
    and one that has no sample left sits the round out; fewer than 10 samples are filtered but make no mixture.
    """

    iterations: Annotated[int, Field(ge=1)] | None = None
    """Times that the warm-up visits every client; up to 5, as many as fit into a fifth of the rounds, if not given."""
    tolerance: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Where no larger share of a client's labels looks wrong, it trains on all of them."""
    confidence: Annotated[float, Field(ge=0, le=1)] = 0.75
    """A label that looks wrong becomes the global model's prediction if that is at least as sure as this."""
    xi: Annotated[float, Field(ge=0)] = 0.5
    """Strength with which the client's own class frequencies are taken out of its predictions."""
    momentum: Annotated[float, Field(ge=0, le=1)] = 0.2
    """Weight of the past in those class frequencies."""
    consistency: bool = True
    """Train only on samples for which global and (debiased) local prediction agree."""

    corrects = True
    down = {"mixture": ("<=components", 3)}
    up = {"mixture": SENT}
    keeps = {"logits": ("n", "C"), "prior": ("C",), "visits": ()}
    remembers = {"mixture": ("K", "components", 3), "size": ("K",)}
    writes = frozenset({"clean_share"})
    verdict = "clean_share"
    labels = True
    nets = 1

    @property
    def components(self) -> int:
        return COMPONENTS

    # --- server half
    def brief(self, s: Server, client: int) -> Payload:
        """The global filter: the mean of the last mixture of every client of the group that ever sent one."""
        known = [k for k in s.members() if k in s.rows("mixture")]
        if not known:
            return {"mixture": torch.empty(0, 3)}
        mixtures, sizes = (torch.stack([s.rows(name)[k] for k in known]) for name in ("mixture", "size"))
        return {"mixture": self.global_filter(mixtures, sizes / sizes.sum()).float()}

    def global_filter(self, mixtures: Tensor, shares: Tensor) -> Tensor:
        return mean_mixture(mixtures, shares)

    def learn(self, s: Server, ups: Ups, w: Weights) -> None:
        for client, note in s.notes(ups).items():
            mixture = note.tensor("mixture")
            if len(mixture):
                s.rows("mixture")[client] = mixture
                s.rows("size")[client] = torch.tensor(float(ups[client].n))
                s.columns.write("clean_share", {client: float(mixture[mixture[:, 0].argmin(), 2])})

    # --- client half
    def relabel(self, c: Client, net: Net, labels: Labels) -> Labels:
        """Filter, relabel and select; all for this round only."""
        logits = c.logits(net)
        probability = self.clean_probability(c, scaled_losses(logits, labels.target))
        labels = labels.replace(score=probability)
        clean = probability > 0.5
        noise = float((~clean).double().mean())  # δ̂
        if noise <= self.tolerance:
            return labels
        confidence, guess = logits.softmax(1).max(1)
        guessed = ~clean & (confidence >= self.confidence)
        chosen = self.choose(c, clean, guessed, guess, noise)
        if not bool(chosen.any()):
            self.remember(c, logits)
        replaced = (guessed & chosen)[:, None]
        return labels.towards(torch.where(replaced, one_hot(guess, c.n_classes).float(), labels.target)).only(chosen)

    def clean_probability(self, c: Client, losses: Tensor) -> Tensor:
        """Posterior of the filter's small-loss component."""
        if not bool(losses.any()):
            return torch.ones(len(losses))
        mixture = mixture_of(c.brief(self).tensor("mixture")) or GaussianMixture1D().fit(losses.numpy())
        return torch.from_numpy(mixture.predict_proba(losses.numpy())[:, 0]).float()

    def choose(self, c: Client, clean: Tensor, guessed: Tensor, guess: Tensor, noise: float) -> Tensor:
        """Which samples the client trains on: clean and relabelled ones that both models predict alike."""
        return self.keep_agreeing(c, clean | guessed, guess)

    def keep_agreeing(self, c: Client, rows: Tensor, guess: Tensor) -> Tensor:
        """Those of these rows (a mask) for which the client's own last model, debiased, predicts the same class."""
        kept = c.keep(self)
        if not self.consistency or "logits" not in kept:
            return rows
        return rows & (debias(kept["logits"], kept["prior"], self.xi).argmax(1) == guess)

    def remember(self, c: Client, logits: Tensor) -> None:
        """The local model's outputs for the next visit, and p̂ ← m p̂ + (1 − m) mean softmax."""
        kept = c.keep(self)
        prior = kept.get("prior", torch.full((c.n_classes,), 1.0 / c.n_classes))
        p = logits.softmax(1)[self.rows_to_count(logits, prior)]
        kept["logits"] = logits
        kept["prior"] = self.momentum * prior + (1.0 - self.momentum) * p.mean(0) if len(p) else prior
        kept["visits"] = kept.get("visits", torch.tensor(0)) + 1

    def rows_to_count(self, logits: Tensor, prior: Tensor) -> Tensor:
        """Which predictions (a mask) count for the class frequencies."""
        return torch.ones(len(logits), dtype=torch.bool)

    def finish(self, c: Client) -> Payload:
        """The mixture on the new local model's losses, learnt from the global one on."""
        logits = c.logits(c.nets[0])
        self.remember(c, logits)
        losses = scaled_losses(logits, c.labels.target).numpy()
        start = mixture_of(c.brief(self).tensor("mixture"))
        return {"mixture": tensor_of(self.mixture().fit(losses, start=start))}

    def mixture(self) -> GaussianMixture1D:
        return GaussianMixture1D()
