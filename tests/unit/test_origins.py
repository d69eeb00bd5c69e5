"""Every row says where it came from, and what stands there is the row."""

import csv
import re

import numpy as np
import pytest
from PIL import Image

from fedsieve.data.origins import Origins, indices
from fedsieve.data.sources import load_source
from fedsieve.settings.config import resolve
from fedsieve.settings.splitting import federation_of

INDEXED = re.compile(r"(.*)\[(\d+)\]")


def split(data, **settings):
    return federation_of(resolve({"data": str(data), **settings}))[0]


def rows(federation):
    """Of every client's every row: its owner, where it came from, its label by name, its sample."""
    for client, (mine, given) in enumerate(zip(federation.rows, federation.given, strict=True)):
        for row, where, label in zip(mine, federation.places(client), given, strict=True):
            yield federation.owner(client), where, federation.class_names[label], federation.images[row]


def number(where, name):
    found = INDEXED.fullmatch(where)
    assert found
    assert found[1] == name
    return int(found[2])


@pytest.fixture
def hospitals(tmp_path):
    """Folders of images, each of a single value of its own."""
    values = iter(range(200))
    for client in ("b", "a", "c 2"):
        for name in ("sick", "well"):
            folder = tmp_path / "hospitals" / client / name
            folder.mkdir(parents=True)
            for i in range(10):
                Image.new("L", (4, 4), next(values)).save(folder / f"{9 - i}.png")
    return tmp_path / "hospitals"


@pytest.mark.parametrize("more", [{}, {"data.limit": 25}, {"partition": "iid", "clients": 4, "server.noisy": 7}])
def test_images_in_folders(hospitals, more):
    federation = split(hospitals, **more)
    found = list(rows(federation))
    assert len(found) in (48, 25, 41)
    assert len({where for _, where, _, _ in found}) == len(found)
    for owner, where, label, sample in found:
        with Image.open(hospitals / where) as picture:
            assert np.array_equal(np.asarray(picture), sample[:, :, 0])
        assert where.split("/")[1] == label
        assert where.split("/")[0] == owner or "partition" in more


def test_images_in_a_mapped_file(hospitals, monkeypatch, tmp_path):
    monkeypatch.setenv("FEDSIEVE_DATA", str(tmp_path / "cache"))
    for _, where, _, sample in rows(split(hospitals, **{"data.in_memory": 0})):
        with Image.open(hospitals / where) as picture:
            assert np.array_equal(np.asarray(picture), sample[:, :, 0])


def test_images_that_a_file_lists(hospitals):
    lines = ["file,label,split"]
    for i, path in enumerate(sorted(hospitals.rglob("*.png"))):
        lines.append(f"./{path.relative_to(hospitals)},{path.parent.name},{'test' if i % 3 == 0 else 'train'}")
    (hospitals / "list.csv").write_text("\n".join(lines))
    found = list(rows(split(hospitals / "list.csv", clients=2)))
    assert len(found) == 40
    for _, where, label, sample in found:
        assert not where.startswith(".")
        with Image.open(hospitals / where) as picture:
            assert np.array_equal(np.asarray(picture), sample[:, :, 0])
        assert where.split("/")[1] == label


def test_lines_of_a_table_are_those_of_an_editor(tmp_path):
    """Test rows, blank lines, a byte order mark and line breaks within cells do not shift them."""
    file = tmp_path / "blood.csv"
    with file.open("w", newline="", encoding="utf-8-sig") as handle:
        sheet = csv.writer(handle)
        sheet.writerow(["client", "label", "split", "age", "group"])
        for i in range(30):
            sheet.writerow([f"c{i % 3}", "xy"[i % 2], "test" if i % 5 == 0 else "train", i, "a\nb" * (i % 4)])
            if i % 7 == 0:
                handle.write("\r\n")
    seen = file.read_text(encoding="utf-8-sig").splitlines()
    found = list(rows(split(file)))
    assert len(found) == 24
    for owner, where, label, sample in found:
        name, line = where.split(":")
        assert name == "blood.csv"
        assert seen[int(line) - 1].split(",")[:4] == [owner, label, "train", f"{sample[0]:g}"]


def test_arrays_by_their_number(tmp_path):
    x = np.arange(60, dtype=np.uint8).reshape(60, 1, 1).repeat(4, 1).repeat(4, 2)
    y = np.arange(60) % 3
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=y, x_test=x[:3] + 100, y_test=y[:3])
    found = list(rows(split(tmp_path / "mine.npz", clients=4, validation=5, **{"server.unlabelled": 6})))
    assert len(found) == 49
    for owner, where, label, sample in found:
        row = number(where, "mine")
        assert sample[0, 0, 0] == row
        assert label == str(y[row])
        assert owner in "0123"


def test_the_embedded_data(tmp_path):
    source = load_source("embedded")
    federation = split("embedded", clients=3, **{"server.unlabelled": 9, "server.unlabelled_from": "generated"})
    assert federation.owner(2) == "2"
    for _, where, label, sample in list(rows(federation))[::97]:
        row = number(where, "embedded")
        assert np.array_equal(source.images[row], sample)
        assert source.class_names[source.labels[row]] == label


def test_hugging_face(tmp_path):
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict({"label": ["p", "q"] * 10, "x": np.arange(20.0), "client": ["u", "v"] * 10})
    table.save_to_disk(tmp_path / "table")
    found = list(rows(split(f"hf:{tmp_path / 'table'}")))
    assert len(found) == 16
    for _, where, _, sample in found:
        assert sample[0] == number(where, "train")


def test_origins_are_no_part_of_the_hash(hospitals):
    first = split(hospitals).hash
    hospitals.rename(hospitals.with_name("clinics"))
    (hospitals.with_name("clinics") / "a/sick/9.png").rename(hospitals.with_name("clinics") / "a/sick/99.png")
    assert split(hospitals.with_name("clinics")).hash == first


def test_texts_are_made_on_access():
    asked = []

    def text(row):
        asked.append(row)
        return f"row {row}"

    many = Origins(10**9, text).picked(np.arange(10**6)[::-1])[5:]
    assert len(many) == 10**6 - 5
    assert not asked
    assert (many[0], many[-1]) == ("row 999994", "row 0")
    with pytest.raises(IndexError):
        many[10**6]
    assert list(indices("a", 4)[1:3]) == ["a[1]", "a[2]"]


@pytest.mark.parametrize("fraction", [0, 0.25])
def test_rows_with_gaps_that_are_dropped_do_not_shift_the_others(tmp_path, fraction):
    """Every third row lacks a value; what stands in the line that is named is the row."""
    lines = [f"{i},{'' if i % 3 == 0 else 10 * i},{'ab'[i % 2]},{'xy'[i % 2]}" for i in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["one,two,label,client", *lines]) + "\n")
    made = split(tmp_path / "t.csv", **{"data.missing": "drop", "data.test_fraction": fraction})
    found = list(rows(made))
    assert len(found) == 26 - len(made.test_images)
    text = (tmp_path / "t.csv").read_text().splitlines()
    for owner, where, label, sample in found:
        file, line = where.split(":")
        one, two, given, client = text[int(line) - 1].split(",")
        assert (file, client, given) == ("t.csv", owner, label)
        assert sample.tolist() == [float(one), float(two)]
