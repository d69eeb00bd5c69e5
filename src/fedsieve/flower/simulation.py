"""A run on Flower's simulation: one virtual node per client, the ServerApp in this process."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from threading import Event as Signal
from typing import Any

from fedsieve.base.errors import ConfigError, RunError
from fedsieve.core.client_states import ClientStates
from fedsieve.core.host import Host
from fedsieve.data.federation import Federation
from fedsieve.data.truth import GroundTruth
from fedsieve.flower.quiet import hush
from fedsieve.flower.virtual import virtual_nodes_in
from fedsieve.report.progress import Progress
from fedsieve.runs.session import run_session
from fedsieve.runs.venue import Carrier, Venue, states_folder
from fedsieve.settings.config import Config
from fedsieve.settings.planning import spell_out
from fedsieve.settings.splitting import federation_of

LAST_WORDS = 60.0
"""Seconds that an interrupted ServerApp has to save its state."""


def simulate(config: Config, folder: Path, progress: Progress, *, resuming: bool) -> dict[str, Any]:
    """Hold a session whose clients are Flower's virtual nodes; returns the summary."""
    for package in ("flwr", "ray"):
        if find_spec(package) is None:
            raise ConfigError(
                "FS008", f"Flower's simulation needs {package}. Install it with `pip install 'fedsieve[flower]'`"
            )
    hush()
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    from fedsieve.flower.client_app import app as client_app

    logging.getLogger("flwr").setLevel(logging.CRITICAL)  # what matters reaches us as a reply
    federation = federation_of(spell_out(config))
    server_app, stop, done = ServerApp(), Signal(), Signal()
    summaries: list[dict[str, Any]] = []
    problems: list[BaseException] = []

    @server_app.main()
    def main(grid: Grid, _: Context) -> None:
        venue = VirtualNodes(_stoppable(grid, stop), federation, progress.note)
        try:
            summaries.append(run_session(config, folder, venue, progress, resuming=resuming))
        except BaseException as problem:  # it belongs to the thread that asked for the run
            problems.append(problem)
        finally:
            done.set()

    backend: dict[str, Any] = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"num_cpus": config.top.workers, "include_dashboard": False, "log_to_driver": False},
    }
    try:
        with virtual_nodes_in(states_folder(folder).resolve()):
            run_simulation(server_app, client_app, num_supernodes=federation[0].clients, backend_config=backend)
    except (RuntimeError, OSError) as problem:
        raise RunError(
            "FS225",
            f"Flower's simulation failed ({_root(problem)}). If the machine is busy, try again; or take runtime=pool",
        ) from problem
    finally:
        stop.set()
        done.wait(LAST_WORDS)
    if problems:
        raise problems[0]
    return summaries[0]


def _root(problem: BaseException) -> str:
    """What Ray said, without what Flower says of it."""
    while problem.__cause__ is not None:
        problem = problem.__cause__
    return " ".join(str(problem).split())[:300]


class VirtualNodes(Venue):
    """One node per client of a federation that was split here; their states lie in the run's folder."""

    def __init__(self, grid: Any, split: tuple[Federation, GroundTruth], say: Callable[[str], None]) -> None:
        self._grid, self._say = grid, say
        self.federation, self.truth = split

    def open(self, config: Config, folder: Path) -> None:
        self._settings, self._options = config.flat(), config.flower()
        self.states = ClientStates(states_folder(folder).resolve())

    def carrier(self, host: Callable[[], Host], served: Federation) -> Carrier:
        from fedsieve.flower.briefing import Briefing
        from fedsieve.flower.roster import Roster, gather
        from fedsieve.flower.runtime import FlowerRuntime

        briefing = Briefing(self._settings, -1)
        members, _ = gather(self._grid, served.clients, self._options, briefing, self._say)
        roster = Roster(self._grid, self._options, members, briefing)
        return FlowerRuntime(self._grid, roster, briefing, host, self._options.timeout)


def _stoppable(grid: Any, stop: Signal) -> Any:
    """The same Grid, whose waiting ends with an interrupt once the main thread has been interrupted, or has failed."""

    def unless_stopped(look: Callable[..., Any]) -> Callable[..., Any]:
        def looking(*arguments: Any) -> Any:
            if stop.is_set():
                raise KeyboardInterrupt
            return look(*arguments)

        return looking

    grid.pull_messages, grid.get_node_ids = map(unless_stopped, (grid.pull_messages, grid.get_node_ids))
    return grid
