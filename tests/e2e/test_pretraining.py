"""An encoder is learnt without labels, its file says what it is, and other methods look through it."""

import subprocess
import sys

import pytest

import fedsieve
from fedsieve.base.errors import ConfigError
from fedsieve.models.saved import SavedModels
from fedsieve.report import html
from fedsieve.settings.pretraining import PRETRAINING, for_pretraining

SMALL = {"clients": 3, "rounds": 2, "batch": 16, "runtime": "serial", "model.width": 2}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory, tiny_file):
    """A run of the command, its output and its folder."""
    folder = tmp_path_factory.mktemp("encoder")
    keys = [f"{key}={value}" for key, value in (SMALL | {"data": tiny_file, "out": "learnt"}).items()]
    command = [sys.executable, "-m", "fedsieve", "pretrain", *keys]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr
    return done, folder / "learnt"


def test_the_command_tells_how_good_the_features_are(encoder):
    done, folder = encoder
    summary = fedsieve.load(folder)
    first, second = done.stdout.splitlines()
    assert first.startswith(f"features: kNN accuracy {summary['knn_accuracy']:.4f} (without learning: pixels ")
    assert f"linear probe {summary['linear_accuracy']:.4f}" in first
    assert second.startswith("encoder learnt/model.safetensors")
    assert 0 < summary["reference_probes"]["pixels"] <= 1
    assert summary["collapsed"] is False
    assert summary["feature_spread"] > 0.05
    assert summary["config"]["client_labels"] is False


def test_the_card_says_what_it_is(encoder, tiny_file):
    _, folder = encoder
    card = SavedModels.read(folder / "model.safetensors").card
    assert (card["model"], card["options"]["width"], card["method"], card["rounds"]) == ("resnet10", 2, "simclr", 2)
    federation, _ = fedsieve.federation(**SMALL | {"data": str(tiny_file), "client_labels": False})
    assert card["data"] == federation.training_hash != federation.hash
    assert card["classifies"] is False


def test_the_report_shows_the_features_and_says_where_they_collapsed(encoder, tmp_path, monkeypatch):
    _, folder = encoder
    page = (folder / "report.html").read_text()
    assert ">Features</h2>" in page
    assert "nearest neighbours over rounds" in page
    assert "collapsed" not in page
    monkeypatch.setattr(html, "has_collapsed", lambda spread, rank: spread > 0 and rank > 0)
    again = html.write_report([folder], tmp_path / "again.html").read_text()
    assert "the features collapsed" in again


def test_other_methods_look_through_it(encoder, tiny_file, tmp_path, monkeypatch):
    _, folder = encoder
    monkeypatch.setenv("FEDSIEVE_DATA", str(tmp_path / "cache"))
    keys = {"data": tiny_file, "clients": 3, "rounds": 1, "epochs": 1, "batch": 16, "runtime": "serial"}
    options = {"method": "ksim", "ksim.features": str(folder / "model.safetensors")}
    through = fedsieve.run(**keys, **options, out=str(tmp_path / "through"), quiet=True)
    pixels = fedsieve.run(**keys, **options | {"ksim.features": "pixels"}, out=str(tmp_path / "pixels"), quiet=True)
    assert through["model_sha256"] != pixels["model_sha256"]


def test_the_server_learns_alone_from_python(tiny_file, tmp_path):
    settings = {**SMALL, "data": tiny_file, "byol.at": "server", "server.unlabelled": 40, "out": str(tmp_path / "own")}
    found = fedsieve.pretrain(method="byol", quiet=True, **settings)
    assert (found["bytes_up"], found["bytes_down"]) == (0, 0)
    assert found["knn_accuracy"] is not None


def test_a_classifier_is_no_encoder(tiny_file):
    with pytest.raises(ConfigError, match="method=fedavg trains a classifier, not an encoder") as caught:
        fedsieve.pretrain(method="fedavg", data=tiny_file)
    assert caught.value.code == "FS002"


def test_what_is_given_counts_and_options_go_with_their_model():
    assert for_pretraining({}) == PRETRAINING
    assert for_pretraining({"lr": 0.1})["lr"] == 0.1
    other = for_pretraining({"model": "cnn-lite"})
    assert not [key for key in other if key.startswith("model.")]
    assert for_pretraining({"model": {"width": 8}})["model.width"] == 8
