"""One's own data through the front door: export and read back, train, inspect."""

import csv
import json
import re
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


AUDIT = ["method=fedrn", "fedrn.warmup=0", "rounds=1", "epochs=1", "batch=8", "data.test_fraction=0"]


def hospitals(root, per_class=6):
    """Two owners with folders of two classes; every image is of a value of its own."""
    values = iter(range(0, 240, 4))
    for owner in ("north", "south"):
        for name in ("sick", "well"):
            (root / owner / name).mkdir(parents=True)
            for i in range(per_class):
                Image.new("L", (8, 8), next(values)).save(root / owner / name / f"scan, {i}.png")
    return root


@pytest.mark.parametrize("runtime", ["serial", "pool"])
def test_every_label_of_own_images_is_judged_and_found_again(tmp_path, runtime):
    root, out = hospitals(tmp_path / "hospitals"), tmp_path / "run"
    said = called("run", f"data={root}", *AUDIT, f"runtime={runtime}", "workers=2", f"out={out}")
    assert "not tested: accuracies are unknown" in said
    assert f"run {out}: report.html, labels.csv, model.safetensors" in said
    labels = fedsieve.load(out).labels()
    assert set(labels["where"]) == {path.relative_to(root).as_posix() for path in root.rglob("*.png")}
    for row in labels.itertuples():
        assert (row.owner, row.given) == tuple(row.where.split("/")[:2])
    flagged = labels[labels.flagged]
    for owner in flagged.owner.unique():
        assert f"  {owner}: {(flagged.owner == owner).sum()} of 12" in said
    assert called("labels", out, "--flagged").count("\n") == 1 + len(flagged)
    assert json.loads(called("labels", out, "--owner", "north", "--json")) == [
        row._asdict() for row in labels[labels.owner == "north"].itertuples(index=False, name="Row")
    ]
    summary = json.loads((out / "summary.json").read_text())
    assert summary["test_accuracy"] is summary["test_accuracy_last10"] is summary["test_accuracy_best"] is None
    assert summary["client_accuracy"] == [None, None]
    with np.load(out / "suspects.npz") as shown:
        for what, image in zip(json.loads(str(shown["index"])), shown["images"], strict=True):
            with Image.open(root / what["where"]) as picture:
                assert np.array_equal(np.asarray(picture), image[:, :, 0])
    before = (out / "report.html").read_text()
    assert "Not tested: run." in before
    assert before.count("<img ") == len(flagged)
    (out / "report.html").unlink()
    called("report", out)
    assert (out / "report.html").read_text() == before, "a report of later shows the same pictures"


def test_every_row_of_an_own_table_is_judged_and_found_again(tmp_path):
    rng = np.random.default_rng(1)
    lines = ["client,age,weight,label"]
    lines += [f"c{i % 2},{i},{rng.normal():.3f},{'=yes' if rng.random() < 0.5 else 'no'}" for i in range(30)]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    called("run", f"data={tmp_path / 't.csv'}", *AUDIT, "model=mlp", "runtime=serial", f"out={tmp_path / 'run'}", "-q")
    called("labels", tmp_path / "run", "--cleanlab", "--out", tmp_path / "issues.csv")
    with (tmp_path / "issues.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["where"] for row in rows} == {f"t.csv:{line}" for line in range(2, 32)}
    for row in rows:
        owner, _, _, label = lines[int(row["where"].split(":")[1]) - 1].split(",")
        assert (row["owner"], row["given_label"]) == (owner, label.replace("=", "'="))
    page = (tmp_path / "run" / "report.html").read_text()
    assert "<img " not in page
    values = re.findall(r"<span>([-\d.]+), ([-\d.]+)</span>\s*<span>t\.csv:(\d+)</span>", page)
    assert values
    for age, weight, line in values:
        assert lines[int(line) - 1].split(",")[1] == age
        assert float(weight) == float(lines[int(line) - 1].split(",")[2])


def test_comparing_without_testing(tmp_path):
    keys = [f"data={hospitals(tmp_path / 'h')}", "data.test_fraction=0", "rounds=1", "epochs=1"]
    said = called("compare", *keys, "method=fedavg,local", f"out={tmp_path / 'both'}", "-q")
    assert "| fedavg | 1 |" in said
    assert "Not tested" in (tmp_path / "both" / "report.html").read_text()
    exported = called("data", "export", tmp_path / "out", *keys[:2])
    assert "data.test_fraction=0" in exported
    federation, _ = federation_of(resolve({"data": str(tmp_path / "out"), "data.test_fraction": 0}))
    assert federation.class_counts().sum() == 24


def test_encoders_are_learnt_without_testing(tmp_path):
    keys = [f"data={hospitals(tmp_path / 'h')}", "data.test_fraction=0", "validation=4", f"out={tmp_path / 'run'}"]
    said = called("pretrain", *keys, "method=simclr", "rounds=1", "epochs=1", "runtime=serial", "-q")
    assert "features: not tested" in said
