"""Folders, lists and tables of which some or all rows have no label: what is read, and what is refused."""

import numpy as np
import pytest
from PIL import Image

from fedsieve import run
from fedsieve.base.errors import DataError
from fedsieve.data.sources import DataOptions, load_source, names_clients
from fedsieve.data.sources.records import chosen_for_test
from fedsieve.settings.config import resolve
from fedsieve.settings.splitting import federation_of

CLASSES = ("cat", "dog")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSIEVE_DATA", str(tmp_path / "cache"))


@pytest.fixture
def photos(tmp_path):
    """Paints the images that are named, each of a value of its own, beside a test set of two classes."""

    def painted(*names, test=True):
        root = tmp_path / "photos"
        tests = [f"test/{name}/{i}.png" for name in CLASSES for i in range(2)] if test else []
        for value, name in enumerate([*names, *tests]):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (6, 6), value).save(root / name)
        return root

    return painted


def read(path, **options):
    return load_source(str(path), DataOptions(**options), labels=False)


def values(source):
    return source.images[:, 0, 0, 0].tolist()


def federated(path, **keys):
    return federation_of(resolve({"data": str(path), "client_labels": False, **keys}))


# Folders


def test_images_in_one_folder_have_no_label(photos):
    root = photos("a.png", "b.png", "c.png")
    source = read(root)
    assert source.labels.tolist() == [-1, -1, -1]
    assert source.true is None
    assert source.owners is None
    assert source.class_names == CLASSES
    assert source.test_labels.tolist() == [0, 0, 1, 1]
    federation, truth = federated(root, clients=3)
    assert [len(rows) for rows in federation.rows] == [1, 1, 1]
    assert truth.labels is None


def test_images_beside_the_folders_of_classes(photos):
    source = read(photos("cat/0.png", "dog/0.png", "a.png", "b.png"))
    assert values(source) == [2, 3, 0, 1]
    assert source.labels.tolist() == [-1, -1, 0, 1]


def test_images_of_clients_beside_their_folders_of_classes(photos):
    root = photos("north/cat/0.png", "north/0.png", "south/0.png", "south/dog/0.png")
    source = read(root)
    assert source.owner_names == ("north", "south")
    assert dict(zip(values(source), source.owners.tolist(), strict=True)) == {0: 0, 1: 0, 2: 1, 3: 1}
    assert dict(zip(values(source), source.labels.tolist(), strict=True)) == {0: 0, 1: -1, 2: -1, 3: 1}
    assert names_clients(str(root), DataOptions(), labels=False)


@pytest.mark.parametrize("known", ["test", "classes.txt"])
def test_folders_that_are_called_like_no_class_are_clients(photos, known):
    """The test set or the list of classes says which names are those of classes."""
    root = photos("north/0.png", "north/1.png", "south/0.png", test=known == "test")
    if known == "classes.txt":
        (root / known).write_text("cat\ndog\n")
    source = read(root, test_fraction=0.2)
    assert source.owner_names == ("north", "south")
    assert source.labels.tolist() == [-1, -1, -1]
    assert names_clients(str(root), DataOptions(), labels=False)
    assert not names_clients(str(root), DataOptions())
    if known == "test":
        federation, _ = federated(root)
        assert federation.client_names == ("north", "south")
        assert [len(rows) for rows in federation.rows] == [2, 1]


def test_otherwise_folders_are_classes(photos):
    root = photos("cat/0.png", "cat/1.png", "dog/0.png")
    assert read(root).labels.tolist() == [0, 0, 1]
    assert not names_clients(str(root), DataOptions(), labels=False)
    alone = photos("rest/cat/0.png", "rest/dog/0.png", test=False) / "rest"
    assert read(alone, test_fraction=0).labels.tolist() == [0, 1]


def test_a_lone_folder_called_train_is_no_client(photos):
    root = photos("train/0.png", "train/1.png", "train/2.png")
    source = read(root)
    assert source.owners is None
    assert source.labels.tolist() == [-1, -1, -1]
    assert not names_clients(str(root), DataOptions(), labels=False)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("a.png", "north/cat/0.png"), "a.png does not stand where it should. All images go by CLIENT/CLASS/image or"),
        (("a.png", "north/cat/x/0.png"), r"north/cat/x/0.png does not stand .* CLASS/image or image"),
        (("a.png", "test/0.png"), r"test/0.png does not stand where it should. All images go by test/CLASS/image"),
    ],
)
def test_images_that_stand_elsewhere(photos, names, said):
    with pytest.raises(DataError, match=said) as problem:
        read(photos(*names))
    assert problem.value.code == "FS302"


def test_a_folder_that_is_called_like_no_class_beside_others(photos):
    root = photos("cat/0.png", "dig/0.png", "a.png")
    (root / "classes.txt").write_text("cat\ndog\n")
    with pytest.raises(DataError, match=r"file dig/0.png has the unknown label 'dig'. Did you mean 'dog'") as problem:
        read(root)
    assert problem.value.code == "FS303"


# CSV files


def test_a_list_of_images_without_labels(photos):
    root = photos("a.png", "b.png", "c.png", test=False)
    rows = ["file,client", "a.png,north", "b.png,south", "c.png,south"]
    (root / "manifest.csv").write_text("\n".join(rows))
    source = read(root)
    assert source.labels.tolist() == [-1, -1, -1]
    assert source.owner_names == ("north", "south")
    assert "no row has a label: no column is called label" in source.notes
    with pytest.raises(DataError, match="has no labelled samples to test on") as problem:
        federated(root)
    assert problem.value.code == "FS307"


def test_cells_without_a_label(photos):
    root = photos("a.png", "b.png", "c.png", "d.png", test=False)
    rows = ["file,label,split", "a.png,dog,", "b.png,,train", "c.png,nan,train", "d.png,cat,test"]
    (root / "manifest.csv").write_text("\n".join(rows))
    source = read(root)
    assert source.class_names == CLASSES
    assert source.labels.tolist() == [1, -1, -1]
    assert source.test_labels.tolist() == [0]
    assert source.true is None


def table(path, labelled, rows=120, **columns):
    """Three classes, told apart by their first number."""
    names = ["a", "b", *columns]
    lines = [",".join([*names, "label"] if labelled else names)]
    rng = np.random.default_rng(0)
    for row in range(rows):
        cells = [*rng.normal(row % 3, 0.2, 2).round(3), *(column[row] for column in columns.values())]
        lines.append(",".join(map(str, [*cells, *([f"k{row % 3}" if row < labelled else ""] if labelled else [])])))
    path.write_text("\n".join(lines))
    return path


def test_a_table_without_a_column_of_labels(tmp_path):
    source = read(table(tmp_path / "t.csv", labelled=0))
    assert source.images.shape == (120, 2)
    assert (source.labels == -1).all()
    assert source.class_names == ()


def test_test_rows_are_taken_from_labelled_ones(tmp_path):
    """A fifth of the 60 rows that have a label."""
    source = read(table(tmp_path / "t.csv", labelled=60))
    assert source.rows.shape == (108,)
    assert np.bincount(source.test_labels).tolist() == [4, 4, 4]
    assert set(np.setdiff1d(np.arange(120), source.rows)) <= set(range(60))


def test_no_group_is_split_for_its_rows_without_a_label():
    labels = np.array([0, 0, 0, -1, 1, 1])
    groups = np.array([0, 0, 1, 1, 2, 2])
    for seed in range(20):
        chosen = chosen_for_test(labels, None, groups, 0.5, np.random.default_rng(seed))
        assert chosen.sum() == 2
        assert not chosen[[2, 3]].any()


@pytest.mark.parametrize(
    ("rows", "options", "labels", "code", "said"),
    [
        (["a,label", "1,x", "2,", "3,y"], {}, True, "FS303", "line 3 has no label"),
        (["a,b", "1,2", "3,4"], {}, True, "FS302", "has no column 'label'"),
        (["a,b", "1,2", "3,4"], {"label": "kind"}, False, "FS302", "has no column 'kind'"),
        (["a,label,split", "1,x,", "2,y,", "3,,test"], {}, False, "FS303", "line 4 has no label"),
        (["a,label", "1,x", "2,", "3,x"], {}, False, "FS306", "all labels are x"),
    ],
)
def test_labels_that_are_needed(tmp_path, rows, options, labels, code, said):
    path = tmp_path / "t.csv"
    path.write_text("\n".join(rows))
    with pytest.raises(DataError, match=said) as problem:
        load_source(str(path), DataOptions(**options), labels=labels)
    assert problem.value.code == code


def test_texts_without_labels(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("title,label\n" + "".join(f"word {row},{'ab'[row % 2] if row < 6 else ''}\n" for row in range(12)))
    source = read(path, text="title", test_fraction=0)
    assert source.labels.tolist() == [0, 1] * 3 + [-1] * 6


def test_a_verified_row_without_a_label_is_named_by_its_line(tmp_path):
    data, verified = table(tmp_path / "t.csv", labelled=120), tmp_path / "v.csv"
    verified.write_text("a,b,label\n0,0,k0\n1,1,\n" + "2,2,k2\n" * 10)
    with pytest.raises(DataError, match=r"v.csv:3 has no label. Verified samples have one each") as problem:
        federation_of(resolve({"data": str(data), "clients": 2, "server.clean": str(verified)}))
    assert problem.value.code == "FS303"


def test_a_run_on_a_table_of_few_labels(tmp_path):
    """The server learns from rows that have a label, clients from the others."""
    options = {"fixmatch.pretrain": 20, "fixmatch.threshold": 0.5, "fixmatch.weak": "none", "fixmatch.strong": "none"}
    keys = {"clients": 3, "rounds": 2, "epochs": 1, "model": "mlp", "client_labels": False, "runtime": "serial"}
    server = {"server.noisy": 60, "server.noisy_rate": 0.0, "fixmatch.view": "none", "augment": "none"}
    path = table(tmp_path / "t.csv", labelled=90, rows=300)
    summary = run(method="fixmatch", data=str(path), out=str(tmp_path / "run"), **keys, **options, **server)
    assert summary["test_accuracy"] > 0.6
