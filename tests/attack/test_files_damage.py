"""Every file of a run, damaged in every way: the next command says so in one line, or notes it, or is not concerned.

`FEDSIEVE_DAMAGES` sets how many places of each file are tried (1; `make test-faults` takes 60).
"""

import copy
import hashlib
import json
import os
import random
import shutil
import tokenize
import zipfile
from contextlib import suppress

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from pydantic import ValidationError

import fedsieve
from fedsieve.base.errors import DataError, FedSieveError, RunError
from fedsieve.base.seal import seal, unseal
from fedsieve.data.instance_noise import InstanceSoft, read_human_labels
from fedsieve.data.truth import GroundTruth
from fedsieve.models.saved import SavedModels, to_bytes
from fedsieve.report.folder import read_run
from fedsieve.report.html import write_report
from fedsieve.report.progress import Progress
from fedsieve.report.records import ClientData, ClientReport, Round, Summary
from fedsieve.runs.comparison import read_results
from fedsieve.runs.inputs import Inputs
from fedsieve.runs.prediction import predict_samples
from fedsieve.start import resume

PLACES = int(os.environ.get("FEDSIEVE_DAMAGES", "1"))
WRONG = [None, True, -1, 1e308, 10**30, "", "x" * 5000, [], {}, [[[]]], {"a": {"b": 1}}, float("nan")]
JSON = ("federation.json", "summary.json", "metrics.jsonl", "clients.jsonl")
ARRAYS = ("truth.npz", "exhibits.npz", "suspects.npz")
OTHERS = (*ARRAYS, "config.yaml", "labels.csv", "tracking.json", "model.safetensors")


class Heard(Progress):
    """Keeps the notes."""

    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


@pytest.fixture(scope="module")
def cut(tmp_path_factory, finished):
    """A run of which the last files are not written yet, so that resuming does some work; kept small."""
    folder = shutil.copytree(finished, tmp_path_factory.mktemp("cut") / "run")
    (folder / "tracking.json").write_text('{"tensorboard": {"run": "tensorboard", "round": 1, "summary": false}}')
    return folder


def tried(folder, samples, name):
    """Every reader of a file in a run's folder. Whatever else than a typed error is raised is a fault."""
    readers = {
        "truth.npz": [lambda: GroundTruth.load(folder / "truth.npz")],
        "model.safetensors": [lambda: predict_samples(folder, samples)],
        "labels.csv": [lambda: write_report([folder], folder / "report.html")],
        "suspects.npz": [lambda: write_report([folder], folder / "report.html")],
        "exhibits.npz": [lambda: write_report([folder], folder / "report.html")],
        "tracking.json": [lambda: resume(folder, Progress())],
    }
    every = [
        lambda: write_report([folder], folder / "report.html") if PLACES > 1 else read_run(folder).client_reports,
        lambda: fedsieve.load(folder),
        lambda: resume(folder, Progress()),
    ]
    for read in readers.get(name, every):  # type: ignore[attr-defined]  # lists of functions
        with suppress(FedSieveError):
            read()


@pytest.fixture
def quick(monkeypatch):
    """A resumed run leaves the page out, which takes longest and is tried anyway."""
    monkeypatch.setattr("fedsieve.report.html.write_report", lambda *_: None)


@pytest.fixture(scope="module")
def samples(tiny_file):
    with np.load(tiny_file) as file:
        return file["x_test"][:4]


def damages(content, chance):
    """The content with bits flipped, bytes lost, cut off, and bytes of other kinds in it."""
    for _ in range(PLACES):
        place = chance.randrange(max(1, len(content)))
        flipped = bytearray(content)
        if flipped:
            flipped[place] ^= 1 << chance.randrange(8)
        yield f"flip at {place}", bytes(flipped)
        yield f"cut at {place}", content[:place]
        yield f"lost at {place}", content[:place] + content[place + chance.randrange(1, 40) :]
        yield f"zeros at {place}", content[:place] + b"\0" * 30 + content[place + 30 :]
    yield "empty", b""
    yield "other", b"\xff\xfe\x00nonsense"
    yield "deep", b"[" * 100_000


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", [*JSON, *OTHERS])
def test_a_damaged_file_is_a_typed_error_or_a_note(tmp_path, cut, samples, name):
    chance = random.Random(name)
    whole = (cut / name).read_bytes()
    for what, content in damages(whole, chance):
        folder = shutil.copytree(cut, tmp_path / "run")
        (folder / name).write_bytes(content)
        try:
            tried(folder, samples, name)
        except Exception as problem:
            raise AssertionError(f"{name}: {what}") from problem
        shutil.rmtree(folder)


def values(tree, path=()):
    """The places of all values in a tree of JSON."""
    yield path
    if isinstance(tree, dict):
        for key in tree:
            yield from values(tree[key], (*path, key))
    elif isinstance(tree, list):
        for place in range(min(2, len(tree))):
            yield from values(tree[place], (*path, place))


def with_value(tree, path, value):
    made = copy.deepcopy(tree)
    inner = made
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return made


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", [*JSON, "config.yaml"])
def test_wrong_values_with_fitting_checksums_are_typed_errors_too(tmp_path, cut, samples, name):
    chance = random.Random(name)
    text = (cut / name).read_text()
    lines = text.splitlines() if name.endswith("l") and name != "config.yaml" else [text]
    first = yaml.safe_load(text) if name == "config.yaml" else unseal(lines[0])
    places = [path for path in values(first) if path]
    for _ in range(5 * PLACES):
        path, value = chance.choice(places), chance.choice(WRONG)
        spoilt = with_value(first, path, value)
        folder = shutil.copytree(cut, tmp_path / "run")
        made = yaml.safe_dump(spoilt) if name == "config.yaml" else seal(spoilt)
        (folder / name).write_text("\n".join([made, *lines[1:]]))
        try:
            tried(folder, samples, name)
        except Exception as problem:
            raise AssertionError(f"{name}: {path} is {value!r}") from problem
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (Round, {"round": 1, "test_accuracy": 1e308}),
        (Round, {"round": 1, "seconds_by": {"train": -1e308}}),
        (ClientData, {"client": 0, "rows": 3, "classes": [3], "noise_realised": 1.5}),
        (ClientData, {"client": 0, "rows": 3, "classes": [3], "noise_nominal": -0.1}),
        (ClientReport, {"round": 1, "client": 0, "weight": 3.5e38}),
        (Summary, {"client_accuracy": [1e39]}),
    ],
)
def test_numbers_have_a_range(kind, content):
    with pytest.raises(ValidationError):
        kind.model_validate(content)


@pytest.mark.usefixtures("quick")
def test_a_spread_of_features_without_their_rank_is_no_verdict(tmp_path, cut):
    folder = shutil.copytree(cut, tmp_path / "run")
    first, *others = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text("\n".join([seal(unseal(first) | {"feature_spread": 0.5}), *others, ""]))
    resume(folder, Progress())
    assert json.loads((folder / "summary.json").read_text())["collapsed"] is None


def test_a_run_that_diverged_can_be_shown():
    found = Round.model_validate({"round": 1, "loss_right": float("inf"), "loss_wrong": 3.4e38})
    assert found.numbers == {"loss_right": float("inf"), "loss_wrong": 3.4e38}


# The rows of rounds


def line_of(folder, name, number):
    return (folder / name).read_text().splitlines()[number]


def test_lines_are_plain_json_with_a_checksum(finished):
    for name in ("metrics.jsonl", "clients.jsonl"):
        for line in (finished / name).read_text().splitlines():
            row = json.loads(line)
            assert list(row)[-1] == "check"
            body = line[: line.rindex(', "check"')]
            assert row["check"] == hashlib.sha256(body.encode()).hexdigest()[:16]
    assert "check" not in fedsieve.load(finished)["rows"][0]


@pytest.mark.parametrize("harm", ["a digit", "a lost line", "an unreadable line", "the last line"])
def test_lost_rounds_are_noted_and_the_summary_says_so(folder, harm):
    file = folder / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    gone = 3 if harm == "the last line" else 2
    spoilt = {
        "a digit": lines[gone - 1].replace('"reports": 3', '"reports": 1'),
        "an unreadable line": lines[gone - 1][:40] + "\n",
    }.get(harm, "")
    file.write_text("".join([*lines[: gone - 1], spoilt, *lines[gone:]]))
    heard = Heard()
    _, summary = resume(folder, heard)
    assert any(f"the rows of rounds {gone} are lost or damaged" in note for note in heard.notes)
    assert summary["rounds"] == 3
    assert summary["rounds_missing"] == [gone]
    kept = [json.loads(line)["round"] for line in file.read_text().splitlines()]
    assert kept == [number for number in (1, 2, 3) if number != gone]
    assert f"no row of rounds {gone}" in (folder / "report.html").read_text()


def test_lost_rows_of_clients_are_noted(folder):
    lines = (folder / "clients.jsonl").read_text().splitlines(keepends=True)
    (folder / "clients.jsonl").write_text("".join(lines[:4] + lines[5:]))
    heard = Heard()
    _, summary = resume(folder, heard)
    assert any("clients.jsonl: rows of rounds 2 are lost" in note for note in heard.notes)
    assert "rounds_missing" not in summary


def test_a_whole_run_has_nothing_to_note(folder):
    heard = Heard()
    resume(folder, heard)
    assert not any("lost" in note for note in heard.notes)


def test_a_kill_while_rows_are_rewritten_loses_none(folder, monkeypatch):
    before = (folder / "metrics.jsonl").read_bytes()
    monkeypatch.setattr("fedsieve.base.disk.os.fsync", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        resume(folder, Progress())
    assert (folder / "metrics.jsonl").read_bytes() == before


# Settings


@pytest.mark.parametrize(
    ("key", "value"), [("lr", 0.07), ("noise.rate", 0.1), ("fedrn.warmup", 2), ("seed", 1), ("model.hidden", [5])]
)
def test_a_setting_changed_by_hand_is_noticed(folder, key, value):
    config = yaml.safe_load((folder / "config.yaml").read_text())
    (folder / "config.yaml").write_text(yaml.safe_dump(config | {key: value}))
    with pytest.raises(RunError, match=rf"config\.yaml: {key} is .* but the run began with") as problem:
        fedsieve.resume(folder, quiet=True)
    assert problem.value.code == "FS241"


def test_settings_that_do_not_matter_may_change(folder):
    config = yaml.safe_load((folder / "config.yaml").read_text())
    free = {"workers": 7, "checkpoint_every": 3, "runtime": "serial", "device": "cpu"}
    (folder / "config.yaml").write_text(yaml.safe_dump(config | free))
    assert fedsieve.resume(folder, quiet=True)["finished"]


# Comparisons


def test_damaged_results_are_named_or_mended(tmp_path):
    row = {"key": "k", "folder": "a-123456", "method": "fedavg"}
    file = tmp_path / "results.jsonl"
    for what, content in damages(f"{seal(row)}\n{seal(row | {'key': 'l'})}\n".encode(), random.Random(1)):
        file.write_bytes(content)
        said = []
        with suppress(DataError):
            assert all(found["folder"] == "a-123456" for found in read_results(tmp_path)), what
        for found in read_results(tmp_path, said.append):
            assert {key: found[key] for key in ("folder", "method")} == {"folder": "a-123456", "method": "fedavg"}


def test_a_result_without_its_checksum_is_damaged(tmp_path):
    (tmp_path / "results.jsonl").write_text('{"key": "k", "folder": "a-123456", "method": "fedavb"}\n')
    with pytest.raises(DataError, match=r"results\.jsonl, line 1: not an object with a checksum"):
        read_results(tmp_path)
    said = []
    assert read_results(tmp_path, said.append) == []
    assert len(said) == 1


def test_damaged_nodes_are_named(tmp_path):
    from fedsieve.base.files import read_json, write_json
    from fedsieve.flower.deployment import saved_members

    file = tmp_path / "nodes.json"
    whole = {"run": "0" * 32, "members": [{"name": "a", "node": 1, "samples": 3, "labelled": 3}]}
    write_json(file, whole)
    assert read_json(file) == whole
    contents = [content for _, content in damages(file.read_bytes(), random.Random(5))]
    for content in contents:
        file.write_bytes(content)
        with pytest.raises(DataError, match=r"nodes\.json"):
            saved_members(file)
    for spoilt in ({"run": "x"}, {"run": "x", "members": 3}, {"run": "x", "members": [{"path": "/"}]}):
        write_json(file, spoilt)
        with pytest.raises(DataError, match=r"nodes\.json"):
            saved_members(file)


# Models and samples


def test_a_damaged_model_never_predicts_otherwise(tmp_path, cut, samples):
    whole = (cut / "model.safetensors").read_bytes()
    right = predict_samples(cut, samples)
    (tmp_path / "run").mkdir()
    noticed = 0
    for what, content in damages(whole, random.Random(3)):
        (tmp_path / "run" / "model.safetensors").write_bytes(content)
        try:
            assert predict_samples(tmp_path / "run", samples) == right, what
        except FedSieveError:
            noticed += 1
    assert noticed > 3 * PLACES


def test_every_flipped_byte_of_a_model_is_noticed(tmp_path, cut):
    whole = (cut / "model.safetensors").read_bytes()
    for place in range(0, len(whole), max(1, len(whole) // (40 * PLACES))):
        spoilt = bytearray(whole)
        spoilt[place] ^= 0x10
        (tmp_path / "model.safetensors").write_bytes(bytes(spoilt))
        with pytest.raises(DataError):
            SavedModels.read(tmp_path / "model.safetensors")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_no_numbers_are_refused(folder, samples, value):
    saved = SavedModels.read(folder / "model.safetensors")
    tensors = {name: tensor.clone() for name, tensor in saved.tensors.items()}
    next(iter(tensors.values())).view(-1)[0] = value
    (folder / "model.safetensors").write_bytes(to_bytes(tensors, saved.card))
    with pytest.raises(DataError, match="holds NaN or infinity") as problem:
        predict_samples(folder, samples)
    assert problem.value.code == "FS304"


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": [1, 10**9, 10**9]},
        {"shape": [1, -12, 12]},
        {"shape": [0, 12, 12]},
        {"shape": []},
        {"shape": [1, 12]},
        {"shape": "1x12x12"},
        {"shape": [1.5, 12, 12]},
        {"class_names": ["only"]},
        {"class_names": "abcd"},
        {"class_names": [1, 2, 3, 4]},
        {"class_names": ["a", "b", "c", "d", "e"]},
        {"mean": [float("nan")]},
        {"mean": []},
        {"mean": [0.1, 0.2]},
        {"mean": 0.5},
        {"std": [0.0]},
        {"std": [-1.0]},
        {"std": [float("inf")]},
        {"norm": "nonsense"},
        {"model": "resnet50"},
        {"model": 5},
        {"model": None},
        {"options": {"hidden": [10**9]}},
        {"options": {"hidden": "x"}},
        {"options": []},
        {"heads": "projector"},
        {"heads": ["projector"]},
        {"heads": [{"kind": "nonsense"}]},
        {"heads": [{"kind": ["projector"]}]},
        {"heads": [{}]},
        {"heads": [{"kind": "projector"}]},  # its weights are not there
        {"heads": [{"kind": "projector", "width": 10**9}]},
        {"heads": [{"kind": "projector", "layers": 10**6}]},
        {"heads": [{"kind": "projector", "name": "body"}]},
        {"heads": [{"kind": "projector", "nonsense": 1}]},
        {"heads": [{"kind": "projector"}] * 2},
        {"heads": [{"kind": "projector"}] * 17},
        {"heads": [{"kind": "side"}]},
        {"heads": [{"kind": "side", "name": "../../x"}]},
        {"heads": [{"kind": "side", "name": "__class__"}]},
        {"heads": [{"kind": "side", "name": "head"}]},
        {"heads": [{"kind": "side", "name": "forward"}]},
        {"heads": [{"kind": "side", "name": "a_head", "base": "a_head"}]},
        {"reading": {"window": [9.0, 3.0]}},
        {"reading": {"columns": ["age", "sex"]}},  # two numbers are no image
        {"several": "no"},
        {"several": True},
        {"shared": 1},
    ],
    ids=str,
)
def test_a_card_that_makes_no_sense_is_refused(folder, samples, changes):
    saved = SavedModels.read(folder / "model.safetensors")
    (folder / "model.safetensors").write_bytes(to_bytes(saved.tensors, dict(saved.card) | changes))
    with pytest.raises(FedSieveError):
        predict_samples(folder, samples)


def test_a_model_says_no_time_path_or_runtime_and_is_the_same_each_time(finished, tmp_path, tiny_file):
    card = json.loads(json.dumps(dict(SavedModels.read(finished / "model.safetensors").card)))
    assert set(card) == {
        "model", "options", "norm", "heads", "several", "shared", "classifies", "method", "data",
        "rounds", "class_names", "mean", "std", "shape", "sha256",
    }  # fmt: skip
    assert str(tiny_file) not in json.dumps(card)
    tensors = {"a": torch.arange(3.0), "b": torch.ones(2)}
    assert to_bytes(tensors, card) == to_bytes(dict(reversed(tensors.items())), card)


def test_damaged_samples_are_named(tmp_path, samples):
    np.savez_compressed(tmp_path / "x.npz", x_test=samples)
    np.save(tmp_path / "x.npy", samples)
    Image.fromarray(samples[0, :, :, 0]).resize((64, 64)).save(tmp_path / "x.png")
    Image.fromarray(samples[0, :, :, 0]).resize((64, 64)).save(tmp_path / "x.jpg")
    Image.fromarray(samples[0, :, :, 0]).resize((64, 64)).save(tmp_path / "x.tif")
    for name in ("x.npz", "x.npy", "x.png", "x.jpg", "x.tif"):
        for what, content in damages((tmp_path / name).read_bytes(), random.Random(name)):
            (tmp_path / f"spoilt-{name}").write_bytes(content)
            try:
                list(Inputs([tmp_path / f"spoilt-{name}"], SavedModels(tmp_path, {"shape": [1, 12, 12]}, {})))
            except FedSieveError:
                continue
            except Exception as problem:
                raise AssertionError(f"{name}: {what}") from problem


def test_an_array_whose_header_does_not_end_is_named(tmp_path):
    file = tmp_path / "x.npy"
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (4, 12\n"
    file.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(48))
    with pytest.raises(tokenize.TokenError):
        np.load(file)
    with pytest.raises(DataError, match=r"x\.npy: not a readable array file"):
        list(Inputs([file], SavedModels(tmp_path, {"shape": [1, 12, 12]}, {})))
    with pytest.raises(DataError, match=r"x\.npy: cannot be read"):
        read_human_labels(file, "worse_label")
    with pytest.raises(DataError, match=r"x\.npy: cannot be read"):
        InstanceSoft(soft=str(file)).read(4, 2)
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.write(file, "x_train.npy")
    with pytest.raises(DataError, match=r"x\.npz"):
        fedsieve.run(data=str(tmp_path / "x.npz"), quiet=True, out=str(tmp_path / "run"))
