"""What a file may name, and what `overwrite=true` may delete: nothing that a run did not write."""

import json
from dataclasses import dataclass

import pytest
import torch

import fedsieve
from fedsieve.base.errors import ConfigError, DataError, RunError
from fedsieve.base.files import read_json, write_json, write_tensors
from fedsieve.base.seal import seal
from fedsieve.core.client_states import ClientStates
from fedsieve.core.part import Method, Part, Stage
from fedsieve.core.server import Server, ServerState
from fedsieve.report.tracking import _read as read_told
from fedsieve.runs.belongings import clear, foreign
from fedsieve.runs.checkpoint import Checkpoints
from fedsieve.runs.comparison import read_results, runs_in
from fedsieve.testing import Contract, tiny_federation

SETTINGS = {"clients": 2, "rounds": 0, "runtime": "serial", "model": "mlp", "quiet": True, "overwrite": True}


@pytest.mark.parametrize(
    "name",
    [
        "checkpoint/thesis.txt",
        "checkpoint/rows/photo.png",
        "checkpoint/clients/anna/letter.safetensors",
        "checkpoint/clients/3/letter.safetensors",
        "checkpoint/00000001.json/x",
        "wandb/my-project.txt",
        "mlruns/0/meta.yaml",
        "tensorboard/notes.txt",
        "notes.txt",
        ".bashrc",
        "config.yaml/x",
    ],
)
def test_a_folder_with_anything_else_is_not_replaced(tmp_path, tiny_file, name):
    mine = tmp_path / "home" / name
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    (tmp_path / "home" / "metrics.jsonl").write_text("")
    with pytest.raises(ConfigError, match=r"no run wrote .*Choose another out=") as problem:
        fedsieve.run(**SETTINGS, data=str(tiny_file), out=str(tmp_path / "home"))
    assert problem.value.code == "FS005"
    assert mine.read_text() == "mine"
    clear(tmp_path / "home")
    assert mine.read_text() == "mine", "even if it is asked to"


@pytest.mark.parametrize("name", ["checkpoint", "checkpoint/clients", "checkpoint/rows", "model.safetensors", "wandb"])
def test_links_are_not_followed(tmp_path, tiny_file, name):
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "3").mkdir(parents=True)
    (elsewhere / "00000001.json").write_text("mine")
    (elsewhere / "3" / "00000001.safetensors").write_text("mine")
    link = tmp_path / "run" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere)
    (tmp_path / "run" / "tracking.json").write_text('{"wandb": {}}')
    with pytest.raises(ConfigError, match="no run wrote"):
        fedsieve.run(**SETTINGS, data=str(tiny_file), out=str(tmp_path / "run"))
    clear(tmp_path / "run")
    assert (elsewhere / "00000001.json").read_text() == "mine"
    assert (elsewhere / "3" / "00000001.safetensors").read_text() == "mine"
    assert link.is_symlink()


def test_what_a_run_wrote_is_replaced(folder, tiny_file):
    (folder / "wandb" / "offline-run").mkdir(parents=True)
    (folder / "tracking.json").write_text('{"wandb": {"run": "x", "round": 0, "summary": false}}')
    (folder / "checkpoint" / ".00000009.json.77.tmp").write_text("half")
    assert foreign(folder) is None
    fedsieve.run(**SETTINGS, data=str(tiny_file), out=str(folder))
    assert not (folder / "wandb").exists()
    assert not (folder / "labels.csv").exists()
    assert json.loads((folder / "summary.json").read_text())["rounds"] == 0


def spoilt(folder, **changes):
    """The newest manifest says something else, with a checksum that fits."""
    path = max((folder / "checkpoint").glob("*.json"))
    write_json(path, read_json(path) | changes)
    return path


@pytest.mark.parametrize(
    "changes",
    [
        {"tensors": "/etc/hostname"},
        {"tensors": "../../elsewhere/00000001.safetensors"},
        {"tensors": "../00000001.safetensors"},
        {"tensors": ["00000001.safetensors"]},
        {"tensors": "00000001.safetensors\n"},
        {"rows": [["FedRN", "x", 0, "../../elsewhere/00000001.safetensors"]]},
        {"rows": [["FedRN", "x", 0, "rows/../../x.00000001.safetensors"]]},
        {"rows": [["FedRN", "x", "../..", "rows/x.00000001.safetensors"]]},
        {"rows": [["FedRN", "x", 10**30, "rows/x.00000001.safetensors"]]},
        {"rows": 3},
        {"versions": {"../../elsewhere": 1}},
        {"versions": {"0": -1}},
        {"versions": {"0": 1.5}},
        {"versions": {"0": "1"}},
        {"versions": {"0": 10**400}},
        {"versions": [1]},
        {"round": -1},
        {"round": 10**20},
        {"round": True},
        {"round": "3"},
        {"round": None},
        {"stage": 0.5},
        {"started": 1},
        {"messages": -5},
        {"talk_up": 2**60},
        {"server_epochs": {"0": [1]}},
        {"more": 1},
    ],
    ids=lambda changes: str(changes)[:60],
)
def test_a_manifest_that_says_such_things_is_damaged(folder, tmp_path, changes):
    (tmp_path / "elsewhere").mkdir()
    write_tensors(tmp_path / "elsewhere" / "00000001.safetensors", {"row": torch.ones(1)})
    spoilt(folder, **changes)
    said = []
    state = Checkpoints(folder / "checkpoint", ClientStates(folder / "checkpoint" / "clients")).load(said.append)
    assert state is not None, "the one before is used"
    assert "is damaged and passed over" in said[0]


def test_a_link_in_place_of_a_file_is_damage(folder, tmp_path):
    path = max((folder / "checkpoint").glob("*.safetensors"))
    path.rename(tmp_path / "elsewhere.safetensors")
    path.symlink_to(tmp_path / "elsewhere.safetensors")
    said = []
    states = ClientStates(folder / "checkpoint" / "clients")
    assert Checkpoints(folder / "checkpoint", states).load(said.append) is not None
    assert "is a link" in said[0]
    client = states.folder / "0"
    client.rename(tmp_path / "client")
    client.symlink_to(tmp_path / "client")
    with pytest.raises(RunError, match="is a link"):
        states.load(0, states.versions(0)[-1])


def test_a_checkpoint_of_another_run_is_refused(folder, finished, tmp_path, tiny_file):
    other = tmp_path / "other"
    fedsieve.run(**SETTINGS, data=str(tiny_file), out=str(other), **{"model.hidden": [7]})
    for path in (folder / "checkpoint").glob("*.json"):
        path.unlink()
    for path in [*(other / "checkpoint").glob("*.json"), *(other / "checkpoint").glob("*.safetensors")]:
        path.rename(folder / "checkpoint" / path.name)
    with pytest.raises(RunError, match="is of another run") as problem:
        fedsieve.resume(folder, quiet=True)
    assert problem.value.code == "FS212"


@dataclass(frozen=True, kw_only=True)
class Odd(Part):
    """Remembers rows under a name that is a path."""

    remembers = {"../../../out/of/here": ("K", 1)}

    def learn(self, s, ups, w):
        for k in ups:
            s.rows("../../../out/of/here")[k] = torch.ones(1)


def test_names_of_rows_stay_in_their_folder(tmp_path):
    plan = Contract.of(Method("own", (Stage(parts=(Odd(),)),)), {"model": "mlp"}).plan(tiny_federation())
    server = Server(ServerState.fresh(plan), plan, lambda: None)
    server.state.rows["Odd", "../../../out/of/here"] = {2: torch.tensor([5.0])}
    folder = tmp_path / "a" / "b" / "checkpoint"
    Checkpoints(folder, ClientStates(folder / "clients")).commit(server)
    assert [path.parent for path in tmp_path.rglob("*.safetensors") if "Odd" in path.name] == [folder / "rows"]
    found = Checkpoints(folder, ClientStates(folder / "clients")).load(print)
    assert found.rows["Odd", "../../../out/of/here"][2].tolist() == [5.0]


@pytest.mark.parametrize("name", ["/etc", "..", ".", "../other", "a/../../b", "", None, 3, ["x"], "x\0y", "link"])
def test_a_comparison_cannot_name_a_folder_outside(tmp_path, finished, name):
    comparison = tmp_path / "compare"
    comparison.mkdir()
    (comparison / "link").symlink_to(finished)
    (comparison / "results.jsonl").write_text(seal({"key": "k", "folder": name}) + "\n")
    with pytest.raises(DataError, match=r"results\.jsonl, line 1: names no run of this comparison") as problem:
        runs_in(comparison)
    assert problem.value.code == "FS311"
    said = []
    assert read_results(comparison, said.append) == []
    assert len(said) == 1
    assert read_results(comparison) == [], "and taken out"


def test_a_tracker_is_not_given_a_path_for_a_name(tmp_path):
    for run in ("../../x", "/etc/passwd", "a b", "x" * 1000, ""):
        (tmp_path / "tracking.json").write_text(json.dumps({"mlflow": {"run": run, "round": 1, "summary": False}}))
        assert read_told(tmp_path / "tracking.json") == {}
    (tmp_path / "tracking.json").write_text('{"mlflow": {"run": "ab-1_2.c", "round": 1, "summary": false}}')
    assert read_told(tmp_path / "tracking.json")["mlflow"]["run"] == "ab-1_2.c"
