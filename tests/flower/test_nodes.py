"""Nodes with data of their own, on a Grid in this process: what they say, what stays with them, resuming."""

import csv
import json
import shutil

import numpy as np
import pytest
import torch
from deciding import decided
from flwr.app import Message, RecordDict
from grid_here import GridHere
from node_files import CLASSES, FIXMATCH, SETTINGS, without_labels, write_files
from PIL import Image

from fedsieve.base.errors import CompositionError, ConfigError, DataError, RunError
from fedsieve.base.files import Damaged
from fedsieve.flower.briefing import Briefing
from fedsieve.flower.deployment import StatesElsewhere, serve
from fedsieve.flower.records import Packer, unpack
from fedsieve.report.progress import Progress
from fedsieve.review.subject import open_subject
from fedsieve.start import resume

WAITING = {"flower.wait": 0.1, "flower.timeout": 5}
PLAIN = {key: SETTINGS[key] for key in ("clients", "rounds", "epochs", "batch")}
RHFL = {"method": "rhfl", "server.public": 10}


@pytest.fixture
def places(tmp_path):
    """The folder with everybody's files, and the configurations of the nodes."""
    write_files(tmp_path)
    nodes = {
        node: {"data": str(tmp_path / f"{name}.npz"), "state": str(tmp_path / f"state-{name}")}
        for node, name in ((30, "c"), (10, "a"), (20, "b"))
    }
    return tmp_path, nodes


def served(folder, grid, basis=SETTINGS, **settings):
    config = {**basis, **WAITING, "data": str(folder / "server.npz"), "out": str(folder / "run"), **settings}
    return serve(grid, config, Progress())


def client_rows(folder):
    return [json.loads(line) for line in (folder / "run" / "clients.jsonl").read_text().splitlines()]


def test_nodes_train_and_keep_what_is_theirs(places):
    folder, nodes = places
    said = []
    grid = GridHere(nodes, lambda node, message, reply: said.append((message, reply)) or [reply])
    summary = served(folder, grid)
    assert summary["rounds"] == 2
    greetings = [unpack(reply.content) for message, reply in said if message.metadata.message_type == "query.greet"]
    assert greetings[0].keys() == {
        "name", "client", "class_names", "shape", "samples", "labelled", "key", "signature",
    }  # fmt: skip
    members = json.loads((folder / "run" / "nodes.json").read_text())["content"]["members"]
    assert [(member["name"], member["node"]) for member in members] == [("a", 10), ("b", 20), ("c", 30)]
    assert not (folder / "run" / "labels.csv").exists(), "judgements of labels stay with their owner"
    for name in "abc":
        (labels,) = (folder / f"state-{name}").glob("*/labels.csv")
        rows = list(csv.DictReader(labels.read_text().splitlines()))
        assert {row["owner"] for row in rows} == {name}
        subject = open_subject(folder / f"state-{name}", None, {"data": str(folder / f"{name}.npz")})
        assert subject.owner == name
        assert len(subject.judged) == len(rows)
        assert subject.file == labels.with_name("decisions.jsonl")
        assert {row["where"] for row in rows} == {f"{name}[{i}]" for i in range(40)}
    described = json.loads((folder / "run" / "federation.json").read_text())
    assert [client["rows"] for client in described["clients"]] == [40, 40, 40]
    assert {sum(client["classes"]) for client in described["clients"]} == {0}, "nobody said how many of each class"
    assert [client["labelled"] for client in described["clients"]] == [40, 40, 40]


def test_a_nodes_contradicting_copies_are_in_its_own_list_alone(places):
    folder, nodes = places
    with np.load(folder / "a.npz") as file:
        arrays = dict(file)
    arrays["x_train"][7], arrays["y_train"][7] = arrays["x_train"][3], (arrays["y_train"][3] + 1) % len(CLASSES)
    np.savez(folder / "a.npz", **arrays)
    served(folder, GridHere(nodes), PLAIN, method="audit", **{"audit.near": 0})
    twins = {}
    for name in "abc":
        (labels,) = (folder / f"state-{name}").glob("*/labels.csv")
        rows = csv.DictReader(labels.read_text().splitlines())
        twins |= {row["where"]: row["twin"] for row in rows if row["twin"]}
    assert twins == {"a[3]": "a[7]", "a[7]": "a[3]"}


def test_nodes_without_test_sets(places):
    """One holds images in folders, another arrays alone; and the server may have nothing to test on."""
    folder, nodes = places
    for name in ("server", "b"):
        with np.load(folder / f"{name}.npz") as file:
            kept = {key: file[key] for key in ("x_train", "y_train", "class_names")}
        np.savez(folder / f"{name}.npz", **kept)
    for row, (image, label) in enumerate(zip(kept["x_train"], kept["y_train"], strict=True)):
        (folder / "ward" / CLASSES[label]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[:, :, 0]).save(folder / "ward" / CLASSES[label] / f"{row}.png")
    (folder / "ward" / "classes.txt").write_text("\n".join(CLASSES))
    nodes[10] |= {"data": str(folder / "ward"), "name": "hospital a"}
    summary = served(folder, GridHere(nodes), **{"data.test_fraction": 0})
    assert summary["test_accuracy_last10"] is None
    assert summary["labels"] is None
    (labels,) = (folder / "state-a").glob("*/labels.csv")
    rows = list(csv.DictReader(labels.read_text().splitlines()))
    assert {row["owner"] for row in rows} == {"hospital a"}
    assert {row["where"] for row in rows} == {f"{CLASSES[c]}/{row}.png" for row, c in enumerate(kept["y_train"])}
    assert all(row["where"].startswith(f"{row['given']}/") for row in rows)


@pytest.mark.parametrize(
    "more",
    [
        RHFL,
        {"method": "fedcorr"},
        {"method": "scaffold"},
        {"method": "fedds", "server.unlabelled": 20},
        {"method": "fedds", "server.unlabelled": 20, "server.unlabelled_from": ""},
        {"method": "fedds", "server.unlabelled": 20, "server.unlabelled_from": "generated"},
    ],
    ids=lambda more: "-".join(map(str, more.values())),
)
def test_methods_that_need_more_than_a_round_of_messages(places, more):
    folder, nodes = places
    assert served(folder, GridHere(nodes), PLAIN, **more)["test_accuracy"] is not None
    assert {row["status"] for row in client_rows(folder)} == {"reported"}


def test_nodes_give_a_run_without_client_labels_none(places):
    folder, nodes = places
    told = []
    grid = GridHere(
        {node: config | {"allow": "label_free:views"} for node, config in nodes.items()},
        lambda node, message, reply: told.append((message.metadata.message_type, unpack(reply.content))) or [reply],
    )
    served(folder, grid, PLAIN, method="label_free:views", client_labels=False, out=str(folder / "without"))
    assert {reply["labelled"] for kind, reply in told if kind == "query.greet"} == {0}
    assert {reply.notes["Views"]["labels"] for kind, reply in told if kind == "train.round"} == {0}
    described = json.loads((folder / "without" / "federation.json").read_text())
    assert [client["labelled"] for client in described["clients"]] == [0, 0, 0]
    told.clear()
    served(folder, grid, PLAIN, method="label_free:views", out=str(folder / "with"))
    assert {reply.notes["Views"]["labels"] for kind, reply in told if kind == "train.round"} == {40}
    with pytest.raises(CompositionError, match=r"CrossEntropy reads client labels.*\[FS115\]"):
        served(folder, grid, PLAIN, client_labels=False)


def test_nodes_without_labels_learn_from_the_servers(places):
    """Files of samples alone, or a folder of images, give the very model of files with labels, which nobody reads."""
    folder, nodes = places
    models = []
    for out in ("with", "without", "images"):
        served(folder, GridHere(nodes), PLAIN, **FIXMATCH, out=str(folder / out))
        models.append((folder / out / "model.safetensors").read_bytes())
        without_labels(folder)
        for name in "abc":
            shutil.rmtree(folder / f"state-{name}")
        if out == "without":
            (folder / "ward").mkdir()
            with np.load(folder / "a.npz") as file:
                for row, image in enumerate(file["x_train"]):
                    Image.fromarray(image[:, :, 0]).save(folder / "ward" / f"{row:03d}.png")
            nodes[10] |= {"data": str(folder / "ward"), "name": "a"}
    assert models[0] == models[1] == models[2]
    described = json.loads((folder / "without" / "federation.json").read_text())
    assert described["class_names"] == CLASSES
    with pytest.raises(DataError, match=r"node .*\[FS302\]"):
        served(folder, GridHere(nodes), PLAIN, out=str(folder / "needs"))


def test_a_node_without_the_public_samples_is_named(places):
    folder, nodes = places

    def lose(node, message, reply):
        if node == 10 and message.metadata.message_type == "query.public":
            for file in (folder / "state-a").glob("*/public.safetensors"):
                file.unlink()
        return [reply]

    served(folder, GridHere(nodes, lose), PLAIN, **RHFL)
    rows = client_rows(folder)
    assert {(row["client"], row["status"]) for row in rows} == {(0, "dropped"), (1, "reported"), (2, "reported")}
    assert all("FS226" in row["reason"] for row in rows if row["client"] == 0)


def test_a_server_that_dies_goes_on_where_it_was(places):
    folder, nodes = places
    served(folder, GridHere(nodes), out=str(folder / "whole"))
    for name in "abc":
        shutil.rmtree(folder / f"state-{name}")

    def dies(node, message, reply):
        if message.metadata.message_type == "train.round" and grid.kinds.count("train.round") == 1:
            raise KeyboardInterrupt
        return [reply]

    grid = GridHere(nodes, dies)
    with pytest.raises(KeyboardInterrupt):
        served(folder, grid)
    with pytest.raises(ConfigError, match=r"unfinished run with lr=0.05, not 0.1.*\[FS005\]"):
        served(folder, GridHere(nodes), lr=0.1)
    with pytest.raises(ConfigError, match=r"its clients are Flower nodes.*\[FS007\]"):
        resume(folder / "run", Progress())
    again = GridHere(nodes)
    served(folder, again)
    assert again.kinds.count("train.round") == 1
    models = [(folder / where / "model.safetensors").read_bytes() for where in ("run", "whole")]
    assert models[0] == models[1]


def test_the_clients_own_models_are_tested_on_the_nodes(places):
    folder, nodes = places
    grid = GridHere(nodes)
    settings = {key: value for key, value in SETTINGS.items() if not key.startswith("fedrn.")}
    here = {"data": str(folder / "server.npz"), "out": str(folder / "run"), "method": "local", "rounds": 1}
    summary = serve(grid, {**settings, **WAITING, **here}, Progress())
    assert grid.kinds[-1] == "evaluate.own"
    assert 0 <= summary["test_accuracy"] <= 1


MISMATCHES = {
    "node b has the classes one, two, three, five, node a has one, two, three, four": lambda arrays: (
        arrays | {"class_names": [*CLASSES[:3], "five"]}
    ),
    r"node b has samples of shape \(8, 8, 1\), node a of \(12, 12, 1\)": lambda arrays: (
        arrays | {name: arrays[name][:, :8, :8] for name in ("x_train", "x_test")}
    ),
}


@pytest.mark.parametrize("message", MISMATCHES, ids=["classes", "shape"])
def test_nodes_that_differ_are_told_before_round_1(places, message):
    folder, nodes = places
    with np.load(folder / "b.npz") as file:
        arrays = dict(file)
    np.savez(folder / "b.npz", **MISMATCHES[message](arrays))
    grid = GridHere(nodes)
    with pytest.raises(DataError, match=rf"{message}.*\[FS222\]"):
        served(folder, grid)
    assert grid.kinds == ["query.greet"]
    assert not (folder / "run").exists()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, r"--node-config 'data=.*\[FS221\]"),
        ({"data": "/nowhere.npz"}, r"node 20: a file of its data is missing; see the node's log \[FS301\]"),
    ],
    ids=["no data", "wrong path"],
)
def test_a_node_without_data_is_told_before_round_1(places, config, message):
    folder, nodes = places
    with pytest.raises(DataError, match=message):
        served(folder, GridHere(nodes | {20: config}))


class Absence:
    """A node that is gone after its first round and back, under another id, before the third."""

    def __init__(self, nodes, back):
        self.back = back
        self.grid = GridHere(nodes, self.leave)
        self.grid.get_node_ids = self.node_ids

    def leave(self, node, message, reply):
        if node == 10 and message.metadata.message_type == "train.round":
            self.grid.nodes.pop(10, None)
            return []
        return [reply]

    def node_ids(self):
        if self.grid.kinds.count("train.round") == 2:
            self.grid.nodes[55] = self.back
        return list(self.grid.nodes)


def statuses(folder, client):
    return [row["status"] for row in client_rows(folder) if row["client"] == client]


def test_a_node_that_leaves_and_comes_back_is_known_by_its_key(places):
    folder, nodes = places
    back = nodes[10] | {"name": "renamed"}
    served(folder, Absence(nodes, back).grid, PLAIN, method="fedavg", rounds=3)
    assert statuses(folder, 0) == ["dropped", "dropped", "reported"]


def test_a_stranger_with_a_members_name_and_size_is_not_let_in(places):
    folder, nodes = places
    stranger = nodes[10] | {"name": "a", "state": str(folder / "state-stranger")}
    absence = Absence(nodes, stranger)
    served(folder, absence.grid, PLAIN, method="fedavg", rounds=3)
    assert statuses(folder, 0) == ["dropped"] * 3
    assert statuses(folder, 1) == ["reported"] * 3


def test_a_node_that_cannot_say_who_it_is_may_try_again(places):
    folder, nodes = places
    broken = Absence(nodes, nodes[10] | {"data": str(folder / "none.npz")})
    served(folder, broken.grid, PLAIN, method="fedavg", rounds=3)
    assert statuses(folder, 0) == ["dropped"] * 3
    assert statuses(folder, 1) == ["reported"] * 3


def test_nodes_beyond_the_number_of_clients_are_left_out_and_named(places, monkeypatch):
    folder, nodes = places
    notes = []
    monkeypatch.setattr(Progress, "note", lambda self, text: notes.append(text))
    served(folder, GridHere(nodes), PLAIN, clients=2, rounds=1)
    assert "3 nodes are connected, clients=2: c left out" in notes
    assert {row["client"] for row in client_rows(folder)} == {0, 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"samples": -1}, "its greeting is not one. Install the same fedsieve"),
        ({"signature": "00" * 64}, "its greeting is not signed by the key that it names"),
    ],
    ids=["odd", "forged"],
)
def test_a_greeting_that_is_none_or_forged_is_refused(places, change, message):
    folder, nodes = places

    def spoil(node, asked, reply):
        said = unpack(reply.content)
        return [Message(Packer().pack({**said, **change}), reply_to=asked)] if node == 20 else [reply]

    with pytest.raises(DataError, match=f"node 20: {message}") as problem:
        served(folder, GridHere(nodes, spoil), PLAIN)
    assert problem.value.code == "FS202"


def test_a_message_without_a_briefing_is_told():
    with pytest.raises(RunError, match=r"the briefing is not one \(.* is missing\)\. Install the same.*\[FS224\]"):
        Briefing.of(RecordDict())


def test_states_of_clients_are_elsewhere_and_those_of_the_server_here(tmp_path):
    states = StatesElsewhere(tmp_path)
    states.verify(3, 7)
    assert states.load(3, 7) == {}
    with pytest.raises((RunError, Damaged)):
        states.verify(-1, 7)
    states.save(-1, 7, {"x": torch.ones(2)}, set())
    states.verify(-1, 7)
    assert states.load(-1, 7)["x"].tolist() == [1.0, 1.0]


def test_two_nodes_with_one_key_are_refused(places):
    folder, nodes = places
    with pytest.raises(DataError, match=r"has another node's key.*\[FS222\]"):
        served(folder, GridHere(nodes | {20: nodes[20] | {"state": nodes[10]["state"]}}))


def test_what_a_node_keeps_is_its_owners_alone(places):
    folder, nodes = places
    served(folder, GridHere(nodes))
    kept = list((folder / "state-a").rglob("*"))
    assert {"node.key", "labels.csv"} <= {path.name for path in kept}
    assert {path.stat().st_mode & 0o077 for path in [folder / "state-a", *kept] if path.suffix != ".lock"} == {0}


@pytest.mark.parametrize("call", ["send_and_receive", "get_node_ids"])
def test_a_superlink_that_fails_is_named(places, call):
    folder, nodes = places

    def fails(*_, **__):
        raise ConnectionError("refused\nby 10.0.0.7")

    grid = GridHere(nodes)
    setattr(grid, call, fails)
    with pytest.raises(RunError, match=r"cannot be reached \(ConnectionError: refused by 10.0.0.7\).*\[FS227\]"):
        served(folder, grid, PLAIN)


def test_names_must_differ(places):
    folder, nodes = places
    with pytest.raises(DataError, match=r"two nodes are called a.*\[FS222\]"):
        served(folder, GridHere(nodes | {20: nodes[20] | {"name": "a"}}))


def test_labels_are_not_spoilt_on_nodes(places):
    folder, nodes = places
    with pytest.raises(ConfigError, match=r"noise=symmetric.*\[FS002\]"):
        served(folder, GridHere(nodes), noise="symmetric")


def test_a_node_trains_on_what_its_owner_decided(places):
    """The file is named by the node's own configuration."""
    folder, nodes = places
    with np.load(folder / "a.npz") as arrays:
        labels = [CLASSES[label] for label in arrays["y_train"]]
    decisions = decided(
        folder / "decisions.jsonl",
        ("a[0]", labels[0], "exclude", None),
        ("a[1]", labels[1], "other", next(name for name in CLASSES if name != labels[1])),
    )
    nodes[10] |= {"corrections": str(decisions)}
    served(folder, GridHere(nodes))
    described = json.loads((folder / "run" / "federation.json").read_text())
    assert [client["rows"] for client in described["clients"]] == [len(labels) - 1, 40, 40]
