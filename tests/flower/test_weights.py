"""Encoders and first weights on nodes of their own: on the node, sent once, or refused because they differ."""

import hashlib
import shutil

import pytest
from grid_here import GridHere
from node_files import SETTINGS, write_files

import fedsieve
from fedsieve.base.errors import DataError
from fedsieve.flower import delivery, weights
from fedsieve.flower.deployment import serve
from fedsieve.report.progress import Progress
from fedsieve.settings import weights as server_weights

PLAIN = {key: SETTINGS[key] for key in ("clients", "rounds", "epochs", "batch")}
WAITING = {"flower.wait": 0.1, "flower.timeout": 5}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Everybody's files, and two encoders that runs left."""
    folder = tmp_path_factory.mktemp("made")
    write_files(folder)
    for seed, name in enumerate(("encoder", "other")):
        out = folder / name
        fedsieve.run(
            data=str(folder / "server.npz"), clients=1, rounds=1, epochs=1, seed=seed, runtime="serial", quiet=True,
            out=str(out),
        )  # fmt: skip
        shutil.copy(out / "model.safetensors", folder / f"{name}.safetensors")
    return folder


@pytest.fixture
def nodes(made, tmp_path):
    return {
        node: {"data": str(made / f"{name}.npz"), "state": str(tmp_path / f"state-{name}")}
        for node, name in ((10, "a"), (20, "b"), (30, "c"))
    }


def served(made, tmp_path, grid, out="run", **settings):
    places = {"data": str(made / "server.npz"), "out": str(tmp_path / out)}
    serve(grid, {**PLAIN, **WAITING, **places, **settings}, Progress())
    return (tmp_path / out / "model.safetensors").read_bytes()


def sha256(file):
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    "settings",
    [{"method": "ksim", "ksim.features": "FILE"}, {"method": "local", "init": "FILE"}],
    ids=["encoder", "first weights"],
)
def test_a_file_is_sent_once_or_lies_on_the_node(made, tmp_path, nodes, settings):
    file = made / "encoder.safetensors"
    here = {key: str(file) if value == "FILE" else value for key, value in settings.items()}
    own = tmp_path / "mine.safetensors"
    shutil.copy(file, own)
    grid = GridHere(nodes | {20: nodes[20] | {"encoder": f"{made / 'other.safetensors'}, {own}"}})
    first = served(made, tmp_path, grid, **here)
    assert (grid.kinds.count("query.weights"), grid.kinds.count("query.file")) == (1, 1)
    kept = sorted(tmp_path.glob("state-*/encoders/*"))
    assert [path.parent.parent.name for path in kept] == ["state-a", "state-c"], "b has the file itself"
    assert {path.name for path in kept} == {f"{sha256(file)}.safetensors"}
    assert {path.stat().st_mode & 0o777 for path in kept} == {0o600}
    again = GridHere(nodes)
    nodes[20]["encoder"] = str(own)
    assert served(made, tmp_path, again, "again", **here) == first
    assert "query.file" not in again.kinds, "what was sent is kept"
    changed = {key: str(made / "other.safetensors") if value == "FILE" else value for key, value in settings.items()}
    del nodes[20]["encoder"]
    assert served(made, tmp_path, GridHere(nodes), "other", **changed) != first, "the file is used"


def test_another_file_on_a_node_is_named_with_both_hashes(made, tmp_path, nodes):
    file, other = made / "encoder.safetensors", made / "other.safetensors"
    grid = GridHere(nodes | {20: nodes[20] | {"encoder": str(other)}})
    with pytest.raises(DataError) as told:
        served(made, tmp_path, grid, method="ksim", **{"ksim.features": str(file)})
    assert told.value.code == "FS232"
    assert told.value.message.startswith(
        f"node b: the weights of ksim.features are {sha256(other)[:12]} there, {sha256(file)[:12]} here."
    )
    assert "train.round" not in grid.kinds
    grid = GridHere(nodes)
    served(made, tmp_path, grid, method="ksim", **{"ksim.features": str(file)})  # put right, it begins
    assert grid.kinds.count("train.round") == 2


def test_two_files_of_which_a_node_has_one(made, tmp_path, nodes):
    settings = {
        "method": "ksim",
        "ksim.features": str(made / "encoder.safetensors"),
        "init": str(made / "other.safetensors"),
    }
    grid = GridHere({node: config | {"encoder": str(made / "other.safetensors")} for node, config in nodes.items()})
    served(made, tmp_path, grid, **settings)
    assert [path.name for path in tmp_path.glob("state-a/encoders/*")] == [
        f"{sha256(made / 'encoder.safetensors')}.safetensors"
    ]


def test_a_file_that_a_node_lost_is_named(made, tmp_path, nodes):
    def lose(node, message, reply):
        if node == 10 and message.metadata.message_type == "query.file":
            shutil.rmtree(tmp_path / "state-a" / "encoders")
        return [reply]

    served(made, tmp_path, GridHere(nodes, lose), method="ksim", **{"ksim.features": str(made / "encoder.safetensors")})
    rows = (tmp_path / "run" / "clients.jsonl").read_text().splitlines()
    assert sum("FS232" in row for row in rows) == PLAIN["rounds"]


def test_what_a_node_cannot_say_of_its_weights_is_told_with_its_name(made, tmp_path, nodes):
    """Its own configuration names an encoder that is not there."""
    lost = nodes | {20: nodes[20] | {"encoder": str(tmp_path / "none.safetensors")}}
    with pytest.raises(DataError, match="node b: ") as problem:
        served(made, tmp_path, GridHere(lost), method="ksim", **{"ksim.features": str(made / "encoder.safetensors")})
    assert problem.value.code == "FS301"


def test_a_named_encoder_is_compared_too(made, tmp_path, nodes, monkeypatch):
    monkeypatch.setattr(server_weights, "encoder_key", lambda key, name: "ab" * 16)
    monkeypatch.setattr(weights, "encoder_key", lambda key, name: "cd" * 16)
    with pytest.raises(DataError, match=r"node a: .*ksim.features are cdcdcdcdcdcd there, abababababab here.*FS232"):
        served(made, tmp_path, GridHere(nodes), method="ksim", **{"ksim.features": "resnet50"})


def test_a_file_that_is_too_large_to_send_must_lie_on_the_node(made, tmp_path, nodes, monkeypatch):
    monkeypatch.setattr(delivery, "MOST_SENT", 100)
    with pytest.raises(DataError, match=r"too large to send. Put it on the nodes.*\[FS320\]"):
        served(made, tmp_path, GridHere(nodes), init=str(made / "encoder.safetensors"))
