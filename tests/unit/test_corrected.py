"""`fedsieve corrections apply` and `export`: data in the form they came in, decisions in the forms that others read."""

import csv
import io
import json

import numpy as np
import pytest
from deciding import decided
from judged_runs import colour_folder
from PIL import Image
from typer.testing import CliRunner

import fedsieve
from fedsieve.base.errors import ConfigError, DataError
from fedsieve.base.sheets import original
from fedsieve.cli.app import app
from fedsieve.data.corrected import Verdicts, write_corrected
from fedsieve.data.decisions import read_decisions
from fedsieve.data.sources import DataOptions, hub, load_source
from fedsieve.review.exports import FORMATS


@pytest.fixture
def corrected(tmp_path):
    """Applies decisions to data, and gives what was written."""

    def apply(data, *entries, out="out", options=DataOptions(), **more):
        file = tmp_path / "decisions.jsonl"
        decided(file, *entries)
        target = tmp_path / out
        outcome = write_corrected(str(data), Verdicts(read_decisions(file)), target, options, **more)
        return target, outcome

    return apply


TABLE = (
    "\ufeffid,label,note,size,client\r\n"
    'a,cat,"two\nlines",1.0,north\r\n'
    "\r\n"
    'b, dog ,"a ""quote""",2.50,south\r\n'
    "c,cat,,3,north\r\n"
    "d,'=cow,x,4,south\r\n"
)


def test_a_table_keeps_every_character_that_was_not_decided(tmp_path, corrected):
    data = tmp_path / "beasts.csv"
    data.write_bytes(TABLE.encode())
    entries = [("beasts.csv:2", "cat", "take", "=cow"), ("beasts.csv:6", "cat", "exclude", None)]
    out, outcome = corrected(data, *entries, out="new.csv")
    expected = TABLE.replace("a,cat,", "a,'=cow,").replace("c,cat,,3,north\r\n", "")
    assert out.read_bytes().decode() == expected
    assert (outcome.rows, outcome.changed, outcome.left_out) == (3, 1, 1)
    assert data.read_bytes() == TABLE.encode()


def test_a_table_keeps_what_separates_its_cells(tmp_path, corrected):
    data = tmp_path / "beasts.csv"
    data.write_text('label;size\ncat;1,5\n"d;og";2,5\ncat;3\n')
    out, _ = corrected(data, ("beasts.csv:2", "cat", "take", "d;og"), out="new.csv")
    assert out.read_text() == '"d;og";1,5\n'.join(data.read_text().split("cat;1,5\n"))


def test_a_table_is_read_back_with_the_new_labels(tmp_path, corrected):
    data = tmp_path / "t.csv"
    rng = np.random.default_rng(0)
    lines = [f"{'ab'[i % 2]},{rng.normal():.6f},{rng.normal():.6f}\n" for i in range(40)]
    data.write_text("kind,x,y\n" + "".join(lines))
    options = DataOptions(label="kind")
    out, _ = corrected(
        data, ("t.csv:2", "a", "take", "b"), ("t.csv:5", "b", "exclude", None), out="u.csv", options=options
    )
    before, after = (load_source(str(path), options) for path in (data, out))
    assert len(after.labels) == len(before.labels) - 1
    assert before.labels.tolist()[:3] == [0, 1, 0]
    assert after.labels.tolist()[:3] == [1, 1, 0]
    assert (after.images[:3] == before.images[:3]).all()


def test_a_list_of_images_names_them_from_its_new_place(tmp_path, corrected):
    (tmp_path / "in" / "p").mkdir(parents=True)
    for i in range(10):
        Image.new("L", (4, 4), 10 * i).save(tmp_path / "in" / "p" / f"{i}.png")
    lines = "".join(f"p/{i}.png,{'ab'[i % 2]}\n" for i in range(10))
    (tmp_path / "in" / "list.csv").write_text("file,label\n" + lines)
    (tmp_path / "in" / "classes.txt").write_text("b\na\n")
    out, _ = corrected(tmp_path / "in" / "list.csv", ("p/0.png", "a", "take", "b"), out="far/away/list.csv")
    assert out.read_text().splitlines()[1] == "../../in/p/0.png,b"
    with pytest.raises(DataError, match=r"leads out of.*name its column with data\.file"):
        load_source(str(out))
    source = load_source(str(out), DataOptions(file="file"))
    assert source.class_names == ("b", "a")
    assert source.labels[0] == 0
    assert source.images[9].max() == 90


def test_a_list_whose_column_has_another_name(tmp_path, corrected):
    for i in range(4):
        Image.new("L", (4, 4), 10 * i).save(tmp_path / f"{i}.png")
    (tmp_path / "list.csv").write_text("scan;label\n" + "".join(f"{i}.png;{'ab'[i % 2]}\n" for i in range(4)))
    out, _ = corrected(tmp_path / "list.csv", ("0.png", "a", "take", "b"), out="far/list.csv")
    assert out.read_text().splitlines()[:3] == ["scan;label", "../0.png;b", "../1.png;b"]


def test_folders_move_files_to_the_folder_of_their_class(tmp_path, corrected):
    data = colour_folder(tmp_path / "scans", each=4)
    (data / "notes.txt").write_text("of the owner")
    (data / "north" / "green" / "000-red.png").write_bytes((data / "north" / "green" / "001-green.png").read_bytes())
    before = {path: path.read_bytes() for path in data.rglob("*.png")}
    out, outcome = corrected(
        data,
        ("north/blue/002-blue.png", "blue", "other", "green"),
        ("north/red/000-red.png", "red", "take", "green"),
        ("south/red/000-red.png", "red", "exclude", None),
    )
    assert (outcome.rows, outcome.changed, outcome.left_out) == (len(before) - 1, 2, 1)
    assert (out / "north/green/002-blue.png").read_bytes() == before[data / "north/blue/002-blue.png"]
    assert (out / "north/green/000-red.png").read_bytes() == before[data / "north/green/000-red.png"]
    assert (out / "north/green/000-red-2.png").read_bytes() == before[data / "north/red/000-red.png"]
    assert not (out / "south/red/000-red.png").exists()
    assert (out / "notes.txt").read_text() == "of the owner"
    assert {path: path.read_bytes() for path in data.rglob("*.png")} == before
    assert load_source(str(out)).class_names == load_source(str(data)).class_names


def test_a_class_that_loses_its_last_image_stays_a_class(tmp_path, corrected):
    data = colour_folder(tmp_path / "scans", owners=("north",), each=1)
    out, _ = corrected(data, ("north/blue/002-blue.png", "blue", "take", "green"))
    assert (out / "classes.txt").read_text() == "blue\ngreen\nred\n"


def test_links_lead_to_the_originals(tmp_path, corrected):
    data = colour_folder(tmp_path / "scans", each=4)
    out, _ = corrected(data, ("north/red/000-red.png", "red", "take", "green"), link=True)
    link = out / "north/green/000-red.png"
    assert link.is_symlink()
    assert link.resolve() == (data / "north/red/000-red.png").resolve()


def test_a_folder_with_a_manifest(tmp_path, corrected):
    federation, truth = fedsieve.federation(clients=2, **{"data": "embedded", "server.unlabelled": 0.98})
    from fedsieve.data.export import export_federation

    export_federation(federation, truth, tmp_path / "scans")
    rows = list(csv.DictReader((tmp_path / "scans" / "manifest.csv").open()))
    new = next(name for name in federation.class_names if name != rows[0]["label"])
    out, outcome = corrected(tmp_path / "scans", (rows[0]["file"], rows[0]["label"], "take", new))
    again = list(csv.DictReader((out / "manifest.csv").open()))
    assert again[0] == rows[0] | {"label": new}
    assert again[1:] == rows[1:]
    assert len(load_source(str(out)).labels) == len(load_source(str(tmp_path / "scans")).labels)
    assert outcome.changed == 1


@pytest.mark.parametrize("medmnist", [False, True])
def test_arrays(tmp_path, corrected, medmnist):
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 255, (20, 8, 8), np.uint8), (np.arange(20) % 3).astype(np.uint8)
    if medmnist:
        names = ("train_images", "train_labels", "test_images", "test_labels")
        arrays = dict(zip(names, (images, labels[:, None], images[:5], labels[:5, None]), strict=True))
    else:
        arrays = {"x_train": images, "y_train": labels, "x_test": images[:5], "y_test": labels[:5]}
        arrays |= {"client": np.array(["n", "s"] * 10), "y_true": labels}
    np.savez(tmp_path / "mine.npz", **arrays)
    out, outcome = corrected(
        tmp_path / "mine.npz", ("mine[4]", "1", "take", "2"), ("mine[7]", "1", "exclude", None), out="new.npz"
    )
    before, after = load_source(str(tmp_path / "mine.npz")), load_source(str(out))
    expected = np.delete(before.labels, 7)
    expected[4] = 2
    assert after.labels.tolist() == expected.tolist()
    assert (after.images == np.delete(before.images, 7, 0)).all()
    assert (after.test_labels == before.test_labels).all()
    assert after.class_names == before.class_names
    with np.load(out) as written:
        key = "train_labels" if medmnist else "y_train"
        assert (written[key].dtype, written[key].ndim) == (np.uint8, 2 if medmnist else 1)
        assert medmnist or len(written["client"]) == len(written["y_true"]) == 19
    assert (outcome.rows, outcome.changed, outcome.left_out) == (19, 1, 1)


def test_the_embedded_data_by_their_name(corrected):
    source = load_source("embedded")
    name = source.class_names[source.labels[3]]
    other = next(one for one in source.class_names if one != name)
    out, _ = corrected("embedded", ("embedded[3]", name, "take", other), out="new.npz")
    again = load_source(str(out))
    assert again.class_names == source.class_names
    assert np.flatnonzero(again.labels != source.labels).tolist() == [3]


@pytest.mark.parametrize("named", [True, False])
def test_hugging_face(tmp_path, corrected, named):
    datasets = pytest.importorskip("datasets")
    hub.splits.cache_clear()
    label = datasets.ClassLabel(names=["dog", "cat"]) if named else datasets.Value("int64")
    features = datasets.Features({"x": datasets.Value("float32"), "label": label, "note": datasets.Value("string")})
    rows = {
        "x": [float(i) for i in range(10)],
        "label": [i % 2 for i in range(10)],
        "note": [f"n{i}" for i in range(10)],
    }
    train = datasets.Dataset.from_dict(rows, features=features)
    datasets.DatasetDict({"train": train, "test": train.select(range(4))}).save_to_disk(str(tmp_path / "beasts"))
    first, second = ("dog", "cat") if named else ("0", "1")
    out, _ = corrected(
        f"hf:{tmp_path / 'beasts'}", ("train[2]", first, "take", second), ("train[3]", second, "exclude", None)
    )
    again = datasets.load_from_disk(str(out))
    assert again["train"].features == features
    assert again["train"]["label"] == [0, 1, 1, 0, 1, 0, 1, 0, 1]
    assert again["train"]["note"] == [f"n{i}" for i in range(10) if i != 3]
    assert again["test"]["label"] == [0, 1, 0, 1]
    hub.splits.cache_clear()
    assert load_source(f"hf:{out}").labels.tolist() == [0, 1, 1, 0, 1, 0, 1, 0, 1]


def test_nothing_is_written_over(tmp_path, corrected):
    data = colour_folder(tmp_path / "scans", each=2)
    (tmp_path / "out").mkdir()
    with pytest.raises(ConfigError, match="FS005"):
        corrected(data, ("north/red/000-red.png", "red", "take", "green"))


@pytest.mark.parametrize(
    ("entry", "code"),
    [
        (("north/red/../../../x.png", "red", "take", "green"), "FS331"),
        (("north/red/000-red.png", "red", "take", "../../evil"), "FS332"),
        (("north/red/000-red.png", "blue", "take", "green"), "FS331"),
    ],
)
def test_decisions_on_other_data_write_nothing(tmp_path, corrected, entry, code):
    data = colour_folder(tmp_path / "scans", each=2)
    with pytest.raises(DataError, match=code):
        corrected(data, entry)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("data", "out"), [("t.csv", "new.npz"), ("t.npz", "new.csv")])
def test_the_form_stays(tmp_path, corrected, data, out):
    (tmp_path / "t.csv").write_text("label,x\na,1\nb,2\n")
    np.savez(tmp_path / "t.npz", x_train=np.zeros((2, 2), np.uint8))
    with pytest.raises(DataError, match="Give a name that ends with"):
        corrected(tmp_path / data, ("t.csv:2", "a", "keep", "a"), out=out)


def test_one_readers_decisions(tmp_path):
    data = tmp_path / "t.csv"
    data.write_text("label,x\na,1\nb,2\n")
    file = decided(tmp_path / "d.jsonl", ("t.csv:2", "a", "keep", "a"))
    decided(file, ("t.csv:2", "a", "take", "b"), reader="bob")
    for reader, label in (("ann", "a"), ("bob", "b"), (None, "b")):
        out = tmp_path / f"{reader}.csv"
        write_corrected(str(data), Verdicts(read_decisions(file), reader), out)
        assert out.read_text().splitlines()[1] == f"{label},1"


def test_what_is_corrected_already_stays(tmp_path, corrected):
    (tmp_path / "once").mkdir()
    data = tmp_path / "t.csv"
    data.write_text("label,x\na,1\nb,2\n")
    entry = ("t.csv:2", "a", "take", "b")
    once, _ = corrected(data, entry, out="once/t.csv")
    twice = write_corrected(str(once), Verdicts(read_decisions(tmp_path / "decisions.jsonl")), tmp_path / "u.csv")
    assert twice.changed == 0
    assert (tmp_path / "u.csv").read_text() == once.read_text() == "label,x\nb,1\nb,2\n"


# For other tools


@pytest.fixture
def standing(tmp_path):
    file = decided(
        tmp_path / "d.jsonl",
        ("=1+1", "cat", "take", "dog"),
        ("b.png", "cat", "keep", "cat"),
        ("c.png", "<b>", "exclude", None),
        ("d.png", "cat", "unsure", None),
    )
    return read_decisions(file).standing().values()


def cells(text):
    return [[original(cell) for cell in row] for row in csv.reader(io.StringIO(text, newline=""))]


def test_csv_says_all(standing):
    header, *rows = cells(FORMATS["csv"](standing))
    assert header == ["owner", "where", "before", "after", "action", "who", "when"]
    wanted = [
        ["north", one.decision.sample.where, one.decision.before, one.decision.after or "", one.decision.action]
        for one in standing
    ]
    assert [row[:5] for row in rows] == wanted
    assert "'=1+1" in FORMATS["csv"](standing)


def test_cleanlabs_columns(standing):
    assert cells(FORMATS["cleanlab"](standing)) == [
        ["where", "is_label_issue", "given_label", "predicted_label"],
        ["=1+1", "True", "cat", "dog"],
        ["b.png", "False", "cat", "cat"],
        ["c.png", "True", "<b>", ""],
    ]


def test_label_studios_tasks(standing):
    tasks = json.loads(FORMATS["label-studio"](standing))
    chosen = [[one["value"]["choices"][0] for one in task["annotations"][0]["result"]] for task in tasks]
    assert chosen == [["dog"], ["cat"], [], []]
    assert [task["annotations"][0]["was_cancelled"] for task in tasks] == [False, False, True, True]
    assert [task["data"]["sample"] for task in tasks] == ["=1+1", "b.png", "c.png", "d.png"]
    assert tasks[2]["predictions"][0]["result"][0]["value"]["choices"] == ["<b>"]


def test_argillas_records(standing):
    records = json.loads(FORMATS["argilla"](standing))
    assert [record["suggestions"].get("label", {}).get("value") for record in records] == ["dog", "cat", None, None]
    assert [record["metadata"]["given"] for record in records] == ["cat", "cat", "<b>", "cat"]
    assert len({record["id"] for record in records}) == 4


def from_csv(text):
    header, *rows = cells(text)
    for row in rows:
        one = dict(zip(header, row, strict=True))
        yield one["owner"], one["where"], one["before"], one["after"] or None, one["action"], one["who"]


def from_label_studio(text):
    for task in json.loads(text):
        (annotation,), (prediction,) = task["annotations"], task["predictions"]
        assert annotation["was_cancelled"] == (not annotation["result"])
        after = [one["value"]["choices"] for one in annotation["result"]]
        before = prediction["result"][0]["value"]["choices"]
        about = task["data"]["owner"], task["data"]["sample"], before[0]
        yield *about, after[0][0] if after else None, task["meta"]["action"], annotation["created_username"]


def from_argilla(text):
    for record in json.loads(text):
        about, said = record["metadata"], record["suggestions"].get("label", {})
        assert record["id"] == f"{about['owner']}/{record['fields']['sample']}"
        yield (
            about["owner"],
            record["fields"]["sample"],
            about["given"],
            said.get("value"),
            about["action"],
            said.get("agent"),
        )


@pytest.mark.parametrize("form", ["csv", "label-studio", "argilla"])
@pytest.mark.parametrize("name", ["plain", "=1+1", "two\nlines", 'q"uote, comma', "größe <b>", " blank "])
def test_what_was_decided_can_be_read_back(tmp_path, form, name):
    """Names and classes of any kind; whose suggestion it was is told by Argilla only where there is one."""
    entries = [(name, name, "take", "dog"), ("b", "cat", "keep", "cat"), ("c", name, "exclude", None)]
    standing = read_decisions(decided(tmp_path / "d.jsonl", *entries, reader="zoë")).standing().values()
    read = {"csv": from_csv, "label-studio": from_label_studio, "argilla": from_argilla}[form]
    found = list(read(FORMATS[form](standing)))
    agent = None if form == "argilla" else "zoë"
    assert [row[:5] for row in found] == [
        ("north", where, before, after, said) for where, before, said, after in entries
    ]
    assert [row[5] for row in found] == ["zoë", "zoë", agent]


# On the command line


def command(*words):
    return CliRunner().invoke(app, ["corrections", *map(str, words)])


def test_show_counts_and_compares(tmp_path):
    file = decided(tmp_path / "d.jsonl", ("a", "cat", "take", "dog"), ("b", "cat", "exclude", None))
    assert command("show", file).stdout.splitlines()[1] == "2 rows decided: 1 as suggested, 1 excluded"
    decided(file, ("a", "cat", "take", "dog"), ("b", "cat", "keep", "cat"), reader="bob")
    lines = command("show", file).stdout.splitlines()
    assert lines[0].startswith("4 lines, chain intact up to ")
    assert lines[1:] == [
        "2 rows decided: 1 kept, 1 as suggested",
        "ann: 2 rows decided: 1 as suggested, 1 excluded",
        "bob: 2 rows decided: 1 kept, 1 as suggested",
        "ann and bob: 2 rows both, 1 differ, Cohen's kappa 0.333",
    ]
    told = json.loads(command("show", file, "--json").stdout)
    assert told["readers"] == {"ann": {"exclude": 1, "take": 1}, "bob": {"keep": 1, "take": 1}}
    assert told["last"] == read_decisions(file).last


def test_apply_and_export(tmp_path):
    (tmp_path / "t.csv").write_text("kind,x\na,1\nb,2\n")
    file = decided(tmp_path / "d.jsonl", ("t.csv:2", "a", "take", "b"))
    out = tmp_path / "new.csv"
    said = command("apply", file, "--data", tmp_path / "t.csv", "--out", out, "data.label=kind")
    assert said.stdout == f"{out}: 2 rows, 1 labels corrected, 0 rows left out\n"
    assert out.read_text() == "kind,x\nb,1\nb,2\n"
    file.write_bytes(file.read_bytes() + b'{"torn')
    noted = command("apply", file, "--data", tmp_path / "t.csv", "--out", tmp_path / "other.csv", "data.label=kind")
    assert "torn" in noted.stderr
    for form in FORMATS:
        target = tmp_path / f"{form}.out"
        assert command("export", file, "--format", form, "--out", target).exit_code == 0
        assert "t.csv:2" in target.read_text()
        again = command("export", file, "--format", form, "--out", target)
        assert again.exception.code == "FS005"
