"""`data.corrections=decisions.jsonl`: what people decided is what a run trains on."""

import numpy as np
import pytest
from deciding import decided
from judged_runs import coloured_run

import fedsieve
from fedsieve.base.errors import DataError

TINY = {"clients": 3, "noise": "symmetric", "noise.rate": 0.4, "partition": "iid"}


def both(file, **settings):
    plain, truth = fedsieve.federation(**settings)
    mended, known = fedsieve.federation(**settings, **{"data.corrections": str(file)})
    return plain, truth, mended, known


def test_corrected_rows_carry_the_new_label_and_excluded_ones_are_gone(tmp_path, tiny_file):
    settings = TINY | {"data": str(tiny_file)}
    plain, truth = fedsieve.federation(**settings)
    names, where = plain.class_names, plain.places(1)
    labels = [names[label] for label in plain.given[1]]
    other = names[(plain.given[1][0] + 1) % 4]
    file = decided(
        tmp_path / "decisions.jsonl",
        (where[0], labels[0], "other", other),
        (where[1], labels[1], "keep", labels[1]),
        (where[2], labels[2], "exclude", None),
        (where[3], labels[3], "unsure", None),
    )
    plain, truth, mended, known = both(file, **settings)
    assert mended.places(1) == [place for i, place in enumerate(where) if i != 2]
    expected = np.delete(plain.given[1], 2)
    expected[0] = names.index(other)
    assert mended.given[1].tolist() == expected.tolist()
    assert known.labels[1].tolist() == np.delete(truth.labels[1], 2).tolist()
    for client in (0, 2):
        assert (mended.given[client] == plain.given[client]).all()
        assert (mended.rows[client] == plain.rows[client]).all()
    assert mended.hash != plain.hash
    assert mended.notes[-1].endswith("1 labels corrected, 1 rows left out")


def test_the_split_stays_as_it_was_when_it_was_reviewed(tmp_path, tiny_file):
    """Dirichlet goes by labels: corrections come after it, so that nobody's rows move to another client."""
    settings = TINY | {"data": str(tiny_file), "partition": "dirichlet"}
    plain, _ = fedsieve.federation(**settings)
    client = max(range(3), key=lambda k: len(plain.rows[k]))
    where, label = plain.places(client)[0], int(plain.given[client][0])
    new = plain.class_names[(label + 1) % 4]
    file = decided(tmp_path / "decisions.jsonl", (where, plain.class_names[label], "take", new))
    *_, mended, _ = both(file, **settings)
    assert [rows.tolist() for rows in mended.rows] == [rows.tolist() for rows in plain.rows]


def test_decisions_that_are_applied_already_change_nothing_more(tmp_path):
    """The corrected data, with the decisions that corrected them."""
    _, data, federation = coloured_run(tmp_path)
    where = next(place for place in federation.places(0) if "/green/" in place and place.endswith("red.png"))
    file = decided(tmp_path / "decisions.jsonl", (where, "green", "take", "red"))
    moved = data / where.replace("/green/", "/red/")
    (data / where).rename(moved)
    with pytest.raises(DataError, match="FS331"):  # the file has another name now
        fedsieve.federation(data=str(data), **{"data.corrections": str(file)})


def test_test_rows_of_the_owners_are_corrected_too(tmp_path):
    """Rows that were kept for testing have been looked at as well, where an audit judged all of them."""
    _, data, _ = coloured_run(tmp_path)
    settings = {"data": str(data)}
    plain, truth = fedsieve.federation(**settings)
    held = sorted({p.relative_to(data).as_posix() for p in data.rglob("*.png")} - {*plain.places(0), *plain.places(1)})
    wrong = [where for where in held if where.split("/")[1] not in where.split("/")[2]]
    assert wrong
    entries = [(place, place.split("/")[1], "take", place.split("-")[1][:-4]) for place in wrong]
    right = next(place for place in held if place not in wrong)
    file = decided(tmp_path / "decisions.jsonl", *entries, (right, right.split("/")[1], "exclude", None))
    plain, truth, mended, known = both(file, **settings)
    assert len(known.test) == len(mended.test_images) == len(truth.test) - 1
    assert (np.delete(truth.test, np.flatnonzero(_changed(plain, mended))) != known.test).sum() == len(wrong)


def _changed(plain, mended):
    """Which test image is gone."""
    kept = {image.tobytes() for image in mended.test_images}
    return [image.tobytes() not in kept for image in plain.test_images]


def test_data_without_labels_lose_excluded_rows_only(tmp_path, tiny_file):
    settings = {"data": str(tiny_file), "clients": 2, "client_labels": False}
    plain, _ = fedsieve.federation(**settings)
    where = plain.places(0)[:2]
    file = decided(tmp_path / "d.jsonl", (where[0], "0", "take", "1"), (where[1], "0", "exclude", None))
    *_, mended, _ = both(file, **settings)
    assert len(mended.given[0]) == len(plain.given[0]) - 1
    assert (mended.given[0] == -1).all()


@pytest.mark.parametrize(
    ("entry", "code", "words"),
    [
        (("tiny[99999]", "0", "take", "1"), "FS331", r"line 1, tiny\[99999\]: is not in the data"),
        (("../../etc/passwd", "0", "take", "1"), "FS331", "line 1, ../../etc/passwd: is not in the data"),
        (("tiny[0]", "0", "take", "zebra"), "FS332", r"line 1, tiny\[0\]: the data have no class 'zebra'"),
        (("tiny[0]", "quagga", "take", "2"), "FS331", "was labelled 'quagga'"),
    ],
)
def test_wrong_decisions_are_named(tmp_path, tiny_file, entry, code, words):
    file = decided(tmp_path / "d.jsonl", entry)
    with pytest.raises(DataError, match=words) as caught:
        fedsieve.federation(data=str(tiny_file), clients=2, **{"data.corrections": str(file)})
    assert caught.value.code == code


def test_other_noise_is_other_data(tmp_path, tiny_file):
    plain, _ = fedsieve.federation(data=str(tiny_file), clients=2)
    where, label = plain.places(0)[0], int(plain.given[0][0])
    before, after = (str((label + step) % 4) for step in (1, 2))
    file = decided(tmp_path / "d.jsonl", (where, before, "take", after))
    with pytest.raises(DataError, match=f"was labelled '{before}'.* and is '{label}'") as caught:
        fedsieve.federation(data=str(tiny_file), clients=2, **{"data.corrections": str(file)})
    assert caught.value.code == "FS331"


def test_a_run_takes_them_and_says_so(tmp_path, tiny_file):
    keys = {"data": str(tiny_file), "clients": 2, "rounds": 1, "epochs": 1, "runtime": "serial", "model": "mlp"}
    plain, _ = fedsieve.federation(**keys)
    file = decided(tmp_path / "d.jsonl", (plain.places(0)[0], str(plain.given[0][0]), "exclude", None))
    result = fedsieve.run(**keys, **{"data.corrections": str(file)}, out=str(tmp_path / "run"), quiet=True)
    assert result["config"]["data.corrections"] == str(file)
    assert result["federation"] != plain.hash


def test_a_test_set_of_its_own_stays_as_it_is(tmp_path):
    """Nobody knows the truth of named clients' labels; only rows that were theirs can have been decided on."""
    x, y = np.arange(60, dtype=np.float32).reshape(30, 2), np.arange(30) % 2
    known = {"x_train": x[:20], "y_train": y[:20], "x_test": x[20:], "y_test": y[20:]}
    np.savez(tmp_path / "mine.npz", **known, client=["north"] * 20, class_names=["a", "b"])
    plain, _ = fedsieve.federation(data=tmp_path / "mine.npz")
    file = decided(tmp_path / "decisions.jsonl", (plain.places(0)[0], "a", "take", "b"))
    plain, truth, mended, after = both(file, data=str(tmp_path / "mine.npz"))
    assert mended.given[0].tolist() == [1, *plain.given[0][1:]]
    assert after.test.tolist() == truth.test.tolist()
    assert (mended.test_images == plain.test_images).all()
