"""A SuperLink and three SuperNodes on this machine, with TLS and node authentication."""

import psutil
import pytest
from grid_here import GridHere
from loopback import Loopback
from node_files import FIXMATCH, NODES, SETTINGS, without_labels, write_files

from fedsieve.flower.deployment import serve
from fedsieve.flower.template import write_app
from fedsieve.report.progress import Progress


@pytest.fixture
def link(tmp_path):
    link = Loopback(tmp_path / "flower")
    write_files(tmp_path)
    try:
        yield link
    finally:
        link.close()


def run_on(link, folder, settings):
    """Three nodes that are known by their keys, and an app; then the same run on a Grid in this process."""
    settings = {**settings, "data": str(folder / "server.npz")}
    link.start_superlink()
    for name in NODES:
        link.register(name)
        link.start_node(name, folder / f"{name}.npz")
    write_app(folder / "ward-app", {**settings, "out": str(folder / "run")})
    link.run_app(folder / "ward-app")
    link.wait_for_run(folder / "run")
    here = {k: {"data": str(folder / f"{n}.npz"), "state": str(folder / f"{n}")} for k, n in enumerate(NODES)}
    serve(GridHere(here), {**settings, "out": str(folder / "here")}, Progress())
    models = [(folder / where / "model.safetensors").read_bytes() for where in ("run", "here")]
    assert models[0] == models[1], "real processes and messages change no bit"


def test_three_nodes_with_tls_and_authentication(link, tmp_path):
    run_on(link, tmp_path, SETTINGS)
    for name in NODES:
        (labels,) = (link.folder / f"state-{name}").glob("*/labels.csv")
        assert labels.read_text().startswith("owner,where,given,suggested,score,flagged,method,twin\n")
    assert not (tmp_path / "run" / "labels.csv").exists()
    children = [child for process in link.processes.values() for child in psutil.Process(process.pid).children(True)]
    link.close()
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]


def test_three_nodes_without_labels(link, tmp_path):
    """The nodes' files hold samples alone; labels are the server's."""
    without_labels(tmp_path)
    run_on(link, tmp_path, {"clients": 3, "rounds": 1, "epochs": 1, "batch": 20, **FIXMATCH})
    assert not list(link.folder.glob("state-*/*/labels.csv"))
