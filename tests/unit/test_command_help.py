"""Help, lists and completion of the command line, and what Python shows of itself."""

import inspect
import json
import pydoc
import subprocess
import sys
from typing import Any

import pytest
import torch
from click.testing import CliRunner as ClickRunner
from typer.main import get_command
from typer.testing import CliRunner

import fedsieve
from fedsieve.api import Comparison, Predictions, Run
from fedsieve.base.errors import ConfigError
from fedsieve.base.options import options_of
from fedsieve.cli.app import app
from fedsieve.cli.completion import complete_method, complete_model, complete_section, complete_settings
from fedsieve.data.augment import AUGMENTATIONS
from fedsieve.methods import METHODS, build_method
from fedsieve.settings import choices
from fedsieve.settings.config import Settings, resolve


def commands(command=None, path=()):
    command = command or get_command(app)
    if hasattr(command, "commands"):
        return [one for name, below in command.commands.items() for one in commands(below, (*path, name))]
    return [path]


@pytest.mark.parametrize("path", commands(), ids=" ".join)
def test_every_argument_and_option_has_a_sentence(path):
    page = CliRunner().invoke(app, [*path, "--help"]).output
    assert "\\[" not in page
    assert page.count("Arguments:") <= 1
    assert "Positional" not in page
    command: Any = get_command(app)
    for name in path:
        command = command.commands[name]
    for param in command.params:
        assert param.help, f"{path}: {param.name}"
    if any(param.name == "keys" for param in command.params):
        assert "`fedsieve keys` lists the settings" in page
        assert "`fedsieve methods`" in page


def test_keys_show_their_choices():
    shown = CliRunner().invoke(app, ["keys"]).output
    assert "One of: sgd, adam, adamw." in shown
    assert "Known: none, flip, weak" in shown
    assert "One of: symmetric" in CliRunner().invoke(app, ["keys", "server"]).output
    assert "schedule.decay (0.99)" in CliRunner().invoke(app, ["keys", "schedule"]).output
    listed = json.loads(CliRunner().invoke(app, ["keys", "--json"]).output)[""]
    assert listed["noise"]["choices"][:2] == ["none", "symmetric"]
    assert listed["overwrite"]["choices"] == ["true", "false"]
    assert listed["rounds"]["choices"] is None


def test_every_choice_is_taken():
    assert tuple(AUGMENTATIONS) == choices.AUGMENTATIONS
    for key, option in options_of(Settings).items():
        for value in choices.choices(key, option):
            if key not in ("data", "method", "model", "device", "overwrite", "client_labels", "watch"):
                resolve({key: value})


@pytest.mark.parametrize(
    ("args", "incomplete", "found"),
    [
        ([], "roun", ["rounds="]),
        ([], "noise.ra", ["noise.rate=", "noise.rates="]),
        ([], "method=fedr", ["method=fedrn"]),
        ([], "method=fedrn+gc", ["method=fedrn+gce"]),
        ([], "method=fedavg,gc", ["method=fedavg,gce"]),
        ([], "optimizer=ad", ["optimizer=adam", "optimizer=adamw"]),
        ([], "secure_aggregation=t", ["secure_aggregation=true"]),
        (["method", "="], "fedr", ["fedrn"]),
        (["method"], "=", list(METHODS)),
        (["noise", "="], "sup", ["superclass"]),
        ([], "rounds=", []),
        ([], "nothing=", []),
        ([], "fedprox.", ["fedprox.mu="]),
    ],
)
def test_keys_and_values_are_completed(args, incomplete, found):
    assert sorted(complete_settings(args, incomplete)) == sorted(found)


def test_names_are_completed():
    assert complete_method("fedr") == ["fedrn"]
    assert complete_model("resnet1") == ["resnet10", "resnet18"]
    assert "partition" in complete_section("")


def test_the_shell_asks_for_completion():
    asked = {"_FEDSIEVE_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "fedsieve run method=fedr"}
    done = ClickRunner().invoke(get_command(app), [], env=asked, prog_name="fedsieve")
    assert "method=fedrn" in done.output


def test_completion_does_not_load_torch():
    code = "import sys; from fedsieve.cli.completion import complete_settings\n"
    code += (
        "assert complete_settings([], 'method=fedr') and complete_settings([], 'au')\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_python_shows_what_there_is():
    assert set(fedsieve.__all__) <= set(dir(fedsieve))
    assert not {"Any", "annotations", "VERSION"} & set(dir(fedsieve))
    page = pydoc.plain(pydoc.render_doc(fedsieve))
    for name in ("run", "compare", "load", "predict"):
        assert f"{name}(" in page
        assert inspect.getdoc(getattr(fedsieve, name))


@pytest.mark.parametrize("name", ["run", "compare", "pretrain", "federation"])
def test_keys_are_keywords_with_types_and_words(name):
    function = getattr(fedsieve, name)
    found = inspect.signature(function).parameters
    for key, option in options_of(Settings).items():
        assert found[key].kind is inspect.Parameter.KEYWORD_ONLY
        assert found[key].annotation == option.type
        assert found[key].default == option.default
        assert f"{key}: {option.doc.split()[0]}" in function.__doc__


def test_results_are_worth_reading(tmp_path, tiny_file):
    keys = {"data": str(tiny_file), "clients": 2, "rounds": 1, "epochs": 1, "runtime": "serial", "quiet": True}
    result = fedsieve.run(**keys, out=str(tmp_path / "run"))
    assert isinstance(result, Run)
    assert result.test_accuracy == result["test_accuracy"]
    assert "test_accuracy" in dir(result)
    with pytest.raises(AttributeError, match="Did you mean 'test_accuracy'"):
        _ = result.test_acuracy
    assert repr(result).startswith(
        f"<run {tmp_path / 'run'}: fedavg, 1 rounds, test accuracy {result.test_accuracy:.4f} at"
    )
    model = result.model()
    assert isinstance(model, torch.nn.Module)
    assert not model.training
    assert model(torch.zeros(2, 1, 12, 12)).shape == (2, 4)
    found = result.predict(tiny_file)
    assert isinstance(found, Predictions)
    assert repr(found).startswith(f"<{len(found.label)} predictions: {found.name[0]} (")
    (tmp_path / "run" / "summary.json").unlink()
    assert repr(fedsieve.load(tmp_path / "run")) == f"<run {tmp_path / 'run'}: fedavg, not finished, 1 rounds so far>"
    assert repr(Comparison(folder="c", rows=[1, 2], table="| a |")) == "<comparison c: 2 runs>\n| a |"


BROKEN = """from fedsieve.core import Method, Part, Stage
from dataclasses import dataclass

@dataclass(frozen=True, kw_only=True)
class Faulty(Part):
    def term(self, c, net, batch):
        return net.logits(batch).nonsense

def mine(part: Faulty) -> Method:
    return Method("mine", (Stage(parts=(part,)),))

def cannot() -> Method:
    return 1 / 0
"""


def test_an_error_in_own_code_names_file_and_line(tmp_path, tiny_file, monkeypatch):
    (tmp_path / "faulty_methods.py").write_text(BROKEN)
    (tmp_path / "faulty_syntax.py").write_text("x = 1\ndef f(:\n")
    (tmp_path / "faulty_import.py").write_text("\n\nraise KeyError('gone')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    keys = {"data": str(tiny_file), "clients": 2, "rounds": 1, "epochs": 1, "runtime": "serial", "quiet": True}
    with pytest.raises(fedsieve.RunError, match=r"AttributeError.*\(faulty_methods\.py, line 7, in term\) \[FS210\]"):
        fedsieve.run(**keys, method="faulty_methods:mine", out=str(tmp_path / "run"))
    for reference, where in (
        ("faulty_methods:cannot", r"faulty_methods\.py, line 13, in cannot"),
        ("faulty_syntax:f", r"faulty_syntax\.py, line 2"),
        ("faulty_import:f", r"faulty_import\.py, line 3, in <module>"),
    ):
        with pytest.raises(ConfigError, match=rf"{where}.*\[FS006\]"):
            build_method(reference, {}, allow_code=True)
