"""FB-NLL: clients clustered and labels corrected by feature subspaces, before any training (Ali and Arafa, 2026)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedsieve.core import (
    Answers,
    Ask,
    Client,
    Exhibit,
    Method,
    Moment,
    Part,
    Payload,
    Reads,
    Server,
    Stage,
    Talk,
    Topic,
    orthonormal,
    proportion,
)
from fedsieve.core.plan import ANY
from fedsieve.estimate.subspace import (
    Signature,
    by_class,
    class_similarity,
    cluster,
    prepared,
    projections,
    relevances,
    repair,
    signature,
    similarity,
    whole_classes,
)
from fedsieve.parts.few_rows import SMALLEST, Smallest, enough
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
        vectors = _stacked(answers, "vectors", s.clients)
        told = yield Ask("relevance", {k: {"vectors": vectors} for k in answers if bool(vectors[k].any())})
        for k, answer in told.items():
            row = answer["relevance"]
            assert isinstance(row, Tensor)
            s.rows("relevance")[k] = row
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
    def answer(self, c: Client, topic: str, question: Payload) -> Payload:
        """Eigenvectors first (eq. 2), then how strongly one's own data answer to everybody's (eq. 3 to 5)."""
        features = prepared(frozen_features(c.samples, self.features))
        own = signature(features, self.rank, self.cap, self.threshold)
        if topic == "signature":
            told = own.vectors if len(features) >= self.smallest else own.vectors[:, :0]
            return {"vectors": torch.from_numpy(told).float()}
        theirs = question["vectors"]
        assert isinstance(theirs, Tensor)
        row = relevances([features], [own.values], theirs.double().numpy())[0]
        return {"relevance": torch.from_numpy(row).float()}


@dataclass(frozen=True, kw_only=True)
class RepairBySubspace(Part):
    """Procedure 2: given classes that are as a whole another one are renamed, others are repaired sample by sample.

    The server needs clean samples of each class. Where the paper is silent: τ = 0.85, 5 eigenvectors to compare classes
    and 20 to project samples. Weak features would do harm: unless they name a share of the server's own clean samples
    rightly (`trust`; half of them tried on the other half), nothing is changed.
    """

    repair_features: str = AUTO
    """Features of the correction; the paper takes a pretrained network: `resnet50`, `FILE.safetensors`, `hf:NAME`."""
    repair_size: PositiveInt | None = None
    """Side to which images are brought for `resnet50` and `hf:NAME`."""
    tau: Annotated[float, Field(ge=0, le=1)] = 0.85
    """Similarity from which a given class counts as a clean one."""
    class_rank: PositiveInt = 5
    """Eigenvectors by which classes are compared."""
    sample_rank: PositiveInt = 20
    """Eigenvectors on which samples are projected."""
    center: bool = False
    """Subtract the mean of the server's features; off in the paper."""
    normalise: bool = False
    """Bring all features to length 1; off in the paper."""
    among: Literal["all", "own"] = "all"
    """Classes that a sample may get: all (paper), or those among the client's labels."""
    trust: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Share of the server's clean samples that projections must name rightly; 0 repairs in any case (paper)."""
    smallest_class: Smallest = SMALLEST
    """Samples below which a client sends nothing of a class, whose labels are then repaired one by one."""

    wide: ClassVar[int] = ANY
    reads = Reads.CLEAN
    labels = True
    topics = {
        "classes": Topic(
            {"bases": ("C", "wide", "<=sample_rank"), "center": ("wide",)},
            {"vectors": orthonormal("C", "wide", "<=class_rank")},
        ),
        "views": Topic({"relevance": ("C", "C")}, {}),
    }
    keeps = {"bases": ("C", "wide", "<=sample_rank"), "center": ("wide",)}
    writes = frozenset({"labels"})

    # --- server half
    def talk(self, s: Server, moment: Moment) -> Talk:
        if moment != "start":
            return
        samples, labels = s.clean
        assert labels is not None
        features = frozen_features(samples, self.repair_features, self.repair_size)
        center = features.mean(axis=0) if self.center else np.zeros(features.shape[1])
        clean = by_class(prepared(features, center, self.normalise), labels.numpy(), s.plan.n_classes)
        named = self.rightly_named(clean)
        if named < self.trust:
            s.log(
                "FS219",
                f"projections name {100 * named:.0f} % of the server's clean samples rightly, fb-nll.trust asks for "
                f"{100 * self.trust:.0f} %: no label is corrected. Take better features (fb-nll.repair_features) or "
                "more clean samples",
            )
            return
        bases = _padded([self.of_samples(x).vectors for x in clean])
        down: Payload = {"bases": bases, "center": torch.from_numpy(center).float()}
        answers = yield Ask("classes", dict.fromkeys(s.clients, down))
        values = [self.of_classes(x).values for x in clean]
        views: dict[int, Payload] = {}
        for k, answer in answers.items():
            theirs = answer["vectors"]
            assert isinstance(theirs, Tensor)
            views[k] = {"relevance": torch.from_numpy(relevances(clean, values, theirs.double().numpy())).float()}
        yield Ask("views", views)

    def rightly_named(self, clean: Sequence[np.ndarray]) -> float:
        """Share of the clean samples that the subspaces of the others would name rightly, each half by the other."""
        right = total = 0
        for first in (0, 1):
            bases = [self.of_samples(x[first::2]).vectors for x in clean]
            for label, x in enumerate(clean):
                tried = x[1 - first :: 2]
                if len(tried):
                    right += int((projections(tried, bases).argmax(axis=1) == label).sum())
                    total += len(tried)
        return right / total if total else 0.0

    # --- client half
    def answer(self, c: Client, topic: str, question: Payload) -> Payload:
        known, label = c.labels.given >= 0, c.labels.target.argmax(1).numpy()
        given = c.labels.given[known].numpy()
        kept = c.keep(self)
        if topic == "classes":
            for name in ("bases", "center"):
                value = question[name]
                assert isinstance(value, Tensor)
                kept[name] = value
        raw = frozen_features(c.samples, self.repair_features, self.repair_size)[known.numpy()]
        features = prepared(raw, kept["center"].double().numpy(), self.normalise)
        label = label[known.numpy()]
        mine = by_class(features, label, c.n_classes)
        own = [self.of_classes(x) for x in mine]
        if topic == "classes":
            told = enough(torch.from_numpy(label), c.n_classes, self.smallest_class).tolist()
            return {"vectors": _padded([v.vectors if t else v.vectors[:, :0] for v, t in zip(own, told, strict=True)])}
        bases, server = kept["bases"].double().numpy(), question["relevance"]
        assert isinstance(server, Tensor)
        local = relevances(mine, [one.values for one in own], bases[:, :, : self.class_rank])
        decided = whole_classes(class_similarity(server.double().numpy(), local), self.tau)  # Phase 1
        among = None if self.among == "all" else np.unique(label).tolist()
        if bool(known.any()):
            found = repair(features, label, bases, decided, among, given)  # Phase 2, eq. 7
            target, score = c.labels.target.clone(), c.labels.score.clone()
            target[known] = torch.nn.functional.one_hot(torch.from_numpy(found.labels), c.n_classes).float()
            score[known] = torch.from_numpy(found.scores).float()
            c.rewrite(c.labels.replace(target=target, score=score))
        for name in ("bases", "center"):
            del kept[name]
        return {}

    def of_classes(self, features: np.ndarray) -> Signature:
        return signature(features, self.class_rank)

    def of_samples(self, features: np.ndarray) -> Signature:
        return signature(features, self.sample_rank)


def _padded(vectors: Sequence[np.ndarray]) -> Tensor:
    """(count, d, q), columns of zeros where there are fewer than q."""
    wide, most = vectors[0].shape[0], max(1, max(one.shape[1] for one in vectors))
    stacked = torch.zeros(len(vectors), wide, most)
    for place, one in enumerate(vectors):
        stacked[place, :, : one.shape[1]] = torch.from_numpy(one)
    return stacked


def _stacked(answers: Answers, name: str, clients: Sequence[int]) -> Tensor:
    """The answers of all clients as one tensor; of those that gave none, zeros."""
    known: dict[int, np.ndarray] = {}
    for k, answer in answers.items():
        value = answer[name]
        assert isinstance(value, Tensor)
        known[k] = value.numpy()
    wide = next(iter(known.values())).shape[0] if known else 0
    return _padded([known.get(k, np.zeros((wide, 0), np.float32)) for k in clients])


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
