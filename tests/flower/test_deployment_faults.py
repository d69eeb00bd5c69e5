"""Faults with real processes: one SuperLink and three SuperNodes. `make test-faults` runs them."""

import json
import signal
import time
from contextlib import suppress

import numpy as np
import psutil
import pytest
from longer import long
from loopback import Loopback, certificates, write_key
from node_files import NODES, SETTINGS, write_files

from fedsieve.flower.template import write_app

pytestmark = long
TIMEOUT = 90
"""Seconds a round waits for its replies."""


@pytest.fixture
def link(tmp_path):
    """A SuperLink with three registered nodes that are running."""
    link = Loopback(tmp_path / "flower")
    write_files(tmp_path)
    try:
        link.start_superlink()
        for name in NODES:
            link.register(name)
            link.start_node(name, tmp_path / f"{name}.npz")
        yield link
    finally:
        link.close()


def app(folder, **settings):
    written = {**SETTINGS, "data": str(folder / "server.npz"), "out": str(folder / "run"), "flower.timeout": TIMEOUT}
    write_app(folder / "ward-app", {**written, **settings})
    return folder / "ward-app"


def rows(folder, name="clients"):
    path = folder / "run" / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def of_client(folder, client):
    return [row["status"] for row in rows(folder) if row["client"] == client]


def rounds_done(folder, count):
    return lambda: len(rows(folder, "metrics")) >= count


def working(link, name):
    """Whether the node is at work on a message: each starts a process."""
    for child in psutil.Process(link.processes[name].pid).children(recursive=True):
        with suppress(psutil.Error):  # it may have ended meanwhile
            if "flwr-clientapp" in " ".join(child.cmdline()):
                return True
    return False


def gone(process):
    """Whether it is dead, even if its parent has not asked."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_a_killed_node_costs_its_reports_and_comes_back(link, tmp_path):
    link.run_app(app(tmp_path, rounds=6))
    link.wait_until(rounds_done(tmp_path, 1), "round 1 is over")
    link.wait_until(lambda: working(link, "b"), "the node has its message of round 2")
    link.kill("b")
    link.wait_until(rounds_done(tmp_path, 3), "rounds go on without the node", 4 * TIMEOUT)
    link.start_node("b", tmp_path / "b.npz")
    link.wait_for_run(tmp_path / "run")
    seen = of_client(tmp_path, 1)
    assert len(seen) == 6
    assert seen[:2] == ["reported", "dropped"]
    assert seen[-1] == "reported", "the returning node is recognised by its key"
    assert of_client(tmp_path, 0) == ["reported"] * 6


def test_a_killed_server_goes_on_from_its_checkpoint(link, tmp_path):
    made = app(tmp_path, rounds=4)
    link.run_app(made)
    link.wait_until(rounds_done(tmp_path, 1), "round 1 is over")
    superlink = psutil.Process(link.processes["superlink"].pid)
    (server_app,) = [p for p in superlink.children(recursive=True) if "flwr-serverapp" in " ".join(p.cmdline())]
    server_app.send_signal(signal.SIGKILL)
    link.wait_until(lambda: gone(server_app), "the ServerApp is dead")
    before = len(rows(tmp_path, "metrics"))
    link.run_app(made)
    link.wait_for_run(tmp_path / "run")
    assert 1 <= before < 4
    assert [row["round"] for row in rows(tmp_path, "metrics")] == [1, 2, 3, 4]


def test_a_node_whose_data_break_is_named_and_the_run_goes_on(link, tmp_path):
    link.run_app(app(tmp_path, rounds=3))
    link.wait_until(rounds_done(tmp_path, 1), "round 1 is over")
    np.savez(tmp_path / "b.npz", x_train=np.zeros(3))
    link.wait_for_run(tmp_path / "run")
    assert of_client(tmp_path, 1)[-1] == "dropped"
    reason = [row for row in rows(tmp_path) if row["client"] == 1][-1]["reason"]
    assert reason.endswith("see the node's log [FS302]")
    assert "lacks y_train" in (link.folder / "b.log").read_text(errors="replace")
    assert of_client(tmp_path, 2) == ["reported"] * 3


SPOILT = """
from dataclasses import replace

import torch
from flwr.app import Message
from flwr.clientapp import ClientApp

from fedsieve.flower.client_app import app as sound
from fedsieve.flower.records import Packer, unpack

app = ClientApp()
app.query("greet")(sound)
app.query("answer")(sound)


@app.train("round")
def train(message, context):
    reply = sound(message, context)
    if context.node_config["name"] != "b":
        return reply
    up = unpack(reply.content)
    if up.round == 2:
        raise ValueError("staged")
    models = tuple(m[:3] if up.round else torch.full_like(m, torch.nan) for m in up.models)
    return Message(Packer().pack(replace(up, models=models)), reply_to=message)
"""


def test_a_node_that_sends_rubbish_or_fails_is_named_and_the_run_goes_on(link, tmp_path):
    made = app(tmp_path, rounds=3)
    (made / "ward_app" / "client_app.py").write_text(SPOILT)
    link.run_app(made)
    link.wait_for_run(tmp_path / "run")
    nan, shape, failed = (row for row in rows(tmp_path) if row["client"] == 1)
    assert (nan["status"], nan["reason"]) == ("refused", "the model holds NaN or infinity [FS203]")
    assert shape["status"] == "refused"
    assert shape["reason"].startswith("models of shape [(3,)] instead of 1 x (")
    assert failed["status"] == "dropped"
    assert "staged" in failed["reason"]
    assert of_client(tmp_path, 0) == of_client(tmp_path, 2) == ["reported"] * 3


def test_strangers_are_refused(link, tmp_path):
    """A node whose key nobody registered, and one that trusts another authority than the SuperLink's."""
    write_key(link.folder / "stranger.key")
    certificates(link.folder, "other-ca.crt")
    link.start_node("stranger", tmp_path / "a.npz")
    link.start_node("misled", tmp_path / "a.npz", key="a", ca="other-ca.crt")
    time.sleep(20)
    nodes = json.loads(link.flwr("supernode", "ls", "here", "--format", "json"))["nodes"]
    assert len([node for node in nodes if node["status"] == "online"]) == 3
