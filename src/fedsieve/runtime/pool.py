"""Worker processes, one compute thread each, data and models in shared memory. The default runtime."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedsieve.base.error_words import from_words
from fedsieve.base.errors import RunError
from fedsieve.core.net import Out, joined
from fedsieve.core.server import Models
from fedsieve.core.types import Answer, Down, Mail, Question, Up
from fedsieve.data.federation import Federation
from fedsieve.runtime.arena import Arena
from fedsieve.runtime.crew import Crew, Worker
from fedsieve.runtime.serial import CHUNK
from fedsieve.runtime.sharing import place
from fedsieve.runtime.wire import decode, encode

LIVES = 3
"""How many workers a task may lose before the run ends."""


@dataclass
class _Task:
    kind: str
    client: int
    message: dict[str, Any]
    number: int = 0
    deaths: int = field(default=0)


class PoolRuntime:
    def __init__(self, crew: Crew, config: dict[str, Any], federation: Federation, states: Path) -> None:
        self._crew = crew
        self._messages = Arena(crew.shared["messages"])
        self._replies: dict[int, Arena] = {}
        header = place(federation, Arena(crew.shared["data"]))
        self._prepare = {"kind": "prepare", "config": config, "federation": header, "states": str(states)}
        for worker in crew.workers:
            worker.send(self._prepare)

    def train(self, messages: Iterator[tuple[int, Down]]) -> Iterator[Up]:
        return self._map(self._task("train", client, client, down) for client, down in messages)

    def query(self, messages: Iterator[tuple[int, Question]]) -> Iterator[Answer]:
        return self._map(self._task("answer", client, client, question) for client, question in messages)

    def assess(self, messages: Iterator[tuple[int, Models, str]]) -> Iterator[Tensor]:
        return self._map(self._task("assess", client, models, name) for client, models, name in messages)

    def predict(self, models: Models, which: str, rows: Tensor) -> Tensor:
        tasks = (self._task("predict", -1, models, which, some) for some in torch.split(rows, CHUNK))
        return torch.cat(list(self._map(tasks)))

    def features(self, models: Models, which: str, rows: Tensor) -> Tensor:
        tasks = (self._task("features", -1, models, which, some) for some in torch.split(rows, CHUNK))
        return torch.cat(list(self._map(tasks)))

    def inspect(self, models: Models, which: str, rows: Tensor) -> Out:
        tasks = (self._task("inspect", -1, models, which, some) for some in torch.split(rows, CHUNK))
        return joined(self._map(tasks))

    def inspect_own(self, messages: Iterator[tuple[int, Mail, Models, Tensor]]) -> Iterator[Out]:
        for found in self._map(self._task("inspect_client", message[0], *message) for message in messages):
            yield Out(*found)

    def test(self, messages: Iterator[tuple[int, Mail, Models, Tensor]]) -> Iterator[Tensor]:
        return self._map(self._task("test_client", message[0], *message) for message in messages)

    def close(self) -> None:
        self._crew.close()

    def _task(self, kind: str, client: int, *arguments: Any) -> _Task:
        tensors: list[Tensor] = []
        tree = encode(arguments, tensors)
        places = [self._messages.place(tensor) for tensor in tensors]
        return _Task(kind, client, {"kind": kind, "client": client, "arguments": tree, "tensors": places})

    def _map(self, tasks: Iterable[_Task]) -> Iterator[Any]:
        """Replies in the order of the tasks, whatever the order of completion. A dead worker's task is given again."""
        self._messages.reset()
        waiting, again = iter(tasks), list[_Task]()
        idle, busy = list(self._crew.workers), dict[Any, tuple[Worker, _Task]]()
        done: dict[int, Any] = {}
        sent = yielded = 0
        while True:
            while idle:
                task = again.pop() if again else next(waiting, None)
                if task is None:
                    break
                if not task.deaths:
                    task.number, sent = sent, sent + 1
                worker = idle.pop()
                worker.send(task.message)
                busy[worker.connection] = (worker, task)
            if not busy:
                return
            for connection in wait(list(busy)):
                worker, task = busy.pop(connection)
                reply = worker.receive()
                if reply is None:
                    idle.append(self._replace(worker, task))
                    again.append(task)
                    continue
                done[task.number] = self._open(worker, reply)
                idle.append(worker)
            while yielded in done:
                yield done.pop(yielded)
                yielded += 1

    def _open(self, worker: Worker, reply: dict[str, Any]) -> Any:
        if "error" in reply:
            raise from_words(reply)
        arena = self._replies.setdefault(worker.replies, Arena(worker.replies))
        return decode(reply["body"], [arena.view(ref).clone() for ref in reply["tensors"]])

    def _replace(self, worker: Worker, task: _Task) -> Worker:
        task.deaths += 1
        status = worker.process.wait()
        if task.deaths == LIVES:
            raise RunError(
                "FS213",
                f"{LIVES} workers died at '{task.kind}' of client {task.client} (the last with status {status}). "
                "If memory ran out, lower workers or batch; then resume",
            )
        fresh = self._crew.replace(worker)
        fresh.send(self._prepare)
        return fresh
