"""Judging an encoder without a classifier: by nearest neighbours and by a linear classifier on its frozen features.

Pure functions from features and labels to predictions; all that they learn from is what they are given.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.nn.functional import normalize

NEIGHBOURS, TEMPERATURE = 200, 0.1
"""As the field monitors encoders that are learnt without labels."""
PENALTY = 1.0
STEPS = 300
CHUNK = 1_000
"""Queries that are compared at once."""


class Probed(NamedTuple):
    """Predicted classes of the queries, and how far their features are from being all the same."""

    knn: np.ndarray
    linear: np.ndarray
    spread: float
    rank: float


def probe(features: Tensor, labels: np.ndarray, queries: Tensor) -> Probed:
    """Both predictions from the features of labelled rows and of the rows asked about, each (rows, d)."""
    knn, linear = nearest_neighbours(features, labels, queries), linear_probe(features, labels, queries)
    return Probed(knn, linear, feature_spread(queries), feature_rank(queries))


def feature_spread(features: Tensor) -> float:
    """√d times the mean standard deviation of a coordinate, of features brought to length one.

    1 where they point everywhere, 0 where all point the same way: an encoder that collapsed.
    """
    unit = normalize(features.double())
    return float(unit.std(0, correction=0).mean() * unit.shape[1] ** 0.5)


def feature_rank(features: Tensor) -> float:
    """e to the entropy of the shares of the singular values of centred features: in how many directions they vary.

    It is RankMe (Garrido et al. 2023) of centred features: 1 where they lie on a line, 0 where all are the same.
    """
    x = features.double() - features.double().mean(0)
    values = torch.linalg.svdvals(x.T @ x).sqrt()
    if float(values[0]) <= 1e-9 * max(1.0, float(features.double().abs().max())) * len(x) ** 0.5:
        return 0.0
    shares = values / values.sum()
    return float(torch.special.entr(shares).sum().exp())


def has_collapsed(spread: float, rank: float) -> bool:
    """Whether features are as good as the same for all samples, or vary along a line at most."""
    return spread < 0.05 or rank < 1.5


def nearest_neighbours(
    features: Tensor, labels: np.ndarray, queries: Tensor, k: int = NEIGHBOURS, temperature: float = TEMPERATURE
) -> np.ndarray:
    """The class with most votes of the k rows of the greatest cosine, each of weight e^{cos / t} (Wu et al. 2018).

    Where there are fewer rows than k, all of them vote. Of classes with equal votes the first is taken.
    """
    known, place = np.unique(labels, return_inverse=True)
    classes, bank = torch.from_numpy(place), normalize(features.float())
    k, found = min(k, len(bank)), []
    for some in torch.split(normalize(queries.float()), CHUNK):
        cosines, rows = (some @ bank.T).topk(k)
        weights = ((cosines.double() - 1.0) / temperature).exp()  # the factor e^{1/t} is the same for all
        votes = torch.zeros(len(some), len(known), dtype=torch.float64).scatter_add_(1, classes[rows], weights)
        found.append(votes.argmax(1).numpy())
    return known[np.concatenate(found)] if found else np.empty(0, labels.dtype)


def linear_probe(features: Tensor, labels: np.ndarray, queries: Tensor, penalty: float = PENALTY) -> np.ndarray:
    """What a multinomial logistic regression predicts that was fitted to features scaled to mean 0 and spread 1."""
    known, place = np.unique(labels, return_inverse=True)
    mean, spread = features.double().mean(0), features.double().std(0, correction=0)
    spread = torch.where(spread > 1e-9, spread, 1.0)
    weights, bias = logistic_regression((features.double() - mean) / spread, place, len(known), penalty)
    best = ((queries.double() - mean) / spread @ weights.T + bias).argmax(1)
    predicted: np.ndarray = known[best.numpy()]
    return predicted


def logistic_regression(
    x: Tensor, labels: np.ndarray, n_classes: int, penalty: float = PENALTY, steps: int = STEPS
) -> tuple[Tensor, Tensor]:
    """Weights (C, d) and bias (C,) of the least Σ −log p_y + penalty/2 ‖W‖², by L-BFGS from zero: nothing is drawn."""
    n, d = x.shape
    rows, y = torch.arange(n), torch.from_numpy(labels)

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        both = torch.from_numpy(flat).view(n_classes, d + 1)
        weights, bias = both[:, :d], both[:, d]
        logs = (x @ weights.T + bias).log_softmax(1)
        loss = -logs[rows, y].sum() + penalty / 2 * weights.square().sum()
        wrong = logs.exp()
        wrong[rows, y] -= 1.0
        gradient = torch.cat([wrong.T @ x + penalty * weights, wrong.sum(0)[:, None]], dim=1)
        return float(loss) / n, (gradient / n).flatten().numpy()

    start = np.zeros(n_classes * (d + 1))
    found = minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": steps, "gtol": 1e-6})
    both = torch.from_numpy(found.x).view(n_classes, d + 1)
    return both[:, :d], both[:, d]
