"""Text of others: on the terminal it is only text, in a spreadsheet it is only text, and it comes back as it was."""

import csv
import io
import os
import re
from contextlib import redirect_stderr
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from rich.console import Console

import fedsieve
from fedsieve.base.errors import DataError, one_line
from fedsieve.base.sheets import harmless, original, write_rows
from fedsieve.data.export import export_federation
from fedsieve.data.inspection import as_text
from fedsieve.data.sources import load_source
from fedsieve.evaluate.labels import JudgedLabel, labels_csv
from fedsieve.report.folder import read_labels
from fedsieve.report.progress import Bar, Lines, Several
from fedsieve.report.tables import Table

EVIL = "[/bold] [red]x[/] [link=https://a.b]c[/link] \x1b[2J\x1b]0;title\x07 \r\n:smile: \u202eabc\x9b31m"
FORMULAS = ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\tx", "\r=x", "=", "-", "'=x", "''=x", "-x", "+a"]
NUMBERS = ["-5", "+5", "-0.5", "-1e-3", "-1,234.5 ± 0.2 (n=3)", "-.5", "0", "-12.50 ± 3.25"]


def shown(text):
    """Nothing in it steers a terminal, and the brackets are there."""
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text.replace("\r", ""))
    assert "[/bold] [red]x[/] [link=https://a.b]c[/link]" in text
    assert ":smile:" in text


def test_notes_are_shown_as_they_are():
    stream = io.StringIO()
    lines = Lines(stream)
    lines.note(EVIL)
    shown(stream.getvalue())
    assert stream.getvalue().count("\n") == 1


def test_notes_of_the_bar_are_no_markup():
    bar = Bar()
    stream = io.StringIO()
    bar._console = Console(file=stream, width=400, force_terminal=False)
    bar.note(EVIL)
    shown(stream.getvalue())
    event = {"code": "FS202", "message": EVIL}
    row = {"round": 1, "test_accuracy": None, "reports": 1, "refused": 0, "events": [event]}
    bar._task = bar._bar.add_task(EVIL, total=3, shown=EVIL)
    bar.round(row)
    with bar._bar.console.capture():
        bar._bar.console.print(bar._bar.get_renderable())  # a column that read markup would raise here
    several = Several(quiet=False)
    with redirect_stderr(io.StringIO()) as said:
        several.note(EVIL)
    shown(said.getvalue())


def test_errors_are_one_line_whatever_they_quote():
    problem = DataError("FS302", f"{EVIL}: cannot be read")
    assert "\n" not in str(problem)
    shown(str(problem))
    assert str(problem).endswith("[FS302]")


@given(st.text())
def test_any_text_becomes_one_line_that_can_be_written(text):
    line = one_line(text)
    assert "\n" not in line
    assert not re.search(r"[\x00-\x08\x0e-\x1f\x7f-\x9f]", line)
    line.encode()


@pytest.mark.parametrize("text", FORMULAS)
def test_formulas_become_text_and_come_back(text):
    assert harmless(text) == f"'{text}"
    assert original(harmless(text)) == text


@pytest.mark.parametrize("text", NUMBERS)
def test_numbers_stay_numbers(text):
    assert harmless(text) == text == original(text)
    assert harmless(-5) == -5


@given(st.text(max_size=20))
def test_any_text_comes_back(text):
    assert original(str(harmless(text))) == text
    assert str(harmless(text))[:1] not in ("=", "@", "\t", "\r")


def test_every_csv_file_goes_through_one_place():
    source = Path(fedsieve.__file__).parent
    writers = [path.name for path in source.rglob("*.py") if "csv.writer" in path.read_text()]
    assert writers == ["sheets.py"]


def test_tables_and_judged_labels_are_harmless():
    assert Table(("method", "x"), (("=cmd()", "-0.5 ± 0.1"),)).to_csv() == "method,x\n'=cmd(),-0.5 ± 0.1\n"
    label = JudgedLabel("=cmd()", "@x/1.png", "+a", "-b", 0.5, True, "=m", "=twin", 0, 0)
    assert labels_csv([label]).decode().splitlines()[1] == "'=cmd(),'@x/1.png,'+a,'-b,0.5,true,'=m,'=twin"


@pytest.mark.parametrize("table", [False, True])
def test_an_export_comes_back_as_it_was(tmp_path, table):
    names = ["=1+1", "@x", "-y", "'=q", "-3"]
    rows = np.arange(60) % 5
    samples = np.linspace(-3, 3, 60 * 4, dtype=np.float32).reshape(60, 4)
    images = np.arange(60 * 64, dtype=np.uint64).astype(np.uint8).reshape(60, 8, 8)
    arrays = {"x_train": samples, "x_test": samples[:10]} if table else {"x_train": images, "x_test": images[:10]}
    owners = np.array(["=north", "+south"])[np.arange(60) // 5 % 2]
    np.savez(
        tmp_path / "x.npz", **arrays, y_train=rows, y_test=rows[:10], class_names=np.array(names), client=owners,
        y_true=rows,
    )  # fmt: skip
    federation, truth = fedsieve.federation(data=str(tmp_path / "x.npz"), model="mlp")
    export_federation(federation, truth, tmp_path / "out")
    text = (tmp_path / "out" / "manifest.csv").read_text()
    for row in csv.reader(io.StringIO(text)):
        assert not any(re.match(r"[=+@\t\r]|-[^\d.]", cell) for cell in row)
    source = load_source(str(tmp_path / "out"))
    assert source.class_names == tuple(names)
    assert set(source.owner_names) == {"=north", "+south"}
    if table:
        assert np.array_equal(np.sort(source.images, axis=0), np.sort(samples, axis=0))


def test_predictions_are_harmless():
    text = io.StringIO()
    write_rows(text, [["row", "name"], [0, "=HYPERLINK(1)"], [1, "plain"]])
    assert text.getvalue() == "row,name\n0,'=HYPERLINK(1)\n1,plain\n"


def test_names_of_classes_and_clients_are_shown_as_text():
    described = {
        "class_names": [EVIL, "b"], "server": {}, "data": EVIL, "image_shape": [2], "test": 1, "validation": 0,
        "hash": "0", "notes": [EVIL], "transitions": None,
        "clients": [
            {
                "client": 0, "name": EVIL, "rows": 1, "labelled": 1, "classes": [1, 0],
                "noise_realised": None, "noise_nominal": None,
            }
        ],
    }  # fmt: skip
    text = as_text(described)
    shown(text)
    assert len(text.splitlines()) == 8, "a name with a line break is still one line"


NAMES = ["=cmd|calc.png", 'a,"b".png', "two\nlines.png", "1\r2.png", "@x.png", "\x1b[2J.png", "<script>alert(1)<b>.png"]


def test_files_of_any_name_are_found_again(tmp_path, command):
    """And no table, page or terminal takes a name for anything but text."""
    root, values = tmp_path / "photos", iter(range(200))
    for owner in ("-north", "=south"):
        for label in ("@sick", "<i>well"):
            (root / owner / label).mkdir(parents=True)
            for name in [*map(os.fsencode, NAMES), b"\xff.png"]:
                Image.new("L", (8, 8), 3 * next(values)).save(root / owner / label / os.fsdecode(name))
    keys = {"method": "fedrn", "fedrn.warmup": 0, "rounds": 1, "epochs": 1, "batch": 8, "data.test_fraction": 0}
    run = fedsieve.run(data=str(root), **keys, runtime="serial", out=str(tmp_path / "run"), quiet=True)
    labels = run.labels()
    kept = {
        path.relative_to(root).as_posix().encode(errors="backslashreplace").decode() for path in root.rglob("*.png")
    }
    assert set(labels["where"]) == kept
    assert len(kept) == 32
    assert all(row.where.startswith(f"{row.owner}/{row.given}/") for row in labels.itertuples())
    with (tmp_path / "run" / "labels.csv").open(newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert not any(re.match(r"[=+@\t\r]|-[^\d.]", cell) for cell in cells)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "<script" not in page
    assert "<i>" not in page
    assert page.count("<img ") == min(labels.flagged.sum(), 24)
    printed = command("labels", tmp_path / "run")
    assert printed.returncode == 0, printed.stderr
    assert "\x1b" not in printed.stdout
    assert len(printed.stdout.splitlines()) == 33


def test_a_folder_whose_name_is_no_text_is_refused(tmp_path):
    (tmp_path / os.fsdecode(b"ward\xff") / "well").mkdir(parents=True)
    Image.new("L", (8, 8)).save(tmp_path / os.fsdecode(b"ward\xff") / "well" / "0.png")
    with pytest.raises(DataError, match=r"ward\\udcff") as caught:
        load_source(str(tmp_path))
    assert caught.value.code == "FS302"


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8), min_size=4, max_size=4))
def test_judged_labels_come_back(tmp_path_factory, names):
    written = JudgedLabel(*names, score=0.25, flagged=True, method="m", twin=names[1], client=0, row=0)
    file = tmp_path_factory.mktemp("labels") / "labels.csv"
    file.write_bytes(labels_csv([written]))
    (found,) = read_labels(file)
    assert tuple(found.model_dump().values()) == written[:8]
