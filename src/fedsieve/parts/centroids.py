"""Class centroids in feature space: who lies near which, how they follow a batch, and how a server merges them."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize, one_hot

Reduce = Literal["mean", "sum", "features"]


def has_centroid(centroids: Tensor) -> Tensor:
    """Classes that have a centroid: a row of zeros is none, since it has no direction."""
    return (centroids != 0).any(1)


def similarities(features: Tensor, centroids: Tensor) -> Tensor:
    """The cosine of each row with each class's centroid, (n, C); −1 for a class without one."""
    cosines = normalize(features.float()) @ normalize(centroids).T
    return torch.where(has_centroid(centroids), cosines, -1.0)


def class_means(features: Tensor, labels: Tensor, n_classes: int) -> Tensor:
    """The mean feature of each class, (C, d); zeros for a class without a row."""
    members = one_hot(labels, n_classes).to(features)
    return members.T @ features / members.sum(0).clamp_min(1.0)[:, None]


def follow(centroids: Tensor, fresh: Tensor) -> Tensor:
    """F ← (1 − s²) F + s² F̂, s = cos(F, F̂), for the classes that F̂ has; a class without F takes F̂."""
    pace = cosine_similarity(centroids, fresh).square()
    pace = torch.where(has_centroid(centroids), pace, 1.0) * has_centroid(fresh)
    return torch.lerp(centroids, fresh, pace[:, None])


def merge(centroids: Tensor, reported: Tensor, seen: Tensor) -> Tensor:
    """F_c ← Σ_k s_k F_kc / Σ_k s_k over the clients that saw class c, s_k = max(0, cos(F_c, F_kc)).

    Where all s_k are 0, as they are while F_c is not known, it is the plain mean; a class seen by nobody stays.
    """
    trust = cosine_similarity(centroids[None], reported, dim=2).clamp_min(0.0) * seen
    trust = torch.where(trust.sum(0) > 0, trust, seen)
    total = trust.sum(0)[:, None]
    mean = (trust[:, :, None] * reported).sum(0) / total.where(total > 0, 1.0)
    return torch.where(total > 0, mean, centroids)


def pull(features: Tensor, towards: Tensor, mask: Tensor, over: Reduce) -> Tensor:
    """‖f − F_y‖² over the rows in the mask; the gradient goes through f."""
    total = ((features - towards).square().sum(1) * mask).sum()
    if over == "sum":
        return total
    mean = total / mask.sum().clamp_min(1)
    return mean if over == "mean" else mean / features.shape[1]


def margin(similarity: Tensor, labels: Tensor) -> Tensor:
    """In [0, 1]: above one half if the label's centroid is the most similar one, below if another is."""
    own = similarity.gather(1, labels[:, None]).flatten()
    best_other = similarity.scatter(1, labels[:, None], -1.0).amax(1)
    return ((1.0 + own - best_other) / 2.0).clamp(0.0, 1.0)
