"""What a reader is shown and what becomes of a decision, from the folder of a run or of a node."""

import builtins
import io
import json
import re
import shutil
import threading

import numpy as np
import pytest
from judged_runs import by_file_name, colour_folder, coloured_run, judged_run, write_labels
from PIL import Image

import fedsieve
from fedsieve.base.errors import ConfigError, DataError
from fedsieve.data.decisions import read_decisions
from fedsieve.review import static_page
from fedsieve.review.desk import Desk, Refused, Sitting, Wish
from fedsieve.review.estimates import estimated
from fedsieve.review.material import Material
from fedsieve.review.pages import PAGE
from fedsieve.review.serve import serve
from fedsieve.review.subject import open_subject


def desk_of(folder, owner="north", reader="ann", **settings):
    desk = Desk(open_subject(folder, owner, settings), Sitting(reader))
    desk.prepare()
    return desk


@pytest.fixture
def run(tmp_path):
    return coloured_run(tmp_path)


def true_class(where):
    return where.rsplit("-", 1)[1].removesuffix(".png")


def test_the_overview_is_the_queue(run):
    folder, _, federation = run
    desk = desk_of(folder)
    told = desk.overview()
    assert told["owner"] == "north"
    assert told["classes"] == list(federation.class_names)
    assert sorted(told["order"]) == list(range(len(federation.rows[0])))
    assert len(told["given"]) == len(told["suggested"]) == len(told["score"]) == len(told["order"])
    assert told["kind"] == "image"
    assert "control" not in json.dumps(told)


def test_rows_are_those_of_the_owner(run):
    folder, _, federation = run
    desk = desk_of(folder, "south")
    material = desk.subject.material
    assert all(where.startswith("south/") for where in material.where)
    places = federation.places(1)
    for row, where in enumerate(material.where):
        assert (material.samples[row] == federation.images[federation.rows[1][places.index(where)]]).all()


def test_evidence_is_alike_and_believed_right(run):
    """Colours are far apart: what is nearest of the suggested class has the row's own colour, and none was flagged."""
    desk = desk_of(run[0])
    judged = desk.subject.judged
    row = int(np.flatnonzero(judged.flagged)[0])
    found = desk.sample(row)["evidence"]
    assert len(found["given"]) == len(found["suggested"]) == 6
    for name, label in (("given", judged.given[row]), ("suggested", judged.suggested[row])):
        for near in found[name]:
            assert not judged.flagged[near["row"]]
            assert near["row"] != row
            assert true_class(near["where"]) == desk.subject.class_names[label]


def test_evidence_follows_the_reader(run):
    desk = desk_of(run[0])
    judged = desk.subject.judged
    row = int(np.flatnonzero(judged.flagged)[0])
    vouched = desk.sample(row)["evidence"]["given"][0]["row"]
    desk.decide([Wish(row=vouched, action="exclude")])
    assert vouched not in [near["row"] for near in desk.sample(row)["evidence"]["given"]]


def test_the_page_works_before_the_evidence_is_there(run):
    desk = Desk(open_subject(run[0], "north"), Sitting("ann"))
    assert desk.sample(0)["evidence"] is None


def test_a_review_goes_on_where_no_features_can_be_had(run, monkeypatch):
    def broken(*_):
        raise MemoryError

    monkeypatch.setattr("fedsieve.review.evidence.frozen_features", broken)
    desk = desk_of(run[0])
    assert isinstance(desk.trouble, MemoryError)
    assert desk.sample(0)["evidence"] == {}
    desk.decide([Wish(row=0, action="keep")])


def test_what_a_person_is_told_when_the_page_is_served(run, monkeypatch):
    """The address, which a browser opens, and that no similar rows can be shown."""
    uvicorn = pytest.importorskip("uvicorn")
    told_all, opened, said, served = threading.Event(), threading.Event(), [], []

    def told(line):
        said.append(line)
        if "no similar rows" in line:
            told_all.set()

    def browse(address):
        served.append(address)
        opened.set()

    async def until_told(self, sockets):
        served.append(sockets[0].getsockname()[0])
        assert told_all.wait(60)
        assert opened.wait(60)

    monkeypatch.setattr(uvicorn.Server, "serve", until_told)
    monkeypatch.setattr("webbrowser.open", browse)
    monkeypatch.setattr("fedsieve.review.evidence.frozen_features", lambda *_: 1 / 0)
    serve(Desk(open_subject(run[0], "north"), Sitting("ann")), 0, show=True, say=told)
    address = said[0].removeprefix("review of north by ann: ")
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=\S+", address)
    assert set(served) == {"127.0.0.1", address}
    assert said[-1].startswith("no similar rows can be shown: ")


def test_decisions_are_what_was_shown(run):
    folder, _, federation = run
    desk = desk_of(folder)
    judged, names = desk.subject.judged, federation.class_names
    row = int(np.flatnonzero(judged.flagged)[0])
    given, suggested = int(judged.given[row]), int(judged.suggested[row])
    third = ({0, 1, 2} - {given, suggested}).pop()
    wishes = [Wish(row=row, action="other", choice=choice) for choice in (given, suggested, third)]
    for wish in [*wishes, Wish(row=row, action="undo"), Wish(row=row, action="exclude")]:
        desk.decide([wish])
    entries = read_decisions(folder / "decisions.jsonl").entries
    assert [(e.action, e.after) for e in entries] == [
        ("keep", names[given]),
        ("take", names[suggested]),
        ("other", names[third]),
        ("undo", None),
        ("exclude", None),
    ]
    assert {e.sample.where for e in entries} == {judged.where[row]}
    assert desk.overview()["decided"] == [[row, "exclude", None]]
    assert desk_of(folder).overview()["decided"] == [[row, "exclude", None]]
    assert desk_of(folder, reader="bob").overview()["decided"] == []


@pytest.mark.parametrize(
    "wish",
    [
        {"row": 99_999, "action": "keep"},
        {"row": 0, "action": "other"},
        {"row": 0, "action": "other", "choice": 3},
        {"row": 0, "action": "undo"},
    ],
)
def test_wishes_that_no_page_has_are_refused_with_their_company(run, wish):
    desk = desk_of(run[0])
    with pytest.raises(Refused):
        desk.decide([Wish(row=1, action="keep"), Wish(**wish)])
    assert not desk.log.entries


def test_estimates_are_those_of_the_reader(run):
    folder, *_ = run
    desk = desk_of(folder)
    rows = [int(row) for row in np.flatnonzero(desk.subject.judged.flagged)]
    desk.decide([Wish(row=row, action="take") for row in rows])
    told = desk.estimates()
    assert told["flags"]["wrong"] == told["flags"]["of"] == told["found"] == len(rows)
    assert told == estimated(desk.queue, dict.fromkeys(rows, True)).as_dict() | {"agreement": []}
    other = desk_of(folder, reader="bob")
    assert other.estimates()["found"] == 0
    other.decide([Wish(row=rows[0], action="keep"), Wish(row=rows[1], action="take")])
    (pair,) = other.estimates()["agreement"]
    assert (pair["first"], pair["second"], pair["rows"], pair["differ"]) == ("ann", "bob", 2, 1)


def test_owners_are_named(run):
    with pytest.raises(ConfigError, match=r"several owners. Choose one with --owner: \w+ \(\d flagged\)"):
        open_subject(run[0])
    with pytest.raises(ConfigError, match="Did you mean 'north'"):
        open_subject(run[0], "nort")


def test_a_nodes_state_folder_with_its_data(run, tmp_path):
    """As a Flower node leaves it: labels.csv of its own rows in a folder of the run, and no settings."""
    _, data, _ = run
    state = tmp_path / "state" / "0f3c"
    state.mkdir(parents=True)
    own = [path.relative_to(data / "north").as_posix() for path in sorted((data / "north").rglob("*.png"))]
    rows = []
    for where in own:
        given = where.split("/")[0]
        suggested, score = by_file_name(where, given) or (given, 0.9)
        rows.append(["north", where, given, suggested, score, str(suggested != given).lower(), "tried"])
    write_labels(state / "labels.csv", rows)
    for folder in (state, state.parent):
        with pytest.raises(ConfigError, match="Add data=PATH"):
            open_subject(folder)
        desk = desk_of(folder, None, data=str(data / "north"))
        assert desk.subject.owner == "north"
        assert desk.subject.judged.where == own
        desk.decide([Wish(row=3, action="keep")])
    assert len(read_decisions(state / "decisions.jsonl").entries) == 2
    wrong = int(np.flatnonzero(desk.subject.judged.flagged)[0])
    desk.decide([Wish(row=wrong, action="take")])
    mended = {"data": str(data / "north"), "data.corrections": str(state / "decisions.jsonl")}
    with pytest.raises(DataError, match="FS331"):  # these labels were judged before anything was corrected
        open_subject(state, None, mended)
    rows[wrong] = [*rows[wrong][:2], rows[wrong][3], rows[wrong][3], 0.9, "false", "tried"]
    write_labels(state / "labels.csv", rows)
    assert not open_subject(state, None, mended).judged.flagged[wrong]


def test_data_that_moved_or_changed(run, tmp_path):
    folder, data, _ = run
    shutil.move(data, tmp_path / "elsewhere")
    with pytest.raises(DataError, match="FS301"):
        open_subject(folder, "north")
    assert open_subject(folder, "north", {"data": str(tmp_path / "elsewhere")}).owner == "north"
    some = next((tmp_path / "elsewhere" / "north" / "red").iterdir())
    some.rename(tmp_path / "elsewhere" / "north" / "blue" / f"x{some.name}")
    with pytest.raises(DataError, match="FS331"):
        open_subject(folder, "north", {"data": str(tmp_path / "elsewhere")})


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (["north", "north/../../etc/passwd", "red", "green", 0.1, "true", "m"], "is not in the data"),
        (["north", "south/red/000-red.png", "red", "green", 0.1, "true", "m"], "is not in the data"),
        (["north", "north/red/000-red.png", "red", "mauve", 0.1, "true", "m"], "no class 'mauve'"),
        (["north", "north/red/000-red.png", "red", "green", 7, "true", "m"], "not from 0 to 1"),
        (["north", "north/red/000-red.png", "red", "green", "x", "true", "m"], "FS311"),
    ],
)
def test_judged_labels_that_do_not_fit(run, row, words):
    write_labels(run[0] / "labels.csv", [row])
    with pytest.raises(DataError, match=words):
        open_subject(run[0], "north")


def test_judged_labels_that_hold_nothing_or_a_row_twice(run):
    row = ["north", "north/red/000-red.png", "red", "green", 0.1, "true", "m"]
    for rows, words in (([], "holds no rows"), ([row, row], "000-red.png of north stands there twice")):
        write_labels(run[0] / "labels.csv", rows)
        with pytest.raises(DataError, match=words):
            open_subject(run[0], "north")


def test_an_owner_whom_the_data_do_not_have(run, tmp_path):
    other = colour_folder(tmp_path / "other", owners=("west", "east"))
    with pytest.raises(DataError, match=r"no owner 'north'.*data=PATH.*\[FS331\]"):
        open_subject(run[0], "north", {"data": str(other)})


def test_a_reader_has_a_name(run):
    for name in ("", "x" * 5000):
        with pytest.raises(ConfigError, match=r"--reader.*\[FS002\]"):
            desk_of(run[0], reader=name)


def test_rows_that_are_not_there_are_refused(run):
    desk = desk_of(run[0])
    assert len(desk.samples([0, 1])) == 2
    for rows in ([0, -1], [10**6]):
        with pytest.raises(Refused):
            desk.samples(rows)


def test_a_run_without_judged_labels(tmp_path):
    with pytest.raises(DataError, match=r"not found\. Give the folder of a run whose method judges labels"):
        open_subject(tmp_path)


def test_a_method_that_judges_leaves_what_a_review_needs(tmp_path, tiny_file):
    keys = {"data": str(tiny_file), "clients": 2, "rounds": 2, "epochs": 1, "runtime": "serial", "model": "mlp"}
    noise = {"noise": "symmetric", "method": "fedrn", "fedrn.warmup": 1}
    fedsieve.run(**keys, **noise, out=str(tmp_path / "run"), quiet=True)
    desk = desk_of(tmp_path / "run", "1")
    desk.decide([Wish(row=0, action="unsure")])
    assert desk.subject.hashes.model == fedsieve.load(tmp_path / "run")["model_sha256"]


# What is shown


def test_the_owners_own_file_is_shown_not_what_nets_saw(tmp_path):
    data = tmp_path / "photos"
    for number in range(20):
        place = data / "n" / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (1200, 600), (number, 0, 0)).save(place / f"{number}.png")
    judged_run(tmp_path / "run", lambda *_: None, data=str(data), **{"data.size": 8, "data.colour": "colour"})
    material = open_subject(tmp_path / "run").material
    content, kind = material.picture(0, 900)
    assert kind == "image/jpeg"
    assert Image.open(io.BytesIO(content)).size == (900, 450)
    (data / material.where[1]).write_bytes(b"broken")
    assert Image.open(io.BytesIO(material.picture(1, 900)[0])).size == (8, 8)


def test_sixteen_bits_are_shown_as_nets_see_them(tmp_path):
    """Scans often have them; a plain conversion would show white."""
    place = tmp_path / "deep.png"
    Image.fromarray(np.full((80, 80), 0x4000, np.uint16)).save(place)
    material = Material(np.zeros((1, 4, 4, 1), np.uint8), ["deep.png"], tmp_path, window=(0, 0xFFFF))
    shown = np.asarray(Image.open(io.BytesIO(material.picture(0, 900)[0])))
    assert set(shown.ravel().tolist()) == {0x40}


def test_scans_of_a_list_are_shown_by_the_window_of_the_run(tmp_path):
    """In a column of any name; black and white are where the run found them."""
    for i in range(20):
        values = np.full((80, 80), 1000 if i % 2 else 3000, np.uint16)
        Image.fromarray(values).save(tmp_path / f"{i}.png")
    (tmp_path / "list.csv").write_text("scan,label\n" + "".join(f"{i}.png,{'ab'[i % 2]}\n" for i in range(20)))
    keys = {"data.size": 8, "data.window": "1000,3000"}
    judged_run(tmp_path / "run", lambda *_: None, data=str(tmp_path / "list.csv"), clients=1, **keys)
    material = open_subject(tmp_path / "run").material
    for row in range(4):
        shown = np.asarray(Image.open(io.BytesIO(material.picture(row, 900)[0])))
        assert shown.shape == (80, 80)
        assert set(shown.ravel().tolist()) == {0 if int(material.where[row].removesuffix(".png")) % 2 else 255}


def test_texts_are_shown_as_texts(tmp_path):
    lines = [f"{'ab'[i % 2]},<b>news {i},radio\n" for i in range(40)]
    (tmp_path / "t.csv").write_text("label,title,source\n" + "".join(lines))
    judged_run(tmp_path / "run", lambda *_: None, data=str(tmp_path / "t.csv"), clients=1, **{"data.text": "title"})
    desk = desk_of(tmp_path / "run", None)
    assert desk.overview()["kind"] == "text"
    sample = desk.sample(5)
    line = int(sample["where"].removeprefix("t.csv:"))
    assert sample["text"] == f"<b>news {line - 2}"
    assert sample["cells"] == {"source": "radio"}
    assert all(near["text"].startswith("<b>news") for near in sample["evidence"]["given"])


def test_pixels_of_arrays_are_shown_as_they_are(tmp_path, tiny_file):
    judged_run(tmp_path / "run", lambda *_: None, data=str(tiny_file), clients=2)
    material = open_subject(tmp_path / "run", "0").material
    content, kind = material.picture(3, 900)
    shown = np.asarray(Image.open(io.BytesIO(content)))
    assert kind == "image/png"
    assert (shown.reshape(material.samples[3].shape) == material.samples[3]).all()


def test_tables_show_their_cells(tmp_path):
    rng = np.random.default_rng(0)
    lines = [f"{i},{'ab'[i % 2]},{rng.normal():.3f},{i}\n" for i in range(40)]
    (tmp_path / "t.csv").write_text("id,label,weight,=height\n" + "".join(lines))
    judged_run(tmp_path / "run", lambda *_: None, data=str(tmp_path / "t.csv"), clients=1)
    desk = desk_of(tmp_path / "run", None)
    sample = desk.sample(5)
    line = int(sample["where"].removeprefix("t.csv:"))
    assert sample["cells"] == {"weight": lines[line - 2].split(",")[2], "=height": str(line - 2)}
    assert sample["evidence"]["given"][0]["cells"].keys() == sample["cells"].keys()


def test_rows_of_arrays_have_numbered_cells(tmp_path):
    x = np.arange(60, dtype=np.float32).reshape(30, 2)
    y = np.arange(30) % 2
    np.savez(tmp_path / "t.npz", x_train=x[:20], y_train=y[:20], x_test=x[20:], y_test=y[20:], client=["n"] * 20)
    judged_run(tmp_path / "run", lambda *_: None, data=str(tmp_path / "t.npz"))
    material = desk_of(tmp_path / "run", None).subject.material
    assert material.named_cells(3) == dict(zip(("x0", "x1"), map("{:g}".format, material.samples[3]), strict=True))


def test_without_its_packages_the_error_says_what_to_install(run, monkeypatch):
    really = builtins.__import__

    def refuse(name, *rest, **more):
        if name == "uvicorn":
            raise ImportError(name)
        return really(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ConfigError, match=r"pip install fedsieve\[review\]"):
        serve(desk_of(run[0]), 0, show=False, say=print)


# The page without a server


def test_the_static_page_holds_all_it_needs(run, tmp_path):
    target = tmp_path / "review.html"
    desk = desk_of(run[0])
    said = static_page.write_static(desk, target, most=5)
    assert "5 rows" in said
    page = target.read_text()
    assert not re.findall(r'(?:src|href)="(?!data:)[^"]+"', page)
    content = json.loads(re.search(r'id="review-data">(.*?)</script>', page)[1])
    assert content["overview"]["order"] == desk.overview()["order"][:5]
    for row in content["overview"]["order"]:
        assert content["images"][str(row)]["large"].startswith("data:image/png;base64,")
        for near in content["samples"][str(row)]["evidence"]["suggested"]:
            assert str(near["row"]) in content["images"]
    with pytest.raises(ConfigError, match="FS005"):
        static_page.write_static(desk, target, most=5)


def test_a_twin_is_shown_with_its_label(run, tmp_path):
    folder, _, federation = run
    file = folder / "labels.csv"
    head, *lines = file.read_text().splitlines()
    north = [line for line in lines if line.startswith("north,")]
    first, second = (line.split(",")[1] for line in north[:2])
    file.write_text("\n".join([head, north[0] + second, north[1] + "elsewhere/1.png", *lines[2:]]) + "\n")
    desk = desk_of(folder)
    rows = {where: row for row, where in enumerate(desk.subject.judged.where)}
    told = desk.sample(rows[first])["twin"]
    assert (told["where"], told["row"]) == (second, rows[second])
    assert federation.class_names[told["label"]] == second.split("/")[1]
    assert "twin" not in desk.sample(rows[second]), "what it names is not in the data"
    assert rows[first] in desk.overview()["order"][: desk.overview()["suspicious"]]
    static_page.write_static(desk, tmp_path / "review.html", most=1000)
    content = json.loads(re.search(r'id="review-data">(.*?)</script>', (tmp_path / "review.html").read_text())[1])
    assert str(rows[second]) in content["images"]


def test_modules_can_be_put_into_one():
    """Names at the top of all modules differ, each comes after what it imports, and no module is forgotten."""
    seen, names = [], []
    for module in static_page.MODULES:
        text = (PAGE / module).read_text()
        imported = [name.replace("api.js", "kept.js") for name in re.findall(r'from "\./(.+?)"', text)]
        assert set(imported) <= set(seen), module
        assert all(line.endswith(";") for line in text.splitlines() if line.startswith("import "))
        seen.append(module)
        names += re.findall(r"^(?:export )?(?:async )?(?:const|let|function|class) (\w+)", text, re.MULTILINE)
    assert len(names) == len(set(names))
    assert {*seen, "api.js"} == {path.name for path in PAGE.glob("*.js")}


def test_colour_folder_is_what_it_says(tmp_path):
    """Of each owner's 36 images four lie in the wrong folder: the other tests rest on it."""
    data = colour_folder(tmp_path / "scans")
    wrong = [path for path in data.rglob("*.png") if path.parent.name not in path.stem]
    assert len(wrong) == 8
