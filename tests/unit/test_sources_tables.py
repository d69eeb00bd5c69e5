"""Tables of numbers, in CSV and .npz files."""

import errno
from pathlib import Path

import numpy as np
import pytest

from fedsieve.base.errors import ConfigError, DataError
from fedsieve.data import sources
from fedsieve.data.sources import DataOptions, load_source, names_clients
from fedsieve.data.sources.csv_rows import read_columns, read_header
from fedsieve.settings.config import resolve
from fedsieve.settings.splitting import federation_of

TABLE = """client,split,age,pressure,label
clinic 2,train,50,1.5,sick
clinic 1,train,40,1.25,well
,test,30,0.5,well
clinic 1,train,20,-1e-3,sick
"""


def refused(path, code, says, **options):
    with pytest.raises(DataError) as caught:
        load_source(str(path), DataOptions(**options))
    assert caught.value.code == code, caught.value
    for part in says:
        assert part in caught.value.message


def test_csv_of_numbers(tmp_path):
    file = tmp_path / "blood.csv"
    file.write_text(TABLE)
    source = load_source(str(file))
    assert source.images.dtype == np.float32
    assert source.images.tolist() == np.float32([[50, 1.5], [40, 1.25], [20, -1e-3]]).tolist()
    assert source.test_images.tolist() == [[30, 0.5]]
    assert source.class_names == ("sick", "well")
    assert source.labels.tolist() == [0, 1, 0]
    assert source.owner_names == ("clinic 1", "clinic 2")
    federation, truth = federation_of(resolve({"data": str(file)}))
    assert [given.tolist() for given in federation.given] == [[1, 0], [0]]
    assert federation.sample_shape == (2,)
    assert federation.mean == (round(110 / 3, 4), round((1.5 + 1.25 - 1e-3) / 3, 4))
    assert truth.labels is None


def test_other_names_of_columns(tmp_path):
    file = tmp_path / "t.csv"
    file.write_text(TABLE.replace("client,", "site,", 1).replace("label", "verdict"))
    options = {"data.label": "verdict", "data.client": "site"}
    federation, _ = federation_of(resolve({"data": str(file), **options}))
    assert federation.client_names == ("clinic 1", "clinic 2")
    refused(file, "FS302", ["no column 'label'", "data.label"], client="site")
    refused(file, "FS302", ["no column 'ward'", "data.client"], label="verdict", client="ward")


@pytest.mark.parametrize(
    ("old", "new", "code", "says"),
    [
        ("1.25", "high", "FS302", ["client clinic 1, line 3", "column 'pressure'", "'high'"]),
        ("1.25", "", "FS304", ["client clinic 1, line 3", "column 'pressure' is empty"]),
        ("1.25", "nan", "FS304", ["client clinic 1, line 3", "column 'pressure'"]),
        ("1.25", "inf", "FS304", ["client clinic 1, line 3", "column 'pressure'"]),
        ("1.25", "1e39", "FS304", ["line 3"]),
    ],
)
def test_cells_that_are_no_numbers(tmp_path, old, new, code, says):
    file = tmp_path / "t.csv"
    file.write_text(TABLE.replace(old, new))
    refused(file, code, says)


def test_a_table_without_features(tmp_path):
    file = tmp_path / "t.csv"
    file.write_text("client,label\na,x\na,y\n")
    refused(file, "FS302", ["neither a column 'file' nor columns of numbers"])


def arrays(**more):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (8, 5, 5), np.uint8)
    made = {"x_train": x[:6], "y_train": np.arange(6) % 3, "x_test": x[6:], "y_test": np.array([0, 2])}
    return made | more


def saved(path, **content):
    np.savez(path, **content)
    return path


def test_arrays_are_taken_as_right(tmp_path):
    source = load_source(str(saved(tmp_path / "a.npz", **arrays())))
    assert source.trusted
    assert source.images.shape == (6, 5, 5, 1)
    assert source.class_names == ("0", "1", "2")


def test_arrays_with_clients_and_truth(tmp_path):
    clients = np.array(["b", "a", "a", "b", "b", "a"])
    file = saved(tmp_path / "a.npz", **arrays(client=clients))
    federation, truth = federation_of(resolve({"data": str(file)}))
    assert federation.client_names == ("a", "b")
    assert [rows.tolist() for rows in federation.rows] == [[1, 2, 5], [0, 3, 4]]
    assert truth.labels is None
    file = saved(tmp_path / "b.npz", **arrays(client=clients, y_true=np.array([1, 1, 2, 0, 1, 2])))
    _, truth = federation_of(resolve({"data": str(file)}))
    assert [t.tolist() for t in truth.labels] == [[1, 2, 2], [1, 0, 1]]


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        ({"y_train": np.array([0, 1, 2, -1, 0, 1])}, "FS303", ["y_train row 3 is -1"]),
        ({"class_names": np.array(["a", "b"])}, "FS303", ["y_train row 2 is 2", "0 to 1"]),
        ({"y_train": np.array([0.0, 1.5, 0, 0, 0, 0])}, "FS304", ["row 1 is 1.5"]),
        ({"y_train": np.arange(5)}, "FS309", ["6 and 5 rows"]),
        ({"y_train": np.zeros(6, int), "y_test": np.zeros(2, int)}, "FS306", ["all labels are 0"]),
        ({"x_test": np.zeros((2, 4, 5), np.uint8)}, "FS309", ["one shape"]),
        ({"x_train": np.zeros((6, 5, 5))}, "FS302", ["float64"]),
        ({"client": np.array(["a"])}, "FS309", ["client and y_train"]),
        ({"y_train": np.zeros((6, 2), int)}, "FS309", ["y_train has the shape (6, 2)", "one label a row"]),
        ({"y_train": np.array(list("abcabc"))}, "FS302", ["y_train holds <U1"]),
    ],
)
def test_arrays_that_do_not_fit(tmp_path, change, code, says):
    refused(saved(tmp_path / "a.npz", **(arrays() | change)), code, says)


def test_tables_with_nan_name_the_row(tmp_path):
    x = np.zeros((6, 4))
    x[4, 2] = np.nan
    refused(saved(tmp_path / "a.npz", **arrays(x_train=x, x_test=np.zeros((2, 4)))), "FS304", ["x_train row 4"])


def test_files_that_are_no_arrays(tmp_path):
    (tmp_path / "a.npz").write_text("hello")
    refused(tmp_path / "a.npz", "FS302", ["not a readable .npz"])
    np.save(tmp_path / "b.npy", np.zeros(3))
    (tmp_path / "b.npy").rename(tmp_path / "b.npz")
    refused(tmp_path / "b.npz", "FS302", ["not a readable .npz"])
    saved(tmp_path / "c.npz", x_train=np.zeros(3))
    refused(tmp_path / "c.npz", "FS302", ["lacks y_train, x_test, y_test"])


@pytest.mark.parametrize("name", ["\0", "x" * 300])
def test_paths_that_no_file_can_have(tmp_path, name):
    refused(tmp_path / f"{name}.npz", "FS302", ["cannot be read"])


def test_a_table_in_another_encoding(tmp_path):
    (tmp_path / "t.csv").write_bytes("größe,label\n1,a\n".encode("latin-1"))
    refused(tmp_path / "t.csv", "FS302", ["cannot be read as CSV", "UTF-8"])


@pytest.mark.parametrize(("name", "content"), [("t.csv", b"gr\xf6\xdfe,client\n"), ("t.npz", b"hello")])
def test_whether_broken_data_name_clients_is_left_to_who_reads_them(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    assert not names_clients(str(tmp_path / name), DataOptions())


def test_the_embedded_data_are_those_that_were_delivered(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "EMBEDDED", saved(tmp_path / "e.npz", **arrays()))
    refused("embedded", "FS310", ["e.npz", "the embedded data are damaged", "Reinstall"])


def test_a_disk_that_fails_is_no_crash(tmp_path, monkeypatch):
    def lost(path, *_, **__):
        raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr(sources, "read_npz", lost)
    refused(tmp_path / "a.npz", "FS302", [f"cannot be read (Input/output error: {tmp_path / 'a.npz'})"])


def test_a_client_whose_rows_all_went_elsewhere(tmp_path):
    file = saved(tmp_path / "a.npz", **arrays(client=np.array(["a", "b", "a", "a", "a", "a"])))
    with pytest.raises(DataError, match=r"client [ab] has no rows left for training\. Lower server") as caught:
        federation_of(resolve({"data": str(file), "server.unlabelled": 5}))
    assert caught.value.code == "FS307"


def test_medmnist(tmp_path):
    made = arrays()
    content = {
        "train_images": made["x_train"],
        "train_labels": made["y_train"][:, None].astype(np.uint8),
        "val_images": made["x_test"],
        "val_labels": made["y_test"][:, None],
        "test_images": made["x_test"],
        "test_labels": made["y_test"][:, None],
    }
    source = load_source(str(saved(tmp_path / "bloodmnist.npz", **content)))
    assert np.array_equal(source.images[..., 0], made["x_train"])
    assert source.labels.tolist() == made["y_train"].tolist()
    assert source.test_labels.tolist() == [0, 2]
    assert any("2 images that MedMNIST keeps for validation" in note for note in source.notes)
    several = content | {"train_labels": np.zeros((6, 14), int)}
    refused(saved(tmp_path / "chestmnist.npz", **several), "FS309", ["14 labels a row"])
    del content["test_labels"]
    refused(saved(tmp_path / "half.npz", **content), "FS302", ["lacks test_labels", "as MedMNIST publishes it"])


def test_arrays_without_a_test_set(tmp_path):
    """All rows are trained on, where that is what was asked for."""
    given = {key: value for key, value in arrays().items() if key not in ("x_test", "y_test")}
    file = saved(tmp_path / "mine.npz", **given)
    refused(file, "FS302", ["lacks x_test, y_test"])
    settings = {"data": str(file), "clients": 2}
    federation, truth = federation_of(resolve(settings | {"data.test_fraction": 0}))
    assert sum(map(len, federation.rows)) == len(given["y_train"])
    assert len(truth.test) == len(federation.test_images) == 0
    assert "nothing is tested" in federation.notes[0]
    refused(saved(tmp_path / "half.npz", **given, x_test=given["x_train"]), "FS302", ["lacks y_test"], test_fraction=0)
    with pytest.raises(ConfigError, match=r"data\.test_fraction has no effect"):
        load_source(str(file), DataOptions(test_fraction=0.3))


def test_tables_without_a_test_set(tmp_path):
    file = tmp_path / "blood.csv"
    file.write_text(TABLE.replace(",split,", ",group,").replace(",test,", "clinic 1,test,"))
    refused(file, "FS305", ["test on nothing with data.test_fraction=0"])
    source = load_source(str(file), DataOptions(test_fraction=0))
    assert len(source.images) == 4
    assert source.rows is None
    assert source.test_images.shape == (0, 2)
    assert source.notes == ("no rows are kept for testing (data.test_fraction=0): nothing is tested",)


def test_channels_that_stand_first_are_refused(tmp_path):
    turned = np.zeros((4, 3, 8, 8), np.uint8)
    small = {"y_train": np.arange(4) % 2, "x_test": np.zeros((2, 8, 8, 3), np.uint8), "y_test": np.arange(2)}
    np.savez(tmp_path / "turned.npz", x_train=turned, **small)
    refused(tmp_path / "turned.npz", "FS309", ["x_train", "(4, 3, 8, 8)", "transpose(0, 2, 3, 1)"])
    np.savez(tmp_path / "right.npz", x_train=turned.transpose(0, 2, 3, 1), **small)
    assert load_source(str(tmp_path / "right.npz")).images.shape == (4, 8, 8, 3)


@pytest.mark.parametrize("nothing", ["nan", "NaN", "<NA>"])
def test_what_programs_write_for_nothing_is_no_client_and_no_class(tmp_path, nothing):
    file = tmp_path / "t.csv"
    file.write_text(TABLE.replace("clinic 2", nothing))
    refused(file, "FS307", ["line 2", f"names no client ({nothing})"])
    file.write_text(TABLE.replace("sick", nothing, 1))
    refused(file, "FS303", ["line 2", f"has no label ({nothing})"])


def test_an_array_of_clients_with_nan(tmp_path):
    arrays = {"x_train": np.ones((4, 2)), "y_train": [0, 1, 0, 1], "x_test": np.zeros((2, 2)), "y_test": [0, 1]}
    np.savez(tmp_path / "a.npz", **arrays, client=[1.0, 2.0, np.nan, 1.0])
    refused(tmp_path / "a.npz", "FS307", ["client row 2 is 'nan', which names none"])


def test_classes_and_clients_of_nearly_one_name_are_noted(tmp_path):
    file = tmp_path / "t.csv"
    file.write_text(TABLE.replace("1.25,well", "1.25,Well").replace("clinic 2", "Clinic  1"))
    notes = load_source(str(file)).notes
    assert (
        "classes whose names differ in capitals or blanks alone: 'Well' and 'well'. If they are one, name them alike"
        in notes
    )
    assert any("clients whose names differ" in note and "'Clinic  1' and 'clinic 1'" in note for note in notes)
    file.write_text(TABLE)
    assert not any("differ in capitals" in note for note in load_source(str(file)).notes)


def test_two_classes_of_one_name_are_refused(tmp_path):
    arrays = {"x_train": np.ones((4, 2)), "y_train": [0, 1, 0, 1], "x_test": np.zeros((2, 2)), "y_test": [0, 1]}
    np.savez(tmp_path / "a.npz", **arrays, class_names=["cat", "cat"])
    refused(tmp_path / "a.npz", "FS313", ["class_names", "two classes are called 'cat'"])
    np.savez(tmp_path / "a.npz", **arrays, class_names=["cat", "cat "])
    assert any("'cat' and 'cat '" in note for note in load_source(str(tmp_path / "a.npz")).notes)


PEOPLE = """client,split,age,sex,bmi,label
n,train,50,f,21.5,sick
n,train,40,m,,well
s,train,,f,30,sick
s,test,20,m,25,well
"""


def people(tmp_path, old="", new="", **options):
    (tmp_path / "people.csv").write_text(PEOPLE.replace(old, new) if old else PEOPLE)
    return load_source(str(tmp_path / "people.csv"), DataOptions(**options))


def test_gaps_and_categories_are_refused_until_somebody_chooses(tmp_path):
    with pytest.raises(DataError, match=r"line 4: column 'age' is empty.*data\.missing.*\[FS304\]"):
        people(tmp_path)
    with pytest.raises(DataError, match=r"line 2: column 'sex' holds 'f'.*data\.categories.*\[FS302\]"):
        people(tmp_path, missing="zero")


@pytest.mark.parametrize("categories", ["auto", "sex"])
def test_categories_become_columns_and_gaps_the_mean_of_training_rows(tmp_path, categories):
    source = people(tmp_path, missing="mean", categories=categories)
    assert source.images.tolist() == [[50, 1, 0, 21.5], [40, 0, 1, 25.75], [45, 1, 0, 30]]
    assert source.test_images.tolist() == [[20, 0, 1, 25]]
    assert source.reading == {
        "columns": ["age", "sex", "bmi"],
        "missing": "mean",
        "categories": {"sex": ("f", "m")},
        "fill": {"age": 45.0, "bmi": 25.75},
    }
    assert any("sex (2)" in note for note in source.notes)


def test_rows_with_gaps_may_be_dropped(tmp_path):
    source = people(tmp_path, missing="drop", categories="sex")
    assert source.images.tolist() == [[50, 1, 0, 21.5]]
    assert any("2 rows with a gap are dropped" in note for note in source.notes)
    with pytest.raises(DataError, match=r"every row for training has a gap.*\[FS307\]"):
        people(tmp_path, "50,f", ",f", missing="drop", categories="sex")


def test_a_gap_in_a_column_of_categories_is_no_category(tmp_path):
    source = people(tmp_path, ",f,", ",NA,", missing="zero", categories="auto")
    assert source.images.tolist() == [[50, 0, 21.5], [40, 1, 0], [0, 0, 30]]


@pytest.mark.parametrize("date", ["2024-05-01", "2024-05-01 10:30", "1.5.2024", "05/01/24", "2024/5/1"])
def test_dates_are_refused_with_a_reason(tmp_path, date):
    with pytest.raises(DataError, match=rf"column 'sex' holds the date '{date}'.*age in days.*\[FS302\]"):
        people(tmp_path, ",f,", f",{date},", missing="zero", categories="auto")


def test_columns_of_categories_that_are_none(tmp_path):
    with pytest.raises(DataError, match=r"has no column 'sexx' \(data\.categories\)\. Did you mean 'sex'.*\[FS302\]"):
        people(tmp_path, categories="sexx")
    lines = "".join(f"{i},word{i},{'ab'[i % 2]}\n" for i in range(60))
    (tmp_path / "words.csv").write_text(f"n,word,label\n{lines}")
    refused(tmp_path / "words.csv", "FS302", ["column 'word' holds 'word0'", "at most 50"], categories="auto")
    assert load_source(str(tmp_path / "words.csv"), DataOptions(categories="word")).images.shape == (60, 61)


def test_semicolons_and_tabs_are_recognised(tmp_path):
    plain = load_source(str(written(tmp_path / "a.csv", TABLE)))
    for text in (TABLE.replace(",", ";").replace(".", ","), TABLE.replace(",", "\t")):
        found = load_source(str(written(tmp_path / "b.csv", text)))
        assert found.images.tolist() == plain.images.tolist()
        assert found.class_names == plain.class_names
        assert names_clients(str(tmp_path / "b.csv"), DataOptions(size=len(text)))
    quoted = load_source(str(written(tmp_path / "c.csv", '"a;b;c",label\n1,x\n2,y\n3,x\n4,y\n5,x\n')))
    assert quoted.images.shape[1] == 1


def written(path, text):
    path.write_text(text)
    return path


def test_a_column_of_too_many_categories_is_refused(tmp_path):
    rows = "".join(f"n,train,1,{i}x,2,{'sick' if i % 2 else 'well'}\n" for i in range(1001))
    with pytest.raises(DataError, match=r"column 'sex' has 1,001 categories, more than 1,000.*\[FS320\]"):
        people(tmp_path, PEOPLE.split("\n", 1)[1], rows, categories="sex")


def test_a_table_that_is_a_folder(tmp_path):
    (tmp_path / "t.csv").mkdir()
    for read in (read_columns, read_header):
        with pytest.raises(DataError, match=r"t\.csv"):
            read(tmp_path / "t.csv")


@pytest.mark.parametrize("read", [read_header, read_columns])
def test_a_table_that_cannot_be_opened_is_named(tmp_path, monkeypatch, read):
    (file := tmp_path / "t.csv").write_text("a,label\n1,x\n")

    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(DataError, match=r"t\.csv.*Permission denied"):
        read(file)
