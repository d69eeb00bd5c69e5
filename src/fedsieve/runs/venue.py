"""Where a run takes place: whose data, where the clients' states lie, and what carries messages to them."""

from __future__ import annotations

import resource
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from fedsieve.core.client_states import ClientStates
from fedsieve.core.host import Host
from fedsieve.core.rounds import Runtime
from fedsieve.data.federation import Federation
from fedsieve.data.truth import GroundTruth
from fedsieve.evaluate.evaluator import Tester
from fedsieve.evaluate.schema import File
from fedsieve.runtime.crew import Crew
from fedsieve.runtime.pool import PoolRuntime
from fedsieve.runtime.serial import SerialRuntime
from fedsieve.settings.config import Config
from fedsieve.settings.splitting import federation_of


class Carrier(Runtime, Tester, Protocol):
    """A runtime as a run uses it: it trains, it tests, and it ends."""

    def close(self) -> None: ...


class Venue(ABC):
    """Opened by the session once the folder is its own; federation, truth and states are there from then on."""

    federation: Federation
    truth: GroundTruth
    states: ClientStates
    labelled: bool | None = None
    """Whether the clients have labels, where the server does not see them."""

    @abstractmethod
    def open(self, config: Config, folder: Path) -> None:
        """Bring data and states to hand."""

    @abstractmethod
    def carrier(self, host: Callable[[], Host], served: Federation) -> Carrier:
        """From the server's own host, made when first asked for, and the federation as clients are served with it."""

    def memory(self) -> float:
        """Peak memory in MB."""
        return peak_memory()


class ThisMachine(Venue):
    """All clients here: in the crew's worker processes, or in this process if there is no crew."""

    def __init__(self, crew: Crew | None = None) -> None:
        self._crew = crew

    def open(self, config: Config, folder: Path) -> None:
        self._settings = config.flat()
        self.federation, self.truth = federation_of(config)
        self.states = ClientStates(states_folder(folder))

    def carrier(self, host: Callable[[], Host], served: Federation) -> Carrier:
        if self._crew is None:
            return SerialRuntime(host())
        return PoolRuntime(self._crew, self._settings, served, self.states.folder)

    def memory(self) -> float:
        return peak_memory(self._crew)


def states_folder(folder: Path) -> Path:
    """Where a run on one machine keeps its clients' states."""
    return folder / File.CHECKPOINT / "clients"


def peak_memory(crew: Crew | None = None) -> float:
    """MB: the peak of this process plus the peaks of the workers, where the system tells them."""
    unit = 1 if sys.platform == "darwin" else 1024
    total = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    for worker in crew.workers if crew else ():
        status = Path(f"/proc/{worker.process.pid}/status")
        lines = status.read_text().splitlines() if status.exists() else []
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    return round(total / 2**20, 1)
