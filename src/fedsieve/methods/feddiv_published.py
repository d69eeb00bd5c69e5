"""FedDiv's filter as in the authors' code, where it departs from the paper."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsieve.core import Client
from fedsieve.estimate.gmm1d import GaussianMixture1D
from fedsieve.methods.feddiv_filter import SharedFilter, debias, mean_mixture
from fedsieve.parts.published import Published

YOUNG = 5
"""So often a client trains on its clean samples alone, before it relabels and checks predictions."""
NOISY = 0.2
"""Relabelled samples are used where more than this share looks wrong."""
CONFIDENCE = 0.85
"""Debiased predictions at least as sure as this count for the class frequencies."""
ITERATIONS = 3
"""Steps of EM at the client."""


@dataclass(frozen=True, kw_only=True)
class PublishedFilter(Published, SharedFilter):
    """Squared shares for the variances, a longer apprenticeship, and fewer steps of EM."""

    def global_filter(self, mixtures: Tensor, shares: Tensor) -> Tensor:
        mean = mean_mixture(mixtures, shares)
        mean[:, 1] = mean_mixture(mixtures, shares.double().square())[:, 1]
        return mean

    def choose(self, c: Client, clean: Tensor, guessed: Tensor, guess: Tensor, noise: float) -> Tensor:
        """Nothing where no more samples are left than a batch holds."""
        rows = clean
        if int(c.keep(self).get("visits", torch.tensor(0))) >= YOUNG:
            rows = self.keep_agreeing(c, clean | guessed if noise > NOISY else clean, guess)
        return rows if int(rows.sum()) > c.fit.batch else torch.zeros_like(rows)

    def rows_to_count(self, logits: Tensor, prior: Tensor) -> Tensor:
        return debias(logits, prior, self.xi).softmax(1).amax(1) > CONFIDENCE

    def mixture(self) -> GaussianMixture1D:
        return GaussianMixture1D(max_iter=ITERATIONS)
