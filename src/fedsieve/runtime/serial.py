"""Everything in this process, one client after the other: for debugging, and for many runs side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor

from fedsieve.base.error_words import about
from fedsieve.core.host import Host
from fedsieve.core.net import Out, joined
from fedsieve.core.server import Models
from fedsieve.core.types import Answer, Down, Mail, Question, Up

T = TypeVar("T")
CHUNK = 500
"""Test rows per task: fixed, so that no result depends on the number of workers."""


class SerialRuntime:
    def __init__(self, host: Host) -> None:
        self._host = host

    def train(self, messages: Iterator[tuple[int, Down]]) -> Iterator[Up]:
        for client, down in messages:
            yield guard(client, lambda c=client, d=down: self._host.train(c, d))  # type: ignore[misc]

    def query(self, messages: Iterator[tuple[int, Question]]) -> Iterator[Answer]:
        for client, question in messages:
            yield guard(client, lambda c=client, q=question: self._host.answer(c, q))  # type: ignore[misc]

    def assess(self, messages: Iterator[tuple[int, Models, str]]) -> Iterator[Tensor]:
        for client, models, name in messages:
            yield guard(client, lambda m=models, n=name: self._host.assess(m, n))  # type: ignore[misc]

    def predict(self, models: Models, which: str, rows: Tensor) -> Tensor:
        return torch.cat([self._host.predict(models, which, some) for some in torch.split(rows, CHUNK)])

    def features(self, models: Models, which: str, rows: Tensor) -> Tensor:
        return torch.cat([self._host.features(models, which, some) for some in torch.split(rows, CHUNK)])

    def inspect(self, models: Models, which: str, rows: Tensor) -> Out:
        return joined(self._host.inspect(models, which, some) for some in torch.split(rows, CHUNK))

    def inspect_own(self, messages: Iterator[tuple[int, Mail, Models, Tensor]]) -> Iterator[Out]:
        for client, mail, models, rows in messages:
            yield self._host.inspect_client(client, mail, models, rows)

    def test(self, messages: Iterator[tuple[int, Mail, Models, Tensor]]) -> Iterator[Tensor]:
        for client, mail, models, rows in messages:
            yield self._host.test_client(client, mail, models, rows)

    def close(self) -> None:
        """Nothing to end."""


def guard(client: int, work: Callable[[], T]) -> T:
    """A client's work; an unexpected exception becomes an error that names the client."""
    try:
        return work()
    except Exception as problem:
        raise about(client, problem) from problem
