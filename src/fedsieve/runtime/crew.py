"""Starting worker processes, before this process has loaded anything heavy itself.

A worker is a fresh interpreter: it does not import the caller's main module, so scripts need no guard. It hears of its
parent's death through a pipe that closes, and ends at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ENTRY = "import sys; sys.path[:] = {path!r}; from fedsieve.runtime.worker import main; main()"
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def unnamed_file() -> int:
    """A descriptor of a file without a name, in memory where the system offers that."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("fedsieve")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Worker:
    """One process, the connection to it, and the descriptors that it shares with us."""

    def __init__(self, shared: Mapping[str, int], replies: int) -> None:
        ours, theirs = socket.socketpair()
        lifeline_read, self._lifeline = os.pipe()
        fds = {**shared, "replies": replies, "connection": theirs.fileno(), "lifeline": lifeline_read}
        self.process = subprocess.Popen(
            [sys.executable, "-c", ENTRY.format(path=[path or str(Path.cwd()) for path in sys.path]), json.dumps(fds)],
            pass_fds=list(fds.values()),
            stdin=subprocess.DEVNULL,
            stdout=2,
            env={**os.environ, **ONE_THREAD},
        )
        theirs.close()
        os.close(lifeline_read)
        self.connection = Connection(ours.detach())
        self.replies = replies

    def send(self, message: Mapping[str, Any]) -> None:
        """Sending to a dead worker is no error: its silence is noticed when a reply is awaited."""
        with contextlib.suppress(OSError):
            self.connection.send_bytes(json.dumps(message).encode())

    def receive(self) -> dict[str, Any] | None:
        """Its next message; None when it is gone."""
        try:
            message: dict[str, Any] = json.loads(self.connection.recv_bytes())
        except (EOFError, OSError):
            return None
        return message

    def end(self) -> None:
        self.connection.close()
        os.close(self._lifeline)
        self.process.kill()
        self.process.wait()


class Crew:
    """Some workers with shared memory for the data and for messages to them. Workers that die can be replaced."""

    def __init__(self, count: int) -> None:
        self.shared: dict[str, int] = {}
        self.workers: list[Worker] = []
        try:
            for name in ("data", "messages"):
                self.shared[name] = unnamed_file()
            for _ in range(count):
                self.workers.append(Worker(self.shared, unnamed_file()))
        except BaseException:
            self.close()
            raise

    def replace(self, worker: Worker) -> Worker:
        worker.end()
        fresh = Worker(self.shared, worker.replies)
        self.workers[self.workers.index(worker)] = fresh
        return fresh

    def close(self) -> None:
        for worker in self.workers:
            worker.end()
            os.close(worker.replies)
        for fd in self.shared.values():
            os.close(fd)
        self.workers, self.shared = [], {}
