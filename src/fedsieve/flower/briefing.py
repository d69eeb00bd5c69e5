"""What a node is told besides the message, since each message may start a process that knows nothing yet, and what it
says of itself before the first round. Either comes from outside: every field has a type and a range."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

import numpy as np
from flwr.app import ConfigRecord, RecordDict
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from fedsieve.base.errors import RunError
from fedsieve.data.federation import Federation

RECORD = "briefing"
STRICT = ConfigDict(allow_inf_nan=False, extra="forbid")
Count = Annotated[int, Field(ge=0, le=50_000_000, strict=True)]
Text = Annotated[str, Field(max_length=200)]
ClassNames = Annotated[tuple[Text, ...], Field(max_length=10_000)]
Numbers = Annotated[tuple[float, ...], Field(max_length=1_000_000)]
Hex = Annotated[str, Field(pattern=r"^([0-9a-f]{2}){0,64}$")]


@dataclass(frozen=True)
class Briefing:
    __pydantic_config__ = STRICT

    settings: Annotated[dict[Text, Any], Field(max_length=1_000)]
    """Of the run, flat; both sides build the same plan from them."""
    client: Annotated[int, Field(ge=-1, lt=1_000_000, strict=True)]
    """Who the node is in this run; -1 as long as nobody knows."""
    run: Annotated[str, Field(pattern=r"^([0-9a-f]{32})?$")] = ""
    """Names the run on the node's disk; empty in a simulation."""
    clients: Annotated[int, Field(ge=0, le=1_000_000, strict=True)] = 0
    class_names: ClassNames = ()
    mean: Numbers = ()
    std: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(max_length=1_000_000)] = ()
    server: Annotated[tuple[Text, ...], Field(max_length=10)] = ()
    """Which data the server holds itself."""
    labelled: bool = True
    weights: Annotated[dict[Text, Hex], Field(max_length=20)] = field(default_factory=dict)
    """By key of the settings, the hash of the weights that it names at the server."""

    def to(self, records: RecordDict) -> RecordDict:
        records[RECORD] = ConfigRecord({"json": BRIEFING.dump_json(self).decode()})
        return records

    @staticmethod
    def of(records: RecordDict) -> Briefing:
        try:
            return BRIEFING.validate_json(str(records.config_records[RECORD]["json"]))
        except (ValidationError, KeyError) as problem:
            raise RunError("FS224", f"the briefing is not one ({_first(problem)}). Install the same fedsieve") from None


@dataclass(frozen=True)
class Introduction:
    """All that a node says of its data before the first round."""

    __pydantic_config__ = STRICT

    name: Text
    client: Annotated[int, Field(ge=-1, lt=1_000_000, strict=True)]
    """The number of its partition in a simulation; -1 for a node with data of its own."""
    class_names: ClassNames
    shape: Annotated[tuple[Count, ...], Field(min_length=1, max_length=3)]
    samples: Count
    labelled: Count
    """Samples with a label."""
    key: Hex = ""
    """The node's public key; empty in a simulation."""
    signature: Hex = ""
    """Under the challenge of the greeting."""

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

    @staticmethod
    def told(content: Any) -> Introduction | None:
        """What a node sent, if it is an introduction."""
        try:
            return INTRODUCTION.validate_python(content)
        except ValidationError:
            return None

    def said(self) -> Mapping[str, Any]:
        return asdict(self)


BRIEFING, INTRODUCTION = TypeAdapter(Briefing), TypeAdapter(Introduction)


def _first(problem: ValidationError | KeyError) -> str:
    if isinstance(problem, KeyError):
        return f"{problem} is missing"
    first = problem.errors(include_input=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
