"""The round loop. It names no method: FedAvg is this loop with nothing added."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Protocol

import torch
from torch import Tensor

from fedsieve.core.admission import payload_fault, refusal
from fedsieve.core.aggregate import Tally
from fedsieve.core.layout import pack
from fedsieve.core.part import Hooks, Part, Stage
from fedsieve.core.plan import check_declared
from fedsieve.core.server import Event, Models, Server
from fedsieve.core.types import Answer, Ask, Down, Moment, Payload, Question, Up, Weights, payload_bytes
from fedsieve.errors import RunError


class Runtime(Protocol):
    """Where client halves run. Replies come in the order of the messages, each as soon as it can.

    Where clients are machines of their own, an `Event` in place of a reply says why a client sent none.
    """

    def train(self, messages: Iterator[tuple[int, Down]]) -> Iterator[Up | Event]: ...

    def query(self, messages: Iterator[tuple[int, Question]]) -> Iterator[Answer | Event]: ...

    def assess(self, messages: Iterator[tuple[int, Models, str]]) -> Iterator[Tensor]:
        """The logits of full models on one kind of the server's own data."""


class Store(Protocol):
    def commit(self, s: Server) -> None:
        """The state is whole: save it if it is time to."""


@dataclass
class Round:
    """What happened in one round, for the record."""

    stage: str
    dropped: list[int] = field(default_factory=list)
    refused: list[Event] = field(default_factory=list)
    lost: list[Event] = field(default_factory=list)
    """Clients that were sent a message and did not reply, with the reason."""
    ups: dict[int, Up] = field(default_factory=dict)
    weights: Weights = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    bytes_down: int = 0
    bytes_up: int = 0
    bytes_talk: int = 0
    """Of both, what conversations took."""
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        begun = perf_counter()
        try:
            yield
        finally:
            self.seconds[what] = self.seconds.get(what, 0.0) + perf_counter() - begun


class Watch(Protocol):
    """Evaluates and records; it cannot influence the run."""

    def round_done(self, s: Server, what: Round) -> None: ...


@dataclass(frozen=True)
class Faults:
    """Simulated trouble: clients that never report, and clients that only manage some of their epochs."""

    dropout: float = 0.0
    stragglers: float = 0.0


@dataclass(frozen=True)
class Loop:
    runtime: Runtime
    store: Store
    watch: Watch
    faults: Faults = Faults()

    def run(self, s: Server) -> None:
        """All that remains of the method's stages, from whatever state `s` is in."""
        state = s.state
        while state.stage < len(s.plan.stages):
            stage, h = s.plan.stages[state.stage], s.plan.hooks[state.stage]
            what = Round(stage.name)
            s.prepare()
            if not state.started:
                with what.timed("converse"):
                    self.converse(h, s, "start")
                state.started = True
                self.store.commit(s)
            while state.t < s.rounds:
                self.one_round(stage, h, s, what)
                what = Round(stage.name)
                with what.timed("store"):
                    self.store.commit(s)
            self.converse(h, s, "end")
            state.stage, state.t, state.started = state.stage + 1, 0, False
            self.store.commit(s)

    def one_round(self, stage: Stage, h: Hooks, s: Server, what: Round) -> None:
        """Converse, choose, train, assess, combine, learn, evaluate. What saving costs is booked to the next round."""
        with what.timed("converse"):
            self.converse(h, s, "round")
        chosen, what.dropped = self.choose(stage, h, s)
        with what.timed("train"):
            tallies = {group: Tally(s.plan, stage, h) for group in s.state.groups()}
            sent = {group: _sent(s.of(group)) for group in tallies}
            messages = ((k, self.message(stage, h, s, k, sent, what)) for k in chosen)
            for up in self.runtime.train(messages):
                self.receive(up, h, s, tallies, what)
        if h.assessed:
            with what.timed("assess"):
                assess(self.runtime, h, s, tallies)
        with what.timed("combine"):
            for group, tally in tallies.items():
                mine = s.of(group)
                weights = tally.settle(mine)
                what.weights |= weights
                for part in h.learn:
                    part.learn(mine.by(part), tally.ups, weights)
        with what.timed("converse"):
            self.converse(h, s, "round_end")
        s.state.round += 1
        s.state.t += 1
        what.bytes_down += s.state.talk_down
        what.bytes_up += s.state.talk_up
        what.bytes_talk += s.state.talk_down + s.state.talk_up
        s.state.talk_down = s.state.talk_up = 0
        if not any(up.models is not None for up in what.ups.values()) and (chosen or what.dropped):
            s.log("FS211", "no client reported a model; the model is unchanged")
        what.events = [*s.events]
        s.events.clear()
        self.watch.round_done(s, what)

    def choose(self, stage: Stage, h: Hooks, s: Server) -> tuple[list[int], list[int]]:
        """Who trains this round, and who was chosen but drops out."""
        assert stage.sampler is not None
        ids, removed = s.clients, []
        for part in h.eligible:
            left = part.eligible(s.by(part), ids)
            removed.append(f"{part.name} removed {len(ids) - len(left)}")
            ids = left
        chosen = sorted(stage.sampler(s, ids)) if ids else []
        if not ids:
            raise RunError("FS201", f"round {s.round + 1}: no eligible client is left ({', '.join(removed)})")
        if not self.faults.dropout or not chosen:
            return chosen, []
        gone = torch.rand(s.plan.clients, generator=s.rng("dropout")) < self.faults.dropout
        return [k for k in chosen if not gone[k]], [k for k in chosen if gone[k]]

    def message(self, stage: Stage, h: Hooks, s: Server, client: int, sent: Mapping[int, Models], what: Round) -> Down:
        group = s.state.group_of(client)
        mine = s.of(group)
        briefs = {p.name: check_declared(p.brief(mine.by(p), client), p.down, p, "brief") for p in h.brief}
        epochs = s.plan.fit.epochs if stage.epochs is None else stage.epochs
        if self.faults.stragglers and epochs > 1:
            draws = torch.rand(2, generator=s.rng("straggler", client))
            if draws[0] < self.faults.stragglers:
                epochs = 1 + int(draws[1] * (epochs - 1))
        down = Down(s.mail(client), sent[group], briefs, epochs)
        what.bytes_down += _model_bytes(down.models) + sum(map(payload_bytes, briefs.values()))
        return down

    def receive(self, up: Up | Event, h: Hooks, s: Server, tallies: Mapping[int, Tally], what: Round) -> None:
        """Admit a report or refuse it; the round goes on either way."""
        if isinstance(up, Event):
            what.lost.append(up)
            return
        what.bytes_up += _model_bytes(up.models or ()) + sum(map(payload_bytes, up.notes.values()))
        reason = refusal(up, s.plan, h, s.round, s.state.groups())
        if reason is not None:
            what.refused.append(reason)
            return
        s.state.versions[up.client] = up.keep
        what.ups[up.client] = replace(up, models=None if up.models is None else ())
        tallies[up.group].add(up)

    def converse(self, h: Hooks, s: Server, moment: Moment) -> None:
        """Let each part that talks ask its questions; every question is one more message to the clients asked."""
        for part in h.talk:
            dialogue = part.talk(s.by(part), moment)
            try:
                ask = next(dialogue)
                while True:
                    ask = dialogue.send(self.asked(s, part, ask))
            except StopIteration:
                s.prepare()

    def asked(self, s: Server, part: Part, ask: Ask) -> dict[int, Payload]:
        """The admitted answers to one question."""
        topic = part.topics.get(ask.topic)
        if topic is None:
            raise RunError("FS206", f"{part.name} asks about '{ask.topic}', but declares only {sorted(part.topics)}")

        sent = {group: _sent(s.of(group)) for group in s.state.groups()} if ask.models else {}

        def questions() -> Iterator[tuple[int, Question]]:
            for k, payload in sorted(ask.to.items()):
                models = sent[s.state.group_of(k)] if ask.models else None
                check_declared(payload, topic.question, part, "talk")
                s.state.talk_down += _model_bytes(models or ()) + payload_bytes(payload)
                yield k, Question(s.mail(k), part.name, ask.topic, payload, models)

        answers: dict[int, Payload] = {}
        sizes = {**s.plan.sizes, "G": len(s.state.models)}
        for answer in self.runtime.query(questions()):
            if isinstance(answer, Event):
                s.log(answer.code, f"no answer: {answer.message}", answer.client)
                continue
            s.state.talk_up += payload_bytes(answer.payload)
            fault = payload_fault(answer.payload, part, topic.answer, sizes, answer.client)
            if fault is not None:
                s.log(fault.code, f"an answer is refused: {fault.message}", fault.client)
                continue
            s.state.versions[answer.client] = answer.keep
            answers[answer.client] = answer.payload
        return answers


def assess(runtime: Runtime, h: Hooks, s: Server, tallies: Mapping[int, Tally]) -> None:
    """Run the reported models on the server's own data, as the stage's parts ask for: see `Server.logits`."""
    for kind in h.assessed:
        reports = [
            (k, s.of(group).complete(up.models))
            for group, tally in tallies.items()
            for k, up in tally.ups.items()
            if up.models is not None
        ]
        name = str(kind.name).lower()
        found = runtime.assess((k, models, name) for k, models in reports)
        s.assessed[kind] = dict(zip((k for k, _ in reports), found, strict=True))


def _sent(s: Server) -> Models:
    """What a client of this group receives; the same tensors for all, so that they need be placed only once."""
    slices = s.plan.down_slices
    if len(slices) == 1 and slices[0] == slice(0, s.plan.layout.size):
        return s.models
    return tuple(pack(model, slices) for model in s.models)


def _model_bytes(models: tuple[Tensor, ...]) -> int:
    return sum(model.numel() * model.element_size() for model in models)
