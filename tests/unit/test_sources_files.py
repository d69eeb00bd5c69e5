"""Images in folders and in CSV lists: what is read, and that every mistake is named with client, file and line."""

import numpy as np
import pytest
from PIL import Image

from fedsieve.base.errors import ConfigError, DataError
from fedsieve.data.sources import DataOptions, load_source, names_clients
from fedsieve.data.sources.pictures import open_row
from fedsieve.settings.config import resolve
from fedsieve.settings.splitting import federation_of


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSIEVE_DATA", str(tmp_path / "cache"))


def paint(path, value, size=(6, 6), mode="L"):
    """One image of a single value, which is then its identity."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value).save(path)


@pytest.fixture
def photos(tmp_path):
    """Two clients with two classes each, and a test set; the value of a pixel is 10 client + class, times 10."""
    root = tmp_path / "photos"
    for c, client in enumerate(["north", "south"]):
        for k, name in enumerate(["cat", "dog"]):
            for i in range(3):
                paint(root / client / name / f"{i}.png", 100 * c + 10 * k + i)
    for k, name in enumerate(["cat", "dog"]):
        paint(root / "test" / name / "0.png", 200 + k)
    return root


def written(path, text):
    path.write_text(text)
    return path


def refused(code, *, says, **load):
    with pytest.raises((DataError, ConfigError)) as caught:
        load_source(str(load.pop("data")), DataOptions(**load))
    assert caught.value.code == code, caught.value
    for part in says:
        assert part in caught.value.message


def test_folder_per_client_and_class(photos):
    source = load_source(str(photos))
    assert source.class_names == ("cat", "dog")
    assert source.owner_names == ("north", "south")
    assert source.images.shape == (12, 6, 6, 1)
    assert source.images[:, 0, 0, 0].tolist() == [0, 1, 2, 10, 11, 12, 100, 101, 102, 110, 111, 112]
    assert source.labels.tolist() == [0, 0, 0, 1, 1, 1] * 2
    assert source.owners.tolist() == [0] * 6 + [1] * 6
    assert source.test_images[:, 0, 0, 0].tolist() == [200, 201]
    assert source.test_labels.tolist() == [0, 1]
    assert source.true is None


def test_clients_are_those_of_the_data_whatever_clients_says(photos):
    config = resolve({"data": str(photos), "clients": 7})
    federation, truth = federation_of(config)
    assert config.top.partition == "natural"
    assert federation.clients == 2
    assert federation.client_names == ("north", "south")
    assert any("clients=7 does not apply" in note for note in federation.notes)
    assert truth.labels is None
    assert truth.nominal is None


def test_a_partition_that_is_asked_for_mixes_the_clients(photos):
    federation, _ = federation_of(resolve({"data": str(photos), "clients": 3, "partition": "iid"}))
    assert [len(rows) for rows in federation.rows] == [4, 4, 4]
    assert federation.client_names is None


def test_simulated_noise_takes_the_delivered_labels_as_true(photos):
    federation, truth = federation_of(resolve({"data": str(photos), "noise": "symmetric", "noise.rate": 0.5}))
    assert [np.mean(t != g) for t, g in zip(truth.labels, federation.given, strict=True)] == [0.5, 0.5]
    assert [t.tolist() for t in truth.labels] == [[0, 0, 0, 1, 1, 1]] * 2


def test_folders_of_classes_alone_have_no_clients(tmp_path):
    for k, name in enumerate(["a", "b"]):
        for i in range(10):
            paint(tmp_path / "x" / "train" / name / f"{i}.png", 100 * k + i)
            paint(tmp_path / "y" / name / f"{i}.png", 100 * k + i)
    for folder in ("x", "y"):
        config = resolve({"data": str(tmp_path / folder), "clients": 4})
        assert config.top.partition == "iid"
        source = load_source(str(tmp_path / folder))
        assert source.owners is None
        assert source.class_names == ("a", "b")


def test_numbers_are_sorted_as_numbers(tmp_path):
    for client in ("10", "9"):
        for name in ("2", "10", "1"):
            paint(tmp_path / client / name / "x.png", int(name))
    paint(tmp_path / "test" / "2" / "x.png", 255)
    source = load_source(str(tmp_path))
    assert source.class_names == ("1", "2", "10")
    assert source.owner_names == ("9", "10")
    assert source.images[:, 0, 0, 0].tolist() == [1, 2, 10, 1, 2, 10]


def test_without_a_test_set_some_of_each_client_and_class_is_kept(tmp_path):
    for c, client in enumerate("ab"):
        for k, name in enumerate(["x", "y"]):
            for i in range(10):
                paint(tmp_path / client / name / f"{i}.png", 100 * c + 10 * k + i)
    source = load_source(str(tmp_path), DataOptions(test_fraction=0.3), seed=4)
    tested = np.setdiff1d(np.arange(40), source.rows)
    assert len(tested) == 12
    assert np.bincount(source.owners[tested]).tolist() == [6, 6]
    assert np.bincount(2 * source.owners[tested] + source.labels[tested]).tolist() == [3, 3, 3, 3]
    assert np.array_equal(source.test_images, source.images[tested])
    assert np.array_equal(source.test_labels, source.labels[tested])
    assert any("12 of 40 rows" in note for note in source.notes)
    other = load_source(str(tmp_path), DataOptions(test_fraction=0.3), seed=5)
    assert not np.array_equal(source.rows, other.rows)
    federation, _ = federation_of(resolve({"data": str(tmp_path), "data.test_fraction": 0.3, "seed": 4}))
    assert np.array_equal(np.sort(np.concatenate(federation.rows)), source.rows)


def test_manifest_with_truth_split_and_groups(tmp_path):
    for i in range(6):
        paint(tmp_path / "img" / f"{i}.png", i)
    written(
        tmp_path / "list.csv",
        "client,file,label,true_label,split,group\n"
        "b,img/0.png,dog,cat,train,p1\n"
        ",img/1.png,cat,cat,test,p9\n"
        "a, img/2.png ,cat,cat,,p2\n"
        "\n"
        "a,img/3.png,dog,dog,train,p2\n"
        "b,img/4.png,cat,cat,train,p1\n"
        ",img/5.png,dog,dog,test,p8\n",
    )
    source = load_source(str(tmp_path / "list.csv"))
    assert source.images[:, 0, 0, 0].tolist() == [0, 2, 3, 4]
    assert source.labels.tolist() == [1, 0, 1, 0]
    assert source.true.tolist() == [0, 0, 1, 0]
    assert source.owners.tolist() == [1, 0, 0, 1]
    assert source.owner_names == ("a", "b")
    assert source.test_images[:, 0, 0, 0].tolist() == [1, 5]
    assert source.test_labels.tolist() == [0, 1]
    federation, truth = federation_of(resolve({"data": str(tmp_path / "list.csv")}))
    assert [(t != g).tolist() for t, g in zip(truth.labels, federation.given, strict=True)] == [
        [False, False],
        [True, False],
    ]
    grouped, _ = federation_of(resolve({"data": str(tmp_path / "list.csv"), "partition": "group", "clients": 2}))
    assert sorted(rows.tolist() for rows in grouped.rows) == [[0, 3], [1, 2]]


def test_groups_are_never_trained_and_tested_on(tmp_path):
    lines = ["file,label,client,group"]
    for i in range(40):
        paint(tmp_path / f"{i}.png", i)
        lines.append(f"{i}.png,{'ab'[i % 2]},c{i % 4},p{i // 4}")
    written(tmp_path / "manifest.csv", "\n".join(lines))
    source = load_source(str(tmp_path), DataOptions(test_fraction=0.25))
    tested = np.setdiff1d(np.arange(40), source.rows)
    pairs = set(zip(source.owners[tested], source.groups[tested], strict=True))
    assert len(tested) == 8
    assert not pairs & set(zip(source.owners[source.rows], source.groups[source.rows], strict=True))


def test_a_class_list_fixes_order_and_names(photos):
    written(photos / "classes.txt", "dog\ncat\nbird\n")
    federation, _ = federation_of(resolve({"data": str(photos)}))
    assert federation.class_names == ("dog", "cat", "bird")
    assert federation.given[0].tolist() == [1, 1, 1, 0, 0, 0]
    assert "classes that no client has: bird" in federation.notes
    written(photos / "classes.txt", "dog\nbird\n")
    refused("FS303", data=photos, says=["client north", "cat/0.png", "unknown label 'cat'"])


@pytest.mark.parametrize(
    ("content", "code", "says"),
    [
        (b"cat\ndog\ncat\n", "FS313", ["classes.txt", "'cat' stands there twice"]),
        (b"cat\nh\xf6rnchen\n", "FS302", ["classes.txt", "Save it as UTF-8"]),
    ],
)
def test_class_lists_that_do_not_fit(photos, content, code, says):
    (photos / "classes.txt").write_bytes(content)
    refused(code, data=photos, says=says)


def test_the_truth_keeps_to_the_class_list(tmp_path):
    paint(tmp_path / "0.png", 0)
    written(tmp_path / "classes.txt", "cat\ndog\n")
    table = written(tmp_path / "list.csv", "file,label,true_label\n0.png,cat,dig\n")
    refused("FS303", data=table, says=["line 2", "unknown true label 'dig'", "dog"])


def test_test_images_do_not_say_whether_clients_are_named(tmp_path):
    for folder in ("test/cat", "west/cat", "west/dog"):
        paint(tmp_path / "own" / folder / "0.png", 0)
    assert names_clients(str(tmp_path / "own"), DataOptions())
    for folder in ("test", "zebra"):
        paint(tmp_path / "classes" / folder / "0.png", 0)
    assert not names_clients(str(tmp_path / "classes"), DataOptions())


def test_a_picture_that_went_away_is_named():
    class Gone:
        def open(self, row):
            raise FileNotFoundError

        def where(self, row):
            return f"client n, train row {row}"

    with (
        pytest.raises(DataError, match=r"client n, train row 3: no such file\. Restore it") as caught,
        open_row(Gone(), 3, DataOptions()),
    ):
        pass
    assert caught.value.code == "FS301"


def test_sizes_and_colours(tmp_path):
    left = Image.new("RGB", (40, 20), (255, 0, 0))
    left.paste((0, 0, 255), (20, 0, 40, 20))
    for name in ("a", "b"):
        paint(tmp_path / "c" / name / "1.png", 9, (10, 10))
        paint(tmp_path / "test" / name / "2.png", 7, (10, 10))
    left.save(tmp_path / "c" / "a" / "0.png")
    refused("FS309", data=tmp_path, says=["client c", "10 x 10", "40 x 20", "data.size"])
    squeezed = load_source(str(tmp_path), DataOptions(size=10)).images
    assert squeezed.shape == (3, 10, 10, 3)
    assert squeezed[0, 5, 1].tolist() == [255, 0, 0]
    assert squeezed[0, 5, 8].tolist() == [0, 0, 255]
    assert squeezed[1].ravel().tolist() == [9] * 300
    grey = load_source(str(tmp_path), DataOptions(size=10, colour="grey")).images
    assert grey.shape == (3, 10, 10, 1)
    assert grey[0, 5, 1, 0] == 76  # ITU-R 601: 0.299 of 255
    wide = Image.new("L", (60, 20), 0)
    wide.paste(200, (20, 0, 40, 20))
    wide.save(tmp_path / "c" / "a" / "0.png")
    cut = load_source(str(tmp_path), DataOptions(size=20, fit="crop")).images
    assert (cut[0] == 200).mean() > 0.8  # the middle; squeezed it would be a third
    assert (load_source(str(tmp_path), DataOptions(size=20)).images[0] == 200).mean() < 0.4


def test_sixteen_bits_turned_photos_and_palettes(tmp_path):
    for name in ("a", "b"):
        folder = tmp_path / "c" / name
        folder.mkdir(parents=True)
        Image.fromarray(np.full((4, 4), 40_000, np.uint16)).save(folder / "deep.png")
        paint(tmp_path / "test" / name / "t.png", 3, (4, 4))
    assert (load_source(str(tmp_path), DataOptions(window=(0, 65_535))).images == round(40_000 / 257)).all()
    turned = Image.new("L", (4, 2), 0)
    turned.paste(255, (0, 0, 1, 2))
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held on its side: the left column belongs on top
    folder = tmp_path / "turned" / "c"
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
        turned.save(folder / name / "t.png", exif=exif)
        paint(tmp_path / "turned" / "test" / name / "t.png", 3, (2, 4))
    image = load_source(str(tmp_path / "turned")).images[0]
    assert image.shape == (4, 2, 1)
    assert image[:, :, 0].tolist() == [[255, 255], [0, 0], [0, 0], [0, 0]]


def test_overlap_of_training_and_test_images_is_noted(photos):
    assert not any("also training" in note for note in load_source(str(photos)).notes)
    paint(photos / "test" / "cat" / "1.png", 11)
    notes = load_source(str(photos)).notes
    assert any(note.startswith("1 of 3 test samples are also training samples") for note in notes)


def test_broken_images_are_named(photos):
    (photos / "south" / "dog" / "1.png").write_bytes(b"not an image")
    refused("FS302", data=photos, says=["client south", "south/dog/1.png", "not an image"])
    whole = (photos / "south" / "dog" / "0.png").read_bytes()
    (photos / "south" / "dog" / "1.png").write_bytes(whole[:45])
    refused("FS302", data=photos, says=["client south", "south/dog/1.png"])


def test_folders_that_do_not_fit(photos, tmp_path):
    (photos / "west").mkdir()
    refused("FS307", data=photos, says=["client west has no images"])
    (photos / "west").rmdir()
    paint(photos / "north" / "stray.png", 1)
    refused("FS302", data=photos, says=["stray.png", "CLIENT/CLASS/image"])
    (photos / "north" / "stray.png").unlink()
    (photos / "north" / "cat" / "notes.docx").write_text("x")
    assert any("notes.docx" in note for note in load_source(str(photos)).notes)
    empty = tmp_path / "empty"
    empty.mkdir()
    refused("FS301", data=empty, says=["holds no images"])
    refused("FS301", data=tmp_path / "nowhere.csv", says=["nowhere.csv"])
    refused("FS301", data="nowhere", says=["data=nowhere", "fedsieve data get"])


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("file,label\n0.png,a\n1.png,\n", "FS303", ["line 3", "has no label"]),
        ("client,file,label\nn,0.png,a\n,1.png,b\n", "FS307", ["line 3", "names no client"]),
        ("client,file,label\nn,0.png,a\nn,./0.png,b\n", "FS313", ["client n, line 3", "line 2"]),
        ("id,file,label\n7,0.png,a\n7,1.png,b\n", "FS313", ["line 3", "id 7", "line 2"]),
        ("client,file,label\nn,0.png,a\nn,9.png,b\n", "FS301", ["client n, line 3", "9.png"]),
        ("file,label\n0.png,a\n1.png,a\n", "FS306", ["all labels are a"]),
        ("file,label,split\n0.png,a,train\n1.png,b,validate\n", "FS302", ["line 3", "'validate'", "train or test"]),
        ("file,label,split\n0.png,a,test\n1.png,b,test\n", "FS307", ["every row is for testing"]),
        ("file,class\n0.png,a\n1.png,b\n", "FS302", ["no column 'label'", "data.label"]),
        ("file,label\n0.png,a\n1.png\n", "FS302", ["line 3 has 1 cells"]),
        ("file,label,label\n0.png,a,a\n", "FS302", ["two columns 'label'"]),
        ("client,file,label\nn,0.png,a\nm,bad.png,b\n", "FS302", ["client m, line 3, file bad.png"]),
        ("file,label\n0.png,a\n1.png,b\n", "FS305", ["no client has enough rows"]),
        ("file,label\n", "FS307", ["holds no rows"]),
        ("client,file,label\nn,0.png,a\nn,,b\n", "FS302", ["client n, line 3 names no file"]),
    ],
)
def test_manifests_that_do_not_fit(tmp_path, text, code, says):
    for i in range(2):
        paint(tmp_path / f"{i}.png", i)
    (tmp_path / "bad.png").write_bytes(b"\x89PNG")
    refused(code, data=written(tmp_path / "list.csv", text), says=["list.csv", *says])


def test_partly_known_truth_is_not_used_and_said(tmp_path):
    for i in range(4):
        paint(tmp_path / f"{i}.png", i)
    text = "file,label,true_label,split\n0.png,a,a,train\n1.png,b,,train\n2.png,a,b,test\n3.png,b,b,test\n"
    source = load_source(str(written(tmp_path / "list.csv", text)))
    assert source.true is None
    assert source.test_labels.tolist() == [1, 1]
    assert any("3 of 4 rows" in note for note in source.notes)


def test_options_that_have_no_effect_are_refused(tmp_path):
    refused("FS002", data="embedded", size=32, says=["data.size has no effect"])
    table = written(tmp_path / "t.csv", "label,x\na,1\nb,2\n")
    refused("FS002", data=table, size=32, says=["data.size has no effect"])
    with pytest.raises(ConfigError) as caught:
        resolve({"data.sise": 3})
    assert caught.value.code == "FS001"


def test_a_clean_set_at_the_server_needs_the_truth(photos):
    with pytest.raises(DataError) as caught:
        federation_of(resolve({"data": str(photos), "server.clean": 2}))
    assert caught.value.code == "FS307"


def listed(folder, column="path", names=("x/0.png", "x/1.png", "x/2.png", "x/3.png"), separator=","):
    for i in range(4):
        paint(folder / "x" / f"{i}.png", 40 * i, (4, 4))
    lines = [
        separator.join(["ward", column, "finding"]),
        *(separator.join(["n", name, "ab"[i % 2]]) for i, name in enumerate(names)),
    ]
    (folder / "list.csv").write_text("\n".join(lines) + "\n")
    return str(folder / "list.csv")


COLUMNS = {"label": "finding", "client": "ward", "test_fraction": 0.5}


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("named", [{}, {"file": "path"}])
def test_images_are_found_by_whatever_column_names_them(tmp_path, separator, named):
    source = load_source(listed(tmp_path, separator=separator), DataOptions(**COLUMNS, **named))
    assert source.images.shape == (4, 4, 4, 1)
    assert sorted(source.images[:, 0, 0, 0].tolist()) == [0, 40, 80, 120]
    assert source.owner_names == ("n",)


def test_a_list_leads_nowhere_unless_its_owner_names_the_column(tmp_path):
    (tmp_path / "lists").mkdir()
    whole = [str(tmp_path / "lists" / "x" / f"{i}.png") for i in range(4)]
    for names in (whole, [f"../lists/x/{i}.png" for i in range(4)]):
        file = listed(tmp_path / "lists", "file", names)
        with pytest.raises(DataError, match=r"line 2.*leads out of.*data\.file.*\[FS302\]"):
            load_source(file, DataOptions(**COLUMNS))
        assert load_source(file, DataOptions(**COLUMNS, file="file")).images.shape == (4, 4, 4, 1)
    with pytest.raises(DataError, match=r"no column 'pat'.*Did you mean 'path'.*data\.file.*\[FS302\]"):
        load_source(listed(tmp_path), DataOptions(**COLUMNS, file="pat"))


def test_options_that_pictures_do_not_take_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"data\.missing has no effect on the images of.*\[FS002\]"):
        load_source(listed(tmp_path), DataOptions(**COLUMNS, missing="mean"))
    with pytest.raises(ConfigError, match=r"data\.label has no effect on the images in.*\[FS002\]"):
        load_source(str(tmp_path), DataOptions(label="finding"))


def test_an_array_of_an_unknown_name_is_told(tmp_path):
    x, y = np.arange(24, dtype=np.float32).reshape(12, 2), np.arange(12) % 2
    known = {"x_train": x[:8], "y_train": y[:8], "x_test": x[8:], "y_test": y[8:]}
    np.savez(tmp_path / "mine.npz", **known, client_train=y[:8], clients=y[:8])
    (note,) = [note for note in load_source(str(tmp_path / "mine.npz")).notes if "nothing is made" in note]
    assert note.startswith("of 'client_train', 'clients' nothing is made. Known names: x_train, y_train,")
    np.savez(tmp_path / "mine.npz", **known, client=y[:8])
    assert not any("nothing is made" in note for note in load_source(str(tmp_path / "mine.npz")).notes)
