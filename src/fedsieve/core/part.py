"""Parts, stages and methods.

FedAvg is the round loop with nothing added; every other method is a list of stages, each the same loop with parts
plugged in. A part is one idea with both of its halves. Parts are frozen dataclasses whose fields are the
hyper-parameters; they hold no state and declare what travels, what is kept and which data they read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from torch import Tensor

from fedsieve.base.errors import CompositionError
from fedsieve.base.options import Choice
from fedsieve.core.layout import ALL, Names
from fedsieve.core.sent import Declared, Shape
from fedsieve.core.types import Exhibit, Moment, Payload, Reads, Talk, Told, Topic, Ups, Weights
from fedsieve.models.heads import Head

if TYPE_CHECKING:
    from fedsieve.core.client import Client
    from fedsieve.core.net import Batch, Net
    from fedsieve.core.plan import Plan
    from fedsieve.core.server import Models, Server
    from fedsieve.core.types import Labels


@dataclass(frozen=True, kw_only=True)
class Part(Choice):
    """One idea: up to ten server hooks and eight client hooks, all optional.

    A hook exists for a stage if the class overrides it, so there is no second list to keep in step.
    """

    down: ClassVar[Mapping[str, Shape]] = {}
    """Names and shapes that `brief` sends to a client."""
    up: ClassVar[Declared] = {}
    """Names, shapes and ranges that `finish` sends back: this is the disclosure."""
    topics: ClassVar[Mapping[str, Topic]] = {}
    """Questions and answers of `talk` and `answer`."""
    keeps: ClassVar[Mapping[str, Shape]] = {}
    """What the client keeps between rounds."""
    remembers: ClassVar[Mapping[str, Shape]] = {}
    """What the server keeps: per group, or one row per client if the first axis is K."""
    reads: ClassVar[Reads] = Reads.NONE
    """Server data that the server half may see."""
    may_read: ClassVar[Reads] = Reads.NONE
    """Server data that the server half also looks at where the server has some (`s.has`)."""
    assesses: ClassVar[Reads] = Reads.NONE
    """Server data (of one kind) on which the workers run every reported model after training, for `s.logits`."""
    labels: ClassVar[bool] = False
    """Whether the client half reads the clients' given labels."""
    guesses: ClassVar[bool] = False
    """Whether the client half guesses labels and notes them (`c.guess`), for the record to compare with the truth."""
    corrects: ClassVar[bool] = False
    """Whether it gives rows other labels than those delivered, which the owner is told as suggestions."""
    writes: ClassVar[frozenset[str]] = frozenset()
    """Columns of the client table that it fills; "group" is one. "labels" says that it rewrites clients' tables."""
    verdict: ClassVar[str] = ""
    """The column of its own that says how good a client is, for record and report: 0 is bad, 1 is good."""
    needs: ClassVar[frozenset[str]] = frozenset()
    """Columns that this or an earlier part must fill."""
    every: ClassVar[Literal["round", "epoch"]] = "round"
    """When `relabel` runs."""
    weighs: ClassVar[Literal["scale", "replace"]] = "scale"
    """What `weigh` does to the weights it is given; replacing runs first."""
    sees: ClassVar[Literal["sum", "each"]] = "each"
    """Whether the server half needs single reports, or would do with their sum (secure aggregation)."""
    combined: ClassVar[bool] = False
    """Whether it works with the model that the server combines, and makes no sense where each client keeps its own."""
    nets: ClassVar[int | None] = None
    """Only works with this many models per client."""
    smallest_batch: ClassVar[int] = 1
    """The smallest batch it can train on; what the model itself needs is found without being said."""
    heads: ClassVar[tuple[str, ...]] = ()
    """Heads the model must have; a method that uses the part lists them in `Method.heads`."""

    @property
    def name(self) -> str:
        """Under this name its messages travel and its state is kept."""
        return type(self).__name__

    def data(self) -> Reads:
        """Which data it reads; a part whose options decide that says so here."""
        return self.reads | self.assesses

    def sends(self) -> Declared:
        """`up`; a part whose options decide the ranges, but not the names, says so here."""
        return self.up

    def check(self, plan: Plan) -> None:
        """Refuse an experiment that the part cannot work in; asked once, before anything runs."""

    # --- server half ------------------------------------------------------------ how several parts combine
    def recall(self, s: Server) -> dict[str, Tensor]:
        """The part's memory at its beginning; asked once per group."""
        return {}

    def round(self, s: Server) -> None:
        """At the start of a round, before anybody is asked or chosen (each in order, once per group)."""

    def eligible(self, s: Server, ids: list[int]) -> list[int]:
        """Which of these clients may be sampled (intersection)."""
        return ids

    def brief(self, s: Server, client: int) -> Payload:
        """What a client is told besides the model (union, under the part's name)."""
        return {}

    def weigh(self, s: Server, ups: Ups, w: Weights) -> Weights:
        """The clients' weights in the aggregate (chain: replacing first, then scaling)."""
        return w

    def step(self, s: Server, before: Models, after: Models) -> Models:
        """From the group's old models to its next, given those the reports were combined to (chain)."""
        return after

    def learn(self, s: Server, ups: Ups, w: Weights) -> None:
        """Update the part's memory and columns (each in order, after the models are combined)."""

    def talk(self, s: Server, moment: Moment) -> Talk:
        """A conversation: each `answers = yield Ask(...)` is one more message to the clients asked."""
        return
        yield

    def deliver(self, s: Server, models: Models) -> Models:
        """What is tested and saved in place of the group's models, which clients go on with all the same (chain)."""
        return models

    def show(self, s: Server) -> Sequence[Exhibit]:
        """Pictures for the report; asked once, after the last round."""
        return ()

    # --- client half
    def start(self, c: Client) -> None:
        """Before local training."""

    def relabel(self, c: Client, net: Net, labels: Labels) -> Labels:
        """This round's table (chain)."""
        return labels

    def loss(self, c: Client, net: Net, batch: Batch) -> Tensor:
        """What is minimised: (B,) or a scalar. Exactly one part of a stage has it."""
        return net.logits(batch).new_zeros(())

    def term(self, c: Client, net: Net, batch: Batch) -> Tensor:
        """Added to the loss (sum)."""
        return net.logits(batch).new_zeros(())

    def gradient(self, c: Client, net: Net, batch: Batch) -> None:
        """Edit `net.grad` in place before the optimiser's step (each in order)."""

    def stepped(self, c: Client, net: Net, batch: Batch) -> None:
        """After the optimiser's step (each in order)."""

    def finish(self, c: Client) -> Payload:
        """What goes back besides the model (union, under the part's name)."""
        return {}

    def answer(self, c: Client, topic: str, question: Told) -> Payload:
        """The client's side of `talk`."""
        return {}


def defines(part: Part, hook: str) -> bool:
    return getattr(type(part), hook) is not getattr(Part, hook)


def sees_single_reports(part: Part) -> bool:
    """Whether its server half would not do with sums of reports."""
    return part.sees == "each" and any(defines(part, hook) for hook in ("weigh", "learn", "talk"))


class Hooks:
    """For each hook the parts of a stage that define it, in order."""

    def __init__(self, parts: Sequence[Part]) -> None:
        def having(hook: str) -> tuple[Part, ...]:
            return tuple(part for part in parts if defines(part, hook))

        self.recall = having("recall")
        self.round = having("round")
        self.eligible = having("eligible")
        self.brief = having("brief")
        self.weigh = tuple(sorted(having("weigh"), key=lambda part: part.weighs != "replace"))
        self.step = having("step")
        self.learn = having("learn")
        self.talk = having("talk")
        self.deliver = having("deliver")
        self.start = having("start")
        self.relabel = having("relabel")
        self.loss = having("loss")
        self.term = having("term")
        self.gradient = having("gradient")
        self.stepped = having("stepped")
        self.finish = having("finish")
        self.smallest_batch = max((part.smallest_batch for part in parts), default=1)
        self.assessed = tuple(dict.fromkeys(part.assesses for part in parts if part.assesses))
        """Kinds of server data on which reported models are run."""


@dataclass(frozen=True, kw_only=True)
class Sampler(Choice):
    """Who takes part in a round. What the loop and the checks must know of it beforehand has answers that mostly do."""

    def __call__(self, s: Server, ids: list[int]) -> list[int]:
        """Who takes part in this round, out of those eligible; may be nobody."""
        raise NotImplementedError

    def trains(self) -> bool:
        """Whether clients ever take part."""
        return True

    def turns(self, clients: int) -> int | None:
        """Rounds until each of so many clients has had its turn; None where chance decides."""
        return None

    def group_count(self) -> int:
        """Groups of models that it deals clients to."""
        return 1

    def holding(self) -> str:
        """The kind of the server's own data with which the server itself takes part; empty if it does not."""
        return ""

    def replica(self, s: Server) -> Models:
        """What the server itself begins with in this group, where it takes part."""
        return s.models

    def filled(self, everyday: Sampler) -> Sampler:
        """The same with what it leaves open filled by the experiment's own."""
        return self


class Combine(Protocol):
    weighted: ClassVar[bool]
    """False if it ignores the weights."""
    streams: ClassVar[bool]
    """True if it is the weighted mean, which the loop sums as reports come."""

    def __call__(self, s: Server, models: tuple[Tensor, ...], ups: Ups, w: Weights) -> tuple[Tensor, ...]:
        """The group's new models, from reports completed to full vectors."""


@dataclass(frozen=True)
class Stage:
    """`rounds` of the loop with these parts. `rounds=0` is a conversation only; None takes the experiment's rounds."""

    name: str = "train"
    rounds: int | None = None
    parts: tuple[Part, ...] = ()
    sampler: Sampler | None = None
    combine: Combine | None = None
    base: Literal["size", "equal"] | None = None
    """The clients' weights before any part touches them."""
    epochs: int | None = None
    """Local epochs, where the stage does not follow the experiment's."""
    fraction: float | None = None
    """The part of the experiment's rounds that it takes, rounded up, where `rounds` is open; `rounds` is then no more
    than the experiment has."""
    laps: tuple[int, int] | None = None
    """Instead of rounds: so many times through all clients, fewest and most, with a sampler that sweeps.

    As many as fit into `fraction` are taken, and they cost as many of the experiment's rounds as visit as many
    clients."""
    extra: bool = False
    """Whether its rounds come on top of the experiment's instead of out of them: a pre-training. Schedules stand
    still in them."""
    after: tuple[str, ...] = ()
    """Of a conversation: stages of another method after which it is best inserted, where the other has one."""

    def names(self) -> set[str]:
        """Of its parts."""
        return {part.name for part in self.parts}


@dataclass(frozen=True)
class Share:
    """Which sections of the model travel, are trained, and stay with the client. See `Layout.select`."""

    down: Names = ALL
    up: Names = ALL
    train: Names = ALL
    keep: Names = ()


@dataclass(frozen=True)
class Method:
    """Stages, and what holds for all of them. A field left None yields to one that is set, then to the default."""

    name: str
    stages: tuple[Stage, ...] = (Stage(),)
    nets: int | None = None
    """Models per client."""
    turns: Literal["together", "alternate"] | None = None
    """Whether several models share each batch and backward pass, or train one after the other."""
    heads: tuple[Head, ...] = ()
    """What the model gets besides features and classifier."""
    share: Share | None = None
    test: Literal["groups", "mean", "clients", "probe"] | None = None
    """Each group's model, their mean, or each client's own; where no classifier is trained, the groups' features by a
    probe."""
    where: tuple[str, ...] = ()
    """Stages of the other method that this one joins or follows when composed; empty means all that train, or first."""
    alone: Stage | None = None
    """Its training stage when nothing else brings one."""

    def __post_init__(self) -> None:
        for head in self.heads:
            if not isinstance(head, Head):
                raise CompositionError(
                    "FS116", f"{self.name}: {head!r} is no head. Give Projector(...) or SideHead(name=..., ...)"
                )

    def head_names(self) -> set[str]:
        return {head.name for head in self.heads}
