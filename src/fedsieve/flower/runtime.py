"""The runtime over Flower's Grid: clients train on their nodes, the server's own work is done here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from flwr.serverapp import Grid
from torch import Tensor

from fedsieve.core.host import Host
from fedsieve.core.net import Out
from fedsieve.core.server import Event, Models
from fedsieve.core.types import Answer, Down, Mail, Question, Up
from fedsieve.flower.briefing import Briefing
from fedsieve.flower.post import Failure, Parcel, exchange
from fedsieve.flower.records import Packer
from fedsieve.flower.roster import Roster
from fedsieve.runtime.serial import SerialRuntime

TRAIN, QUERY, EVALUATE = "train.round", "query.answer", "evaluate.own"
"""Message types, as the ClientApp registers them."""


class FlowerRuntime:
    """A round is one message to each node. What does not come back in time, or cannot be used, becomes an `Event`."""

    def __init__(
        self, grid: Grid, roster: Roster, briefing: Briefing, host: Callable[[], Host], timeout: float
    ) -> None:
        self._grid = grid
        self._roster = roster
        self._briefing = briefing
        self._host = host
        self._timeout = timeout
        self._succeeded = -1
        """The last stage in which a node replied as it should."""
        self._failed: dict[int, set[int]] = {}
        """Per stage, the clients whose own code failed before anything succeeded."""

    def train(self, messages: Iterator[tuple[int, Down]]) -> Iterator[Up | Event]:
        for client, reply in self._exchange(TRAIN, list(messages)):
            yield _check(client, reply, Up)

    def query(self, messages: Iterator[tuple[int, Question]]) -> Iterator[Answer | Event]:
        for client, reply in self._exchange(QUERY, list(messages)):
            yield _check(client, reply, Answer)

    def assess(self, messages: Iterator[tuple[int, Models, str]]) -> Iterator[Tensor]:
        return self._here().assess(messages)

    def predict(self, models: Models, which: str, rows: Tensor) -> Tensor:
        return self._here().predict(models, which, rows)

    def features(self, models: Models, which: str, rows: Tensor) -> Tensor:
        return self._here().features(models, which, rows)

    def inspect(self, models: Models, which: str, rows: Tensor) -> Out:
        return self._here().inspect(models, which, rows)

    def inspect_own(self, messages: Iterator[tuple[int, Mail, Models, Tensor]]) -> Iterator[Out]:
        """From the states of virtual nodes, which lie here; where nodes are elsewhere, nobody asks."""
        return self._here().inspect_own(messages)

    def test(self, messages: Iterator[tuple[int, Mail, Models, Tensor]]) -> Iterator[Tensor | None]:
        """Nodes with data of their own receive the test samples; they are the server's, and no secret of a client."""
        tests: dict[bytes, tuple[Tensor, Tensor | None]] = {}  # one for all who are given the same: it is packed once
        sent: list[tuple[int, Any]] = []
        for client, mail, models, rows in messages:
            key = rows.numpy().tobytes()
            if key not in tests:
                tests[key] = self._taken_along(rows) if self._briefing.run else (rows, None)
            sent.append((client, (mail, models, *tests[key])))
        replies = self._exchange(EVALUATE, sent)
        for (_, (_, _, rows, _)), (_, reply) in zip(sent, replies, strict=True):
            sound = isinstance(reply, Tensor) and reply.shape == rows.shape and reply.dtype == torch.int32
            yield reply if sound else None

    def _taken_along(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """These test samples, and where they are among themselves."""
        samples = torch.from_numpy(self._host().federation.test_images[rows.numpy()])
        return torch.arange(len(samples)), samples

    def close(self) -> None:
        """Nodes end by themselves; the Grid belongs to who opened it."""

    def _here(self) -> SerialRuntime:
        return SerialRuntime(self._host())

    def _exchange(self, kind: str, sent: list[tuple[int, Any]]) -> list[tuple[int, Any]]:
        """The reply or the failure of each client, in order."""
        here, packer = self._roster.present(), Packer()
        reached = [(client, body) for client, body in sent if client in here]
        parcels = [
            Parcel(here[client], replace(self._briefing, client=client).to(packer.pack(body)))
            for client, body in reached
        ]
        replies = exchange(self._grid, kind, parcels, self._timeout)
        found = dict(zip((client for client, _ in reached), replies, strict=True))
        if reached:
            self._give_up_if_all_failed(_stage(reached[0][1]), found, set(here))
        absent = Failure("FS220", "its node is not connected")
        return [(client, found.get(client, absent)) for client, _ in sent]

    def _give_up_if_all_failed(self, stage: int, replies: dict[int, Any], present: set[int]) -> None:
        """If the code of every node that is there failed and nothing ever succeeded in this stage, end the run."""
        told = {k: reply.told for k, reply in replies.items() if isinstance(reply, Failure) and reply.told}
        if any(not isinstance(reply, Failure) for reply in replies.values()):
            self._succeeded = stage
        if stage == self._succeeded:
            return
        failed = self._failed.setdefault(stage, set())
        failed.update(told)
        if told and present <= failed:
            client, first = next(iter(told.items()))
            raise type(first)(first.code, f"client {client}: {first.message}")


def _stage(body: Any) -> int:
    """The stage that a message belongs to."""
    mail: Mail = body[0] if isinstance(body, tuple) else body.mail
    return mail.stage


def _check(client: int, reply: Any, kind: type[Up] | type[Answer]) -> Any:
    """A reply of the right kind and sender; whether its content will do is for the admission to say."""
    if isinstance(reply, Failure):
        return Event(reply.code, reply.reason, client)
    if not isinstance(reply, kind) or type(reply.client) is not int or reply.client != client:
        return Event("FS202", f"the reply is no {kind.__name__} of client {client}", client)
    return reply
