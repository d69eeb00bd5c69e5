"""Which labels are wrong, of data that lie with several owners and never move: only sums travel.

One conversation in eleven turns: spread of the features, class moments fold by fold, joint counts, six steps of EM,
the histogram of doubts, the verdict. `conversation` is what the one who adds up does, `Owner` what each owner does,
and of what owners answer, only the total is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsieve.estimate.cross_fitting import UNKNOWN, Discriminants, Moments, deal, discriminants, moments
from fedsieve.estimate.label_noise import (
    Noise,
    begin,
    entanglement,
    extended,
    maximised,
    noise_sums,
    posterior,
    predicted_joint,
)
from fedsieve.estimate.label_scores import Rule, doubt_sums, flags, rule
from fedsieve.estimate.neighbours import NEAR, twins
from fedsieve.estimate.principal_axes import FLAT, Axes, Spread, axes_of, columns_for, coordinates, spread
from fedsieve.estimate.verified import Learnt, Verified

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Arrays = Mapping[str, NDArray[Any]]
Features = Callable[[], NDArray[np.float32]]
Rows = Callable[[], NDArray[Any]]
EM_TURNS = 6
DOUBT = 0.05
"""Of labels that go wrong as rows are mistaken: the share that is wrong even where row and label agree."""
Topic = Literal["spread", "moments", "joint", "noise", "doubts", "verdict"]
TOPICS: tuple[Topic, ...] = ("spread", "moments", "joint", "noise", "doubts", "verdict")


@dataclass(frozen=True)
class Design:
    """What everybody agrees on beforehand."""

    n_classes: int
    folds: int = 5
    """Each row is scored by what the rows of the other folds say."""
    dims: int = 256
    """Principal axes at most."""
    smallest: int = 1
    """Different rows below which nothing is told of a class in a fold; rows below which nothing is told at all."""
    precision: float | None = None
    """Expected share of wrong labels among flagged ones; None makes the expected F1 largest."""
    key: int = 0
    """Of the hash that deals rows into folds, and of the signs."""
    near: float = NEAR
    """How near rows of an owner are that count as nearly the same; 0 for equal ones only."""


class Turn(NamedTuple):
    topic: Topic
    question: Mapping[str, Any]
    """Arrays and numbers."""


Conversation = Generator[Turn, Arrays, Rule]


# --- the one who adds up
def conversation(design: Design, verified: Verified | None = None) -> Conversation:
    """What is asked, turn by turn; sent in is the total of the answers. Ends with the rule that the last turn told.

    `verified` are rows with right labels, where the one who adds up has some; without effect where owners see rows by
    other features.
    """
    told = yield Turn("spread", {})
    rows = Spread(float(told["count"]), told["total"], told["sketch"])
    verified = verified if verified is not None and verified.width == len(rows.total) else None
    axes = axes_of(rows if verified is None else rows.plus(verified.spread(design)), design.dims, design.key)
    told = yield Turn("moments", {"mean": axes.mean, "basis": axes.basis})
    sums = Moments(told["counts"], told["sums"], told["second"])
    found, evidence = Learnt(discriminants(sums)) if verified is None else verified.learnt(sums, axes, design)
    told = yield Turn("joint", {"weights": found.weights, "offsets": found.offsets})
    return (yield from judging(told["joint"], design, evidence))


def judging(joint: Array, design: Design, evidence: Array | None = None) -> Conversation:
    """The turns that only need likelihoods. The temperature is where `evidence` is highest, where right labels gave it.

    Otherwise the given ones say, and sharper where they go wrong as rows are mistaken, since these look alike then.
    """
    noise = begin(joint)
    past: list[Array] = []
    for turn in range(1, EM_TURNS + 1):
        told = yield Turn("noise", {"temperature": noise.temperature, "matrix": noise.matrix, "base": noise.base})
        past.append(noise.matrix)
        noise = maximised(told["joint"], noise.temperature)
        if len(past) == 2 and turn < EM_TURNS:
            noise = Noise(noise.temperature, extended(past[0], past[1], noise.matrix), noise.base)
            past = []
    best = int((told["evidence"] if evidence is None else evidence).argmax())
    mixed = entanglement(told["joint"][best], told["alike"][best])
    sharper = 1 + mixed if evidence is None else 1.0
    chosen = int(np.abs(np.log(noise.temperature / noise.temperature[best] / sharper)).argmin())
    told = yield Turn(
        "doubts",
        {
            "temperature": noise.temperature[chosen],
            "matrix": noise.matrix[chosen],
            "base": noise.base[chosen],
            "doubt": DOUBT * mixed,
        },
    )
    decided = rule(told["histogram"], design.precision)
    yield Turn("verdict", {"threshold": decided.threshold})
    return decided


# --- an owner
@dataclass(frozen=True)
class Owner:
    """Answers for its own rows. Between turns it keeps some tables in single precision, in `kept`."""

    given: Integers
    """(n,), -1 where a row has no label."""
    design: Design
    believed: Integers | None = None
    """(n,) the class whose mean a row is to move, where something better than its label is known; -1 for none."""
    dealt_by: Rows | None = None
    """(n, ...) what rows are, which decides on their folds; None takes their features. A model's features are rounded
    otherwise on another machine, and would be dealt otherwise."""

    def answer(
        self, topic: Topic, question: Arrays, kept: MutableMapping[str, NDArray[Any]], features: Features
    ) -> dict[str, Any]:
        """To one turn; `features` gives the (n, d) table, which only the first two look at."""
        if topic == "spread":
            x = features().astype(np.float64)
            x = x if len(x) >= self.design.smallest else x[:0]
            sums = spread(x, columns_for(x.shape[1], self.design.dims), self.design.key)
            return {"count": sums.count, "total": sums.total, "sketch": sums.sketch}
        if topic == "moments":
            return self._moments(features(), Axes(question["mean"], question["basis"]), kept)
        if topic == "joint":
            x, fold = kept.pop("coordinates").astype(np.float64), kept.pop("fold")
            kept["likelihood"] = Discriminants(question["weights"], question["offsets"])(x, fold).astype(np.float32)
            return {"joint": predicted_joint(*self.told(kept))}
        if topic == "noise":
            noise = Noise(question["temperature"], question["matrix"], question["base"])
            believed = None if self.believed is None else self.believed[self._rows_told(kept)]
            found = noise_sums(*self.told(kept), noise, believed)
            return {"joint": found.joint, "alike": found.alike, "evidence": found.evidence}
        if topic == "doubts":
            told = kept.pop("told").astype(bool)
            kept["posterior"] = self._judged(kept.pop("likelihood").astype(np.float64), question).astype(np.float32)
            score = self.verdict(kept["posterior"]).score
            return {"histogram": doubt_sums(score[told & ~np.isnan(score)])}
        return {}

    def _moments(
        self, features: NDArray[np.float32], axes: Axes, kept: MutableMapping[str, NDArray[Any]]
    ) -> dict[str, Any]:
        design = self.design
        x = coordinates(features.astype(np.float64), axes).astype(np.float32)
        classes = self.given if self.believed is None else self.believed
        content = features if self.dealt_by is None else self.dealt_by()
        by_class, by_label = (
            deal(content, each, design.folds, design.smallest, design.key) for each in (classes, self.given)
        )
        kept.update(coordinates=x, fold=by_class.fold, told=by_label.told, twin=self._twins(features))
        found = moments(x.astype(np.float64), classes, by_class, design.folds, design.n_classes)
        return {"counts": found.counts, "sums": found.sums, "second": found.second}

    def _twins(self, features: NDArray[np.float32]) -> Integers:
        """(n,) of each row another one here that is nearly the same and labelled otherwise, -1 for none.

        Few features are brought to one variance each, as for the axes.
        """
        labelled, found = np.flatnonzero(self.given >= 0), np.full(len(self.given), -1)
        x = features[labelled].astype(np.float64)
        if columns_for(x.shape[1], self.design.dims) == x.shape[1] and len(x):
            width = x.std(axis=0)
            x = x / np.where(width > FLAT * np.abs(x).max(axis=0), width, 1.0)
        near = twins(x, self.given[labelled], self.design.near)
        found[labelled] = np.where(near >= 0, labelled[near], -1) if len(x) else -1
        return found

    def told(self, kept: Mapping[str, NDArray[Any]]) -> tuple[Array, Integers]:
        """Likelihoods and labels of the rows that may be told of."""
        rows = self._rows_told(kept)
        return kept["likelihood"][rows].astype(np.float64), self.given[rows]

    def _rows_told(self, kept: Mapping[str, NDArray[Any]]) -> NDArray[np.bool_]:
        rows: NDArray[np.bool_] = kept["told"].astype(bool) & self._known(kept["likelihood"].astype(np.float64))
        return rows

    def _known(self, likelihood: Array) -> NDArray[np.bool_]:
        """Rows with a label that the discriminants know."""
        rows = np.arange(len(likelihood))
        return (self.given >= 0) & (likelihood[rows, self.given] > UNKNOWN / 2)

    def _judged(self, likelihood: Array, question: Arrays) -> Array:
        """(n, C) posteriors; zeros where there is nothing to judge a label by.

        A share of what speaks for the given class is dealt to the others by their frequency.
        """
        rows = np.flatnonzero(self._known(likelihood))
        given, base = self.given[rows], question["base"]
        found = posterior(likelihood[rows], given, float(question["temperature"]), question["matrix"], base).true
        own = np.eye(len(base))[given]
        lost = float(question["doubt"]) * (found * own).sum(axis=1, keepdims=True)
        others = base * (1 - own)
        full = np.zeros_like(likelihood)
        full[rows] = found - lost * own + lost * others / np.maximum(others.sum(axis=1, keepdims=True), 1e-300)
        return full

    def verdict(self, found: NDArray[np.float32], decided: Rule | None = None) -> Verdict:
        """What the posterior says of each label."""
        table = found.astype(np.float64)
        rows = np.arange(len(table))
        score = np.where(table.sum(axis=1) > 0.5, table[rows, self.given], np.nan)
        flagged = flags(score, Rule(2.0, 1.0) if decided is None else decided)
        table[rows, self.given] = -1.0
        return Verdict(score, flagged, np.where(flagged, table.argmax(axis=1), self.given))


class Verdict(NamedTuple):
    score: Array
    """(n,) the probability that the given label is right; NaN where nothing tells."""
    flagged: NDArray[np.bool_]
    suggested: Integers
    """The likeliest other class where flagged, the given one elsewhere."""


# --- what travels
def travelling(values: Mapping[str, Any]) -> dict[str, Array]:
    """As it arrives: rounded to single precision."""
    return {name: np.asarray(value, np.float32).astype(np.float64) for name, value in values.items()}


def added(answers: Sequence[Arrays]) -> dict[str, Array]:
    """The total of the owners' answers, name by name."""
    return {name: np.sum([answer[name] for answer in answers], axis=0) for name in answers[0]}
