"""Splitting a source: what is held out, what is spoilt, who knows the truth."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from fedsieve.base.errors import ConfigError, DataError
from fedsieve.data.export import export_federation
from fedsieve.data.federation import describe
from fedsieve.data.inspection import as_text
from fedsieve.data.moments import moments
from fedsieve.settings.config import resolve
from fedsieve.settings.splitting import federation_of

HASHES = {
    "fd2bd271cbdc": {},
    "080e6ec451de": {"partition": "dirichlet", "noise": "symmetric", "noise.rate": 0.4, "seed": 3},
    "8ae469760874": {"partition": "tasks", "noise": "class-dependent", "clients": 6},
    "8b15617c70e0": {"partition": "dirichlet-fedrn", "clients": 7, "noise": "symmetric-self"},
}


@pytest.mark.parametrize("start", HASHES)
def test_a_federation_stays_what_it_is(start):
    federation, _ = federation_of(resolve(HASHES[start]))
    assert federation.hash.startswith(start)


@pytest.fixture
def table(tmp_path):
    """30 rows, of which row i is the number i; three classes in turn."""
    x = np.arange(30, dtype=np.float32)[:, None]
    path = tmp_path / "table.npz"
    np.savez(path, x_train=x, y_train=np.arange(30) % 3, x_test=x[:3] + 0.5, y_test=np.arange(3))
    return str(path)


def test_every_row_has_one_place(table):
    settings = {"data": table, "clients": 4, "server.clean": 3, "server.unlabelled": 0.1, "server.public": 3}
    federation, truth = federation_of(resolve(settings | {"server.noisy": 6, "validation": 3}))
    held = [holding.rows for holding in federation.server.values()]
    rows = np.concatenate([*federation.rows, *held, federation.validation])
    assert np.sort(rows).tolist() == list(range(30))
    assert {name: len(holding.rows) for name, holding in federation.server.items()} == {
        "unlabelled": 3,
        "clean": 3,
        "noisy": 6,
        "public": 3,
    }
    for holding in held:  # each is class-proportional
        counts = np.bincount(holding % 3, minlength=3)
        assert counts.max() - counts.min() <= 1
    assert np.array_equal(federation.server["clean"].labels, federation.server["clean"].rows % 3)
    assert federation.server["unlabelled"].labels is None
    assert np.array_equal(truth.validation, federation.validation % 3)
    assert (federation.server["noisy"].labels != federation.server["noisy"].rows % 3).sum() == 1  # 0.2 of 6, whole part


def test_the_server_s_noisy_rows_may_have_instance_noise(table):
    federation, _ = federation_of(
        resolve({"data": table, "clients": 2, "noise": "instance-part", "server.noisy": 9, "server.noisy_rate": 0.9})
    )
    assert (federation.server["noisy"].labels != federation.server["noisy"].rows % 3).any()


@pytest.mark.parametrize("noise", ["none", "symmetric", "pair"])
def test_the_server_s_clean_rows_may_be_wrong_on_purpose(table, noise):
    settings = {"data": table, "clients": 2, "noise": noise, "server.clean": 9}
    clean, _ = federation_of(resolve(settings))
    spoilt, truth = federation_of(resolve(settings | {"server.clean_noise": 0.4}))
    rows, labels = spoilt.server["clean"].rows, spoilt.server["clean"].labels
    wrong = labels != rows % 3
    assert wrong.sum() == 3  # 0.4 of 9, whole part
    if noise == "pair":
        assert (labels[wrong] == (rows[wrong] + 1) % 3).all()
    assert "3 of the server's 9 clean labels are wrong on purpose" in spoilt.notes
    assert spoilt.hash != clean.hash
    assert np.array_equal(rows, clean.server["clean"].rows)
    for mine, theirs in zip(spoilt.given, clean.given, strict=True):
        assert np.array_equal(mine, theirs)
    assert all(np.array_equal(true, part % 3) for true, part in zip(truth.labels, spoilt.rows, strict=True))


def test_the_truth_is_spoilt_and_not_what_was_delivered(tmp_path):
    """All delivered labels are wrong; a quarter of the clean set is to be, and no more."""
    true = np.arange(40) % 4
    path = tmp_path / "wrong.npz"
    x = np.arange(40, dtype=np.float32)[:, None]
    np.savez(path, x_train=x, y_train=(true + 1) % 4, y_true=true, x_test=x[:4], y_test=true[:4])
    settings = {"data": str(path), "clients": 2, "server.clean": 8, "server.clean_noise": 0.25}
    held = federation_of(resolve(settings))[0].server["clean"]
    assert (held.labels != held.rows % 4).sum() == 2


@pytest.mark.parametrize("noise", ["class-dependent", "class-independent"])
def test_a_server_without_a_task_has_symmetric_noise(noise):
    settings = {"partition": "tasks", "clients": 6, "noise": noise, "server.clean": 60, "server.noisy": 50}
    federation, _ = federation_of(resolve(settings | {"server.clean_noise": 0.5}))
    assert "30 of the server's 60 clean labels are wrong on purpose" in federation.notes
    assert len(federation.server["noisy"].labels) == 50


@pytest.mark.parametrize("settings", [{"server.clean": 31}, {"clients": 31}, {"clients": 25, "validation": 10}])
def test_too_much_held_out(table, settings):
    with pytest.raises(DataError) as caught:
        federation_of(resolve({"data": table} | settings))
    assert caught.value.code == "FS308"


def test_moments_of_images_are_those_of_numpy():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (50, 7, 6, 3), np.uint8)
    images[..., 1] = 9
    rows = np.arange(10, 45)
    mean, std = moments(images, rows)
    pixels = images[rows].reshape(-1, 3) / 255
    assert mean == tuple(np.round(pixels.mean(0), 4))
    assert std[0] == round(float(pixels[:, 0].std()), 4)
    assert std[1] == 1.0  # constant: left as it is


def test_soft_labels_decide_which_labels_go_wrong(table, tmp_path):
    true = np.arange(30) % 3
    soft = np.full((30, 3), 0.0)
    soft[np.arange(30), true] = 1.0
    soft[::2] = 0.0
    soft[::2, 2] = 1.0  # every second row is surely taken for class 2
    np.save(tmp_path / "soft.npy", soft)
    doubted = (np.arange(30) % 2 == 0) & (true != 2)
    settings = {"data": table, "clients": 1, "noise": "instance-soft", "noise.soft": str(tmp_path / "soft.npy")}
    federation, truth = federation_of(resolve(settings | {"noise.rate": doubted.sum() / 30}))
    wrong = federation.rows[0][federation.given[0] != truth.labels[0]]
    assert np.sort(wrong).tolist() == np.flatnonzero(doubted).tolist()
    assert (federation.given[0][np.isin(federation.rows[0], wrong)] == 2).all()
    assert federation.given[0].dtype == np.int64


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (None, "FS301"),
        (np.zeros((30, 2)), "FS309"),
        (np.zeros((30, 3), int), "FS309"),
        (np.full((30, 3), np.nan), "FS304"),
        (b"nonsense", "FS302"),
    ],
)
def test_soft_labels_that_do_not_fit(table, tmp_path, content, code):
    file = tmp_path / "soft.npy"
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content is not None:
        np.save(file, content)
    settings = {"data": table, "clients": 1, "noise": "instance-soft"}
    with pytest.raises(DataError) as caught:
        federation_of(resolve(settings | {"noise.soft": str(file)}))
    assert caught.value.code == code
    with pytest.raises(ConfigError) as missing:
        federation_of(resolve(settings))
    assert missing.value.code == "FS002"


def test_settings_with_files_are_plain_text(table, tmp_path):
    config = resolve({"data": table, "noise": "human", "noise.file": str(tmp_path / "h.npz")})
    assert config.flat()["noise.file"] == str(tmp_path / "h.npz")


def test_description_and_its_table(table):
    settings = {"data": table, "clients": 3, "noise": "symmetric", "noise.rate": 0.5, "partition": "iid-balanced"}
    federation, truth = federation_of(resolve(settings))
    described = describe(federation, truth)
    assert [client["noise_realised"] for client in described["clients"]] == [0.5] * 3
    counts = np.array(described["transitions"])
    assert counts.sum() == 30
    assert np.trace(counts) == 15
    assert counts.sum(axis=0).tolist() == federation.class_counts().sum(axis=0).tolist()
    text = as_text(described)
    assert "wrong labels overall: 50.0%" in text
    named = replace(federation, client_names=("north", "east", "south"))
    lines = as_text(describe(named, replace(truth, labels=None, nominal=None))).splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["north", "east", "south"]
    assert lines[1].split()[-2:] == ["?", "?"]
    assert named.hash == federation.hash


def test_names_of_classes_are_cut_only_where_there_is_no_room(table):
    federation, truth = federation_of(resolve({"data": table, "clients": 3}))
    described = describe(replace(federation, class_names=("adenocarcinoma", "b", "c")), truth)
    assert "adenocarcinoma  b" in as_text(described)
    assert "adenocarcinoma  b" in as_text(described, 200)
    assert "adenocarc  b" in as_text(described, 40)


def test_the_hash_is_of_what_training_sees(table):
    federation, _ = federation_of(resolve({"data": table, "clients": 3}))
    assert len(federation.hash) == hashlib.sha256().digest_size * 2
    given = (*federation.given[:-1], (federation.given[-1] + 1) % 3)
    assert replace(federation, given=given).hash != federation.hash
    assert replace(federation, notes=("x",)).hash == federation.hash


def test_a_limit_takes_every_class_in_proportion():
    from fedsieve.settings.config import resolve
    from fedsieve.settings.splitting import federation_of

    settings = {"data": "embedded", "clients": 3, "data.limit": 100}
    some, truth = federation_of(resolve(settings))
    assert sum(map(len, some.rows)) == 100
    counts = np.bincount(np.concatenate(truth.labels), minlength=some.n_classes)
    assert counts.max() - counts.min() <= 2
    other, _ = federation_of(resolve(settings | {"seed": 1}))
    assert set(np.concatenate(some.rows)) != set(np.concatenate(other.rows))
    everything, _ = federation_of(resolve(settings | {"data.limit": 10**6}))
    assert everything.hash == federation_of(resolve({"data": "embedded", "clients": 3}))[0].hash


def test_labels_can_be_taken_from_the_clients(table):
    settings = {"data": table, "clients": 3, "noise": "pair", "noise.rate": 0.5, "server.noisy": 6, "validation": 3}
    labelled, truth = federation_of(resolve(settings))
    federation, same = federation_of(resolve(settings | {"client_labels": False}))
    assert all((given == -1).all() and given.dtype == np.int64 for given in federation.given)
    for mine, theirs in zip(federation.rows, labelled.rows, strict=True):
        assert np.array_equal(mine, theirs)
    assert np.array_equal(federation.server["noisy"].labels, labelled.server["noisy"].labels)
    assert all(np.array_equal(a, b) for a, b in zip(same.labels, truth.labels, strict=True))
    assert np.array_equal(same.validation, truth.validation)
    assert federation.notes == ("the clients have no labels",)
    assert federation.hash != labelled.hash
    described = describe(federation, same)
    assert [(one["rows"], one["labelled"], sum(one["classes"])) for one in described["clients"]] == [(7, 0, 0)] * 3
    assert {one["noise_realised"] for one in described["clients"]} == {None}
    assert {one["noise_nominal"] for one in described["clients"]} == {None}
    assert described["transitions"] is None
    lines = as_text(described).splitlines()
    assert lines[0].split() == ["client", "samples", "labelled", "0", "1", "2", "wrong", "meant"]
    assert lines[1].split() == ["0", "7", "0", "0", "0", "0", "-", "-"]
    assert "wrong labels overall: unknown" in lines


def test_rows_without_a_label_are_no_class_and_no_noise(table):
    federation, truth = federation_of(resolve({"data": table, "clients": 3}))
    given = [labels.copy() for labels in federation.given]
    given[0][:] = -1
    given[1][:4] = -1
    given[1][4] = (given[1][4] + 1) % 3  # of the six that are left
    described = describe(replace(federation, given=tuple(given)), truth)
    assert [client["labelled"] for client in described["clients"]] == [0, 6, 10]
    assert [sum(client["classes"]) for client in described["clients"]] == [0, 6, 10]
    assert [client["noise_realised"] for client in described["clients"]] == [None, round(1 / 6, 6), 0.0]
    counts = np.array(described["transitions"])
    assert (counts.sum(), np.trace(counts)) == (16, 15)


def test_a_federation_without_labels_is_not_written(table, tmp_path):
    federation, truth = federation_of(resolve({"data": table, "clients": 3, "client_labels": False}))
    with pytest.raises(DataError) as caught:
        export_federation(federation, truth, tmp_path / "out")
    assert caught.value.code == "FS307"
    assert not (tmp_path / "out").exists()


def test_images_that_are_no_pictures_are_not_written(tmp_path):
    images = np.zeros((8, 4, 4, 5), np.uint8)
    np.savez(tmp_path / "x.npz", x_train=images, y_train=np.arange(8) % 2, x_test=images[:2], y_test=[0, 1])
    federation, truth = federation_of(resolve({"data": str(tmp_path / "x.npz"), "clients": 2}))
    with pytest.raises(DataError, match=r"images of 5 channels cannot be written as PNG.*\[FS309\]"):
        export_federation(federation, truth, tmp_path / "out")
    assert not (tmp_path / "out").exists()
