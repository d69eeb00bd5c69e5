"""Unlabelled samples for the server from other data, and made-up ones."""

import csv

import numpy as np
import pytest
from deciding import decided
from PIL import Image

from fedsieve.base.errors import DataError, FedSieveError
from fedsieve.data.elsewhere import reshape
from fedsieve.settings.config import resolve
from fedsieve.settings.splitting import federation_of

BASE = {"data": "embedded", "clients": 3, "noise": "symmetric", "noise.rate": 0.4}


def federation(**server):
    return federation_of(resolve(BASE | {f"server.{key}": value for key, value in server.items()}))[0]


@pytest.fixture
def grey_file(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (50, 20, 10), dtype=np.uint8)
    labels = np.arange(50) % 5
    path = tmp_path / "grey.npz"
    np.savez(path, x_train=images, y_train=labels, x_test=images[:5], y_test=labels[:5])
    return path


def test_images_of_another_data_set_take_the_clients_shape(grey_file):
    plain, other = federation(), federation(unlabelled=30, unlabelled_from=str(grey_file))
    held = other.server["unlabelled"]
    assert held.labels is None
    assert len(held.rows) == 30
    assert held.rows.min() == len(plain.images), "beside the clients' own, which stay as they are"
    assert other.images.shape[1:] == plain.images.shape[1:]
    assert all((a == b).all() for a, b in zip(plain.rows, other.rows, strict=True))
    assert all((a == b).all() for a, b in zip(plain.given, other.given, strict=True))
    assert plain.hash != other.hash


def test_generated_images_look_like_nothing_but_have_the_right_spread():
    made = federation(unlabelled=200, unlabelled_from="generated")
    images = made.images[made.server["unlabelled"].rows] / 255
    assert images.mean() == pytest.approx(np.mean(made.mean), abs=0.05)
    assert images.std() == pytest.approx(np.mean(made.std), abs=0.08)
    assert len(np.unique(images.reshape(200, -1), axis=0)) == 200
    again = federation(unlabelled=200, unlabelled_from="generated")
    assert made.hash == again.hash


def test_generated_tables_have_the_right_spread(tmp_path):
    x = np.random.default_rng(0).normal((3.0, -5.0), (1.0, 10.0), (40, 2)).astype(np.float32)
    np.savez(tmp_path / "t.npz", x_train=x, y_train=np.arange(40) % 2, x_test=x[:2], y_test=np.arange(2))
    keys = {"data": str(tmp_path / "t.npz"), "clients": 2, "server.unlabelled": 4000}
    made = federation_of(resolve(keys | {"server.unlabelled_from": "generated"}))[0]
    rows = made.images[made.server["unlabelled"].rows]
    assert rows.dtype == np.float32
    assert rows.mean(0) == pytest.approx(made.mean, abs=0.8)
    assert rows.std(0) == pytest.approx(made.std, rel=0.1)


def test_a_fraction_is_one_of_the_training_set():
    whole = federation()
    total = sum(map(len, whole.rows))
    made = federation(unlabelled=0.1, unlabelled_from="generated")
    assert len(made.server["unlabelled"].rows) == round(0.1 * total)
    assert sum(map(len, made.rows)) == total, "nothing is taken from the clients"


def test_scaling_is_bilinear_and_colours_are_averaged():
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (2, 6, 6, 3), dtype=np.uint8)
    grey = reshape(images, (6, 6, 1))
    assert grey[..., 0] == pytest.approx(images.mean(axis=3), abs=0.51)
    assert (reshape(grey, (6, 6, 3)) == grey).all(), "repeated"
    scaled = reshape(images, (12, 3, 3))
    expected = np.asarray(Image.fromarray(images[1]).resize((3, 12), Image.Resampling.BILINEAR))
    assert (scaled[1] == expected).all()


def test_too_few_and_the_wrong_kind_are_refused(grey_file, tmp_path):
    with pytest.raises(DataError, match="has only 50 training samples") as few:
        federation(unlabelled=60, unlabelled_from=str(grey_file))
    assert few.value.code == "FS308"
    table = tmp_path / "table.csv"
    table.write_text("a,b,label\n" + "".join(f"{i},{i / 2},{i % 2}\n" for i in range(40)))
    with pytest.raises(DataError, match="Take data of the same kind") as unlike:
        federation(unlabelled=10, unlabelled_from=str(table))
    assert unlike.value.code == "FS309"
    with pytest.raises(DataError, match="no such file"):
        federation(unlabelled=10, unlabelled_from="nothing-here")


def test_the_clean_set_can_be_shared_without_its_labels():
    plain, shared = federation(clean=40), federation(clean=40, unlabelled_from="clean")
    assert (shared.server["unlabelled"].rows == plain.server["clean"].rows).all()
    assert shared.server["unlabelled"].labels is None
    assert shared.server["clean"].labels is not None
    assert all((a == b).all() for a, b in zip(plain.rows, shared.rows, strict=True)), "one split for all methods"


def verified(file, **keys):
    return federation_of(resolve(BASE | {"server.clean": str(file), **keys}))


@pytest.fixture
def few(tmp_path):
    """Ten images of the embedded kind whose labels are known by their names."""
    images = np.arange(10 * 28 * 28, dtype=np.uint8).reshape(10, 28, 28)
    path = tmp_path / "few.npz"
    np.savez(path, x_train=images, y_train=[1, 0] * 5, class_names=["bag", "coat"])
    return path


def test_verified_samples_come_from_a_file(few):
    plain = federation()
    joined, truth = verified(few)
    held = joined.server["clean"]
    assert [joined.class_names[label] for label in held.labels] == ["coat", "bag"] * 5
    assert np.array_equal(joined.images[held.rows][..., 0], np.load(few)["x_train"])
    assert truth.server_noise("clean", held.labels) == 0
    assert all(np.array_equal(a, b) for a, b in zip(plain.given, joined.given, strict=True)), "the clients' stay"
    assert (joined.mean, joined.std) == (plain.mean, plain.std)
    assert joined.hash != plain.hash
    shared, _ = verified(few, **{"server.unlabelled_from": "clean"})
    assert shared.server["unlabelled"].labels is None
    assert shared.server["unlabelled"].rows.tolist() == held.rows.tolist()


def test_verified_samples_in_folders_are_brought_to_the_clients_shape(tmp_path):
    for name in ("bag", "coat"):
        (tmp_path / "v" / name).mkdir(parents=True)
        for i in range(3):
            Image.new("RGB", (28, 28), (9 * i, 0, 0)).save(tmp_path / "v" / name / f"{i}.png")
    joined, _ = verified(tmp_path / "v")
    assert len(joined.server["clean"].rows) == 6
    Image.new("RGB", (20, 28)).save(tmp_path / "v" / "bag" / "0.png")
    with pytest.raises(DataError, match="FS309"):
        verified(tmp_path / "v")


def test_numbers_without_names_are_the_classes_own(tmp_path):
    images = np.zeros((4, 28, 28), np.uint8)
    np.savez(tmp_path / "n.npz", x_train=images, y_train=[3, 1, 0, 9])
    assert verified(tmp_path / "n.npz")[0].server["clean"].labels.tolist() == [3, 1, 0, 9]


@pytest.mark.parametrize(
    ("arrays", "keys", "code", "says"),
    [
        ({"class_names": ["bag", "cat"]}, {}, "FS303", "unknown class 'cat'"),
        ({"y_train": [0, 1, -1, 0]}, {}, "FS303", "row 2 has no label"),
        ({"x_train": np.zeros((4, 9, 9), np.uint8)}, {}, "FS309", "(9, 9, 1), the clients' are (28, 28, 1)"),
        ({}, {"server.clean_noise": 0.2}, "FS002", "stay right"),
    ],
)
def test_verified_samples_that_do_not_fit(tmp_path, arrays, keys, code, says):
    usual = {"x_train": np.zeros((4, 28, 28), np.uint8), "y_train": [0, 1, 1, 0], "class_names": ["bag", "coat"]}
    np.savez(tmp_path / "n.npz", **usual | arrays)
    with pytest.raises(FedSieveError, match=code) as problem:
        verified(tmp_path / "n.npz", **keys)
    assert says in problem.value.message


def test_verified_rows_of_a_table_have_its_columns(tmp_path):
    body = "".join(f"{i},{'fm'[i % 2]},{'ab'[i % 2]}\n" for i in range(40))
    (tmp_path / "t.csv").write_text(f"age,sex,label\n{body}")
    (tmp_path / "v.csv").write_text("age,sex,label\n50,f,a\n60,m,b\n")
    keys = {"data": str(tmp_path / "t.csv"), "data.categories": "sex", "clients": 2}
    joined, _ = federation_of(resolve(keys | {"server.clean": str(tmp_path / "v.csv")}))
    held = joined.server["clean"]
    assert joined.images[held.rows].tolist() == [[50, 1, 0], [60, 0, 1]]
    assert [joined.class_names[label] for label in held.labels] == ["a", "b"]
    (tmp_path / "v.csv").write_text("years,sex,label\n50,f,a\n60,m,b\n")
    with pytest.raises(DataError, match=r"its columns are not those of the clients' data.*\[FS309\]"):
        federation_of(resolve(keys | {"server.clean": str(tmp_path / "v.csv")}))


def titles(file, rows):
    """A table of texts; cells of texts have commas and quotes too."""
    with file.open("w", newline="", encoding="utf-8") as handle:
        csv.writer(handle).writerows([["title", "label"], *rows])
    return str(file)


def test_verified_texts_become_numbers_as_the_clients_do(tmp_path):
    own = [(f'story {i}, of "{word}"', word) for i in range(20) for word in ("war", "sport")]
    data = titles(tmp_path / "own.csv", own)
    clean = titles(tmp_path / "clean.csv", [("a war, again", "war"), own[1], ("who won?", "sport")])
    keys = {"data": data, "data.text": "title", "clients": 2, "partition": "iid", "model": "linear"}
    plain, _ = federation_of(resolve(keys))
    joined, truth = federation_of(resolve(keys | {"server.clean": clean}))
    held = joined.server["clean"]
    assert [joined.class_names[label] for label in held.labels] == ["war", "sport", "sport"]
    assert truth.server_noise("clean", held.labels) == 0
    assert joined.images.dtype == plain.images.dtype
    assert joined.texts == plain.texts, "a server's texts are shown to nobody"
    same = joined.images[held.rows[1]]
    row = list(plain.texts).index(own[1][0])
    assert np.array_equal(same, plain.images[row]), "the same text gives the same numbers in both files"
    assert [joined.places(k) for k in (0, 1)] == [plain.places(k) for k in (0, 1)]


def test_verified_texts_in_another_column_are_refused(tmp_path):
    data = titles(tmp_path / "own.csv", [(f"story {i}", "ab"[i % 2]) for i in range(20)])
    (tmp_path / "clean.csv").write_text("headline,label\nwar,a\n")
    keys = {"data": data, "data.text": "title", "clients": 2, "server.clean": str(tmp_path / "clean.csv")}
    with pytest.raises(DataError, match="title"):
        federation_of(resolve(keys | {"model": "linear"}))


def test_decisions_correct_the_clients_and_leave_verified_samples_alone(tmp_path):
    """Even where a verified sample has the name of one that was corrected."""
    data = titles(tmp_path / "own.csv", [(f"story {i}", "ab"[i % 2]) for i in range(20)])
    (tmp_path / "server").mkdir()
    clean = titles(tmp_path / "server" / "own.csv", [("story 0", "a"), ("story 1", "b")])
    keys = {"data": data, "data.text": "title", "data.test_fraction": 0, "clients": 1, "model": "linear"}
    keys |= {"server.clean": clean}
    decisions = decided(tmp_path / "d.jsonl", ("own.csv:2", "a", "other", "b"), ("own.csv:3", "b", "exclude", None))
    plain, _ = federation_of(resolve(keys))
    mended, truth = federation_of(resolve(keys | {"data.corrections": str(decisions)}))
    names = mended.class_names
    assert names[plain.given[0][0]] == "a"
    assert names[mended.given[0][0]] == "b"
    assert mended.places(0) == [place for place in plain.places(0) if place != "own.csv:3"]
    held = mended.server["clean"]
    assert [names[label] for label in held.labels] == ["a", "b"]
    assert truth.server_noise("clean", held.labels) == 0
    assert np.array_equal(mended.images[held.rows], plain.images[plain.server["clean"].rows])
