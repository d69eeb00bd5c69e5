"""Flower's own simulation, with Ray's processes: the same bytes as the serial runtime, and nothing left behind."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import psutil
import pytest
from node_files import FIXMATCH

from fedsieve.evaluate.schema import names
from fedsieve.report.progress import Progress
from fedsieve.start import run

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="needs ray")
SETTINGS = {"clients": 3, "rounds": 2, "epochs": 1, "batch": 20, "noise": "symmetric", "method": "fb-nll+fedrn"}
SETTINGS |= {"fedrn.warmup": 1, "server.clean": 20, "watch": True}
AT_SERVER = {key: SETTINGS[key] for key in ("clients", "rounds", "epochs", "batch")} | FIXMATCH
JUDGED = ("model.safetensors", "labels.csv", "suspects.npz", "inside.npz")


@pytest.mark.parametrize(
    ("settings", "files"),
    [(SETTINGS, JUDGED), (AT_SERVER, JUDGED[:1])],
    ids=["labels at clients", "labels at the server"],
)
def test_simulation_equals_the_serial_runtime(tmp_path, tiny_file, settings, files):
    settings = {**settings, "data": str(tiny_file), "workers": 2}
    _, here = run({**settings, "runtime": "serial", "out": str(tmp_path / "serial")}, Progress())
    command = [
        "-m",
        "fedsieve",
        "flower",
        "simulate",
        *(f"{k}={v}" for k, v in settings.items()),
        "out=flower",
        "--json",
    ]
    done = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, timeout=900,
        env={**os.environ, "OMP_NUM_THREADS": "1", "FEDSIEVE_MARK": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rounds"] == here["rounds"]
    for file in files:
        assert (tmp_path / "flower" / file).read_bytes() == (tmp_path / "serial" / file).read_bytes()
    rows = [(tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("flower", "serial")]
    seen = [[[json.loads(line)[key] for key in names("watched")] for line in lines] for lines in rows]
    assert seen[0] == seen[1]
    assert (None in seen[0][0]) == (not settings.get("watch"))
    left = [process for process in psutil.process_iter() if marked(process, str(tmp_path))]
    _, alive = psutil.wait_procs(left, timeout=60)  # they are told to end; a busy machine takes its time
    assert not [process for process in alive if marked(process, str(tmp_path))]


def marked(process, mark):
    """Whether the run started it, itself or through others: children inherit the environment."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE and process.environ().get("FEDSIEVE_MARK") == mark
    except psutil.Error:
        return False
