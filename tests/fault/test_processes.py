"""Interrupts and deaths of the real command, with its pool of workers."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

SETTINGS = ["clients=4", "rounds=20", "epochs=2", "batch=10", "method=scaffold", "workers=2"]


def fedsieve(*arguments, **options):
    command = [sys.executable, "-m", "fedsieve", *map(str, arguments)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)


def rows(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def wait_for_rounds(folder: Path, process, count: int) -> None:
    while rows(folder) < count:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.005)


@pytest.fixture(scope="module")
def expected(tmp_path_factory, tiny_file):
    folder = tmp_path_factory.mktemp("whole") / "run"
    process = fedsieve("run", *SETTINGS, f"data={tiny_file}", f"out={folder}", "runtime=serial", "--json")
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert json.loads(out)["finished"]
    return (folder / "model.safetensors").read_bytes()


@pytest.fixture
def interruptible():
    """Children inherit that interrupts are ignored, as they are in a job that a shell put into the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_interrupt_saves_and_says_how_to_resume(tmp_path, tiny_file, expected):
    folder = tmp_path / "run"
    process = fedsieve("run", *SETTINGS, f"data={tiny_file}", f"out={folder}", "checkpoint_every=100")
    wait_for_rounds(folder, process, 3)  # a round's row comes before its state is kept: the last one may be lost
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130
    last = err.strip().splitlines()[-1]
    assert f"fedsieve resume {folder}" in last
    assert last.endswith("[FS216]")
    resumed = fedsieve("resume", folder)
    _, err = resumed.communicate()
    assert resumed.returncode == 0, err
    assert re.search(r"from round ([3-9]|1\d|20)\b", err), "what was done before the interrupt had not been saved"
    assert (folder / "model.safetensors").read_bytes() == expected


def test_workers_end_with_their_parent_and_the_run_resumes(tmp_path, tiny_file, expected):
    folder = tmp_path / "run"
    process = fedsieve("run", *SETTINGS, f"data={tiny_file}", f"out={folder}")
    wait_for_rounds(folder, process, 1)
    workers = psutil.Process(process.pid).children()
    assert len(workers) == 2
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert not alive
    resumed = fedsieve("resume", folder, "workers=1")
    assert resumed.wait() == 0
    assert (folder / "model.safetensors").read_bytes() == expected


def test_a_killed_worker_is_replaced(tmp_path, tiny_file, expected):
    folder = tmp_path / "run"
    process = fedsieve("run", *SETTINGS, f"data={tiny_file}", f"out={folder}")
    wait_for_rounds(folder, process, 1)
    psutil.Process(process.pid).children()[0].kill()
    _, err = process.communicate()
    assert process.returncode == 0, err
    assert (folder / "model.safetensors").read_bytes() == expected
