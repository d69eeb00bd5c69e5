"""FedDiv: one noise filter is learnt by all clients together (Li et al., AAAI 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import one_hot

from fedsieve.core import Batch, Client, Labels, Method, Net, Part, Payload, Sent, Server, Stage, Sweep, Ups, Weights
from fedsieve.core.sent import UNEVEN, sums_to_one
from fedsieve.estimate.gmm1d import GaussianMixture1D
from fedsieve.parts.losses import PROBABILITY_FLOOR, cross_entropy, divergence_from_uniform
from fedsieve.parts.mixup import MixUp
from fedsieve.parts.selection import min_max

LAPS = (1, 5)
"""Fewest and most iterations of the warm-up; five is the paper's number for CIFAR-10."""

NARROWEST = 1e-4
"""No variance is smaller: `GaussianMixture1D` adds more to each."""

# What the authors' code does otherwise than their paper says.
PUBLISHED_VISITS = 5
"""So often a client trains on its clean samples alone, before it relabels and checks predictions."""
PUBLISHED_NOISE = 0.2
"""Relabelled samples are used where more than this share looks wrong."""
PUBLISHED_CONFIDENCE = 0.85
"""Debiased predictions at least as sure as this count for the class frequencies."""
PUBLISHED_ITERATIONS = 3
"""Steps of EM at the client."""


def scaled_losses(logits: Tensor, target: Tensor) -> Tensor:
    """Cross entropy, scaled to [0, 1] over the client's samples; 0 for all if they do not differ."""
    return min_max(cross_entropy(logits.float().cpu(), target.cpu()))


def as_tensor(mixture: GaussianMixture1D) -> Tensor:
    """(2, 3): mean, variance and weight of each component, the smaller mean first; (0, 3) of values not split."""
    columns = (mixture.means_, mixture.variances_, mixture.weights_)
    return torch.stack([torch.from_numpy(column) for column in columns], 1)[: 2 * mixture.split_].float()


def as_mixture(tensor: Tensor) -> GaussianMixture1D | None:
    """The other way; None for no components."""
    return GaussianMixture1D.of(*tensor.double().T.numpy()) if len(tensor) else None


def describes_losses(tensor: Tensor) -> bool:
    """Whether this is a mixture of two on values from 0 to 1, or none."""
    wide = bool((tensor[:, 1] >= NARROWEST).all())
    return len(tensor) == 0 or (len(tensor) == 2 and wide and sums_to_one(tensor[:, 2]))


def averaged(mixtures: Tensor, sizes: Tensor, *, published: bool = False) -> Tensor:
    """Σ_k n_k/n of each number of the (m, 2, 3) mixtures; the published code squares the shares for the variances."""
    share = (sizes / sizes.sum()).double()[:, None]
    ordered = torch.stack([each[each[:, 0].argsort(stable=True)] for each in mixtures.double()])
    mean = (share[:, None] * ordered).sum(0)
    if published:
        mean[:, 1] = (share.square() * ordered[:, :, 1]).sum(0)
    return mean.float()


def debiased(logits: Tensor, prior: Tensor, strength: float) -> Tensor:
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
    published: bool = False
    """Do as the authors' code does where it departs from the paper."""

    down = {"mixture": ("<=components", 3)}
    up = {"mixture": Sent(("<=components", 3), -UNEVEN, 1 + UNEVEN, holds=describes_losses, kind="a mixture")}
    keeps = {"logits": ("n", "C"), "prior": ("C",), "visits": ()}
    remembers = {"mixture": ("K", "components", 3), "size": ("K",)}
    writes = frozenset({"clean_share"})
    verdict = "clean_share"
    labels = True
    nets = 1

    @property
    def components(self) -> int:
        return 2

    # --- server half
    def brief(self, s: Server, client: int) -> Payload:
        """The global filter: the mean of the last mixture of every client of the group that ever sent one."""
        known = [k for k in s.members() if k in s.rows("mixture")]
        if not known:
            return {"mixture": torch.empty(0, 3)}
        mixtures, sizes = (torch.stack([s.rows(name)[k] for k in known]) for name in ("mixture", "size"))
        return {"mixture": averaged(mixtures, sizes, published=self.published)}

    def learn(self, s: Server, ups: Ups, w: Weights) -> None:
        for client, up in ups.items():
            if up.models is None:
                continue
            mixture = up.notes[self.name]["mixture"]
            assert isinstance(mixture, Tensor)
            if len(mixture) == self.components:
                s.rows("mixture")[client] = mixture
                s.rows("size")[client] = torch.tensor(float(up.n))
                s.columns.write("clean_share", {client: float(mixture[mixture[:, 0].argmin(), 2])})

    # --- client half
    def relabel(self, c: Client, net: Net, labels: Labels) -> Labels:
        """Filter, relabel and select; all for this round only."""
        logits = c.outputs(net).logits.float().cpu()
        probability = self.clean_probability(c, scaled_losses(logits, labels.target))
        labels = labels.replace(score=probability)
        clean = probability > 0.5
        noise = float((~clean).double().mean())  # δ̂
        if noise <= self.tolerance:
            return labels
        confidence, guess = logits.softmax(1).max(1)
        relabelled = ~clean & (confidence >= self.confidence)
        chosen = self.chosen(c, clean, relabelled, guess, noise)
        if not bool(chosen.any()):
            self.remember(c, logits)
        guessed = (relabelled & chosen)[:, None]
        return labels.towards(torch.where(guessed, one_hot(guess, c.n_classes).float(), labels.target)).only(chosen)

    def clean_probability(self, c: Client, losses: Tensor) -> Tensor:
        """Posterior of the filter's small-loss component."""
        if not bool(losses.any()):
            return torch.ones(len(losses))
        mixture = self.received(c) or GaussianMixture1D().fit(losses.numpy())
        return torch.from_numpy(mixture.predict_proba(losses.numpy())[:, 0]).float()

    def received(self, c: Client) -> GaussianMixture1D | None:
        mixture = c.brief(self)["mixture"]
        assert isinstance(mixture, Tensor)
        return as_mixture(mixture)

    def chosen(self, c: Client, clean: Tensor, relabelled: Tensor, guess: Tensor, noise: float) -> Tensor:
        """Which samples the client trains on: clean and relabelled ones that both models predict alike."""
        kept = c.keep(self)
        rows = clean
        if not self.published or int(kept.get("visits", torch.tensor(0))) >= PUBLISHED_VISITS:
            if not self.published or noise > PUBLISHED_NOISE:
                rows = clean | relabelled
            if self.consistency and "logits" in kept:
                rows = rows & (debiased(kept["logits"], kept["prior"], self.xi).argmax(1) == guess)
        enough = not self.published or int(rows.sum()) > c.fit.batch
        return rows if enough else torch.zeros_like(rows)

    def remember(self, c: Client, logits: Tensor) -> None:
        """The local model's outputs for the next visit, and p̂ ← m p̂ + (1 − m) mean softmax."""
        kept = c.keep(self)
        prior = kept.get("prior", torch.full((c.n_classes,), 1.0 / c.n_classes))
        p = logits.softmax(1)
        if self.published:
            p = p[debiased(logits, prior, self.xi).softmax(1).amax(1) > PUBLISHED_CONFIDENCE]
        kept["logits"] = logits
        kept["prior"] = self.momentum * prior + (1.0 - self.momentum) * p.mean(0) if len(p) else prior
        kept["visits"] = kept.get("visits", torch.tensor(0)) + 1

    def finish(self, c: Client) -> Payload:
        """The mixture on the new local model's losses, learnt from the global one on."""
        logits = c.outputs(c.nets[0]).logits.float().cpu()
        self.remember(c, logits)
        mixture = GaussianMixture1D(max_iter=PUBLISHED_ITERATIONS) if self.published else GaussianMixture1D()
        losses = scaled_losses(logits, c.labels.target)
        return {"mixture": as_tensor(mixture.fit(losses.numpy(), start=self.received(c)))}


@dataclass(frozen=True, kw_only=True)
class EvenMixUp(MixUp):
    """MixUp, and a term that spreads the batch's predictions evenly over the classes."""

    eta: Annotated[float, Field(ge=0)] = 1.0
    """Weight of that term: 1 where clients hold different classes, 0 where they hold the same."""

    def loss(self, c: Client, net: Net, batch: Batch) -> Tensor:
        logits, target = self.mixed(c, net, batch)
        return cross_entropy(logits, target) + self.eta * divergence_from_uniform(logits.float().softmax(1))


def feddiv(filter: SharedFilter, mix: EvenMixUp) -> Method:
    """FedDiv: MixUp on all samples, then on those that the shared filter finds clean or that can be relabelled."""
    given = filter.iterations
    laps, fraction = (LAPS, 0.2) if given is None else ((given, given), None)
    warm = Stage("warm", parts=(MixUp(alpha=mix.alpha),), sampler=Sweep(size=1), laps=laps, fraction=fraction)
    return Method("feddiv", (warm, Stage(parts=(filter, mix))))
