import shutil
import subprocess
import sys
from importlib.util import find_spec

import pytest

import fedsieve
from fedsieve.flower.quiet import hush

collect_ignore = [] if find_spec("flwr") else ["test_node_trust.py", "test_node_words.py"]
hush()

QUICK = {"clients": 3, "rounds": 3, "epochs": 1, "batch": 20, "runtime": "serial", "model": "mlp", "model.hidden": [4]}


@pytest.fixture(scope="session")
def finished(tmp_path_factory, tiny_file):
    """The folder of a finished run that left every kind of file."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    settings = {"method": "fedrn", "noise": "symmetric", "fedrn.warmup": 1}
    fedsieve.run(**QUICK | settings, data=str(tiny_file), out=str(folder), quiet=True)
    return folder


@pytest.fixture
def folder(tmp_path, finished):
    """A copy of that folder to do harm to."""
    return shutil.copytree(finished, tmp_path / "run")


@pytest.fixture
def command(tmp_path):
    """The command line in a process of its own."""

    def call(*arguments, **options):
        words = [sys.executable, "-m", "fedsieve", *map(str, arguments)]
        chosen = {"capture_output": True, "text": True, "cwd": tmp_path, "check": False} | options
        return subprocess.run(words, **chosen)

    return call
