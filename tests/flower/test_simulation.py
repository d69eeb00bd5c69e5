"""Flower's own simulation, with Ray's processes: the same bytes as the serial runtime, and nothing left behind."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from threading import Event

import psutil
import pytest
from flwr.app import Context, RecordDict
from grid_here import GridHere
from node_files import FIXMATCH

from fedsieve.base.errors import ConfigError, DataError, RunError
from fedsieve.evaluate.schema import names
from fedsieve.flower import simulation
from fedsieve.flower.virtual import simulated_states
from fedsieve.report.progress import Progress
from fedsieve.start import run

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="needs ray")
SETTINGS = {"clients": 3, "rounds": 2, "epochs": 1, "batch": 20, "noise": "symmetric", "method": "fb-nll+fedrn"}
SETTINGS |= {"fedrn.warmup": 1, "server.clean": 20, "watch": True}
NODES = {70: {"partition-id": 2}, 8: {"partition-id": 0}, 9: {"partition-id": 1}}
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


# Without Ray's processes: Flower's part is played here


@pytest.fixture
def simulated(tmp_path, tiny_file, monkeypatch):
    """A run whose simulation is what a function makes of the ServerApp."""

    def call(play):
        def played(server_app, client_app, num_supernodes, backend_config):
            assert (num_supernodes, backend_config["init_args"]["num_cpus"]) == (3, 2)
            assert simulated_states() == tmp_path / "run" / "checkpoint" / "clients"
            play(lambda: server_app(GridHere(NODES), Context(1, 1, {}, RecordDict(), {})))

        monkeypatch.setattr("flwr.simulation.run_simulation", played)
        places = {"data": str(tiny_file), "out": str(tmp_path / "run"), "runtime": "flower"}
        try:
            return run(
                {"clients": 3, "rounds": 1, "epochs": 1, "workers": 2, "flower.wait": 0.1, **places}, Progress()
            )[1]
        finally:
            assert simulated_states() is None, "only as long as it lasts"

    return call


def test_the_summary_is_that_of_the_session(simulated):
    assert simulated(lambda serve: serve())["rounds"] == 1


def test_what_the_session_cannot_do_is_raised_where_it_was_asked_for(simulated, monkeypatch):
    def broken(*_, **__):
        raise DataError("FS301", "x: no such file")

    monkeypatch.setattr(simulation, "run_session", broken)
    with pytest.raises(DataError, match=r"x: no such file \[FS301\]"):
        simulated(lambda serve: serve())


def test_a_simulation_that_does_not_start_says_what_ray_said(simulated, monkeypatch):
    monkeypatch.setattr(simulation, "LAST_WORDS", 0.0)

    def play(serve):
        try:
            raise OSError("no room\nfor its store")
        except OSError as problem:
            raise RuntimeError("Exception in thread") from problem

    with pytest.raises(
        RunError, match=r"simulation failed \(no room for its store\)\. If the machine is busy"
    ) as found:
        simulated(play)
    assert found.value.code == "FS225"


def test_waiting_for_nodes_ends_with_an_interrupt():
    stop = Event()
    grid = simulation._stoppable(GridHere(NODES), stop)
    assert sorted(grid.get_node_ids()) == [8, 9, 70]
    stop.set()
    for look in (grid.get_node_ids, lambda: grid.pull_messages([])):
        with pytest.raises(KeyboardInterrupt):
            look()


@pytest.mark.parametrize("missing", ["flwr", "ray"])
def test_what_it_needs_is_named(simulated, monkeypatch, missing):
    monkeypatch.setattr(simulation, "find_spec", lambda name: None if name == missing else object())
    with pytest.raises(ConfigError, match=rf"simulation needs {missing}\. Install it with .*\[FS008\]"):
        simulated(lambda serve: serve())
