"""The server's state, which is one value and all that is checkpointed, and the context a server hook receives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from fedsieve.base.errors import RunError
from fedsieve.base.rng import Key, torch_rng
from fedsieve.core.host import Host
from fedsieve.core.layout import Names, mean_models, pack, unpack_
from fedsieve.core.net import Out
from fedsieve.core.part import Part, defines
from fedsieve.core.plan import Clock, Fit, Plan
from fedsieve.core.types import SERVER, Down, Mail, Reads, Told, Up, Ups
from fedsieve.data.samples import Samples
from fedsieve.models.heads import FEATURES

GROUP = "group"
Models = tuple[Tensor, ...]
Rows = dict[int, Tensor]


@dataclass
class ServerState:
    """Everything the server knows. Tensors in it are replaced, never changed in place."""

    models: dict[int, Models]
    """Per group, the full vector of each net."""
    columns: dict[str, Tensor]
    """The client table: a number per client and column, NaN where unknown."""
    round: int = 0
    """Rounds done."""
    stage: int = 0
    t: int = 0
    """Rounds done in this stage."""
    started: bool = False
    """Whether the stage's opening conversation is over."""
    messages: int = 0
    """Messages sent; numbers the versions of the clients' states."""
    server_epochs: dict[int, int] = field(default_factory=dict)
    """Per group, epochs of training at the server."""
    talk_down: int = 0
    """Bytes of conversations that no round has booked yet."""
    talk_up: int = 0
    versions: dict[int, int] = field(default_factory=dict)
    """Per client, the version of its state."""
    memory: dict[tuple[str, int], dict[str, Tensor]] = field(default_factory=dict)
    """Per part and group."""
    rows: dict[tuple[str, str], Rows] = field(default_factory=dict)
    """Per part and name, one tensor per client: memory with a K axis. Absent until learnt."""
    norms: dict[str, Tensor] = field(default_factory=dict)
    """How long updates were in the last rounds, a median each: see `Limits`."""

    @staticmethod
    def fresh(plan: Plan) -> ServerState:
        return ServerState({0: plan.initial}, {GROUP: torch.zeros(plan.clients, dtype=torch.float64)})

    def copy(self) -> ServerState:
        """A snapshot; cheap, because tensors are never changed in place."""
        return ServerState(**{each.name: _copied(getattr(self, each.name)) for each in fields(self)})

    def groups(self) -> list[int]:
        return sorted(self.models)

    def group_of(self, client: int) -> int:
        """Of a client, or of the server where it trains: -1 for group 0, -2 for group 1."""
        return int(self.columns[GROUP][client]) if client > SERVER else SERVER - client


def _copied(value: Any) -> Any:
    """A mapping, and those within it, as new ones with the same tensors."""
    return {key: _copied(each) for key, each in value.items()} if isinstance(value, dict) else value


class Event(NamedTuple):
    """Something that happened to a report or a part, for the log."""

    code: str
    message: str
    client: int | None = None


class _Declared(MutableMapping[str, Tensor]):
    """A part's memory: only declared names can be written."""

    def __init__(self, values: dict[str, Tensor], part: Part) -> None:
        self._values, self._part = values, part

    def __getitem__(self, name: str) -> Tensor:
        return self._values[name]

    def __setitem__(self, name: str, value: Tensor) -> None:
        if name not in self._part.remembers:
            raise RunError(
                "FS206", f"{self._part.name} remembers '{name}', but declares only {sorted(self._part.remembers)}"
            )
        self._values[name] = value.detach().cpu()

    def __delitem__(self, name: str) -> None:
        del self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class _Columns(Mapping[str, Tensor]):
    """The client table; a part writes the columns it declares, whole or client by client."""

    def __init__(self, state: ServerState, part: Part | None, clients: int) -> None:
        self._state, self._part, self._clients = state, part, clients

    def __getitem__(self, name: str) -> Tensor:
        return self._state.columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._state.columns)

    def __len__(self) -> int:
        return len(self._state.columns)

    def write(self, name: str, values: Mapping[int, float]) -> None:
        if self._part is not None and name not in self._part.writes:
            raise RunError(
                "FS206", f"{self._part.name} writes column '{name}', but declares only {sorted(self._part.writes)}"
            )
        unknown = torch.full((self._clients,), torch.nan, dtype=torch.float64)
        column = self._state.columns.get(name, unknown).clone()
        for client, value in values.items():
            if client > SERVER:  # which is no client, and has no row
                column[client] = value
        self._state.columns[name] = column


class ServerSet(NamedTuple):
    """Some of the server's own data."""

    samples: Samples
    labels: Tensor


class Server:
    """What a server hook sees: one group, one part. Read-only but for the part's own memory, rows and columns."""

    def __init__(
        self,
        state: ServerState,
        plan: Plan,
        bench: Callable[[], Host],
        retained: Callable[[int], tuple[int, ...]] = lambda _: (),
    ) -> None:
        self.state = state
        self.plan = plan
        self._bench = bench
        self._retained = retained
        self.events: list[Event] = []
        """What parts had to say in this round."""
        self.assessed: dict[Reads, dict[int, Tensor]] = {}
        """This round's reported models on the server's data: per kind and client, logits."""
        self.group = 0
        self.part: Part | None = None

    def by(self, part: Part) -> Server:
        """The same context as this part may see it."""
        view = copy(self)
        view.part = part
        return view

    def of(self, group: int) -> Server:
        """The same context for one group of models."""
        view = copy(self)
        view.group = group
        return view

    # --- the moment
    @property
    def round(self) -> int:
        return self.state.round

    @property
    def t(self) -> int:
        return self.state.t

    @property
    def rounds(self) -> int:
        """How long this stage is."""
        return self.plan.stages[self.state.stage].rounds or 0

    def clock(self) -> Clock:
        """The part's own time: as `t` and `rounds`, but through all stages that have the part."""
        assert self.part is not None
        return self.plan.clock(self.part, self.state.stage, self.t)

    @property
    def clients(self) -> list[int]:
        return list(range(self.plan.clients))

    def members(self) -> list[int]:
        """The clients of this group."""
        return [k for k in self.clients if self.state.group_of(k) == self.group]

    # --- what the part knows
    @property
    def memory(self) -> MutableMapping[str, Tensor]:
        assert self.part is not None
        return _Declared(self.state.memory.setdefault((self.part.name, self.group), {}), self.part)

    def rows(self, name: str) -> MutableMapping[int, Tensor]:
        """Memory with one tensor per client."""
        assert self.part is not None
        if (*self.part.remembers.get(name, ()), "")[0] != "K":
            raise RunError("FS206", f"{self.part.name} uses rows of '{name}', but declares no such memory with axis K")
        return self.state.rows.setdefault((self.part.name, name), {})

    @property
    def columns(self) -> _Columns:
        return _Columns(self.state, self.part, self.plan.clients)

    def notes(self, ups: Ups) -> dict[int, Told]:
        """What the part's client half said in these reports; a client that trained nothing said nothing."""
        assert self.part is not None
        return {k: Told(up.notes[self.part.name]) for k, up in ups.items() if self.part.name in up.notes}

    def log(self, code: str, message: str, client: int | None = None) -> None:
        self.events.append(Event(code, message, client))

    def rng(self, purpose: str, *more: Key) -> torch.Generator:
        """A stream of the part's own."""
        name = self.part.name if self.part else "loop"
        return torch_rng(self.plan.seed, self.state.stage, self.state.round, "server", self.group, name, purpose, *more)

    # --- models
    @property
    def models(self) -> Models:
        return self.state.models[self.group]

    @models.setter
    def models(self, models: Models) -> None:
        self.state.models[self.group] = models

    def mean(self) -> Models:
        """The mean of all groups' models."""
        return mean_models(self.state.models)

    def delivered(self) -> Models:
        """The group's models as they are tested and saved, after every part's word on them."""
        models = self.models
        for part in self.plan.hooks[min(self.state.stage, len(self.plan.stages) - 1)].deliver:
            models = part.deliver(self.by(part), models)
        return models

    def complete(self, models: Models) -> Models:
        """A report's sections in their places; what did not travel is taken from the server's model."""
        return tuple(
            unpack_(mine.clone(), self.plan.up_slices, theirs) for mine, theirs in zip(self.models, models, strict=True)
        )

    def sections(self, models: Models) -> Tensor:
        """(N, M): what of full models travels down; `Client.complete` is the other way."""
        return torch.stack([pack(model, self.plan.down_slices) for model in models])

    def predict(self, models: Models, samples: Samples, head: str = FEATURES) -> Out:
        """Logits (mean over the nets) and features, or what a head returns (of net 0), of full or reported models."""
        if len(models[0]) != self.plan.layout.size:
            models = self.complete(models)
        return self._bench().outputs(models, samples, head)

    @property
    def logits(self) -> Mapping[int, Tensor]:
        """What this round's reported models make of the data that the part assesses them on: per client, (rows, C)."""
        assert self.part is not None
        return self.assessed[self.part.assesses]

    def respond(self, models: Models, x: Tensor) -> Tensor:
        """The first model's logits of one ready-made input."""
        return self._bench().respond(models[0], x)

    def split(self, groups: Mapping[int, int], init: Literal["copy", "fresh"] = "copy") -> None:
        """Give each client a group; new groups start from a copy of their members' model, or from fresh weights."""
        before = {k: self.state.group_of(k) for k in self.clients}
        self.columns.write(GROUP, {k: float(g) for k, g in groups.items()})
        now: dict[int, list[int]] = {}
        for k in self.clients:
            now.setdefault(self.state.group_of(k), []).append(k)
        old_models = self.state.models
        self.state.models = {
            g: old_models[before[members[0]]] if init == "copy" else self.plan.fresh(g)
            for g, members in sorted(now.items())
        }
        self._inherit({g: before[members[0]] for g, members in sorted(now.items())})

    def branch(self, count: int) -> None:
        """At least so many groups of models; new ones begin as the first one is, without clients."""
        groups = self.state.groups()
        parents = {g: g for g in groups} | {g: groups[0] for g in range(count) if g not in groups}
        if len(parents) > len(groups):
            self.state.models = {g: self.state.models[p] for g, p in sorted(parents.items())}
            self._inherit(parents)

    def _inherit(self, parents: Mapping[int, int]) -> None:
        """What is kept by group goes on in the groups that there are: parts' memory, and what the server keeps itself.

        The latter has a version and a file in each group, as clients' states have.
        """
        state = self.state
        names = {name for name, _ in state.memory}
        state.memory = {
            (part, g): dict(state.memory[part, p])
            for g, p in parents.items()
            for part in names
            if (part, p) in state.memory
        }
        state.server_epochs = {g: state.server_epochs[p] for g, p in parents.items() if p in state.server_epochs}
        own = {g: state.versions[SERVER - p] for g, p in parents.items() if SERVER - p in state.versions}
        moved = {g: self._bench().states.load(SERVER - parents[g], v) for g, v in own.items() if v and g != parents[g]}
        for g, kept in moved.items():
            state.messages += 1
            id = SERVER - g
            retain = {*self._retained(id), state.versions.get(id, 0)}
            own[g] = self._bench().states.save(id, state.messages, kept, retain)
        clients = {k: v for k, v in state.versions.items() if k > SERVER}
        state.versions = clients | {SERVER - g: version for g, version in own.items()}

    # --- the server's own data
    @property
    def unlabelled(self) -> Samples:
        return self._holding("unlabelled", Reads.UNLABELLED)[0]

    @property
    def public(self) -> Samples:
        return self._holding("public", Reads.PUBLIC)[0]

    @property
    def clean(self) -> ServerSet:
        return self._labelled_set("clean", Reads.CLEAN)

    @property
    def noisy(self) -> ServerSet:
        return self._labelled_set("noisy", Reads.NOISY)

    def has(self, reads: Reads) -> bool:
        """Whether the server holds data of this kind."""
        return str(reads.name).lower() in self._bench().federation.server

    def _labelled_set(self, name: str, reads: Reads) -> ServerSet:
        samples, labels = self._holding(name, reads)
        assert labels is not None
        return ServerSet(samples, labels)

    def _holding(self, name: str, reads: Reads) -> tuple[Samples, Tensor | None]:
        """A part receives what it declares to read and nothing else."""
        if self.part is None or not (self.part.data() | self.part.may_read) & reads:
            reader = self.part.name if self.part else "the loop"
            raise RunError("FS206", f"{reader} looks at the server's {name} data without declaring it in `reads`")
        return self._bench().holding(name)

    def prepare(self) -> None:
        """The groups that the stage needs, and every part's first memory in every group that has none."""
        stage = self.plan.stages[self.state.stage]
        assert stage.sampler is not None
        self.branch(stage.sampler.group_count())
        for part in stage.parts:
            if not defines(part, "recall"):
                continue
            for group in self.state.groups():
                if (part.name, group) not in self.state.memory:
                    view = self.of(group).by(part)
                    for name, value in part.recall(view).items():
                        view.memory[name] = value

    def train_here(self, parts: Sequence[Part], fit: Fit, holding: str, train: Names) -> None:
        """Train sections of this group's models on the server's own data, as client -1 (-2... for further groups).

        The stream is keyed by the count of server epochs, not by the round, so that a server that trains alone and one
        whose clients are idle give the same bits.
        """
        state, id = self.state, SERVER - self.group
        epochs = state.server_epochs.get(self.group, 0)
        self.models, state.versions[id] = self._bench().train_server(
            id, self.models, parts, fit, holding, train, self.mail(id), epochs
        )
        state.server_epochs[self.group] = epochs + fit.epochs

    def take_part(self, id: int, down: Down) -> Up:
        """The server's own report of a round, made here whatever the runtime."""
        return self._bench().train(id, down)

    # --- messages
    def mail(self, client: int) -> Mail:
        """The address of the next message to a client."""
        state = self.state
        state.messages += 1
        group = state.group_of(client)
        version = state.versions.get(client, 0)
        return Mail(state.stage, state.round, state.t, group, version, state.messages, self._retained(client))
