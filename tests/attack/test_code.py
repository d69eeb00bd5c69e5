"""Who may run code: the person at the keyboard, and nobody whose file, folder or model card is read."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

import fedsieve
from fedsieve.base.errors import ConfigError
from fedsieve.base.own_code import allowed_names
from fedsieve.cli.app import app
from fedsieve.methods import build_method, method_options
from fedsieve.models import build_model, options_of_model
from fedsieve.models.saved import SavedModels, to_bytes
from fedsieve.report.progress import Progress
from fedsieve.runs.comparison import cells
from fedsieve.settings.config import resolve
from fedsieve.settings.planning import config_of
from fedsieve.start import resume, run

SHORT = {"data": "tiny.npz", "clients": 2, "rounds": 1, "epochs": 1, "runtime": "serial"}
HOSTILE = ["os:system", "subprocess:getoutput", "shutil:rmtree", "trap:spring"]
TRAP = 'from pathlib import Path\nPath("sprung").touch()\n\ndef spring():\n    pass\n'
OWN = """
from dataclasses import dataclass
from fedsieve.core.part import Method, Part, Stage
from fedsieve.models.small import Mlp

@dataclass(frozen=True, kw_only=True)
class Idle(Part):
    pass

def mine(part: Idle) -> Method:
    return Method("mine", (Stage(parts=(part,)),))

class Net(Mlp):
    pass
"""


def command(*arguments, cwd):
    """As installed: the script of the environment, not `python -m`."""
    script = Path(sys.executable).parent / "fedsieve"
    return subprocess.run([script, *map(str, arguments)], capture_output=True, text=True, cwd=cwd, check=False)


@pytest.fixture
def here(tmp_path, tiny_file, monkeypatch):
    """The current folder, with small data and a module that leaves a trace when it is imported."""
    (tmp_path / "tiny.npz").symlink_to(tiny_file)
    (tmp_path / "trap.py").write_text(TRAP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "trap", raising=False)
    return tmp_path


@pytest.fixture
def own(here, monkeypatch):
    """A method and a model of one's own in the current folder."""
    (here / "ours.py").write_text(OWN)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "ours", raising=False)
    return here


def refused(work):
    with pytest.raises(ConfigError) as problem:
        work()
    assert problem.value.code == "FS010"
    assert not Path("sprung").exists(), "it was imported all the same"


@pytest.mark.parametrize("key", ["method", "model"])
@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_is_imported_unless_it_is_allowed(here, key, name):
    refused(lambda: config_of({key: name}))
    refused(lambda: cells({key: [name, name]}))
    refused(lambda: run({**SHORT, key: name}, Progress()))
    if key == "method":
        refused(lambda: method_options(name))
        refused(lambda: build_method(name, {}))
    else:
        refused(lambda: options_of_model(name))
        refused(lambda: build_model(name, (1, 12, 12), 4))


@pytest.mark.parametrize(
    "name", ["os:system", "subprocess:getoutput", "shutil:rmtree", "fedsieve.testing:check_method"]
)
def test_what_is_allowed_is_looked_at_before_it_is_called(here, name):
    for key in ("method", "model"):
        with pytest.raises(ConfigError, match="FS006"):
            config_of({key: name}, allow_code=True)


def test_only_the_very_names(here):
    assert allowed_names(["fedavg", "a:b", "c:d"], ["a:b", "x:y"]) == {"a:b"}
    assert allowed_names(["fedavg", "a:b"], True) == {"a:b"}
    assert allowed_names(["a:b"], False) == frozenset()
    refused(lambda: config_of({"method": "fedprox+trap:spring"}, allow_code=["trap:other"]))
    assert resolve({"model": "a:b"}, allow_code=["a:b"]).with_keys(rounds=3).code == {"a:b"}


@pytest.mark.parametrize("verb", ["run", "compare", "flower simulate"])
def test_a_settings_file_runs_no_code(here, verb):
    settings = {key: value for key, value in SHORT.items() if key != "runtime"} | {"method": "trap:spring"}
    Path("gift.yaml").write_text(yaml.safe_dump(settings))
    done = command(*verb.split(), "gift.yaml", cwd=here)
    assert done.returncode == 2, done.stderr
    assert "[FS010]" in done.stderr.splitlines()[-1]
    assert not Path("sprung").exists()


def test_a_folder_runs_no_code(here):
    """resume, report, compare and Python's load of a folder that somebody has sent."""
    fedsieve.run(**SHORT, out="gift", quiet=True)
    config = yaml.safe_load(Path("gift/config.yaml").read_text()) | {"method": "trap:spring"}
    kept = {key: value for key, value in config.items() if not key.startswith("fedavg.")}
    Path("gift/config.yaml").write_text(yaml.safe_dump(kept))
    for verb in (["resume", "gift"], ["report", "gift"], ["predict", "gift", "tiny.npz"]):
        CliRunner().invoke(app, verb)
        assert not Path("sprung").exists(), verb
    fedsieve.load("gift")
    refused(lambda: resume(Path("gift"), Progress()))


def test_a_card_runs_no_code(here):
    """Not even with `--allow-code`: the model's class must be named by the caller."""
    fedsieve.run(**SHORT, out="gift", quiet=True)
    file = Path("gift/model.safetensors")
    saved = SavedModels.read(file)
    file.write_bytes(to_bytes(saved.tensors, {**saved.card, "model": "trap:spring"}))  # with a fitting checksum
    images = fedsieve.federation(data="tiny.npz", clients=2)[0].test_images[:2]
    refused(lambda: fedsieve.predict("gift", images))
    refused(lambda: fedsieve.predict("gift", images, model="other:Net"))


def test_the_current_folder_is_not_searched(here):
    """A data folder with a torch.py, a yaml.py and a json.py of its own is only data."""
    for module in ("torch", "yaml", "numpy", "json", "typer", "fedsieve", "sitecustomize"):
        (here / f"{module}.py").write_text(TRAP)
    arguments = ["run", *(f"{key}={value}" for key, value in (SHORT | {"runtime": "pool", "workers": 1}).items())]
    assert command(*arguments, "out=a", cwd=here).returncode == 0
    done = command("compare", *arguments[1:-2], "out=b", cwd=here)
    assert done.returncode == 0, done.stderr
    assert not Path("sprung").exists()


def test_ones_own_code_works_from_the_current_folder(own):
    """Named at the keyboard it is found; a file with the same name needs the flag; a torch.py beside it is not."""
    (own / "torch.py").write_text(TRAP)
    keys = [f"{key}={value}" for key, value in SHORT.items() if key != "runtime"]
    done = command("compare", *keys, "method=ours:mine", "model=ours:Net", "out=several", cwd=own)
    assert done.returncode == 0, done.stderr
    (run,) = [path.parent for path in Path("several").glob("*/config.yaml")]
    (run / "summary.json").unlink()
    refused(lambda: resume(run, Progress()))
    resume(run, Progress(), allow_code=True)
    assert (run / "summary.json").exists()
    assert not Path("sprung").exists()


def test_ones_own_model_predicts_when_it_is_named(own):
    fedsieve.run(**SHORT, model="ours:Net", out="mine", quiet=True)
    images = fedsieve.federation(data="tiny.npz", clients=2)[0].test_images[:2]
    with pytest.raises(ConfigError, match="FS010"):
        fedsieve.predict("mine", images)
    assert len(fedsieve.predict("mine", images, model="ours:Net")["label"]) == 2
