"""The runtime over a Grid in this process: the same bytes as the serial runtime, and every fault in its place."""

import json

import pytest
import torch
from flwr.app import Error, Message
from grid_here import GridHere, failure

from fedsieve.base.errors import FedSieveError, RunError
from fedsieve.core.types import Up
from fedsieve.flower.records import Packer, unpack
from fedsieve.flower.simulation import VirtualNodes
from fedsieve.flower.virtual import virtual_nodes_in
from fedsieve.methods import METHODS, Entry
from fedsieve.report.progress import Progress
from fedsieve.runs.session import run_session
from fedsieve.runs.venue import states_folder
from fedsieve.settings.config import resolve
from fedsieve.settings.planning import config_of
from fedsieve.settings.splitting import federation_of
from fedsieve.start import run

SETTINGS = {"clients": 3, "rounds": 2, "epochs": 1, "batch": 20, "noise": "symmetric", "runtime": "serial"}
NODES = {70: {"partition-id": 2}, 8: {"partition-id": 0}, 9: {"partition-id": 1}}


def on_grid(folder, grid, **settings):
    quick = {"runtime": "flower", "flower.wait": 0.1, "flower.timeout": 5}
    config = config_of(resolve({**SETTINGS, **quick, **settings}).flat())
    venue = VirtualNodes(grid, federation_of(config), lambda _: None)
    with virtual_nodes_in(states_folder(folder).resolve()):
        return run_session(config, folder, venue, Progress(), resuming=False)


def rows(folder, name="metrics"):
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def untimed(row):
    """Without what the clock decides, and the checksum over it."""
    return {key: value for key, value in row.items() if "seconds" not in key and key != "check"}


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("fb-nll+fedrn", {"server.clean": 20, "fedrn.warmup": 1}),
        ("scaffold+moon", {}),
        ("local", {}),
        ("fedds+co-teaching", {"server.unlabelled": 20}),
        ("oracle", {}),
        ("fedcorr", {}),
        ("local", {"watch": True}),
        ("gce", {"watch": True}),
        ("simclr", {"client_labels": False}),
        ("rhfl", {"server.public": 20}),
        ("participating", {"server.clean": 20}),
        ("fedanchor", {"server.noisy": 20, "client_labels": False, "fedanchor.pretrain": 2}),
        ("fl2", {"server.noisy": 20, "client_labels": False, "fl2.pretrain": 2, "fl2.strict": 0.3}),
        ("fedcr", {"server.noisy": 20, "client_labels": False, "fedcr.pretrain": 2, "fedcr.server.epochs": 1}),
    ],
)
def test_same_bytes_as_the_serial_runtime(tmp_path, tiny_file, method, more, monkeypatch):
    monkeypatch.setitem(METHODS, "participating", Entry("odd_methods:participating", "the server takes part"))
    settings = {"data": str(tiny_file), "method": method, **more}
    run({**SETTINGS, **settings, "out": str(tmp_path / "serial")}, Progress())
    grid = GridHere(NODES)
    on_grid(tmp_path / "flower", grid, **settings)
    for file in ("model.safetensors", "labels.csv"):
        serial, flower = (tmp_path / where / file for where in ("serial", "flower"))
        assert serial.exists() == flower.exists()
        assert not serial.exists() or serial.read_bytes() == flower.read_bytes()
    plain, here = ([untimed(row) for row in rows(tmp_path / where)] for where in ("serial", "flower"))
    assert here == plain
    assert grid.kinds[0] == "query.greet"
    together = [row for row in plain if not row["extra"]]
    assert grid.kinds.count("train.round") == len(together), "a round is one message"


def spoiling(change, node=8, kind="train.round"):
    """A Grid on which one node's replies of a kind are changed."""

    def spoil(where, message, reply):
        return change(message, reply) if where == node and message.metadata.message_type == kind else [reply]

    return GridHere(NODES, spoil)


def changed(message, reply, **fields):
    up = unpack(reply.content)
    return [Message(Packer().pack(Up(**{**vars(up), **fields})), reply_to=message)]


def with_tree(message, tree):
    """A reply whose tree is this one."""
    records = Packer().pack({})
    records.config_records["tree"]["json"] = tree if isinstance(tree, str) else json.dumps(tree)
    return Message(records, reply_to=message)


def nested(levels):
    return {"map": {"a": nested(levels - 1)}} if levels else 1


FAULTS = {
    "silence": (lambda m, r: [], "dropped", "no reply within 5 s [FS220]"),
    "the SuperLink's error": (lambda m, r: [failure(m)], "dropped", "Flower reports error 3: gone [FS220]"),
    "NaN": (
        lambda m, r: changed(m, r, models=(torch.full_like(unpack(r.content).models[0], torch.nan),)),
        "refused",
        "the model holds NaN or infinity [FS203]",
    ),
    "a wrong shape": (
        lambda m, r: changed(m, r, models=(torch.ones(3),)),
        "refused",
        "models of shape [(3,)] instead of",
    ),
    "another client's report": (
        lambda m, r: changed(m, r, client=1),
        "dropped",
        "the reply is no Up of client 0 [FS202]",
    ),
    "another type": (
        lambda m, r: changed(m, r, models=(torch.ones(3).double(),)),
        "refused",
        "models hold float64 instead of float32 [FS202]",
    ),
    "text for a model": (
        lambda m, r: changed(m, r, models="model"),
        "refused",
        "the models are no tuple of tensors [FS202]",
    ),
    "a size beyond the announced": (lambda m, r: changed(m, r, n=10**12), "refused", "a whole number of more than 12"),
    "complex numbers": (
        lambda m, r: changed(m, r, models=(torch.ones(3, dtype=torch.complex64),)),
        "refused",
        "models hold complex64 instead of float32 [FS202]",
    ),
    "a tensor that did not come along": (
        lambda m, r: [with_tree(m, {"message": "Up", "fields": {"models": [{"tensor": -1}]}})],
        "dropped",
        "the reply cannot be read (ValueError: a reference to another tensor",
    ),
    "a tree without end": (
        lambda m, r: [with_tree(m, nested(100))],
        "dropped",
        "the reply cannot be read (ValueError: more than 32 levels",
    ),
    "a number of 5,000 digits": (
        lambda m, r: [with_tree(m, '{"message": "Up", "fields": {"n": 1%s}}' % ("0" * 5000))],
        "dropped",
        "the reply cannot be read (ValueError",
    ),
    "rubbish": (
        lambda m, r: [Message(Packer().pack({}), reply_to=m)],
        "dropped",
        "the reply is no Up of client 0 [FS202]",
    ),
    "an exception": (
        lambda m, r: [Message(Packer().pack({"error": "RunError", "code": "FS210", "message": "no"}), reply_to=m)],
        "dropped",
        "no [FS210]",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_costs_one_report_and_names_its_client(tmp_path, tiny_file, fault):
    change, status, reason = FAULTS[fault]
    on_grid(tmp_path / "run", spoiling(change), data=str(tiny_file), rounds=1)
    first, *others = rows(tmp_path / "run", "clients")
    assert (first["client"], first["status"]) == (0, status)
    assert first["reason"].startswith(reason)
    assert [row["status"] for row in others] == ["reported", "reported"]
    assert rows(tmp_path / "run")[0]["reports"] == 2


def test_a_second_answer_is_not_counted(tmp_path, tiny_file):
    twice = spoiling(lambda message, reply: [reply, *changed(message, reply, n=1000)])
    on_grid(tmp_path / "twice", twice, data=str(tiny_file))
    on_grid(tmp_path / "once", GridHere(NODES), data=str(tiny_file))
    models = [(tmp_path / where / "model.safetensors").read_bytes() for where in ("twice", "once")]
    assert models[0] == models[1]


def test_a_failure_that_all_nodes_report_ends_the_run(tmp_path, tiny_file):
    told = {"error": "DataError", "code": "FS309", "message": "broken"}
    grid = GridHere(
        NODES, lambda n, m, r: [Message(Packer().pack(told), reply_to=m)] if "train" in m.metadata.message_type else [r]
    )
    with pytest.raises(FedSieveError, match=r"client 0: broken \[FS309\]"):
        on_grid(tmp_path / "run", grid, data=str(tiny_file))


def failing(message, reply):
    told = {"error": "RunError", "code": "FS210", "message": "this node's disk is full"}
    return [Message(Packer().pack(told), reply_to=message)]


@pytest.mark.parametrize("node", NODES)
def test_a_failing_node_does_not_end_a_stage_that_asks_one_client_at_a_time(tmp_path, tiny_file, node):
    """FedCorr's first stage, whichever node is the first to be visited."""
    on_grid(tmp_path / "run", spoiling(failing, node), data=str(tiny_file), method="fedcorr", rounds=4)
    mine = [row for row in rows(tmp_path / "run", "clients") if row["client"] == NODES[node]["partition-id"]]
    assert {(row["status"], row["reason"]) for row in mine} == {("dropped", "this node's disk is full [FS210]")}
    assert rows(tmp_path / "run")[-1]["stage"] != "pre"


def test_a_stage_that_asks_one_client_at_a_time_ends_when_all_have_failed(tmp_path, tiny_file):
    grid = GridHere(NODES, lambda n, m, r: failing(m, r) if "train" in m.metadata.message_type else [r])
    with pytest.raises(FedSieveError, match=r"this node's disk is full \[FS210\]"):
        on_grid(tmp_path / "run", grid, data=str(tiny_file), method="fedcorr", rounds=4)
    assert grid.kinds.count("train.round") == len(NODES)


LONG = "\x1b[31mfull \ud800\n" * 1_000_000
TALKATIVE = {
    "an error": lambda m, r: [Message(Packer().pack({"error": "RunError", "code": LONG, "message": LONG}), reply_to=m)],
    "a reason to skip": lambda m, r: changed(m, r, models=None, notes={}, skipped=LONG),
    "a name": lambda m, r: changed(m, r, notes={LONG: {}}),
    "Flower's error": lambda m, r: [Message(Error(3, LONG.replace("\ud800", "")), reply_to=m)],
}


@pytest.mark.parametrize("change", TALKATIVE.values(), ids=TALKATIVE)
def test_long_texts_are_cut_before_they_are_written(tmp_path, tiny_file, change):
    on_grid(tmp_path / "run", spoiling(change), data=str(tiny_file), rounds=1)
    reason = rows(tmp_path / "run", "clients")[0]["reason"]
    assert 20 < len(reason) < 400
    assert reason.isprintable()
    assert sum(path.stat().st_size for path in (tmp_path / "run").glob("*.jsonl")) < 10_000


def test_too_few_nodes_end_the_run_with_a_message(tmp_path, tiny_file):
    grid = GridHere(dict(list(NODES.items())[:2]))
    with pytest.raises(RunError, match=r"2 nodes are connected after 0.1 s, 3 are needed.*\[FS223\]"):
        on_grid(tmp_path / "run", grid, data=str(tiny_file))


def test_too_few_nodes_in_a_later_round(tmp_path, tiny_file):
    def leave(message, reply):
        grid.nodes.clear()
        return [reply]

    grid = spoiling(leave)
    with pytest.raises(RunError, match=r"0 nodes are connected after 0.1 s, 1 are needed.*\[FS223\]"):
        on_grid(tmp_path / "run", grid, data=str(tiny_file))
