"""A method on a federation in this process, with a record of everything that crosses the boundary."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from fedsieve.core.client_states import ClientStates
from fedsieve.core.host import Host
from fedsieve.core.plan import Plan
from fedsieve.core.rounds import Loop, Round, Runtime
from fedsieve.core.server import Event, Models, Server, ServerState
from fedsieve.core.types import Answer, Down, Question, Up
from fedsieve.data.federation import Federation
from fedsieve.runs.checkpoint import Checkpoints
from fedsieve.runtime.serial import SerialRuntime


class Interruption(Exception):  # noqa: N818  # staged on purpose
    """The staged crash of a trial."""


@dataclass
class Record:
    """What crossed the boundary, and the rounds as they ended."""

    downs: list[tuple[int, Down]] = field(default_factory=list)
    ups: list[Up] = field(default_factory=list)
    questions: list[tuple[int, Question]] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)

    @property
    def messages(self) -> int:
        return len(self.ups) + len(self.answers)

    def round_done(self, s: Server, what: Round) -> None:
        self.rounds.append(what)


class Listening:
    """A runtime that writes down what passes through another, and can fail after some messages."""

    def __init__(self, inner: Runtime, record: Record, fail_after: int | None = None) -> None:
        self._inner, self._record, self._fail_after = inner, record, fail_after

    def train(self, messages: Iterator[tuple[int, Down]]) -> Iterator[Up | Event]:
        for up in self._inner.train(self._heard(messages, self._record.downs)):
            self._fail()
            if isinstance(up, Up):
                self._record.ups.append(up)
            yield up

    def query(self, messages: Iterator[tuple[int, Question]]) -> Iterator[Answer | Event]:
        for answer in self._inner.query(self._heard(messages, self._record.questions)):
            self._fail()
            if isinstance(answer, Answer):
                self._record.answers.append(answer)
            yield answer

    def assess(self, messages: Iterator[tuple[int, Models, str]]) -> Iterator[Tensor]:
        return self._inner.assess(messages)

    def _heard(self, messages: Iterator[tuple[int, Any]], into: list[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
        for client, message in messages:
            into.append((client, message))
            yield client, message

    def _fail(self) -> None:
        if self._fail_after is not None and self._record.messages == self._fail_after:
            raise Interruption


class Trial:
    """A method on a federation, in this process, in a folder of its own."""

    def __init__(self, plan: Plan, federation: Federation, folder: Path) -> None:
        self.plan = plan
        self.federation = federation
        self.states = ClientStates(folder / "clients")
        self.host = Host(plan, federation, self.states)
        self.folder = folder
        self.record = Record()

    def run(self, runtime: Runtime | None = None, fail_after: int | None = None) -> ServerState:
        """From the newest checkpoint in the folder, or from the start, to the end."""
        store = Checkpoints(self.folder, self.states)
        state = store.load(lambda _: None) or ServerState.fresh(self.plan)
        server = Server(state, self.plan, lambda: self.host, store.retained)
        inner = runtime or SerialRuntime(self.host)
        Loop(Listening(inner, self.record, fail_after), store, self.record).run(server)
        return state
