"""Which node is which client, and who is there now. Nothing here waits for ever."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from time import monotonic, sleep

from flwr.serverapp import Grid
from torch import Tensor

from fedsieve.base.errors import DataError, RunError
from fedsieve.flower.briefing import Briefing, Count, Hex, Introduction, Text
from fedsieve.flower.identity import is_signed
from fedsieve.flower.node import greeting
from fedsieve.flower.post import Failure, Parcel, connected_nodes, exchange
from fedsieve.flower.records import Packer
from fedsieve.settings.config import FlowerOptions

GREET, PUBLIC = "query.greet", "query.public"
PAUSE = 0.5
"""Seconds between two looks at who is there."""


@dataclass(frozen=True)
class Member:
    """A node that is a client of this run."""

    name: Text
    node: int
    samples: Count
    labelled: Count
    key: Hex

    @staticmethod
    def of(node: int, said: Introduction) -> Member:
        return Member(said.name, node, said.samples, said.labelled, said.key)


class Roster:
    """Members by client number. A node is known by its id, or by its key if its id is new; its name is only a name."""

    def __init__(self, grid: Grid, options: FlowerOptions, members: Sequence[Member], briefing: Briefing) -> None:
        self._grid = grid
        self._options = options
        self.members = list(members)
        self._briefing = briefing
        self._strangers: set[int] = set()

    def saved(self) -> list[dict[str, object]]:
        return [asdict(member) for member in self.members]

    def present(self) -> dict[int, int]:
        """The node of each client that is connected, once there are enough of them."""
        ends = monotonic() + self._options.wait
        while True:
            here = self._connected()
            if len(here) >= min(self._options.min_nodes, len(self.members)):
                return here
            if monotonic() > ends:
                raise too_few(len(here), self._options.min_nodes, self._options.wait)
            sleep(PAUSE)

    def hand_out(self, public: Tensor) -> None:
        """Send the public samples to every node, which keeps them; one that missed them says so when it needs them."""
        packer = Packer()
        parcels = [Parcel(node, self._briefing.to(packer.pack(public))) for node in self.present().values()]
        exchange(self._grid, PUBLIC, parcels, self._options.timeout)

    def _connected(self) -> dict[int, int]:
        there = set(connected_nodes(self._grid))
        unknown = there - {member.node for member in self.members} - self._strangers
        if unknown and any(member.node not in there for member in self.members):
            self._recognise(sorted(unknown), there)
        return {k: member.node for k, member in enumerate(self.members) if member.node in there}

    def _recognise(self, nodes: list[int], there: set[int]) -> None:
        """A member that comes back under a new id takes its place again; others are left alone."""
        places = {member.key: k for k, member in enumerate(self.members) if member.node not in there and member.key}
        patience = min(self._options.wait, self._options.timeout)
        for node, found in greet(self._grid, nodes, self._briefing, patience).items():
            if isinstance(found, Failure):
                continue  # it may do better next time
            k = places.get(found.key)
            if k is None or found.samples != self.members[k].samples:
                self._strangers.add(node)
            else:
                self.members[k] = Member.of(node, found)


def gather(
    grid: Grid, count: int, options: FlowerOptions, briefing: Briefing, say: Callable[[str], None]
) -> tuple[list[Member], Introduction]:
    """Wait for so many nodes and let each check its data; they must agree. Members come in the order of their names."""
    ends = monotonic() + options.wait
    while len(nodes := connected_nodes(grid)) < count:
        if monotonic() > ends:
            raise too_few(len(nodes), count, options.wait)
        sleep(PAUSE)
    found = {}
    for node, introduction in greet(grid, nodes, briefing, options.timeout).items():
        if isinstance(introduction, Failure):
            raise DataError(introduction.code, f"node {node}: {introduction.reason}")
        found[node] = introduction
    ordered = sorted(found.items(), key=lambda item: (item[1].client, item[1].name))
    _check_agreement([introduction for _, introduction in ordered])
    if len(ordered) > count:
        others = ", ".join(introduction.name for _, introduction in ordered[count:])
        say(f"{len(ordered)} nodes are connected, clients={count}: {others} left out")
    return [Member.of(node, said) for node, said in ordered[:count]], ordered[0][1]


def greet(grid: Grid, nodes: Sequence[int], briefing: Briefing, timeout: float) -> dict[int, Introduction | Failure]:
    """What each node says of itself, signed under a challenge of its own unless the nodes are virtual."""
    challenges = [secrets.token_hex(16) for _ in nodes]
    parcels = [
        Parcel(node, briefing.to(Packer().pack({"challenge": challenge})))
        for node, challenge in zip(nodes, challenges, strict=True)
    ]
    replies = exchange(grid, GREET, parcels, timeout)
    return {
        node: _introduction(reply, greeting(briefing, challenge) if briefing.run else None)
        for node, reply, challenge in zip(nodes, replies, challenges, strict=True)
    }


def _introduction(reply: object, challenge: str | None) -> Introduction | Failure:
    if isinstance(reply, Failure):
        return reply
    said = Introduction.told(reply)
    if said is None:
        return Failure("FS202", "its greeting is not one. Install the same fedsieve on server and nodes")
    if challenge is not None and not is_signed(said.key, said.signature, challenge):
        return Failure("FS202", "its greeting is not signed by the key that it names")
    return said


def _check_agreement(introductions: Sequence[Introduction]) -> None:
    """All nodes must have the classes and the shape of the first, and names of their own."""
    first = introductions[0]
    names = [one.name for one in introductions]
    for one in introductions[1:]:
        check_same_data(one, f"node {one.name}", first.class_names, first.shape, f"node {first.name}")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError("FS222", f"two nodes are called {twice}. Give each its own name in --node-config")
    keys = [one.key for one in introductions if one.key]
    for one in introductions:
        if keys.count(one.key) > 1:
            raise DataError("FS222", f"node {one.name} has another node's key. Give each its own `state` folder")


def check_same_data(
    one: Introduction, who: str, class_names: tuple[str, ...], shape: tuple[int, ...], other: str
) -> None:
    if one.class_names != class_names:
        raise DataError(
            "FS222",
            f"{who} has the classes {_listed(one.class_names)}, {other} has {_listed(class_names)}. "
            "Name all classes in one order everywhere: classes.txt in a folder, class_names in an .npz file",
        )
    if one.shape != shape:
        raise DataError(
            "FS222", f"{who} has samples of shape {one.shape}, {other} of {shape}. Set data.size, or convert"
        )


def too_few(found: int, wanted: int, seconds: float) -> RunError:
    return RunError(
        "FS223",
        f"{found} nodes are connected after {seconds:g} s, {wanted} are needed. Start the others, raise flower.wait, "
        "or lower clients or flower.min_nodes",
    )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:6])
    return f"{shown} and {len(names) - 6} more" if len(names) > 6 else shown
