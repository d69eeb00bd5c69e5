"""The runtime over Flower's Grid: clients train on their nodes, the server's own work is done here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from flwr.serverapp import Grid
from torch import Tensor

from fedsieve.core.host import Host
from fedsieve.core.server import Event, Models
from fedsieve.core.types import Answer, Down, Mail, Question, Up
from fedsieve.runtime.flower.briefing import Briefing
from fedsieve.runtime.flower.post import Failure, Parcel, exchange
from fedsieve.runtime.flower.records import Packer
from fedsieve.runtime.flower.roster import Roster
from fedsieve.runtime.serial import SerialRuntime

TRAIN, QUERY, EVALUATE = "train.round", "query.answer", "evaluate.own"
"""Message types, as the ClientApp registers them."""
SCALARS = (bool, int, float, str)


class FlowerRuntime:
    """A round is one message to each node. What does not come back in time, or cannot be used, becomes an `Event`."""

    def __init__(
        self, grid: Grid, roster: Roster, briefing: Briefing, bench: Callable[[], Host], timeout: float
    ) -> None:
        self._grid = grid
        self._roster = roster
        self._briefing = briefing
        self._bench = bench
        self._timeout = timeout

    def train(self, messages: Iterator[tuple[int, Down]]) -> Iterator[Up | Event]:
        for client, reply in self._exchanged(TRAIN, list(messages)):
            yield _checked(client, reply, Up, _is_report)

    def query(self, messages: Iterator[tuple[int, Question]]) -> Iterator[Answer | Event]:
        for client, reply in self._exchanged(QUERY, list(messages)):
            yield _checked(client, reply, Answer, _is_answer)

    def assess(self, messages: Iterator[tuple[int, Models, str]]) -> Iterator[Tensor]:
        return self._here().assess(messages)

    def predict(self, models: Models, which: str, rows: Tensor) -> Tensor:
        return self._here().predict(models, which, rows)

    def test(self, messages: Iterator[tuple[int, Mail, Models, Tensor]]) -> Iterator[Tensor | None]:
        """Nodes with data of their own receive the test samples; they are the server's, and no secret of a client."""
        tests: dict[bytes, tuple[Tensor, Tensor | None]] = {}  # one for all who are given the same: it is packed once
        sent: list[tuple[int, Any]] = []
        for client, mail, models, rows in messages:
            key = rows.numpy().tobytes()
            if key not in tests:
                tests[key] = self._taken_along(rows) if self._briefing.run else (rows, None)
            sent.append((client, (mail, models, *tests[key])))
        replies = self._exchanged(EVALUATE, sent)
        for (_, (_, _, rows, _)), (_, reply) in zip(sent, replies, strict=True):
            sound = isinstance(reply, Tensor) and reply.shape == rows.shape and reply.dtype == torch.int32
            yield reply if sound else None

    def _taken_along(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """These test samples, and where they are among themselves."""
        samples = torch.from_numpy(self._bench().federation.test_images[rows.numpy()])
        return torch.arange(len(samples)), samples

    def close(self) -> None:
        """Nodes end by themselves; the Grid belongs to who opened it."""

    def _here(self) -> SerialRuntime:
        return SerialRuntime(self._bench())

    def _exchanged(self, kind: str, sent: list[tuple[int, Any]]) -> list[tuple[int, Any]]:
        """The reply or the failure of each client, in order."""
        here, packer = self._roster.present(), Packer()
        reached = [(client, body) for client, body in sent if client in here]
        parcels = [
            Parcel(here[client], replace(self._briefing, client=client).to(packer.pack(body)))
            for client, body in reached
        ]
        replies = exchange(self._grid, kind, parcels, self._timeout)
        _give_up_if_all_failed([client for client, _ in reached], replies)
        found = dict(zip((client for client, _ in reached), replies, strict=True))
        absent = Failure("FS220", "its node is not connected")
        return [(client, found.get(client, absent)) for client, _ in sent]


def _give_up_if_all_failed(clients: list[int], replies: list[Any]) -> None:
    """If every node says that its own code failed, going on would only repeat it."""
    told = [reply.told if isinstance(reply, Failure) else None for reply in replies]
    if told and all(told):
        first = told[0]
        assert first is not None
        raise type(first)(first.code, f"client {clients[0]}: {first.message}")


def _checked(client: int, reply: Any, kind: type[Up] | type[Answer], sound: Callable[[Any], bool]) -> Any:
    if isinstance(reply, Failure):
        return Event(reply.code, reply.reason, client)
    if not isinstance(reply, kind) or not sound(reply) or reply.client != client:
        return Event("FS202", f"the reply is no {kind.__name__} of client {client}", client)
    return reply


def _is_report(up: Up) -> bool:
    """The types of a report; whether names, shapes and numbers will do is for the admission to say."""
    numbers = (up.client, up.round, up.n, up.group, up.keep)
    models = () if up.models is None else up.models
    return (
        all(type(number) is int for number in numbers)
        and isinstance(up.loss, float)
        and isinstance(up.skipped, str)
        and isinstance(models, tuple)
        and all(isinstance(model, Tensor) and model.dtype == torch.float32 for model in models)
        and isinstance(up.notes, dict)
        and all(_is_payload(payload) for payload in up.notes.values())
    )


def _is_answer(answer: Answer) -> bool:
    return type(answer.client) is int and type(answer.keep) is int and _is_payload(answer.payload)


def _is_payload(payload: Any) -> bool:
    return isinstance(payload, dict) and all(isinstance(value, (Tensor, *SCALARS)) for value in payload.values())
