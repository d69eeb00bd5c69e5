"""Texts through the front door: the page about them, export and read back, runtimes, prediction, hostile cards."""

import csv
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

import fedsieve
from fedsieve.base.errors import ConfigError, DataError, FedSieveError
from fedsieve.cli.app import app
from fedsieve.models.saved import SavedModels, to_bytes
from fedsieve.settings.config import resolve
from fedsieve.settings.splitting import federation_of

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "my-text.md").read_text(encoding="utf-8")
TOPICS = {"sport": "goal match team player cup", "weather": "rain sun wind cloud storm"}
KEYS = {"data.text": "title", "data.label": "topic", "data.client": "desk", "data.text_features": "ngrams:256"}
RUN = {"model": "linear", "rounds": 3, "epochs": 2, "runtime": "serial", "quiet": True}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSIEVE_DATA", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def called(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def blocks(language):
    found = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return [body for named, body in found if named == language]


def write_titles(path, rows=80):
    rng = np.random.default_rng(0)
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["desk", "title", "topic", "remark"])
        for i in range(rows):
            topic = list(TOPICS)[int(rng.integers(2))]
            table.writerow([f"desk {i % 4}", " ".join(rng.permutation(TOPICS[topic].split())[:4]), topic, "not used"])
    return path


@pytest.fixture
def titles(tmp_path):
    return write_titles(tmp_path / "titles.csv")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run on texts of four clients."""
    folder = tmp_path_factory.mktemp("texts")
    titles = write_titles(folder / "titles.csv")
    fedsieve.run(**KEYS, **RUN, data=str(titles), out=str(folder / "run"))
    return folder / "run"


def test_the_page_does_as_it_says(tmp_path, capsys):
    """Every command of the page, in order, and what it shows."""
    printed = ""
    for block in blocks("bash"):
        code = re.match(r"python - <<'END'\n(.*?)^END\n", block, re.MULTILINE | re.DOTALL)
        if code:
            exec(compile(code[1], "titles", "exec"), {})
        for line in block[code.end() if code else 0 :].splitlines():
            printed += called(*shlex.split(line)[1:])
    (shown,) = blocks("")
    assert shown in printed
    assert "0,text 0,2,weather," in printed
    assert len(Path("predicted.csv").read_text().splitlines()) == 401
    (example,) = blocks("python")
    exec(compile(example, "example", "exec"), {})
    assert len(re.findall(r"^\w+ \| \w", capsys.readouterr().out, re.MULTILINE)) == 3


def test_four_clients_learn_from_texts(run, tmp_path):
    summary = json.loads((run / "summary.json").read_text())
    assert summary["test_accuracy"] == 1.0
    written = json.loads((run / "federation.json").read_text())
    assert [client["name"] for client in written["clients"]] == ["desk 0", "desk 1", "desk 2", "desk 3"]
    assert written["image_shape"] == [256]
    assert any("column 'title'" in note for note in written["notes"])
    assert SavedModels.read(run / "model.safetensors").card["text"] == {
        "column": "title", "features": "ngrams:256", "key": "ngrams:256 version 1",
    }  # fmt: skip


@pytest.mark.parametrize("method", ["gce+fb-nll-minus", "fedrn", "ksim", "fedln-nnc"])
def test_methods_of_tables_work_on_texts(titles, tmp_path, method):
    options = {"noise": "symmetric", "noise.rate": 0.3, "method": method, "rounds": 2, "epochs": 1}
    options |= {"server.public": 8} if method == "ksim" else {}
    summary = fedsieve.run(**{**KEYS, **RUN, "model": "mlp", **options}, data=str(titles), out=str(tmp_path / "run"))
    assert 0 <= summary["test_accuracy"] <= 1


def test_the_pool_and_a_resumed_run_give_the_same_bytes(titles, tmp_path, run):
    pooled = {**KEYS, **RUN, "runtime": "pool", "workers": 1, "data": str(titles)}
    fedsieve.run(**pooled, out=str(tmp_path / "pool"))
    assert (tmp_path / "pool" / "model.safetensors").read_bytes() == (run / "model.safetensors").read_bytes()
    for name in ("summary.json", "model.safetensors"):
        (tmp_path / "pool" / name).unlink()
    called("resume", tmp_path / "pool", "-q")
    assert (tmp_path / "pool" / "model.safetensors").read_bytes() == (run / "model.safetensors").read_bytes()


def test_exported_texts_come_back_as_they_were(titles, tmp_path):
    keys = {**KEYS, "data": str(titles)}
    said = called("data", "export", tmp_path / "out", *(f"{key}={value}" for key, value in keys.items()))
    assert "data.text=text" in said
    before, truth = federation_of(resolve(keys))
    after, again = federation_of(
        resolve({"data": str(tmp_path / "out"), "data.text": "text", "data.text_features": "ngrams:256"})
    )
    assert after.client_names == before.client_names
    for mine, theirs in zip(before.rows, after.rows, strict=True):
        assert [before.texts[row] for row in mine] == [after.texts[row] for row in theirs]
        assert np.array_equal(before.images[mine], after.images[theirs])
    assert after.test_texts == before.test_texts
    assert np.array_equal(again.test, truth.test)


# Prediction


def test_texts_are_predicted_one_by_one_from_a_file_and_from_python(run, titles, tmp_path):
    printed = called("predict", run, "rain\x00 and \u202ewind").splitlines()
    assert printed[0] == "row,where,label,name,probability,text"
    assert printed[1].startswith("0,text 0,1,weather,")
    assert printed[1].endswith(",rain and wind")
    with titles.open(encoding="utf-8") as file:
        expected = [row["topic"] for row in csv.DictReader(file)]
    called("predict", run, titles, "--out", tmp_path / "new.csv")
    with (tmp_path / "new.csv").open(encoding="utf-8") as file:
        assert [row["name"] for row in csv.DictReader(file)] == expected
    assert fedsieve.predict(run, ["a goal", "a storm"])["name"] == ["sport", "weather"]
    assert fedsieve.predict(run, np.array(["a goal"]))["name"] == fedsieve.predict(run, "a goal")["name"] == ["sport"]
    assert "text" not in fedsieve.predict(run, np.zeros((1, 256), np.float32))
    np.save(tmp_path / "none.npy", np.zeros((1, 256), np.float32))
    mixed = called("predict", run, "a goal", titles, tmp_path / "none.npy", "a storm", "--json")
    found = json.loads(mixed)
    assert found["where"][:2] == ["text 0", f"{titles}:2"]
    assert found["where"][-2:] == [f"{tmp_path / 'none.npy'}:0", "text 3"]
    assert (found["text"][0], *found["text"][-2:]) == ("a goal", "", "a storm")
    assert found["name"] == ["sport", *expected, found["name"][-2], "weather"]
    called("predict", run, "x" * 5000)  # longer than any name of a file


def refused(code, says, *arguments, kind=DataError, **options):
    with pytest.raises(kind) as caught:
        fedsieve.predict(*arguments, **options) if not isinstance(arguments[0], str) else called(*arguments)
    assert caught.value.code == code, caught.value
    assert says in caught.value.message


def test_an_encoder_is_refused_where_nothing_is_encoded(run, tmp_path):
    np.save(tmp_path / "numbers.npy", np.zeros((1, 256), np.float32))
    with pytest.raises(ConfigError, match=r"--encoder hf:any has no effect.*FS002"):
        called("predict", run, tmp_path / "numbers.npy", "--encoder", "hf:any")


def test_the_encoder_that_is_named_is_the_one_that_is_taken(run):
    with pytest.raises(DataError, match=r"ngrams:64: not the encoder.*FS310"):
        called("predict", run, "a goal", "--encoder", "ngrams:64")


def test_what_is_no_text_is_refused(run, tmp_path, tiny_file):
    (tmp_path / "other.csv").write_text("titel\nrain\n")
    refused("FS302", "no column 'title'. Did you mean 'titel'?", "predict", str(run), tmp_path / "other.csv")
    (tmp_path / "gap.csv").write_text("title,n\nrain,1\n,2\n")
    refused("FS302", "1 samples could not be read and are left out", "predict", str(run), tmp_path / "gap.csv")
    with pytest.warns(UserWarning, match=r"left out: .*gap\.csv:3: column 'title' is empty"):
        assert fedsieve.predict(run, tmp_path / "gap.csv")["text"] == ["rain"]
    (tmp_path / "note.txt").write_text("rain")
    refused("FS302", "Give one with a column 'title', or the text itself", "predict", str(run), tmp_path / "note.txt")
    refused("FS301", "no such file", "predict", str(run), tmp_path / "none.csv")
    refused("FS304", "text 1 is empty", run, ["rain", " "])
    refused("FS304", "text 1 is empty", run, ["rain", 3])
    refused("FS002", "--encoder hf:any has no effect", run, np.zeros((1, 256), np.float32), encoder="hf:any",
            kind=ConfigError)  # fmt: skip
    images = tmp_path / "images"
    fedsieve.run(clients=2, rounds=1, epochs=1, runtime="serial", quiet=True, data=str(tiny_file), out=str(images))
    refused("FS309", "was not trained on texts", images, np.array(["rain"]))
    refused("FS301", "rain: no such file", images, ["rain"])
    refused("FS002", "--encoder hf:any has no effect", images, [tiny_file], encoder="hf:any", kind=ConfigError)


def with_card(run, folder, **text):
    """The same model with another card, whose checksum holds."""
    saved = SavedModels.read(run / "model.safetensors")
    card = {key: value for key, value in saved.card.items() if key != "sha256"}
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(
        to_bytes(load_file(run / "model.safetensors"), card | {"text": card["text"] | text})
    )
    return folder


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ({"features": "hf:nobody/trap"}, "FS010", "--encoder"),
        ({"features": "ngrams:99999999"}, "FS010", "--encoder"),
        ({"features": "\x1b[2Jminilm"}, "FS010", "\\x1b"),
        ({"features": "ngrams:128"}, "FS310", "not the encoder"),
        ({"key": "another"}, "FS310", "not the encoder"),
        ({"features": 3}, "FS302", "its card cannot be used (text.features"),
        ({"column": "c" * 2000}, "FS302", "its card cannot be used (text.column"),
        ({"code": "os:system"}, "FS302", "its card cannot be used (text.code"),
    ],
)
def test_a_card_is_not_believed(run, tmp_path, monkeypatch, text, code, says):
    monkeypatch.setattr("fedsieve.data.texts.sentences._loaded", None)  # is never reached
    refused(code, says, with_card(run, tmp_path / "theirs", **text), ["rain"], kind=FedSieveError)
