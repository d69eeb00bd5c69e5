"""Sieve: labels are audited before training, and again with the help of the model that comes of it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated

import numpy as np
from pydantic import Field

from fedsieve.base.options import Choice
from fedsieve.core import Client, Labels, Method, Stage
from fedsieve.data.samples import Samples
from fedsieve.estimate.label_audit import Owner, Verdict
from fedsieve.parts.frozen import MODEL, frozen_features
from fedsieve.parts.label_audit import LabelAudit, standing_classes
from fedsieve.parts.losses import GeneralisedCrossEntropy
from fedsieve.parts.model_average import ModelAverage

TABLE = ("target", "weight", "role")
"""What an audit changes of a client's labels."""


def unit_rows(rows: np.ndarray) -> np.ndarray:
    """Each row brought to length one; zeros stay zeros."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: np.ndarray = rows / np.where(lengths > 0, lengths, 1.0)
    return unit


@dataclass(frozen=True, kw_only=True)
class FirstAudit(LabelAudit):
    """The audit before training. The table of labels is kept as it was, for the second one to begin again with."""

    keeps = {**LabelAudit.keeps, "target": ("n", "C"), "weight": ("n",), "role": ("n",)}

    def mend(self, c: Client, posterior: np.ndarray, found: Verdict) -> None:
        c.keep(self).update({name: getattr(c.labels, name).clone() for name in TABLE})
        super().mend(c, posterior, found)


@dataclass(frozen=True, kw_only=True)
class SecondAudit(LabelAudit):
    """The audit once more, on the model's features beside the frozen ones, when the model has learnt something.

    Class means are those of the classes that the first audit believes in. Labels are judged as that one found them, and
    what it made of them is replaced. There is no paper.
    """

    def owner(self, c: Client) -> Owner:
        labels, believed = standing_classes(untouched(c)), standing_classes(c.labels)
        return Owner(labels, self.design(c.plan), believed, self.dealt_by(c))

    def takes_model(self) -> bool:
        return True

    def seen(self, samples: Samples, model: np.ndarray | None) -> np.ndarray:
        """(n, d + e): both kinds at one scale, so that neither drowns the other."""
        frozen = None if self.features == MODEL else frozen_features(samples, self.features, self.size)
        return np.hstack([unit_rows(rows) for rows in (model, frozen) if rows is not None])

    def mend(self, c: Client, posterior: np.ndarray, found: Verdict) -> None:
        c.rewrite(untouched(c))
        c.keep(FirstAudit()).clear()
        super().mend(c, posterior, found)


def untouched(c: Client) -> Labels:
    """The client's table as the first audit found it, or as it stands where there was none."""
    return c.labels.replace(**{name: value for name, value in c.keep(FirstAudit()).items() if name in TABLE})


@dataclass(frozen=True, kw_only=True)
class WarmUp(Choice):
    """How long the model learns before it judges labels."""

    warm: Annotated[float, Field(gt=0, lt=1)] = 0.3
    """The part of the rounds before the second audit."""


def sieve(first: FirstAudit, warm_up: WarmUp, average: ModelAverage) -> Method:
    """The audit, rounds on what it believes, the audit with the model's help, the other rounds on what that believes.

    Where there are no frozen features (`features=model`), the first rounds are on the labels as they are, with a loss
    that bears wrong ones.
    """
    second = SecondAudit(**{each.name: getattr(first, each.name) for each in fields(first)})
    frozen = first.features != MODEL
    return Method(
        "sieve",
        (
            *((Stage("audit", 0, (first,)),) if frozen else ()),
            Stage("warm", fraction=warm_up.warm, parts=(average,) if frozen else (GeneralisedCrossEntropy(), average)),
            Stage("refresh", 0, (second,)),
            Stage("train", parts=(average,)),
        ),
    )
