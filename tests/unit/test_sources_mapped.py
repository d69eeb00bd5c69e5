"""Images larger than memory: decoded once into a file, cut off and resumed, and never loaded as a whole."""

import tracemalloc

import numpy as np
import pytest
from PIL import Image

from fedsieve.base.errors import DataError
from fedsieve.data.sources import DataOptions, decoding, load_source
from fedsieve.data.sources.pictures import ImageFiles
from fedsieve.settings.config import resolve
from fedsieve.settings.splitting import federation_of

MAPPED = DataOptions(in_memory=0)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSIEVE_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache" / "decoded"


@pytest.fixture
def photos(tmp_path):
    root = tmp_path / "photos"
    rng = np.random.default_rng(1)
    for client in ("a", "b"):
        for name in ("x", "y"):
            (root / client / name).mkdir(parents=True)
            for i in range(10):
                Image.fromarray(rng.integers(0, 256, (5, 6, 3), np.uint8)).save(root / client / name / f"{i}.png")
    return root


def with_test_set(root):
    for name in ("x", "y"):
        (root / "test" / name).mkdir(parents=True)
        (root / "a" / name / "9.png").rename(root / "test" / name / "9.png")


@pytest.mark.parametrize("test_set", [False, True])
def test_mapped_images_equal_those_in_memory(photos, test_set):
    if test_set:
        with_test_set(photos)
    whole, mapped = load_source(str(photos)), load_source(str(photos), MAPPED)
    for name in ("images", "test_images"):
        assert isinstance(getattr(mapped, name), np.memmap)
        assert np.array_equal(getattr(whole, name), getattr(mapped, name))
    assert np.array_equal(whole.labels, mapped.labels)
    assert np.array_equal(whole.test_labels, mapped.test_labels)
    assert whole.notes == mapped.notes
    settings = {"data": str(photos), "noise": "symmetric"}
    assert federation_of(resolve(settings))[0].hash == federation_of(resolve(settings | {"data.in_memory": 0}))[0].hash


@pytest.mark.parametrize("test_set", [False, True])
def test_other_processes_find_the_same_rows_by_file_and_offset(photos, test_set):
    if test_set:
        with_test_set(photos)
    source = load_source(str(photos), MAPPED)
    for images in (source.images, source.test_images):
        again = np.memmap(images.filename, np.uint8, "r", images.offset, images.shape)  # type: ignore[attr-defined]  # memory maps
        assert np.array_equal(again, images)


def test_images_are_decoded_once_and_again_when_they_change(photos, cache, monkeypatch):
    opened = []
    really = ImageFiles.open
    monkeypatch.setattr(ImageFiles, "open", lambda self, row: opened.append(row) or really(self, row))
    options = DataOptions(in_memory=0, size=5, colour="colour")
    load_source(str(photos), options)
    assert len(opened) == 10 + 40  # ten tell whether there are more than 256 levels
    load_source(str(photos), options)
    assert len(opened) == 10 + 40 + 10
    Image.new("RGB", (6, 5), (1, 2, 3)).save(photos / "a" / "x" / "0.png")
    assert load_source(str(photos), options).images[0, 0, 0].tolist() == [1, 2, 3]
    assert len(opened) == 10 + 40 + 10 + 10 + 40


def test_decoding_goes_on_where_it_was_cut_off(photos, cache, monkeypatch, capsys):
    monkeypatch.setattr(decoding, "CHUNK", 8)
    expected = load_source(str(photos)).images
    really, opened = ImageFiles.open, []

    def interrupted(self, row):
        if row == 21:
            raise KeyboardInterrupt
        return really(self, row)

    options = DataOptions(in_memory=0, size=5, colour="colour")
    monkeypatch.setattr(ImageFiles, "open", interrupted)
    with pytest.raises(KeyboardInterrupt):
        load_source(str(photos), options)
    assert not list(cache.glob("*.npy"))
    monkeypatch.setattr(ImageFiles, "open", lambda self, row: opened.append(row) or really(self, row))
    images = load_source(str(photos), options).images
    assert opened[10:] == list(range(16, 40))
    assert images.shape == (40, 5, 5, 3)
    assert np.array_equal(images, load_source(str(photos), DataOptions(size=5, colour="colour")).images)
    assert expected.shape == (40, 5, 6, 3)
    lines = capsys.readouterr().err.splitlines()
    assert "decoding images: 16 of 40" in lines
    assert lines[-1] == "decoding images: 40 of 40"


def test_a_broken_image_is_named_and_can_be_replaced(photos, cache):
    good = (photos / "b" / "y" / "3.png").read_bytes()
    (photos / "b" / "y" / "3.png").write_bytes(good[:50])
    with pytest.raises(DataError) as caught:
        load_source(str(photos), MAPPED)
    assert caught.value.code == "FS302"
    assert "client b, file b/y/3.png" in caught.value.message
    (photos / "b" / "y" / "3.png").write_bytes(good)
    assert np.array_equal(load_source(str(photos), MAPPED).images, load_source(str(photos)).images)


def test_building_a_federation_does_not_load_all_images(tmp_path, cache):
    """120 images of 1 MB are written as 120 MB and split with a peak far below, moments, hash and all."""
    side, count = 592, 120
    for i in range(count):
        folder = tmp_path / "photos" / f"c{i % 2}" / "xy"[i // 2 % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (side, side), (i, i, i)).save(folder / f"{i}.bmp")
    total = count * side * side * 3
    settings = {"data": str(tmp_path / "photos"), "data.in_memory": 8, "noise": "symmetric"}
    tracemalloc.start()
    try:
        federation, _ = federation_of(resolve(settings))
        hashed = federation.hash
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(hashed) == 64
    assert federation.images.nbytes == total > 120e6
    painted = federation.images[np.concatenate(federation.rows), 0, 0, 0]
    assert federation.mean == (round(float(painted.mean()) / 255, 4),) * 3
    assert peak < total / 4, f"{peak / 1e6:.0f} MB"
