"""Hugging Face data sets, saved to disk."""

import builtins
import socket

import numpy as np
import pytest
from PIL import Image

from fedsieve.base.errors import ConfigError, DataError
from fedsieve.data.sources import DataOptions, hub, load_source
from fedsieve.settings.config import resolve
from fedsieve.settings.splitting import federation_of


@pytest.fixture(autouse=True)
def fresh():
    hub.splits.cache_clear()


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    really = builtins.__import__

    def refuse(name, *rest, **more):
        if name == "datasets":
            raise ImportError(name)
        return really(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ConfigError) as caught:
        load_source("hf:somebody/something")
    assert caught.value.code == "FS008"
    assert "pip install fedsieve[hf]" in caught.value.message


@pytest.fixture
def photos(tmp_path):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "picture": datasets.Image(),
            "label": datasets.ClassLabel(names=["dog", "cat"]),
            "client": datasets.Value("string"),
        }
    )

    def part(values, clients):
        pictures = [Image.new("L", (4, 4), value) for value in values]
        labels = [value % 2 for value in values]
        return datasets.Dataset.from_dict({"picture": pictures, "label": labels, "client": clients}, features=features)

    splits = {"train": part([0, 1, 2, 3], ["s", "t", "t", "s"]), "test": part([10, 11], ["", ""])}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "photos")
    return tmp_path / "photos"


@pytest.mark.parametrize("in_memory", [256, 0])
def test_images_with_classes_and_clients(photos, in_memory, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSIEVE_DATA", str(tmp_path / "cache"))
    settings = {"data": f"hf:{photos}", "data.in_memory": in_memory}
    config = resolve(settings)
    assert config.top.partition == "natural"
    federation, truth = federation_of(config)
    assert federation.class_names == ("dog", "cat")
    assert federation.client_names == ("s", "t")
    assert federation.images[:, 0, 0, 0].tolist() == [0, 1, 2, 3]
    assert [rows.tolist() for rows in federation.rows] == [[0, 3], [1, 2]]
    assert [given.tolist() for given in federation.given] == [[0, 1], [1, 0]]
    assert federation.test_images[:, 0, 0, 0].tolist() == [10, 11]
    assert truth.test.tolist() == [0, 1]
    assert truth.labels is None


def test_numbers_and_columns_by_name(tmp_path):
    datasets = pytest.importorskip("datasets")
    table = {
        "x": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]] * 5,
        "z": [1, 2, 3, 4] * 5,
        "answer": ["no", "yes", "no", "yes"] * 5,
        "note": ["free text"] * 20,
    }
    datasets.Dataset.from_dict(table).save_to_disk(tmp_path / "table")
    source = load_source(f"hf:{tmp_path / 'table'}", DataOptions(label="answer"))
    assert source.images[:2].tolist() == [[1, 2, 1], [3, 4, 2]]
    assert source.class_names == ("no", "yes")
    assert len(source.test_images) == 4
    assert np.array_equal(source.labels[:4], [0, 1, 0, 1])
    with pytest.raises(DataError) as caught:
        load_source(f"hf:{tmp_path / 'table'}")
    assert caught.value.code == "FS302"
    assert "data.label" in caught.value.message


def test_a_data_set_that_cannot_be_loaded(tmp_path, monkeypatch):
    pytest.importorskip("datasets")
    with pytest.raises(DataError) as caught:
        load_source(f"hf:{tmp_path}")
    assert caught.value.code == "FS302"
    assert "save_to_disk" in caught.value.message


def test_data_sets_that_do_not_fit(tmp_path):
    datasets = pytest.importorskip("datasets")

    def refused(name, code, says, content):
        content.save_to_disk(tmp_path / name)
        with pytest.raises(DataError) as caught:
            load_source(f"hf:{tmp_path / name}")
        assert caught.value.code == code, caught.value
        assert says in caught.value.message

    def table(**columns):
        return datasets.Dataset.from_dict({"x": [1.0, 2.0, 3.0], "label": ["a", "b", "a"]} | columns)

    refused("splits", "FS302", "has no split 'train', only dev", datasets.DatasetDict({"dev": table()}))
    refused("label", "FS303", "train row 1 has no label", table(label=["a", None, "b"]))
    refused("words", "FS302", "has neither images nor numbers", table(x=["p", "q", "r"]))
    refused("nan", "FS304", "train row 2 holds NaN or infinity", table(x=[1.0, 2.0, float("nan")]))


@pytest.mark.parametrize("listening", [True, False])
def test_a_hub_that_answers_is_asked(monkeypatch, listening):
    """A machine of one's own in the place of the hub, or of the proxy before it."""
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        if listening:
            place.listen()
        monkeypatch.delenv("https_proxy", raising=False)
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{place.getsockname()[1]}")
        monkeypatch.setattr(hub, "getproxies", dict)
        hub.hub_answers.cache_clear()
        assert hub.hub_answers() is listening
    hub.hub_answers.cache_clear()
