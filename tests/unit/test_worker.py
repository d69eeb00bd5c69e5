"""A worker of the pool, run in this process: what it answers, and what it says when it cannot."""

import errno
import json
import os
import signal
import socket
import sys
from dataclasses import replace
from multiprocessing.connection import Connection

import numpy as np
import pytest
import torch

from fedsieve.base.ending import SIGNALS
from fedsieve.runtime import crew, worker
from fedsieve.runtime.arena import Arena
from fedsieve.runtime.crew import unnamed_file
from fedsieve.runtime.sharing import open_shared, place
from fedsieve.runtime.wire import decode, encode
from fedsieve.testing import Contract, tiny_federation


class Desk:
    """The parent's end: messages are laid ready, then the worker works them off until there is no more."""

    def __init__(self):
        self.files = {name: unnamed_file() for name in ("data", "messages", "replies")}
        self.ours, self.theirs = socket.socketpair()
        self.messages = Arena(self.files["messages"])

    def prepare(self, tmp_path, **settings):
        contract, federation = Contract.of("fedavg", {"model": "mlp"}), tiny_federation()
        config = contract.config.flat() | {"clients": federation.clients} | settings
        header = place(federation, Arena(self.files["data"]))
        self.plan = contract.plan(federation)
        self.send({"kind": "prepare", "config": config, "federation": header, "states": str(tmp_path)})

    def ask(self, kind, *arguments):
        tensors = []
        tree = encode(arguments, tensors)
        self.send(
            {
                "kind": kind,
                "client": 2,
                "arguments": tree,
                "tensors": [self.messages.place(tensor) for tensor in tensors],
            }
        )

    def send(self, message):
        Connection(os.dup(self.ours.fileno())).send_bytes(json.dumps(message).encode())

    def replies(self, monkeypatch):
        self.ours.shutdown(socket.SHUT_WR)
        fds = self.files | {"connection": os.dup(self.theirs.fileno()), "lifeline": -1}
        monkeypatch.setattr(sys, "argv", ["worker", json.dumps(fds)])
        worker.main()
        self.theirs.close()
        connection, found = Connection(os.dup(self.ours.fileno())), []
        while True:
            try:
                found.append(json.loads(connection.recv_bytes()))
            except EOFError:
                return found

    def opened(self, reply):
        arena = Arena(self.files["replies"])
        return decode(reply["body"], [arena.view(ref).clone() for ref in reply["tensors"]])


@pytest.fixture
def desk(monkeypatch):
    """Without its watch over the parent, which is this process; signals mean afterwards what they meant before."""
    monkeypatch.setattr(worker, "_end_with_parent", lambda lifeline: None)
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield Desk()
    for number, handler in before.items():
        signal.signal(number, handler)


def test_it_answers_what_the_host_would(desk, tmp_path, monkeypatch):
    desk.prepare(tmp_path)
    rows = torch.arange(5)
    desk.ask("features", desk.plan.initial, "test", rows)
    (reply,) = desk.replies(monkeypatch)
    found = desk.opened(reply)
    with Contract.of("fedavg", {"model": "mlp"}).trial() as trial:
        assert torch.equal(found, trial.host.features(trial.plan.initial, "test", rows))
    assert all(signal.getsignal(number) is signal.SIG_IGN for number in SIGNALS), "its parent decides"


def test_a_plan_that_cannot_be_made_is_told_at_every_task(desk, tmp_path, monkeypatch):
    desk.prepare(tmp_path, lr=-1)
    for _ in range(2):
        desk.ask("features", desk.plan.initial, "test", torch.arange(5))
    replies = desk.replies(monkeypatch)
    assert [(reply["error"], reply["code"]) for reply in replies] == [("ConfigError", "FS002")] * 2


def test_a_task_that_fails_leaves_the_worker_ready(desk, tmp_path, monkeypatch):
    desk.prepare(tmp_path)
    desk.ask("nothing")
    desk.ask("features", desk.plan.initial, "test", torch.arange(5))
    failed, done = desk.replies(monkeypatch)
    assert (failed["error"], failed["code"]) == ("RunError", "FS210")
    assert "nothing" in failed["message"]
    assert len(desk.opened(done)) == 5


def test_it_ends_with_its_parent(monkeypatch):
    theirs, ours = os.pipe()
    left = []
    monkeypatch.setattr(os, "_exit", left.append)
    os.close(ours)
    worker._end_with_parent(theirs)
    os.close(theirs)
    assert left == [1]


def test_memory_without_a_name_where_the_system_has_none(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    fd = unnamed_file()
    ref = Arena(fd).place(torch.arange(5))
    assert torch.equal(Arena(fd).view(ref), torch.arange(5))
    os.close(fd)


def test_a_crew_that_cannot_be_completed_leaves_nobody(monkeypatch):
    made = []

    class Made:
        def __init__(self, shared, replies):
            if len(made) == 2:
                raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            made.append(self)
            self.replies, self.ended = replies, False

        def end(self):
            self.ended = True

    monkeypatch.setattr(crew, "Worker", Made)
    with pytest.raises(OSError, match="Resource temporarily unavailable"):
        crew.Crew(3)
    assert [one.ended for one in made] == [True, True]
    for one in made:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(one.replies)


def test_a_mapped_file_is_shared_by_its_name(tmp_path):
    """Images that lie in a file stay there; what a worker does to its copy does not reach it."""
    whole = tiny_federation()
    np.save(tmp_path / "images.npy", whole.images)
    images = np.load(tmp_path / "images.npy", mmap_mode="r")
    arena = Arena(unnamed_file())
    header = json.loads(json.dumps(place(replace(whole, images=images), arena)))
    assert header["images"]["file"] == str(tmp_path / "images.npy")
    again = open_shared(header, arena)
    assert np.array_equal(again.images, whole.images)
    again.images[0] = 0
    assert np.array_equal(np.load(tmp_path / "images.npy"), whole.images)
