"""What the files of a run's folder hold, line by line: the fields that are used, checked on the way."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from fedsieve.evaluate.schema import DERIVED, METRICS

KNOWN = tuple(metric.name for metric in (*METRICS, *DERIVED))
Count = Annotated[int, Field(ge=0, le=10**15)]
RoundNumber = Annotated[int, Field(ge=0, le=10**7)]
Share = Annotated[float, Field(ge=0, le=1)]
LARGEST = float(np.finfo(np.float32).max)


def _single(value: float) -> float:
    if LARGEST < abs(value) < math.inf:
        raise ValueError(f"a number lies between -{LARGEST:.3g} and {LARGEST:.3g}")
    return value


Number = Annotated[float, AfterValidator(_single)]
"""As single precision has it, so that sums and per cents of it are numbers too; not finite where a run diverged."""


class Record(BaseModel):
    """The fields the report uses; others are left alone, so that a newer run can still be shown."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())


class ServerReport(Record):
    """What a row of metrics.jsonl tells of the server, where it takes part."""

    weight: Number | None = None


class _Measured(Record):
    """A record with those of the declared metrics that are known."""

    numbers: dict[str, Number] = {}

    @model_validator(mode="before")
    @classmethod
    def _collect(cls, content: Mapping[str, Any]) -> dict[str, Any]:
        return {**content, "numbers": {name: content[name] for name in KNOWN if content.get(name) is not None}}


class Round(_Measured):
    """A row of metrics.jsonl."""

    round: RoundNumber
    stage: str = ""
    extra: bool = False
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: Number = 0.0
    seconds_by: dict[str, Number] = {}
    reports: int = 0
    refused: int = 0
    dropped: int = 0
    server: list[ServerReport] = []


class ClientReport(Record):
    """A row of clients.jsonl."""

    round: RoundNumber
    client: int
    status: str = "reported"
    reason: str | None = None
    weight: Number | None = None
    score: Number | None = None


class Label(Record):
    """A row of labels.csv."""

    owner: str
    where: str
    given: str
    suggested: str
    score: Number
    flagged: bool
    method: str
    twin: str = ""


class ClientData(Record):
    """A client of federation.json; `classes` counts its given labels."""

    client: int
    name: str | None = None
    rows: int
    labelled: int | None = None
    classes: tuple[int, ...]
    noise_nominal: Share | None = None
    noise_realised: Share | None = None


class ServerLabels(Record):
    """One of the server's labelled sets; `classes` counts its labels as given."""

    classes: tuple[int, ...] = ()
    noise_realised: Share | None = None


class Federation(Record):
    """federation.json; `transitions` counts true x given labels, `chosen` are settings that are not as by default."""

    hash: str = ""
    data: str = ""
    n_classes: int
    class_names: tuple[str, ...] = ()
    test: int = 0
    validation: int = 0
    server: dict[str, int] = {}
    server_labels: dict[str, ServerLabels] = {}
    notes: tuple[str, ...] = ()
    partition: str = ""
    noise: str = ""
    chosen: tuple[str, ...] | None = None
    clients: tuple[ClientData, ...] = ()
    transitions: tuple[tuple[Number, ...], ...] | None = None

    @model_validator(mode="after")
    def _counts_every_class(self) -> Federation:
        counts = [client.classes for client in self.clients] + list(self.transitions or ())
        square = self.transitions is None or len(self.transitions) == self.n_classes
        if not square or any(len(row) != self.n_classes for row in counts):
            raise ValueError(f"clients.classes and transitions do not count each of the {self.n_classes} classes")
        return self

    def class_name(self, index: int) -> str:
        return self.class_names[index] if 0 <= index < len(self.class_names) else str(index)

    def client_name(self, number: int) -> str:
        """As the data name it, or else its number."""
        return self._client_names.get(number) or str(number)

    @cached_property
    def _client_names(self) -> dict[int, str | None]:
        return {client.client: client.name for client in self.clients}


class Disclosure(Record):
    """One thing that a part sends, of summary.json."""

    part: str
    direction: str
    name: str
    shape: str = ""
    bytes: int | None = None
    stage: str = ""


class Summary(_Measured):
    """summary.json."""

    client_accuracy: tuple[Number | None, ...] | None = None
    confusion: tuple[tuple[Count, ...], ...] | None = None
    bytes_talk: int | None = None
    bytes_exchange: int | None = None
    model_sha256: str | None = None
    finished: bool = False
    rounds_missing: tuple[int, ...] = ()
    secure_aggregation: bool | None = None
    disclosure: tuple[Disclosure, ...] = ()
    hardware: str | None = None
    versions: dict[str, Any] = {}
