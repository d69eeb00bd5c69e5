"""Parts that the contract puts beside a method's own."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from fedsieve.core.client import Client
from fedsieve.core.net import Batch, Net
from fedsieve.core.part import Method, Part, Stage, defines
from fedsieve.core.server import Server
from fedsieve.core.types import Ask, Moment, Payload, Talk, Topic

CLIENT_HALF = ("start", "relabel", "loss", "term", "gradient", "stepped", "finish", "answer")


@dataclass(frozen=True, kw_only=True)
class Corrected(Part):
    """Rewrites every client's labels for good, each to the class that many places on."""

    shift: int
    labels = True
    topics = {"corrected": Topic({}, {})}
    writes = frozenset({"labels"})

    def talk(self, s: Server, moment: Moment) -> Talk:
        if moment == "start":
            yield Ask("corrected", {client: {} for client in s.clients})

    def answer(self, c: Client, topic: str, question: Payload) -> Payload:
        c.rewrite(c.labels.towards(c.labels.target.roll(self.shift, dims=1)))
        return {}


@dataclass(frozen=True, kw_only=True)
class Blind(Part):
    """A loss that reads no labels, so that a stage without its own still trains."""

    def loss(self, c: Client, net: Net, batch: Batch) -> Tensor:
        return (net.logits(batch) - 1.0).square().mean()


def label_free(method: Method) -> Method:
    """The method's parts whose client half reads no labels, each in its stage, as far as they do without the others."""
    stages: list[Stage] = []
    written = {"group"}
    for stage in method.stages:
        parts = tuple(part for part in stage.parts if not part.labels and part.needs <= written | part.writes)
        for part in parts:
            written |= part.writes
        if stage.rounds and not any(defines(part, "loss") for part in parts):
            parts = (*parts, Blind())
        stages.append(replace(stage, parts=parts))
    return replace(method, stages=tuple(stages))


def client_halves(method: Method) -> list[str]:
    """The names of the method's own parts that do something at the client."""
    parts = [part for stage in method.stages for part in stage.parts if not isinstance(part, Blind)]
    return list(dict.fromkeys(part.name for part in parts if any(defines(part, hook) for hook in CLIENT_HALF)))
