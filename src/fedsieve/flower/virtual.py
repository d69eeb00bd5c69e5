"""Whether this process serves the virtual nodes of a simulation. Its environment says so, and never a message.

A virtual node makes its data from the settings it is sent and keeps its state in the run's folder, which is right for a
process that the run itself has started, and would give a machine of its own away.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STATES = "FEDSIEVE_SIMULATED_STATES"
"""The folder of the clients' states, for this process and those it starts."""


@contextmanager
def virtual_nodes_in(states: Path) -> Iterator[None]:
    os.environ[STATES] = str(states)
    try:
        yield
    finally:
        os.environ.pop(STATES, None)


def simulated_states() -> Path | None:
    """Where the virtual nodes keep their states; None on a machine of its own."""
    folder = os.environ.get(STATES)
    return Path(folder) if folder else None
