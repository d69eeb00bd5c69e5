"""Commands in one process: what they print, and how the entry point ends."""

import csv
import io
import json
import signal
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

import fedsieve
from fedsieve.base.ending import SIGNALS
from fedsieve.cli import app as commands
from fedsieve.cli.app import app, main
from fedsieve.data import download
from fedsieve.methods import METHODS
from fedsieve.models import MODELS
from fedsieve.runs.comparison import Outcome, Tables


def called(*words):
    done = CliRunner().invoke(app, [*map(str, words)])
    assert done.exit_code == 0, done.exception
    return done


def test_the_version():
    assert called("--version").stdout == f"fedsieve {fedsieve.__version__}\n"


def test_lists_are_whole_as_text_and_as_json():
    for command, known in (("methods", METHODS), ("models", MODELS)):
        listed = json.loads(called(command, "--json").stdout)
        assert {name: entry["summary"] for name, entry in listed.items()} == {n: e.summary for n, e in known.items()}
        assert [line.split()[0] for line in called(command).stdout.splitlines()] == list(known)


def test_options_are_shown_with_their_defaults():
    assert json.loads(called("methods", "gce", "--json").stdout)["gce"]["q"]["default"] == 0.7
    assert called("methods", "gce").stdout.splitlines()[-1].startswith("gce.q (0.7)  ")
    assert called("methods", "local").stdout.endswith("\nlocal has no options\n")
    assert called("models", "mlp").stdout.startswith("model.hidden (")
    assert called("methods", "--table").stdout.startswith("| method | judges labels |")
    assert "combine=median\n" in called("keys", "combine").stdout
    assert "partition=iid\n" in called("keys", "partition").stdout
    assert json.loads(called("keys", "noise", "--json").stdout)["noise=symmetric"]["count"]["default"] == "exact"


def test_a_section_that_is_not_there_is_refused():
    problem = CliRunner().invoke(app, ["keys", "noize"]).exception
    assert getattr(problem, "code", None) == "FS001"
    assert "no section or key 'noize'. Did you mean 'noise'?" in str(problem)


def test_one_key_is_shown_alone():
    assert called("keys", "norm").stdout.startswith("norm (average)  Normalisation")
    assert called("keys", "norm").stdout.count("\n") == 1
    assert called("keys", "admit.factor").stdout.startswith("admit.factor (7.0)  How many times")
    assert called("keys", "noise.rates").stdout.startswith("noise.rates (fixed)")
    found = json.loads(called("keys", "noise.rate", "--json").stdout)
    assert found["noise.rates=fixed"]["rate"]["default"] == 0.25
    assert all("rate" in options for options in found.values())
    assert called("keys", "combine.trim").stdout.startswith("combine=trimmed-mean\n  trim (")


def test_where_downloaded_data_lie(monkeypatch, tmp_path):
    monkeypatch.setattr(download, "fetch", lambda name: tmp_path / name)
    assert called("data", "get", "mnist").stdout == f"{tmp_path / 'mnist'}\n"


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny_file):
    folder = tmp_path_factory.mktemp("runs") / "own"
    keys = ["clients=2", "rounds=1", "epochs=1", "runtime=serial", "model=mlp", f"data={tiny_file}", f"out={folder}"]
    done = called("run", *keys, "--quiet")
    return folder, done.stdout


def test_a_run_says_how_good_it_is_and_where_it_lies(run):
    folder, said = run
    summary = fedsieve.load(folder)
    first, second = said.splitlines()
    assert first.startswith(f"test accuracy {summary['test_accuracy']:.4f} at the end")
    assert second.startswith(f"run {folder}: report.html, model.safetensors")


def test_a_finished_run_is_resumed_to_the_same_summary(run):
    folder, _ = run
    before = (folder / "model.safetensors").read_bytes()
    summary = json.loads(called("resume", folder, "--quiet", "--json").stdout)
    assert summary["folder"] == str(folder)
    assert summary["finished"]
    assert (folder / "model.safetensors").read_bytes() == before


def test_predictions_are_printed_as_a_table(run, tiny_file):
    folder, _ = run
    rows = list(csv.DictReader(io.StringIO(called("predict", folder, tiny_file).stdout)))
    expected = fedsieve.predict(folder, np.load(tiny_file)["x_test"])
    assert list(rows[0]) == ["row", "where", "label", "name", "probability"]
    assert [int(row["label"]) for row in rows] == expected["label"]
    assert [row["name"] for row in rows] == expected["name"]


@pytest.mark.parametrize(
    ("reported", "words"),
    [(2, "report: {}/report.html"), (1, "report of the 1 runs whose"), (0, "no report: of these runs only rows")],
)
def test_a_comparison_is_told_as_json_with_its_runs(tmp_path, monkeypatch, reported, words):
    rows = [{"method": "fedavg", "seed": 0}, {"method": "gce", "seed": 0}]
    outcome, tables = Outcome(tmp_path, rows, {}, 2), Tables("by method", reported)
    monkeypatch.setattr("fedsieve.runs.comparison.compare", lambda settings, **_: outcome)
    monkeypatch.setattr("fedsieve.runs.comparison.write_tables", lambda _, rows, vary: {("method",): tables}[(*vary,)])
    assert json.loads(called("compare", "method=fedavg,gce", "--json").stdout) == rows
    done = called("compare", "method=fedavg,gce")
    assert done.stdout == "by method\n"
    assert done.stderr.startswith(f"tables: {tmp_path}/table.md, .csv, .tex; {words.format(tmp_path)}")


@pytest.fixture
def entered(monkeypatch, capsys):
    """Calls the entry point; gives its exit code and what it said on stderr."""
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["fedsieve", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, capsys.readouterr().err

    yield call
    for number, handler in before.items():
        signal.signal(number, handler)


def test_the_exit_code_tells_the_kind_of_error(entered):
    assert entered("methods") == (0, "")
    code, said = entered("keys", "noize")
    assert (code, said.splitlines()[-1][-7:]) == (2, "[FS001]")
    code, said = entered("methodz")
    assert code == 2
    assert "No such command 'methodz'" in said


@pytest.mark.parametrize("problem", [KeyboardInterrupt, EOFError])
def test_an_interrupt_before_anything_was_saved(entered, monkeypatch, problem):
    def interrupted(*_):
        raise problem

    def left(status):
        raise SystemExit(status)

    monkeypatch.setattr(commands, "leave", left)
    monkeypatch.setattr(commands, "_show_options", interrupted)
    code, said = entered("keys")
    assert code == 130
    assert said.endswith("error: interrupted: start the same command again [FS216]\n")


def test_what_nobody_foresaw_is_told_in_one_line_below_where_it_was(entered, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr(commands, "_show_options", broken)
    code, said = entered("keys")
    assert code == 4
    assert "Traceback" in said
    assert "a fault of ours" in said.splitlines()[-1]
    assert said.splitlines()[-1].startswith("error: ZeroDivisionError")
