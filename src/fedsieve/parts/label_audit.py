"""Owners learn which of their labels are wrong: one conversation, in which only sums are looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, cast

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedsieve.core import (
    ANY,
    Ask,
    Client,
    Labels,
    Moment,
    Part,
    Payload,
    Plan,
    Reads,
    Sent,
    Server,
    Talk,
    Told,
    Topic,
)
from fedsieve.data.samples import Samples
from fedsieve.estimate.label_audit import Design, Owner, Rows, Verdict, added, conversation
from fedsieve.estimate.label_audit import Topic as Turn
from fedsieve.estimate.label_noise import TEMPERATURES
from fedsieve.estimate.label_scores import BINS, Rule
from fedsieve.estimate.neighbours import NEAR
from fedsieve.estimate.verified import Verified
from fedsieve.parts.few_rows import SMALLEST, Smallest
from fedsieve.parts.frozen import AUTO, MODEL, frozen_features

MOST_ROWS = 1e7
"""Of an owner: what its sums of rows may reach."""
LARGEST_SUM = 1e18
"""Of raw features, which may have any unit."""


def counts(*shape: int | str) -> Sent:
    """Sums over rows of numbers from 0 to 1."""
    return Sent(shape, 0.0, MOST_ROWS)


@dataclass(frozen=True, kw_only=True)
class LabelAudit(Part):
    """Scores every label by the probability that it is right, and mends those that are flagged.

    There is no paper. What travels is added up, so it works where the server sees only sums.
    """

    features: str = AUTO
    """`hog`, `pixels`, `resnet50`, `FILE.safetensors`, `hf:NAME`, or `model`: those of a model trained beforehand."""
    size: Annotated[int, Field(ge=1)] | None = None
    """Side to which images are brought, where the feature map takes a choice."""
    precision: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Expected share of wrong labels among flagged ones; without it the expected F1 is as large as it can be."""
    dims: Annotated[int, Field(ge=1, le=2048)] = 256
    """Principal axes of the features, at most."""
    folds: Annotated[int, Field(ge=2, le=20)] = 5
    """Each label is judged by what the rows of the other folds say."""
    smallest: Smallest = SMALLEST
    """Different rows below which a client tells nothing of a class, in each fold."""
    near: Annotated[float, Field(ge=0, lt=1)] = NEAR
    """How near two rows of a client are that count as nearly the same, in median distances to the nearest row."""
    target: Literal["soft", "hard", "drop"] = "soft"
    """Flagged rows: trained towards the posterior, as all others are; towards the suggested class; or not at all."""
    weight: Literal["even", "sure"] = "sure"
    """Whether a row weighs as much as any, or as much as its likeliest class is probable."""
    verified: bool = True
    """Whether the server's rightly labelled samples (`server.clean`) take part, where it has some."""

    wide: ClassVar[int] = ANY
    drawn: ClassVar[int] = ANY
    axes: ClassVar[int] = ANY
    grid: ClassVar[int] = len(TEMPERATURES)
    bins: ClassVar[int] = BINS
    labels = True
    may_read = Reads.CLEAN
    sees = "sum"
    corrects = True
    topics = {
        "spread": Topic(
            {},
            {
                "count": counts(),
                "total": Sent(("wide",), -LARGEST_SUM, LARGEST_SUM),
                "sketch": Sent(("wide", "drawn"), -LARGEST_SUM, LARGEST_SUM),
            },
        ),
        "moments": Topic(
            {"mean": ("wide",), "basis": ("wide", "axes")},
            {
                "counts": counts("folds", "C"),
                "sums": Sent(("folds", "C", "axes"), -10 * MOST_ROWS, 10 * MOST_ROWS),
                "second": Sent(("folds", "axes", "axes"), -100 * MOST_ROWS, 100 * MOST_ROWS),
            },
        ),
        "joint": Topic({"weights": ("folds", "C", "axes"), "offsets": ("folds", "C")}, {"joint": counts("C", "C")}),
        "noise": Topic(
            {"temperature": ("grid",), "matrix": ("grid", "C", "C"), "base": ("grid", "C")},
            {
                "joint": counts("grid", "C", "C"),
                "alike": counts("grid", "C", "C"),
                "evidence": Sent(("grid",), -1000 * MOST_ROWS, 0.0),
            },
        ),
        "doubts": Topic(
            {"temperature": (), "matrix": ("C", "C"), "base": ("C",), "doubt": ()}, {"histogram": counts(2, "bins")}
        ),
        "verdict": Topic({"threshold": ()}, {}),
    }
    keeps = {
        "coordinates": ("n", "axes"),
        "fold": ("n",),
        "told": ("n",),
        "likelihood": ("n", "C"),
        "posterior": ("n", "C"),
        "twin": ("n",),
    }
    writes = frozenset({"labels"})

    def design(self, plan: Plan) -> Design:
        return Design(plan.n_classes, self.folds, self.dims, self.smallest, self.precision, plan.seed, self.near)

    # --- server half
    def talk(self, s: Server, moment: Moment) -> Talk:
        """Who misses a turn is left out of those that follow."""
        if moment != "start":
            return
        verified = self.rightly_labelled(s)
        members, turns = s.clients, conversation(self.design(s.plan), verified)
        topic, question = next(turns)
        while True:
            sees_samples = topic in ("spread", "moments")
            asked = dict.fromkeys(members, _tensors(question))
            answers = yield Ask(topic, asked, models=sees_samples and self.takes_model())
            members = sorted(answers)
            if not members:
                return
            told = added([{n: answers[k].tensor(n).double().numpy() for n in answers[k]} for k in members])
            if topic == "spread" and verified is not None and verified.width != (theirs := len(told["total"])):
                s.log("FS233", _unlike(theirs, verified.width))
            try:
                topic, question = turns.send(told)
            except StopIteration:
                return

    def rightly_labelled(self, s: Server) -> Verified | None:
        """The server's own samples, seen as clients see theirs."""
        if not self.verified or not s.has(Reads.CLEAN) or not len(s.clean.labels):
            return None
        samples, labels = s.clean
        model = s.predict(s.models, samples).features.numpy() if self.takes_model() else None
        stored = None if model is None else samples.stored().cpu().numpy()
        return Verified(self.seen(samples, model), labels.numpy(), stored)

    # --- client half
    def answer(self, c: Client, topic: str, question: Told) -> Payload:
        owner = self.owner(c)
        asked = {name: question.tensor(name).double().numpy() for name in question}
        kept: dict[str, Any] = {name: value.numpy() for name, value in c.keep(self).items()}
        reply = owner.answer(cast(Turn, topic), asked, kept, lambda: self.samples(c))
        c.keep(self).clear()
        if topic == "verdict":
            c.note_twins(torch.from_numpy(kept["twin"]))
            self.mend(c, kept["posterior"], owner.verdict(kept["posterior"], Rule(float(asked["threshold"]), 1.0)))
        else:
            c.keep(self).update({name: torch.from_numpy(value) for name, value in kept.items()})
        return _tensors(reply)

    def owner(self, c: Client) -> Owner:
        """Who answers for the labels as they stand, which a part before this one may have mended."""
        return Owner(standing_classes(c.labels), self.design(c.plan), dealt_by=self.dealt_by(c))

    def dealt_by(self, c: Client) -> Rows | None:
        """Samples as they are stored, where features are those of a model in training."""
        return (lambda: c.samples.stored().cpu().numpy()) if self.takes_model() else None

    def takes_model(self) -> bool:
        """Whether clients need the federation's model to see their samples."""
        return self.features == MODEL

    def samples(self, c: Client) -> np.ndarray:
        """(n, d)"""
        return self.seen(c.samples, model_features(c) if self.takes_model() else None)

    def seen(self, samples: Samples, model: np.ndarray | None) -> np.ndarray:
        """(n, d), given what the federation's model makes of them, where it is asked."""
        return frozen_features(samples, self.features, self.size) if model is None else model

    def mend(self, c: Client, posterior: np.ndarray, found: Verdict) -> None:
        """Flagged rows go on as another class or not at all, others keep their own. Given labels are scored."""
        judged, flagged = (torch.from_numpy(each) for each in (~np.isnan(found.score), found.flagged))
        likely = torch.from_numpy(posterior)
        labels = c.labels.rename(flagged, torch.from_numpy(found.suggested)[flagged])
        if self.target == "soft":
            same = judged & (likely.argmax(1) == labels.target.argmax(1))
            labels = labels.towards(torch.where(same[:, None], likely, labels.target))
        if self.weight == "sure":
            sure = torch.where(judged, likely.max(1).values, 1.0)
            labels = labels.replace(weight=labels.weight * sure)
        if self.target == "drop":
            labels = labels.only(~flagged)
        given = likely.gather(1, c.labels.given.clamp(min=0)[:, None])[:, 0]
        c.rewrite(labels.rate(judged, given[judged]))


def standing_classes(labels: Labels) -> np.ndarray:
    """(n,) what each row is trained towards, -1 where it has no label."""
    classes: np.ndarray = torch.where(labels.given >= 0, labels.target.argmax(1), -1).numpy()
    return classes


def model_features(c: Client) -> np.ndarray:
    """(n, d) of the client's samples by the net it was sent."""
    features: np.ndarray = c.outputs(c.nets[0]).features.float().flatten(1).cpu().numpy()
    return features


def _unlike(theirs: int, here: int) -> str:
    return (
        f"clients see their samples by {theirs} features, the server its own by {here}: its right labels teach "
        "nothing. Compare the versions and the encoders of both"
    )


def _tensors(values: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.array(value, np.float32)) for name, value in values.items()}
