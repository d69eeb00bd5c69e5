"""One message to each node and one back, through Flower's Grid.

A failure belongs to the message it answers: an error that the SuperLink makes up bears the SuperLink's own node id.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedsieve.base.error_words import from_words
from fedsieve.base.errors import FedSieveError, RunError
from fedsieve.core.sent import MOST_TEXT, clean_text
from fedsieve.flower.records import unpack


class Failure(NamedTuple):
    """Why a message has no answer."""

    code: str
    reason: str
    told: FedSieveError | None = None
    """What the node itself says went wrong."""


class Parcel(NamedTuple):
    node: int
    records: RecordDict


def exchange(grid: Grid, kind: str, parcels: Sequence[Parcel], timeout: float) -> list[Any]:
    """The opened replies in the order of the parcels, a `Failure` where there is none within so many seconds."""
    messages = [Message(parcel.records, parcel.node, kind, ttl=timeout) for parcel in parcels]
    if not messages:
        return []
    replies: dict[str, Message] = {}
    with _grid_errors():
        received = list(grid.send_and_receive(messages, timeout=timeout))
    for reply in received:
        replies.setdefault(reply.metadata.reply_to_message_id, reply)  # a second answer to one message is not looked at
    return [_open(replies.get(message.metadata.message_id), timeout) for message in messages]


def connected_nodes(grid: Grid) -> list[int]:
    """The nodes that are there."""
    with _grid_errors():
        return sorted(grid.get_node_ids())


@contextmanager
def _grid_errors() -> Iterator[None]:
    """What a Grid raises, of many kinds, as one of ours."""
    try:
        yield
    except Exception as problem:
        reason = " ".join(clean_text(problem).split())
        raise RunError(
            "FS227",
            f"the SuperLink cannot be reached ({type(problem).__name__}: {reason}). When it is up again, start the app "
            "again: the run goes on from its checkpoint",
        ) from problem


def _open(reply: Message | None, timeout: float) -> Any:
    if reply is None:
        return Failure("FS220", f"no reply within {timeout:g} s")
    if reply.has_error():
        reason = " ".join(clean_text(reply.error.reason).split())
        return Failure("FS220", f"Flower reports error {reply.error.code}: {reason}")
    try:
        content = unpack(reply.content)
    except Exception as problem:  # whatever a node sends, the run goes on
        return Failure("FS202", f"the reply cannot be read ({type(problem).__name__}: {clean_text(problem)})")
    if isinstance(content, dict) and "error" in content:
        told = from_words(content, MOST_TEXT)
        return Failure(told.code, told.message, told)
    return content
