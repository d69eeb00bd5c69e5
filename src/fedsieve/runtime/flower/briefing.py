"""What a node is told besides the message: each message may start a process that knows nothing yet."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, RecordDict

from fedsieve.data.federation import Federation

RECORD = "briefing"


@dataclass(frozen=True)
class Briefing:
    settings: dict[str, Any]
    """Of the run, flat; both sides build the same plan from them."""
    client: int
    """Who the node is in this run; -1 as long as nobody knows."""
    run: str = ""
    """Names the run on the node's disk."""
    states: str = ""
    """In a simulation, the folder of the clients' states; nodes of their own keep them where they like."""
    clients: int = 0
    class_names: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    server: tuple[str, ...] = ()
    """Which data the server holds itself."""
    labelled: bool = True

    @property
    def simulated(self) -> bool:
        """Whether the node makes its data from the settings."""
        return bool(self.states)

    def to(self, records: RecordDict) -> RecordDict:
        records[RECORD] = ConfigRecord({"json": json.dumps(asdict(self))})
        return records

    @staticmethod
    def of(records: RecordDict) -> Briefing:
        raw: dict[str, Any] = json.loads(str(records.config_records[RECORD]["json"]))
        fields: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in raw.items()}
        return Briefing(**fields)


@dataclass(frozen=True)
class Introduction:
    """All that a node says of its data before the first round."""

    name: str
    client: int
    """The number of its partition in a simulation; -1 for a node with data of its own."""
    class_names: tuple[str, ...]
    shape: tuple[int, ...]
    samples: int
    labelled: int
    """Samples with a label."""

    @staticmethod
    def of(federation: Federation, client: int, name: str) -> Introduction:
        given = federation.given[client]
        return Introduction(
            name,
            client,
            federation.class_names,
            tuple(federation.images.shape[1:]),
            len(given),
            int(np.count_nonzero(given >= 0)),
        )
