"""The server's side of encoders and first weights: all nodes have the same before the first round, or are sent them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from flwr.serverapp import Grid

from fedsieve.base.errors import DataError
from fedsieve.flower.briefing import Briefing
from fedsieve.flower.post import Failure, Parcel, exchange
from fedsieve.flower.records import Packer
from fedsieve.flower.roster import Roster
from fedsieve.flower.weights import ENCODER, MOST_SENT

ASK, SEND = "query.weights", "query.file"


def agree_on_weights(grid: Grid, roster: Roster, briefing: Briefing, files: Mapping[str, Path], timeout: float) -> None:
    """Ask the nodes for the hashes of what they have: FS232 names one that has another, who has no file is sent it."""
    lacking: dict[str, list[int]] = {}
    for client, told in _replies(grid, roster, ASK, roster.present(), briefing, {}, timeout):
        for key, wanted in briefing.weights.items():
            found = str(told.get(key, ""))[:64] if isinstance(told, Mapping) else ""
            if found == wanted:
                continue
            if found or key not in files:
                name = roster.members[client].name
                raise DataError(
                    "FS232",
                    f"node {name}: the weights of {key} are {found[:12]} there, {wanted[:12]} here. "
                    f"Put the server's on the node; a file that is left out of the node's `{ENCODER}` is sent",
                )
            lacking.setdefault(key, []).append(client)
    for key, clients in lacking.items():
        content = _content(files[key])
        for _ in _replies(grid, roster, SEND, clients, briefing, {"key": key, "content": content}, timeout):
            pass


def _replies(
    grid: Grid, roster: Roster, kind: str, clients: Iterable[int], briefing: Briefing, body: Any, timeout: float
) -> Iterator[tuple[int, Any]]:
    """What each client that is there says to one message; what it cannot do ends the run before it begins."""
    packer, here = Packer(), roster.present()
    asked = [client for client in clients if client in here]
    parcels = [Parcel(here[client], briefing.to(packer.pack(body))) for client in asked]
    for client, reply in zip(asked, exchange(grid, kind, parcels, timeout), strict=True):
        if not isinstance(reply, Failure):
            yield client, reply
        elif reply.told:
            raise DataError(reply.code, f"node {roster.members[client].name}: {reply.reason}")


def _content(file: Path) -> torch.Tensor:
    if file.stat().st_size > MOST_SENT:
        raise DataError(
            "FS320", f"{file}: larger than {MOST_SENT >> 30} GB, too large to send. Put it on the nodes (`{ENCODER}`)"
        )
    return torch.frombuffer(bytearray(file.read_bytes()), dtype=torch.uint8)
