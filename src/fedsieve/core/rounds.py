"""The round loop. It names no method: FedAvg is this loop with nothing added."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from time import perf_counter
from typing import Any, Protocol, TypeGuard

import torch
from torch import Tensor

from fedsieve.base.errors import RunError
from fedsieve.core.admission import answer_fault, bound_axes, misfits, refusal
from fedsieve.core.aggregate import Tally
from fedsieve.core.layout import pack
from fedsieve.core.limits import Limits, Passed
from fedsieve.core.part import Hooks, Part, Stage
from fedsieve.core.plan import check_declared
from fedsieve.core.sent import clean_text, finite
from fedsieve.core.server import Event, Models, Server
from fedsieve.core.types import (
    SERVER,
    Answer,
    Answers,
    Ask,
    Down,
    Mail,
    Moment,
    Question,
    Told,
    Up,
    Weights,
    payload_bytes,
)


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
        if h.round:
            with what.timed("prepare"):
                for group in s.state.groups():
                    for part in h.round:
                        part.round(s.of(group).by(part))
        with what.timed("converse"):
            self.converse(h, s, "round")
        chosen, what.dropped = self.choose(stage, h, s)
        with what.timed("train"):
            tallies = {group: Tally(s.plan, stage, h) for group in s.state.groups()}
            sent = {group: _sent(s.of(group)) for group in tallies}
            limits = Limits(s.plan, h, s.state.models, s.state.norms)
            mails: dict[int, Mail] = {}
            messages = self.messages(stage, h, s, chosen, sent, mails, what)
            for k, up in zip(chosen, self.replies(s, messages, chosen), strict=True):
                if self.admitted(up, h, s, k, mails[k], what):
                    self.let_in(limits.add(up), s, limits, tallies, what)
            self.let_in(limits.close(), s, limits, tallies, what)
            s.state.norms = limits.medians()
        if h.assessed:
            with what.timed("assess"):
                for k, event in assess(self.runtime, h, s, tallies).items():
                    what.refused.append(event)
                    del what.ups[k]
        with what.timed("combine"):
            for group, tally in tallies.items():
                mine = s.of(group)
                weights = tally.settle(mine, limits)
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
        dropped = [k for k in chosen if k > SERVER and gone[k]]
        return [k for k in chosen if k not in dropped], dropped

    def message(self, stage: Stage, h: Hooks, s: Server, client: int, sent: Mapping[int, Models], what: Round) -> Down:
        group = s.state.group_of(client)
        mine = s.of(group)
        briefs = {p.name: check_declared(p.brief(mine.by(p), client), p.down, p, "brief") for p in h.brief}
        epochs = s.plan.fit.epochs if stage.epochs is None else stage.epochs
        if client <= SERVER:  # nothing travels
            assert stage.sampler is not None
            return Down(s.mail(client), stage.sampler.replica(mine), briefs, epochs)
        if self.faults.stragglers and epochs > 1:
            draws = torch.rand(2, generator=s.rng("straggler", client))
            if draws[0] < self.faults.stragglers:
                epochs = 1 + int(draws[1] * (epochs - 1))
        down = Down(s.mail(client), sent[group], briefs, epochs)
        what.bytes_down += _model_bytes(down.models) + sum(map(payload_bytes, briefs.values()))
        return down

    def messages(
        self,
        stage: Stage,
        h: Hooks,
        s: Server,
        chosen: list[int],
        sent: Mapping[int, Models],
        mails: dict[int, Mail],
        what: Round,
    ) -> Iterator[tuple[int, Down]]:
        """Each made when it is asked for; `mails` notes what each client was told."""
        for k in chosen:
            down = self.message(stage, h, s, k, sent, what)
            mails[k] = down.mail
            yield k, down

    def replies(self, s: Server, messages: Iterator[tuple[int, Down]], chosen: list[int]) -> Iterator[Up | Event]:
        """The server's own report first, which its id puts before all others, then what the runtime brings."""
        for id, down in islice(messages, sum(k <= SERVER for k in chosen)):
            yield s.take_part(id, down)
        yield from self.runtime.train(messages)

    def admitted(self, up: Up | Event, h: Hooks, s: Server, client: int, mail: Mail, what: Round) -> TypeGuard[Up]:
        """Whether a reply is a report that will do as it stands; the round goes on either way."""
        if isinstance(up, Event):
            what.lost.append(up)
            return False
        what.bytes_up += reply_bytes(up) if client > SERVER else 0
        reason = refusal(up, s.plan, h, client, mail, len(s.state.models))
        if reason is not None:
            what.refused.append(reason)
        return reason is None

    def let_in(
        self, passed: Iterator[Passed], s: Server, limits: Limits, tallies: Mapping[int, Tally], what: Round
    ) -> None:
        """Reports whose update is no longer than usual are counted; a longer one is refused, or clipped by choice."""
        for up, excess in passed:
            if excess and s.plan.excess == "refuse":
                what.refused.append(Event("FS230", excess, up.client))
                continue
            if excess:
                s.log("FS230", f"{excess}; clipped", up.client)
                up = limits.clip(up)
            s.state.versions[up.client] = up.version
            up = replace(up, skipped=clean_text(up.skipped))
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

    def asked(self, s: Server, part: Part, ask: Ask) -> Answers:
        """The admitted answers to one question."""
        topic = part.topics.get(ask.topic)
        if topic is None:
            raise RunError("FS206", f"{part.name} asks about '{ask.topic}', but declares only {sorted(part.topics)}")

        sent = {group: _sent(s.of(group)) for group in s.state.groups()} if ask.models else {}
        mails: dict[int, Mail] = {}
        known: dict[int, dict[str, int]] = {}

        def questions() -> Iterator[tuple[int, Question]]:
            for k, payload in sorted(ask.to.items()):
                models = sent[s.state.group_of(k)] if ask.models else None
                check_declared(payload, topic.question, part, "talk")
                s.state.talk_down += _model_bytes(models or ()) + payload_bytes(payload)
                mails[k] = s.mail(k)
                sizes = {**s.plan.sizes, "G": len(s.state.models)}
                if s.plan.rows:
                    sizes["n"] = s.plan.rows[k]
                known[k] = sizes | bound_axes(payload, topic.question, part, sizes)
                yield k, Question(mails[k], part.name, ask.topic, payload, models)

        answers: dict[int, Answer] = {}
        for k, answer in zip(sorted(ask.to), self.runtime.query(questions()), strict=True):
            if isinstance(answer, Event):
                s.log(answer.code, f"no answer: {answer.message}", answer.client)
                continue
            s.state.talk_up += reply_bytes(answer)
            fault = answer_fault(answer, part, topic.answer, known[k], k, mails[k])
            if fault is not None:
                s.log(fault.code, f"an answer is refused: {fault.message}", fault.client)
                continue
            answers[k] = answer
        for k, fault in misfits({k: a.payload for k, a in answers.items()}, part, topic.answer, s.plan.sizes).items():
            s.log(fault.code, f"an answer is refused: {fault.message}", k)
            del answers[k]
        s.state.versions |= {k: answer.version for k, answer in answers.items()}
        return {k: Told(answer.payload) for k, answer in answers.items()}


def assess(runtime: Runtime, h: Hooks, s: Server, tallies: Mapping[int, Tally]) -> dict[int, Event]:
    """Run the reported models on the server's own data, as the stage's parts ask for: see `Server.logits`.

    A model whose outputs are not finite is taken out of its tally, and named.
    """
    refused: dict[int, Event] = {}
    owners = {k: tally for tally in tallies.values() for k, up in tally.ups.items() if up.models is not None}
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
        for k, logits in s.assessed[kind].items():
            if k not in refused and not finite(logits):
                refused[k] = Event("FS203", f"the model's outputs on the server's {name} data are not finite", k)
                owners[k].drop(k)
    return refused


def reply_bytes(reply: Any) -> int:
    """What a reply weighs on the wire, as far as it is made of what can be weighed."""
    if isinstance(reply, Answer):
        return payload_bytes(reply.payload) if isinstance(reply.payload, Mapping) else 0
    if not isinstance(reply, Up) or not isinstance(reply.notes, Mapping):
        return 0
    models = [model for model in reply.models if isinstance(model, Tensor)] if isinstance(reply.models, tuple) else []
    notes = [note for note in reply.notes.values() if isinstance(note, Mapping)]
    return _model_bytes(tuple(models)) + sum(map(payload_bytes, notes))


def _sent(s: Server) -> Models:
    """What a client of this group receives; the same tensors for all, so that they need be placed only once."""
    slices = s.plan.down_slices
    if len(slices) == 1 and slices[0] == slice(0, s.plan.layout.size):
        return s.models
    return tuple(pack(model, slices) for model in s.models)


def _model_bytes(models: tuple[Tensor, ...]) -> int:
    return sum(model.numel() * model.element_size() for model in models)
