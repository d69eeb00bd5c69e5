"""A mixture of Gaussians in several dimensions, by EM. The start is given, so that nothing here is left to chance."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
LLOYD = 100
"""Passes of k-means at most; a few are the rule."""


@dataclass
class GaussianMixture:
    """`fit(points, shares)` climbs from the mixture that the shares make."""

    covariance: Literal["full", "diagonal"] = "full"
    """Diagonal where there are few points for the number of dimensions."""
    tol: float = 1e-3
    """EM ends when the mean log-likelihood rises by less."""
    max_iter: int = 100
    reg_covar: float = 1e-6
    """Added to the variances: a component cannot shrink to a point or a plane."""

    means_: Array = field(init=False)
    covariances_: Array = field(init=False)
    """(k, d, d), or (k, d) if diagonal."""
    weights_: Array = field(init=False)
    n_iter_: int = field(init=False, default=0)
    lower_bound_: float = field(init=False, default=-np.inf)
    """The mean log-likelihood before the last step."""
    converged_: bool = field(init=False, default=False)

    def fit(self, points: ArrayLike, shares: ArrayLike) -> GaussianMixture:
        """`shares` (n, k) say how far each point belongs to each component at the start; rows sum to one."""
        x, share = _points(points), np.asarray(shares, np.float64)
        if share.ndim != 2 or len(share) != len(x):
            raise ValueError(f"the shares have the shape {share.shape}; a row for each of {len(x)} points is needed")
        self._maximise(x, share)
        self.lower_bound_, self.converged_ = -np.inf, False
        for iteration in range(1, self.max_iter + 1):
            self.n_iter_ = iteration
            logs = self._log_joint(x)
            norm = np.logaddexp.reduce(logs, axis=1)
            bound = float(norm.mean())
            self._maximise(x, np.exp(logs - norm[:, None]))
            change, self.lower_bound_ = bound - self.lower_bound_, bound
            if abs(change) < self.tol:
                self.converged_ = True
                break
        return self

    def predict_proba(self, points: ArrayLike) -> Array:
        """Posterior of each component, (n, k), in the order of the shares that the fit began with."""
        logs = self._log_joint(_points(points))
        proba: Array = np.exp(logs - np.logaddexp.reduce(logs, axis=1)[:, None])
        return proba

    def bic(self, points: ArrayLike) -> float:
        """The Bayesian information criterion: the smaller of two mixtures' is the better one."""
        x = _points(points)
        k, d = self.means_.shape
        numbers = k - 1 + k * d + k * (d * (d + 1) // 2 if self.covariance == "full" else d)
        likelihood = float(np.logaddexp.reduce(self._log_joint(x), axis=1).sum())
        return float(numbers * np.log(len(x)) - 2.0 * likelihood)

    def _log_joint(self, x: Array) -> Array:
        """log p(component) + log p(x | component), (n, k)."""
        with np.errstate(divide="ignore"):
            logs = np.log(self.weights_) - 0.5 * x.shape[1] * np.log(2 * np.pi)
        joint = np.tile(logs, (len(x), 1))
        for i, (mean, covariance) in enumerate(zip(self.means_, self.covariances_, strict=True)):
            if self.covariance == "full":
                root = np.linalg.cholesky(covariance)
                scaled = np.linalg.solve(root, (x - mean).T).T
                spread = 2.0 * np.log(np.diagonal(root)).sum()
            else:
                scaled = (x - mean) / np.sqrt(covariance)
                spread = np.log(covariance).sum()
            joint[:, i] -= 0.5 * ((scaled**2).sum(axis=1) + spread)
        return joint

    def _maximise(self, x: Array, share: Array) -> None:
        """M-step."""
        mass = share.sum(axis=0) + 10 * np.finfo(np.float64).eps
        self.weights_ = mass / mass.sum()
        self.means_ = share.T @ x / mass[:, None]
        deviations = x[None] - self.means_[:, None]
        if self.covariance == "full":
            scatter = np.einsum("nk,kni,knj->kij", share, deviations, deviations) / mass[:, None, None]
            self.covariances_ = scatter + self.reg_covar * np.eye(x.shape[1])
        else:
            self.covariances_ = np.einsum("nk,kni->ki", share, deviations**2) / mass[:, None] + self.reg_covar


def scattered_start(points: ArrayLike, components: int, rng: np.random.Generator) -> Array:
    """Shares, all 0 or 1, from k-means, whose centres begin at random points that are far from each other."""
    x = _points(points)
    centres = x[[int(rng.integers(len(x)))]]
    while len(centres) < components:
        away = _squares(x, centres).min(axis=1)
        chance = away / away.sum() if away.sum() > 0 else np.full(len(x), 1 / len(x))
        centres = np.vstack([centres, x[int(rng.choice(len(x), p=chance))]])
    nearest = _squares(x, centres).argmin(axis=1)
    for _ in range(LLOYD):
        kept = [x[nearest == i].mean(axis=0) if (nearest == i).any() else centres[i] for i in range(components)]
        centres, before = np.array(kept), nearest
        nearest = _squares(x, centres).argmin(axis=1)
        if (nearest == before).all():
            break
    shares: Array = np.eye(components)[nearest]
    return shares


def _squares(x: Array, centres: Array) -> Array:
    """Squared distances, (n, k)."""
    squares: Array = ((x[:, None] - centres[None]) ** 2).sum(axis=2)
    return squares


def _points(points: ArrayLike) -> Array:
    x = np.asarray(points, np.float64)
    if x.ndim != 2 or not len(x):
        raise ValueError(f"the points have the shape {x.shape}; a row for each of at least one point is needed")
    if not np.isfinite(x).all():
        raise ValueError("the points hold NaN or infinity")
    return x
