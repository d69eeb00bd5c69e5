"""What a node tells when its data are broken: a code and a sentence. Names, paths and cells stay in its log."""

import re

import pytest
from grid_here import GridHere
from node_files import CLASSES, write_files
from PIL import Image

from fedsieve.base.errors import ConfigError, DataError, RunError
from fedsieve.flower.deployment import serve
from fedsieve.flower.telling import SENTENCES, tell
from fedsieve.report.progress import Progress

SECRET = "patient-4711"


def table(*lines, header="x,y,label"):
    return lambda folder: (folder / "b.csv").write_text("\n".join([header, *lines]) + "\n")


def pictures(*broken):
    def make(folder):
        for label in ("one", "two"):
            (folder / "b" / label).mkdir(parents=True)
            Image.new("L", (12, 12)).save(folder / "b" / label / "first.png")
        (folder / "b" / "one" / f"{SECRET}.png").write_bytes(broken[0])

    return make


BROKEN = {
    "no such file": lambda folder: None,
    "text in a column of numbers": table("1,2,one", f"1,{SECRET},two"),
    "an empty cell": table("1,2,one", "1,,two", header=f"x,{SECRET},label"),
    "not finite": table("1,2,one", "1,nan,two", header=f"x,{SECRET},label"),
    "an unknown class": table("1,2,one", f"1,3,{SECRET}"),
    "an id that stands twice": table(f"{SECRET},2,one", f"{SECRET},3,two", header="id,y,label"),
    "no label column": table("1,2,one", header=f"x,{SECRET},diagnosis"),
    "a short line": table("1,2,one", SECRET),
    "a broken image": pictures(b"nothing"),
    "an image of another size": pictures(b""),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_an_error_of_the_data_carries_nothing_of_them(tmp_path, kind, caplog):
    write_files(tmp_path)
    BROKEN[kind](tmp_path)
    (tmp_path / "classes.txt").write_text("\n".join(CLASSES))
    places = {"a broken image": "b", "an image of another size": "b", "no such file": f"{SECRET}.csv"}
    data = {10: tmp_path / "a.npz", 20: tmp_path / places.get(kind, "b.csv"), 30: tmp_path / "c.npz"}
    if kind == "an image of another size":
        Image.new("L", (20, 30)).save(tmp_path / "b" / "one" / f"{SECRET}.png")
    nodes = {k: {"data": str(path), "name": str(k), "state": str(tmp_path / f"s{k}")} for k, path in data.items()}
    settings = {
        "clients": 3,
        "rounds": 1,
        "flower.wait": 0.1,
        "flower.timeout": 5,
        "data": str(tmp_path / "server.npz"),
    }
    with pytest.raises(DataError) as problem:
        serve(GridHere(nodes), settings | {"out": str(tmp_path / "run")}, Progress())
    assert SECRET not in str(problem.value)
    assert str(tmp_path) not in str(problem.value)
    sentence = SENTENCES[problem.value.code]
    assert str(problem.value) == f"node 20: {sentence}; see the node's log [{problem.value.code}]"
    assert str(data[20]) in caplog.text, "the owner reads what is wrong where the data are"


@pytest.mark.parametrize(
    "problem",
    [
        ValueError(SECRET),
        KeyError(SECRET),
        OSError(28, "No space left", SECRET),
        RunError("FS210", SECRET),
        RunError("FS999", SECRET),
        ConfigError("FS002", SECRET),
        MemoryError(SECRET),
    ],
    ids=repr,
)
def test_whatever_fails_is_told_without_its_text(problem):
    content = tell(problem)
    assert SECRET not in str(content)
    assert re.fullmatch(r"FS\d{3}", content["code"])
    assert content["message"].endswith("; see the node's log")


def test_no_sentence_has_room_for_a_value():
    for code, sentence in SENTENCES.items():
        assert re.fullmatch(r"FS\d{3}", code)
        assert not re.search(r"[{}%]", sentence)
