"""FB-NLL: clients clustered and labels corrected by feature subspaces, before any training (Ali and Arafa, 2026)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from fedsieve.core import (
    ANY,
    Ask,
    Client,
    Exhibit,
    Method,
    Moment,
    Part,
    Payload,
    Server,
    Stage,
    Talk,
    Told,
    Topic,
    orthonormal,
    proportion,
)
from fedsieve.estimate.subspace import cluster, pad, prepare, relevances, signature, similarity
from fedsieve.methods.fb_nll_repair import RepairBySubspace
from fedsieve.parts.few_rows import SMALLEST, Smallest
from fedsieve.parts.frozen import AUTO, frozen_features

PositiveInt = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, kw_only=True)
class ClusterBySubspace(Part):
    """Procedure 1: clients exchange the leading eigenvectors of their features and measure them on their own.

    Where the paper is silent: average linkage on 1 − R; eigenvectors whose eigenvalue is at least a hundredth of the
    largest, ten at most; a pair is compared in as many directions as both have; clients that send no eigenvectors
    join the largest cluster.
    """

    groups: PositiveInt | None = None
    """Number of clusters; chosen by `choose` if not given."""
    choose: Literal["silhouette", "gap"] = "silhouette"
    """How the number is chosen: the mean silhouette, or the widest gap of the dendrogram."""
    linkage: Literal["average", "complete", "single", "weighted"] = "average"
    """How the distance of two clusters is taken."""
    features: str = AUTO
    """`hog`, `pixels`, `resnet50`, `FILE.safetensors` or `hf:NAME`; `auto` is HOG, or pixels of images too small."""
    rank: PositiveInt | None = None
    """Eigenvectors of each client; without it as many as `threshold` and `cap` leave."""
    cap: PositiveInt = 10
    """Eigenvectors at most."""
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Share of the largest eigenvalue below which an eigenvector is left out."""
    smallest: Smallest = SMALLEST
    """Samples below which a client sends nothing: the eigenvector of a single one is that sample."""

    wide: ClassVar[int] = ANY
    topics = {
        "signature": Topic({}, {"vectors": orthonormal("wide", "<=most")}),
        "relevance": Topic({"vectors": ("K", "wide", "<=most")}, {"relevance": proportion("K")}),
    }
    remembers = {"relevance": ("K", "K")}
    writes = frozenset({"group"})

    @property
    def most(self) -> int:
        return self.cap if self.rank is None else self.rank

    # --- server half
    def talk(self, s: Server, moment: Moment) -> Talk:
        if moment != "start":
            return
        answers = yield Ask("signature", {k: {} for k in s.clients})
        known = {k: answer.tensor("vectors") for k, answer in answers.items() if answer.tensor("vectors").any()}
        if not known:
            return
        nothing = next(iter(known.values()))[:, :0]
        vectors = torch.from_numpy(pad([known.get(k, nothing).numpy() for k in s.clients])).float()
        told = yield Ask("relevance", {k: {"vectors": vectors} for k in known})
        for k, answer in told.items():
            s.rows("relevance")[k] = answer.tensor("relevance")
        members = sorted(told)
        if len(members) < 2:
            return
        likeness = self.similarity(s, members)
        groups = self.groups if self.groups is None else min(self.groups, len(members))
        if groups is None and len(members) < 3:
            groups = len(members)
        found = cluster(likeness, groups, self.choose, self.linkage).labels.tolist()
        largest = max(sorted({*found}), key=found.count)
        s.split({**dict.fromkeys(s.clients, largest), **dict(zip(members, found, strict=True))})

    def similarity(self, s: Server, members: Sequence[int]) -> np.ndarray:
        """Both views of each pair averaged (eq. 6)."""
        rows = np.stack([s.rows("relevance")[k].double().numpy() for k in members])
        return similarity(rows[:, members])

    def show(self, s: Server) -> list[Exhibit]:
        members = tuple(sorted(s.rows("relevance")))
        if len(members) < 2:
            return []
        likeness = self.similarity(s, members)
        merges = cluster(likeness, 1, self.choose, self.linkage).merges
        return [
            Exhibit("pairs", "similarity of two clients' subspaces", torch.from_numpy(likeness), members),
            Exhibit("tree", "how the clients were joined", torch.from_numpy(merges), members),
        ]

    # --- client half
    def answer(self, c: Client, topic: str, question: Told) -> Payload:
        """Eigenvectors first (eq. 2), then how strongly one's own data answer to everybody's (eq. 3 to 5)."""
        features = prepare(frozen_features(c.samples, self.features))
        own = signature(features, self.rank, self.cap, self.threshold)
        if topic == "signature":
            told = own.vectors if len(features) >= self.smallest else own.vectors[:, :0]
            return {"vectors": torch.from_numpy(told).float()}
        row = relevances([features], [own.values], question.tensor("vectors").double().numpy())[0]
        return {"relevance": torch.from_numpy(row).float()}


TRAINING = Stage(base="equal")
BEST_AFTER = ("finetune",)
"""Where labels are best corrected: after FedCorr's second stage, the paper's integration point; its first has not yet
repaired enough. Clients are clustered before anything else, so that no stage mixes tasks."""


def fb_nll(clustering: ClusterBySubspace, repair: RepairBySubspace) -> Method:
    """FB-NLL: cluster, correct, then train one model per cluster with equal weights."""
    stages = (Stage("cluster", 0, (clustering,)), Stage("repair", 0, (repair,), after=BEST_AFTER))
    return Method("fb-nll", stages, alone=TRAINING)


def fb_nll_minus(clustering: ClusterBySubspace) -> Method:
    """FB-NLL(−): the clustering without the correction."""
    return Method("fb-nll-minus", (Stage("cluster", 0, (clustering,)),), alone=TRAINING)


def fb_nll_repair(repair: RepairBySubspace) -> Method:
    """The correction without the clustering."""
    return Method("fb-nll-repair", (Stage("repair", 0, (repair,), after=BEST_AFTER),), alone=Stage())
