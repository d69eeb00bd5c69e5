"""The app that `fedsieve flower init` writes: Flower takes it, and its settings are those that were given."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from flwr.cli.build import build_fab_from_disk
from flwr.cli.config_utils import get_fab_metadata
from flwr.common.config import get_fused_config_from_dir, parse_config_args
from typer.testing import CliRunner

from fedsieve.base.errors import ConfigError
from fedsieve.cli import app as commands
from fedsieve.cli.app import app
from fedsieve.flower import server_app
from fedsieve.flower.quiet import QUIET
from fedsieve.flower.template import write_app
from fedsieve.report.progress import Lines
from fedsieve.settings.config import parse, resolve

SETTINGS = {
    "data": "/srv/test.npz", "method": "fb-nll+fedrn", "clients": 3, "rounds": 4, "fedrn.k": 1, "model": "mlp",
    "model.hidden": [20, 10], "server.clean": 50, "lr": 0.1, "out": "/srv/run",
}  # fmt: skip


def test_flower_takes_the_app(tmp_path):
    written = write_app(tmp_path / "Ward-App", SETTINGS)
    assert all(path.is_file() for path in written)
    assert get_fab_metadata(build_fab_from_disk(tmp_path / "Ward-App")) == ("ward_app/ward-app", "1.0.0")


def test_settings_come_back(tmp_path):
    write_app(tmp_path / "app", SETTINGS)
    overrides = parse_config_args(["rounds=9 flower.timeout=60", 'method="fedrn+fb-nll"'])
    found = get_fused_config_from_dir(tmp_path / "app", overrides)
    settings = {key: parse(value) if isinstance(value, str) else value for key, value in found.items()}
    expected = resolve({**SETTINGS, "rounds": 9, "runtime": "flower", "flower.timeout": 60})
    assert resolve({**settings, "runtime": "flower"}).flat() == expected.flat()


def test_an_existing_folder_is_left_alone(tmp_path):
    with pytest.raises(ConfigError, match=r"exists.*\[FS005\]"):
        write_app(tmp_path, SETTINGS)


@pytest.mark.parametrize("name", ["7-app", "fedsieve", "+"])
def test_the_name_must_be_one_of_python(tmp_path, name):
    with pytest.raises(ConfigError, match=r"cannot be the name of a Python package.*\[FS002\]"):
        write_app(tmp_path / name, SETTINGS)


def test_settings_are_checked_when_written(tmp_path):
    with pytest.raises(ConfigError, match=r"unknown key 'round'.*\[FS001\]"):
        write_app(tmp_path / "app", {"round": 3})


def test_nothing_phones_home():
    """Flower reads this when it is imported; what is started afterwards inherits it."""
    code = (
        "from fedsieve.flower.quiet import hush; hush();"
        "from flwr.supercore import telemetry as t; print(t.FLWR_TELEMETRY_ENABLED)"
    )
    plain = {key: value for key, value in os.environ.items() if key not in QUIET}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=plain, timeout=120)
    assert done.stdout.strip() == "0"


def test_the_commands(tmp_path, monkeypatch):
    folder = tmp_path / "ward_app"
    written = CliRunner().invoke(app, ["flower", "init", str(folder), "method=fedrn", "clients=3"]).stdout.split()
    assert str(folder / "pyproject.toml") in written
    problem = CliRunner().invoke(app, ["flower", "simulate", "runtime=serial"]).exception
    assert getattr(problem, "code", None) == "FS002"
    assert "runtime=serial: this command runs on Flower. Leave runtime out" in str(problem)
    given = []
    monkeypatch.setattr(commands, "run", lambda *arguments: given.append(arguments))
    CliRunner().invoke(app, ["flower", "simulate", "method=gce", "rounds=2", "--json"])
    assert given == [(["method=gce", "rounds=2", "runtime=flower"], False, True, False)]


def test_the_server_app_holds_the_run_of_its_settings(monkeypatch):
    """Flower calls it in a process of its own."""
    held = []
    monkeypatch.setattr(server_app, "serve", lambda grid, settings, progress: held.append((grid, settings, progress)))
    grid, context = object(), SimpleNamespace(run_config={"rounds": 4})
    server_app.main(grid, context)
    assert held[0][:2] == (grid, {"rounds": 4})
    assert isinstance(held[0][2], Lines)
