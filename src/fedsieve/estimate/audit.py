"""The audit of labels on one table: what owners and the one who adds up do in turn, without any federation.

from fedsieve.estimate.audit import audit
found = audit(features, labels, owners)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsieve.estimate.cross_fitting import UNKNOWN
from fedsieve.estimate.label_audit import (
    Conversation,
    Design,
    Features,
    Owner,
    added,
    conversation,
    judging,
    travelling,
)
from fedsieve.estimate.label_noise import confident_joint, predicted_joint, unmixed
from fedsieve.estimate.label_scores import Budget, Rule, Wrong, budget, wrong
from fedsieve.estimate.neighbours import NEAR
from fedsieve.estimate.verified import Verified

Array = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class OwnerAudit:
    owner: Any
    rows: int
    flagged: int
    wrong: Wrong
    """The share of labels that are wrong, with an interval."""
    budget: Budget
    """What looking at the most doubtful rows first would find."""
    twins: int = 0
    """Rows that are nearly the same as another one of the owner that is labelled otherwise."""


@dataclass(frozen=True)
class Audit:
    score: Array
    """(n,) the probability that the given label is right: 0 surely wrong, NaN where nothing tells."""
    flagged: NDArray[np.bool_]
    suggested: Integers
    """Another class wherever flagged, the given one elsewhere."""
    posterior: Array
    """(n, C) of the true class."""
    precision: float
    """Expected share of wrong labels among the flagged ones."""
    owners: tuple[OwnerAudit, ...]
    twin: Integers
    """(n,) another row of the same owner that is nearly the same and labelled otherwise; -1 for none."""


def audit(
    features: ArrayLike | None = None,
    labels: ArrayLike = (),
    owners: ArrayLike | None = None,
    *,
    probabilities: ArrayLike | None = None,
    n_classes: int | None = None,
    folds: int = 5,
    dims: int = 256,
    smallest: int = 1,
    precision: float | None = None,
    key: int = 0,
    near: float = NEAR,
    verified: tuple[ArrayLike, ArrayLike] | None = None,
) -> Audit:
    """Judge the labels of a table, of one owner or of several, as the federated audit would.

    `features` is (n, d). `probabilities` stands in its place where a classifier has already been cross-validated:
    (n, C) of the given labels, out of sample. `owners` names each row's owner, whose class frequencies are its own.
    Labels are whole numbers from 0, -1 for none. `near` says how near two rows of an owner are that count as nearly the
    same, in medians of the distance to the nearest row. `verified` are the features and the labels of further rows
    whose labels are known to be right: they teach the audit, and are not judged.
    """
    given = _whole(labels)
    table = _table(probabilities if features is None else features, len(given))
    if (features is None) == (probabilities is None):
        raise ValueError("give features, or probabilities in their place")
    classes = _class_count(given, table.shape[1] if features is None else None, n_classes)
    design = Design(classes, folds, dims, smallest, precision, key, near)
    _check(design)
    checked = None if verified is None else _verified(verified, table, classes, of_features=features is not None)
    names = np.zeros(len(given), np.int64) if owners is None else np.asarray(owners)
    if names.shape != given.shape:
        raise ValueError(f"{len(given)} labels, but owners of shape {names.shape}")
    different, place = np.unique(names, return_inverse=True)
    parts = [np.flatnonzero(place == k) for k in range(len(different))]
    members = [Owner(given[rows], design) for rows in parts]
    kept: list[dict[str, NDArray[Any]]] = [{} for _ in parts]
    if features is None:
        decided = _from_probabilities(members, kept, parts, table, given, design)
    else:
        single = table.astype(np.float32)
        decided = _held(
            conversation(design, checked), members, kept, [partial(single.__getitem__, rows) for rows in parts]
        )
    found = np.zeros((len(given), classes))
    score, flagged, suggested = np.full(len(given), np.nan), np.zeros(len(given), bool), given.copy()
    twin = np.full(len(given), -1)
    for rows, member, each in zip(parts, members, kept, strict=True):
        found[rows] = each["posterior"]
        score[rows], flagged[rows], suggested[rows] = member.verdict(each["posterior"], decided)
        if "twin" in each:
            twin[rows] = np.where(each["twin"] >= 0, rows[each["twin"]], -1)
    summary = tuple(
        OwnerAudit(
            owner=name,
            rows=len(rows),
            flagged=int(flagged[rows].sum()),
            wrong=wrong(score[rows]),
            budget=budget(score[rows]),
            twins=int((twin[rows] >= 0).sum()),
        )
        for name, rows in zip(different.tolist(), parts, strict=True)
    )
    return Audit(score, flagged, suggested, found, decided.precision, summary, twin)


def _held(
    turns: Conversation,
    members: Sequence[Owner],
    kept: Sequence[dict[str, NDArray[Any]]],
    features: Sequence[Features],
) -> Rule:
    """The whole conversation in one place."""
    topic, question = next(turns)
    while True:
        told = travelling(question)
        answers = [
            travelling(owner.answer(topic, told, own, table))
            for owner, own, table in zip(members, kept, features, strict=True)
        ]
        try:
            topic, question = turns.send(added(answers))
        except StopIteration as end:
            return Rule(float(told["threshold"]), end.value.precision)


def _from_probabilities(
    members: Sequence[Owner],
    kept: Sequence[dict[str, NDArray[Any]]],
    parts: Sequence[Integers],
    table: Array,
    given: Integers,
    design: Design,
) -> Rule:
    """Likelihoods are probabilities of the true classes over their frequencies; labels that nobody has are unknown."""
    if table.min() < 0:
        raise ValueError("probabilities are at least 0")
    labelled = given >= 0
    shares = unmixed(table, confident_joint(table[labelled], given[labelled]))
    likelihood = np.log(shares) - np.log(shares.mean(axis=0))
    likelihood[:, np.bincount(given[labelled], minlength=design.n_classes) == 0] = UNKNOWN
    for owner, own, rows in zip(members, kept, parts, strict=True):
        own.update(likelihood=likelihood[rows].astype(np.float32), told=owner.given >= 0)
    joints = [{"joint": predicted_joint(*owner.told(own))} for owner, own in zip(members, kept, strict=True)]
    return _held(
        judging(added(joints)["joint"], design), members, kept, [lambda: np.zeros((0, 0), np.float32)] * len(members)
    )


def _verified(rows: tuple[ArrayLike, ArrayLike], table: Array, classes: int, *, of_features: bool) -> Verified:
    if not of_features:
        raise ValueError("verified rows need features; probabilities cannot learn from them")
    labels = _whole(rows[1])
    known = _table(rows[0], len(labels))
    if known.shape[1] != table.shape[1]:
        raise ValueError(f"verified rows have {known.shape[1]} features, the others {table.shape[1]}")
    if labels.min() < 0 or labels.max() >= classes:
        raise ValueError(f"labels of verified rows lie between 0 and {classes - 1}")
    return Verified(known.astype(np.float32), labels)


def _whole(labels: ArrayLike) -> Integers:
    found = np.asarray(labels)
    if found.ndim != 1 or not len(found) or not np.issubdtype(found.dtype, np.integer):
        raise ValueError("labels are a list of whole numbers, one a row")
    if found.min() < -1:
        raise ValueError("labels are whole numbers from 0, or -1 for none")
    return found.astype(np.int64)


def _table(values: ArrayLike | None, rows: int) -> Array:
    found = np.asarray(values if values is not None else [], np.float64)
    if found.ndim != 2 or len(found) != rows or not found.shape[1]:
        raise ValueError(f"{rows} labels need a table of {rows} rows, not one of shape {found.shape}")
    if not np.isfinite(found).all():
        raise ValueError("the table holds NaN or infinity")
    return found


def _class_count(given: Integers, columns: int | None, wanted: int | None) -> int:
    least = max(int(given.max()) + 1, 1)
    classes = columns or wanted or least
    if classes < least or (wanted is not None and wanted != classes):
        raise ValueError(f"labels up to {least - 1} and {wanted or classes} classes do not fit together")
    return classes


def _check(design: Design) -> None:
    if design.folds < 2 or design.dims < 1 or design.smallest < 1:
        raise ValueError("an audit needs two folds, one dimension and one row a class at least")
    if not 0 <= design.near < 1:
        raise ValueError(f"near is {design.near}; it lies between 0 and 1")
    if design.precision is not None and not 0 < design.precision < 1:
        raise ValueError(f"precision is {design.precision}; it lies between 0 and 1")
