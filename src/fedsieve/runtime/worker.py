"""A worker process of the pool: builds the plan from the settings, then answers one message after the other."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import Any

from fedsieve.base.ending import SIGNALS
from fedsieve.base.error_words import as_ours, to_words


def main() -> None:
    """Entry point; `sys.argv[1]` names the file descriptors."""
    fds = json.loads(sys.argv[1])
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # the parent decides what they mean, and ends us
    Thread(target=_end_with_parent, args=(fds["lifeline"],), daemon=True).start()
    connection = Connection(fds["connection"])

    import torch

    from fedsieve.core.client_states import ClientStates
    from fedsieve.core.host import Host
    from fedsieve.runtime.arena import Arena
    from fedsieve.runtime.serial import guard
    from fedsieve.runtime.sharing import open_shared
    from fedsieve.runtime.wire import decode, encode
    from fedsieve.settings.planning import config_of, plan_of

    torch.set_num_threads(1)
    messages, replies = Arena(fds["messages"]), Arena(fds["replies"])
    host: Host | None = None
    failure: dict[str, Any] = {}

    def prepare_host(task: dict[str, Any]) -> Host:
        federation = open_shared(task["federation"], Arena(fds["data"]))
        config = config_of(task["config"], allow_code=True)  # who started this process has seen to that
        return Host(plan_of(config, federation), federation, ClientStates(Path(task["states"])))

    while True:
        try:
            task = json.loads(connection.recv_bytes())
        except (EOFError, OSError):
            return
        if task["kind"] == "prepare":
            try:
                host, failure = prepare_host(task), {}
            except Exception as problem:  # told when the first task comes: preparing has no reply
                host, failure = None, to_words(as_ours(problem))
            continue
        if host is None:
            connection.send_bytes(json.dumps(failure).encode())
            continue
        try:
            arguments = decode(task["arguments"], [messages.view(ref) for ref in task["tensors"]])
            work: Callable[..., Any] = getattr(host, task["kind"])
            tensors: list[torch.Tensor] = []
            body = encode(guard(task["client"], lambda: work(*arguments)), tensors)  # noqa: B023
            replies.reset()
            reply = {"body": body, "tensors": [replies.place(tensor) for tensor in tensors]}
        except Exception as problem:
            reply = to_words(as_ours(problem))
        connection.send_bytes(json.dumps(reply).encode())


def _end_with_parent(lifeline: int) -> None:
    """The other end is open as long as the parent lives."""
    os.read(lifeline, 1)
    os._exit(1)
