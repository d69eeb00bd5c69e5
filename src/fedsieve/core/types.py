"""The nouns that travel: messages between server and clients, and a client's table of labels."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Flag
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fedsieve.base.errors import RunError
from fedsieve.core.sent import Declared, Shape

Value = Tensor | float | int | bool | str
Payload = Mapping[str, Value]
Weights = dict[int, float]
Moment = Literal["start", "round", "round_end", "end"]

SERVER = -1
"""The server's id where it takes part in training."""


class Told(Mapping[str, Value]):
    """A payload as the half that receives it reads it: by name, and by what it takes the value for."""

    def __init__(self, payload: Payload) -> None:
        self._payload = payload

    def __getitem__(self, name: str) -> Value:
        return self._payload[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._payload)

    def __len__(self) -> int:
        return len(self._payload)

    def tensor(self, name: str) -> Tensor:
        value = self._payload[name]
        if not isinstance(value, Tensor):
            raise RunError("FS206", f"'{name}' is read as a tensor, but is {type(value).__name__}. Read it as a number")
        return value

    def number(self, name: str) -> float:
        """A scalar travels as a Python number, or as a tensor without axes."""
        value = self._payload[name]
        if isinstance(value, str) or (isinstance(value, Tensor) and value.dim()):
            found = "text" if isinstance(value, str) else f"a tensor of the shape {tuple(value.shape)}"
            raise RunError("FS206", f"'{name}' is read as a number, but is {found}. Read it as that")
        return float(value)

    def flag(self, name: str) -> bool:
        return bool(self.number(name))


class Reads(Flag):
    """What a part may look at besides the clients' reports."""

    NONE = 0
    UNLABELLED = 1
    CLEAN = 2
    NOISY = 4
    PUBLIC = 8
    """Unlabelled images that the clients hold too."""
    TRUTH = 16
    """Which labels are right: served by the evaluator, for upper bounds only."""


@dataclass(frozen=True)
class Mail:
    """What every message to a client says about the client's own state and the moment of the run."""

    stage: int
    round: int
    t: int
    group: int
    version: int
    """Version of the client's state to load; 0 for none."""
    saves: int
    """Version under which the client stores its new state."""
    retain: tuple[int, ...]
    """Versions that a checkpoint names: the client must not delete them."""


@dataclass(frozen=True)
class Down:
    """One client's message of a round."""

    mail: Mail
    models: tuple[Tensor, ...]
    briefs: Mapping[str, Payload]
    epochs: int


@dataclass(frozen=True)
class Up:
    """One client's report. `models` is None when the client had nothing to train on."""

    client: int
    round: int
    n: int
    group: int
    models: tuple[Tensor, ...] | None
    notes: Mapping[str, Payload]
    version: int
    loss: float
    skipped: str = ""


Ups = Mapping[int, Up]


@dataclass(frozen=True)
class Ask:
    """One question of a conversation, to some clients; `models` sends each its group's model along."""

    topic: str
    to: Mapping[int, Payload]
    models: bool = False


@dataclass(frozen=True)
class Question:
    """An `Ask` as it reaches one client."""

    mail: Mail
    part: str
    topic: str
    payload: Payload
    models: tuple[Tensor, ...] | None


@dataclass(frozen=True)
class Answer:
    client: int
    payload: Payload
    version: int


Answers = Mapping[int, Told]
Talk = Generator[Ask, Answers, None]


@dataclass(frozen=True)
class Topic:
    """Names and shapes of a question, and of its answer with the ranges."""

    question: Mapping[str, Shape]
    answer: Declared


class Role:
    LABELLED = 0
    UNLABELLED = 1
    DROPPED = 2


@dataclass(frozen=True)
class Labels:
    """A client's table, one row a sample. Everything that selects or corrects is `Labels -> Labels`."""

    given: Tensor
    """(n,) the label as delivered, -1 where there is none. Never changed."""
    target: Tensor
    """(n, C) what the sample is trained towards."""
    weight: Tensor
    """(n,) 0 takes the sample out."""
    role: Tensor
    """(n,) `Role`."""
    score: Tensor
    """(n,) 0 = surely wrong, 1 = surely right, NaN = nobody judged it."""

    @staticmethod
    def of(given: Tensor, n_classes: int) -> Labels:
        known = given >= 0
        target = torch.zeros(len(given), n_classes)
        target[known, given[known]] = 1.0
        role = torch.where(known, Role.LABELLED, Role.UNLABELLED).to(torch.int8)
        return Labels(given, target, torch.ones(len(given)), role, torch.full((len(given),), torch.nan))

    def __len__(self) -> int:
        return len(self.given)

    def replace(self, **columns: Any) -> Labels:
        return replace(self, **columns)

    def only(self, rows: Tensor, score: Tensor | None = None) -> Labels:
        """The same table with only these rows (a mask) left to train on."""
        role = torch.where(rows, self.role, torch.tensor(Role.DROPPED, dtype=self.role.dtype))
        weight = torch.where(rows, self.weight, torch.zeros_like(self.weight))
        return replace(self, role=role, weight=weight, score=self.score if score is None else score)

    def towards(self, target: Tensor) -> Labels:
        return replace(self, target=target)

    def rename(self, rows: Tensor, classes: Tensor) -> Labels:
        """The same table with these rows trained towards these classes."""
        target = self.target.clone()
        target[rows] = one_hot(classes, target.shape[1]).to(target.dtype)
        return replace(self, target=target)

    def rate(self, rows: Tensor, scores: Tensor) -> Labels:
        """The same table with the labels of these rows scored."""
        score = self.score.clone()
        score[rows] = scores.to(score.dtype)
        return replace(self, score=score)

    def training_rows(self) -> Tensor:
        """Row numbers to train on: the labelled ones with weight, or every row with weight if none is labelled."""
        labelled = self.labelled_rows()
        return labelled if len(labelled) else (self.weight > 0).nonzero().flatten()

    def labelled_rows(self) -> Tensor:
        """Row numbers of the labels that are believed; a row without weight is out of play."""
        return ((self.role == Role.LABELLED) & (self.weight > 0)).nonzero().flatten()

    def is_judged(self) -> bool:
        """Whether any method has scored, dropped or changed a label."""
        untouched = Labels.of(self.given, self.target.shape[1])
        return (
            not bool(torch.isnan(self.score).all())
            or not torch.equal(self.role, untouched.role)
            or not torch.equal(self.target, untouched.target)
        )


def payload_bytes(payload: Payload) -> int:
    """What a payload weighs on the wire: tensors by their bytes, text by its length, other scalars by eight."""
    return sum(value_bytes(value) for value in payload.values())


def value_bytes(value: Value) -> int:
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    return len(value.encode(errors="surrogatepass")) if isinstance(value, str) else 8


class Exhibit(NamedTuple):
    """Something a part knows at the end of a run that people would rather look at than read."""

    kind: Literal["clients", "pairs", "confusions", "tree"]
    """A number per client (n,), a likeness of each two (n, n), true x said classes of each client (n, C, C), or the
    merges of a dendrogram (n - 1, 4) as scipy has them."""
    title: str
    values: Tensor
    clients: tuple[int, ...]
    """Whom the first axis stands for; the leaves of a tree."""
