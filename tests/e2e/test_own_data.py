"""One's own data through the front door: export and read back, train, inspect."""

import json
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import fedsieve
from fedsieve.base.errors import ConfigError
from fedsieve.cli.app import app
from fedsieve.settings.config import resolve
from fedsieve.settings.splitting import federation_of


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSIEVE_DATA", str(tmp_path / "cache"))


def called(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def pictures(tmp_path):
    """40 colour images of three classes, with names that are awkward as folders."""
    rng = np.random.default_rng(2)
    images = rng.integers(0, 256, (46, 8, 7, 3), np.uint8)
    labels = np.arange(46) % 3
    path = tmp_path / "source.npz"
    names = np.array(["zebra/horse", "a b", ".hidden"])
    np.savez(path, x_train=images[:40], y_train=labels[:40], x_test=images[40:], y_test=labels[40:], class_names=names)
    return path


def same(before, after, truth, truth_after):
    assert after.class_names == before.class_names
    assert after.clients == before.clients
    for k in range(before.clients):
        assert np.array_equal(after.images[after.rows[k]], before.images[before.rows[k]])
        assert np.array_equal(after.given[k], before.given[k])
    assert np.array_equal(after.test_images, before.test_images)
    assert np.array_equal(truth_after.test, truth.test)


@pytest.mark.parametrize("clients", [3, 12])
def test_exported_images_come_back_as_they_were(pictures, tmp_path, clients):
    keys = {"data": str(pictures), "clients": clients, "noise": "symmetric", "noise.rate": 0.4, "server.clean": 3}
    said = called("data", "export", tmp_path / "out", *(f"{key}={value}" for key, value in keys.items()))
    assert "clean 3" in said
    before, truth = federation_of(resolve(keys))
    after, truth_after = federation_of(resolve({"data": str(tmp_path / "out")}))
    same(before, after, truth, truth_after)
    for k in range(clients):
        assert np.array_equal(truth.labels[k], truth_after.labels[k])
    assert len(list((tmp_path / "out").rglob("*.png"))) == 40 - 3 + 6


def test_exported_folders_are_readable_without_the_manifest(pictures, tmp_path):
    keys = [f"data={pictures}", "clients=3"]
    called("data", "export", tmp_path / "out", *keys)
    (tmp_path / "out" / "manifest.csv").unlink()
    (tmp_path / "out" / "classes.txt").unlink()
    federation, truth = federation_of(resolve({"data": str(tmp_path / "out")}))
    assert federation.client_names == ("client-0", "client-1", "client-2")
    assert federation.class_names == ("%2Ehidden", "a b", "zebra%2Fhorse")
    assert federation.class_counts().sum() == 40
    assert truth.labels is None


def test_exported_tables_come_back_as_they_were(tmp_path):
    rng = np.random.default_rng(5)
    x = (rng.standard_normal((30, 4)) * 10.0 ** rng.integers(-20, 20, (30, 4))).astype(np.float32)
    path = tmp_path / "t.npz"
    clients = np.array(["10", "9", "x"])[np.arange(24) % 3]
    np.savez(path, x_train=x[:24], y_train=np.arange(24) % 4, x_test=x[24:], y_test=np.arange(6) % 4, client=clients)
    called("data", "export", tmp_path / "out", f"data={path}")
    before, truth = federation_of(resolve({"data": str(path)}))
    after, truth_after = federation_of(resolve({"data": str(tmp_path / "out")}))
    assert after.client_names == before.client_names == ("9", "10", "x")
    same(before, after, truth, truth_after)
    assert truth_after.labels is None


def test_export_never_overwrites(pictures, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("precious")
    with pytest.raises(ConfigError) as caught:
        called("data", "export", tmp_path / "out", f"data={pictures}")
    assert caught.value.code == "FS005"


def test_inspect_shows_clients_by_name_and_draws_them(pictures, tmp_path):
    keys = [f"data={pictures}", "clients=3", "noise=symmetric", "noise.rate=0.5"]
    described = json.loads(called("data", "inspect", "--json", "--picture", tmp_path / "p.svg", *keys))
    root = ElementTree.parse(tmp_path / "p.svg").getroot()
    inner = [child for child in root if child.tag.endswith("}svg")]
    labels = [child.attrib["aria-label"] for child in inner]
    assert len(labels) == 3
    assert labels[0] == "Given labels of each class on each of 3 clients."
    assert sum(float(child.attrib["height"]) for child in inner) <= float(root.attrib["viewBox"].split()[3]) + 3
    assert [client["name"] for client in described["clients"]] == [None] * 3
    called("data", "inspect", "--picture", tmp_path / "p.html", *keys)
    page = (tmp_path / "p.html").read_text()
    assert page.count("<figure") == 3
    assert "zebra/horse" in page
    with pytest.raises(ConfigError) as caught:
        called("data", "inspect", "--picture", tmp_path / "p.gif", *keys)
    assert caught.value.code == "FS002"


def test_real_clients_train_without_known_truth(tmp_path):
    """Dark and bright pictures at two hospitals, one with mixed sizes; test rows are taken from the clients' own."""
    rng = np.random.default_rng(0)
    for client, size in (("north", 20), ("south", 14)):
        for name, level in (("dark", 50), ("bright", 200)):
            folder = tmp_path / "scans" / client / name
            folder.mkdir(parents=True)
            for i in range(15):
                pixels = rng.integers(level - 40, level + 40, (size, size), np.uint8)
                Image.fromarray(pixels).save(folder / f"{i}.png")
    result = fedsieve.run(
        quiet=True,
        data=str(tmp_path / "scans"),
        **{"data.size": 16, "data.in_memory": 0},
        rounds=3,
        epochs=3,
        batch=6,
        runtime="pool",
        workers=1,
        out=str(tmp_path / "run"),
    )
    assert result["test_accuracy"] == 1.0
    assert result["client_accuracy"] == [None, None]
    written = json.loads((tmp_path / "run" / "federation.json").read_text())
    assert [client["name"] for client in written["clients"]] == ["north", "south"]
    assert written["class_names"] == ["bright", "dark"]
    assert [client["noise_realised"] for client in written["clients"]] == [None, None]
    assert written["transitions"] is None
    assert result["config"]["partition"] == "natural"
    found = fedsieve.predict(tmp_path / "run", np.full((1, 16, 16), 200, np.uint8))
    assert found["name"] == ["bright"]


def test_a_table_trains_a_perceptron(tmp_path):
    rng = np.random.default_rng(0)
    lines = ["clinic,age,pressure,finding"]
    for i in range(80):
        sick = i % 2
        age, pressure = rng.normal(0, 0.3, 2) + sick * 3
        lines.append(f"clinic {i % 4 // 2},{age:.3f},{pressure:.3f},{'sick' if sick else 'well'}")
    (tmp_path / "blood.csv").write_text("\n".join(lines))
    result = fedsieve.run(
        quiet=True,
        data=str(tmp_path / "blood.csv"),
        **{"data.client": "clinic", "data.label": "finding"},
        model="mlp",
        rounds=3,
        batch=8,
        runtime="serial",
        out=str(tmp_path / "run"),
    )
    assert result["test_accuracy"] == 1.0
