"""FB-NLL's correction: labels repaired by the subspaces of the server's clean classes (Ali and Arafa, 2026)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from fedsieve.core import ANY, Ask, Client, Moment, Part, Payload, Reads, Server, Talk, Told, Topic, orthonormal
from fedsieve.estimate.subspace import (
    by_class,
    class_similarity,
    pad,
    prepare,
    relevances,
    repair,
    share_named_rightly,
    signature,
    whole_classes,
)
from fedsieve.parts.few_rows import SMALLEST, Smallest, enough
from fedsieve.parts.frozen import AUTO, frozen_features

PositiveInt = Annotated[int, Field(ge=1)]


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
    """Side to which images are brought, where the feature map takes a choice."""
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
    corrects = True
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
        features = frozen_features(s.clean.samples, self.repair_features, self.repair_size)
        center = features.mean(axis=0) if self.center else np.zeros(features.shape[1])
        clean = by_class(prepare(features, center, self.normalise), s.clean.labels.numpy(), s.plan.n_classes)
        named = share_named_rightly(clean, self.sample_rank)
        if named < self.trust:
            s.log(
                "FS219",
                f"projections name {100 * named:.0f} % of the server's clean samples rightly, fb-nll.trust asks for "
                f"{100 * self.trust:.0f} %: no label is corrected. Take better features (fb-nll.repair_features) or "
                "more clean samples",
            )
            return
        bases = pad([signature(x, self.sample_rank).vectors for x in clean])
        down = {"bases": torch.from_numpy(bases).float(), "center": torch.from_numpy(center).float()}
        answers = yield Ask("classes", dict.fromkeys(s.clients, down))
        values = [signature(x, self.class_rank).values for x in clean]
        views: dict[int, Payload] = {}
        for k, answer in answers.items():
            view = relevances(clean, values, answer.tensor("vectors").double().numpy())
            views[k] = {"relevance": torch.from_numpy(view).float()}
        yield Ask("views", views)

    # --- client half
    def answer(self, c: Client, topic: str, question: Told) -> Payload:
        """Eigenvectors of the given classes first; then, with both views of each pair of classes, the correction."""
        kept = c.keep(self)
        if topic == "classes":
            kept.update({name: question.tensor(name) for name in ("bases", "center")})
        known = c.labels.given >= 0
        label = c.labels.target[known].argmax(1)
        raw = frozen_features(c.samples, self.repair_features, self.repair_size)[known.numpy()]
        features = prepare(raw, kept["center"].double().numpy(), self.normalise)
        mine = by_class(features, label.numpy(), c.n_classes)
        own = [signature(x, self.class_rank) for x in mine]
        if topic == "classes":
            told = enough(label, c.n_classes, self.smallest_class).tolist()
            vectors = pad([each.vectors if tell else each.vectors[:, :0] for each, tell in zip(own, told, strict=True)])
            return {"vectors": torch.from_numpy(vectors).float()}
        bases = kept["bases"].double().numpy()
        local = relevances(mine, [each.values for each in own], bases[:, :, : self.class_rank])
        alike = class_similarity(question.tensor("relevance").double().numpy(), local)
        if bool(known.any()):
            self.mend(c, features, bases, whole_classes(alike, self.tau))  # Phase 1
        kept.clear()
        return {}

    def mend(self, c: Client, features: np.ndarray, bases: np.ndarray, decided: np.ndarray) -> None:
        """Phase 2 (eq. 7), from the labels as they stand; scored are those that were given."""
        known = c.labels.given >= 0
        label, given = c.labels.target[known].argmax(1).numpy(), c.labels.given[known].numpy()
        among = None if self.among == "all" else np.unique(label).tolist()
        found = repair(features, label, bases, decided, among, given)
        mended = c.labels.rename(known, torch.from_numpy(found.labels))
        c.rewrite(mended.rate(known, torch.from_numpy(found.scores)))
