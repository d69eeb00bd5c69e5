"""A mixture of two Gaussians on a line, by EM: deterministic, components in order of their means, fast.

Losses of clean and wrongly labelled samples form two humps; the posterior of the lower one is a sample's chance to be
clean. Many values are first counted into bins with their exact sums and sums of squares, so that an iteration costs the
same for a thousand values and for a million; few values are used as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
BINS = 4096


@dataclass
class GaussianMixture1D:
    """Two components. `fit` never fails: too few or constant values make a single component, and `split_` is False."""

    tol: float = 1e-6
    """EM ends when the mean log-likelihood rises by less."""
    max_iter: int = 1000
    reg_covar: float = 5e-4
    """Added to the variances, as FedRN does: a component cannot shrink to a point."""
    min_size: int = 10
    """Fewer values than this are not split."""
    min_range: float = 1e-6
    """Values closer together than this are not split."""

    means_: Array = field(init=False)
    variances_: Array = field(init=False)
    weights_: Array = field(init=False)
    n_iter_: int = field(init=False, default=0)
    lower_bound_: float = field(init=False, default=-np.inf)
    converged_: bool = field(init=False, default=False)
    split_: bool = field(init=False, default=False)

    @staticmethod
    def of(means: ArrayLike, variances: ArrayLike, weights: ArrayLike) -> GaussianMixture1D:
        """A mixture that is known already, its components put in order of their means."""
        known = GaussianMixture1D()
        order = np.argsort(np.asarray(means, np.float64), kind="stable")
        known.means_, known.variances_, known.weights_ = (
            np.asarray(values, np.float64)[order] for values in (means, variances, weights)
        )
        known.split_ = known.converged_ = True
        return known

    def fit(self, values: ArrayLike, start: GaussianMixture1D | None = None) -> GaussianMixture1D:
        """By EM from the best cut of the values into two, or from another mixture."""
        x = np.asarray(values, np.float64).ravel()
        if not np.isfinite(x).all():
            raise ValueError("the values hold NaN or infinity")
        self.split_ = len(x) >= self.min_size and float(np.ptp(x)) > self.min_range
        if not self.split_:
            middle, spread = (float(x.mean()), float(x.var())) if len(x) else (0.0, 0.0)
            self.means_, self.variances_ = np.full(2, middle), np.full(2, spread + self.reg_covar)
            self.weights_, self.n_iter_, self.converged_ = np.array([1.0, 0.0]), 0, True
            return self
        # Centred, so that second moments keep their digits.
        shift = float(x.mean())
        counts, sums, squares = _binned(x - shift)
        if start is None:
            self._maximise(_two_means(counts, sums), counts, sums, squares)
        else:
            self.means_, self.variances_, self.weights_ = start.means_ - shift, start.variances_, start.weights_
        centres = sums / counts
        self.lower_bound_, self.converged_ = -np.inf, False
        for iteration in range(1, self.max_iter + 1):
            self.n_iter_ = iteration
            logs = self._log_joint(centres)
            norm = np.logaddexp(logs[0], logs[1])
            bound = float(counts @ norm / counts.sum())
            self._maximise(np.exp(logs[0] - norm), counts, sums, squares)
            change, self.lower_bound_ = bound - self.lower_bound_, bound
            if abs(change) < self.tol:
                self.converged_ = True
                break
        order = np.argsort(self.means_, kind="stable")
        self.means_, self.variances_, self.weights_ = (
            self.means_[order] + shift,
            self.variances_[order],
            self.weights_[order],
        )
        return self

    def predict_proba(self, values: ArrayLike) -> Array:
        """Posterior of each component, (n, 2); column 0 is the component with the smaller mean."""
        x = np.asarray(values, np.float64).ravel()
        if not self.split_:
            return np.tile(np.array([1.0, 0.0]), (len(x), 1))
        logs = self._log_joint(x)
        lower = np.exp(logs[0] - np.logaddexp(logs[0], logs[1]))
        return np.column_stack([lower, 1.0 - lower])

    def separation(self) -> float:
        """Distance of the means in pooled standard deviations; small for values that form one hump."""
        pooled = float(np.sqrt(self.weights_ @ self.variances_))
        return float(self.means_[1] - self.means_[0]) / pooled

    def _log_joint(self, x: Array) -> Array:
        """log p(component) + log p(x | component), (2, n)."""
        with np.errstate(divide="ignore"):
            scale = np.log(self.weights_) - 0.5 * np.log(2 * np.pi * self.variances_)
        deviation = x[None, :] - self.means_[:, None]
        joint: Array = scale[:, None] - 0.5 * deviation**2 / self.variances_[:, None]
        return joint

    def _maximise(self, first: Array, counts: Array, sums: Array, squares: Array) -> None:
        """M-step; `first` is each bin's share in component 0."""
        share = np.stack([first, 1.0 - first])
        mass = share @ counts + 10 * np.finfo(np.float64).eps
        self.means_ = share @ sums / mass
        self.variances_ = np.maximum(share @ squares / mass - self.means_**2, 0.0) + self.reg_covar
        self.weights_ = mass / mass.sum()


def _binned(x: Array) -> tuple[Array, Array, Array]:
    """Counts, sums and sums of squares of equal bins that hold values; each value its own bin if there are few."""
    if len(x) <= BINS:
        ordered = np.sort(x)
        return np.ones(len(x)), ordered, ordered**2
    low, width = x.min(), np.ptp(x) / BINS
    place = np.minimum(((x - low) / width).astype(np.int64), BINS - 1)
    counts = np.bincount(place, minlength=BINS).astype(np.float64)
    there = counts > 0
    sums: Array = np.bincount(place, x, BINS).astype(np.float64)
    squares: Array = np.bincount(place, x * x, BINS).astype(np.float64)
    return counts[there], sums[there], squares[there]


def _two_means(counts: Array, sums: Array) -> Array:
    """The best cut of the line into two clusters by least squares, as shares in the lower one: where EM begins."""
    below_n, below_s = np.cumsum(counts)[:-1], np.cumsum(sums)[:-1]
    above_n, above_s = counts.sum() - below_n, sums.sum() - below_s
    explained = below_s**2 / below_n + above_s**2 / above_n  # the rest of the squares does not depend on the cut
    cut = int(np.argmax(explained))
    return (np.arange(len(counts)) <= cut).astype(np.float64)
