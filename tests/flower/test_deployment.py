"""A SuperLink and three SuperNodes on this machine, with TLS and node authentication."""

import psutil
import pytest
from grid_here import GridHere
from loopback import Loopback
from node_files import NODES, SETTINGS, write_files

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


def test_three_nodes_with_tls_and_authentication(link, tmp_path):
    settings = {**SETTINGS, "data": str(tmp_path / "server.npz")}
    link.start_superlink()
    for name in NODES:
        link.register(name)
        link.start_node(name, tmp_path / f"{name}.npz")
    write_app(tmp_path / "ward-app", {**settings, "out": str(tmp_path / "run")})
    link.run_app(tmp_path / "ward-app")
    link.wait_for_run(tmp_path / "run")
    here = {k: {"data": str(tmp_path / f"{n}.npz"), "state": str(tmp_path / f"{n}")} for k, n in enumerate(NODES)}
    serve(GridHere(here), {**settings, "out": str(tmp_path / "here")}, Progress())
    models = [(tmp_path / where / "model.safetensors").read_bytes() for where in ("run", "here")]
    assert models[0] == models[1], "real processes and messages change no bit"
    for name in NODES:
        (labels,) = (link.folder / f"state-{name}").glob("*/labels.csv")
        assert labels.read_text().startswith("client,row,given,suggested,score,flagged\n")
    assert not (tmp_path / "run" / "labels.csv").exists()
    children = [child for process in link.processes.values() for child in psutil.Process(process.pid).children(True)]
    link.close()
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
