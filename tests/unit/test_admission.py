"""Reports that cannot be right are refused with client and reason, and the round goes on."""

from dataclasses import dataclass, replace

import pytest
import torch

from fedsieve.core.part import Method, Part, Stage
from fedsieve.core.sent import probabilities, proportion
from fedsieve.core.types import Ask, Topic
from fedsieve.evaluate.disclosure import disclosure
from fedsieve.runtime.serial import SerialRuntime
from fedsieve.testing import Contract, tiny_federation

MLP = {"model": "mlp", "model.hidden": [8], "rounds": 1}


@dataclass(frozen=True, kw_only=True)
class Telling(Part):
    """Reports a vector, a number for each row, and a scalar."""

    up = {"counts": ("C",), "scores": ("n",), "level": ()}
    sees = "sum"

    def finish(self, c):
        return {"counts": torch.ones(c.n_classes), "scores": torch.zeros(c.n), "level": 0.5}


@dataclass(frozen=True, kw_only=True)
class Asking(Part):
    """Asks every client before training and adds up the answers."""

    topics = {"sum": Topic({}, {"x": (2,)})}
    remembers = {"total": (2,)}

    def talk(self, s, moment):
        if moment == "start":
            answers = yield Ask("sum", {k: {} for k in s.clients})
            s.memory["total"] = sum(answer["x"] for answer in answers.values())

    def answer(self, c, topic, question):
        return {"x": torch.ones(2)}


class Spoiling:
    """A runtime that changes what client 1 sends."""

    def __init__(self, host, spoil, who=(1,)):
        self._inner, self._spoil, self._who = SerialRuntime(host), spoil, who

    def train(self, messages):
        for up in self._inner.train(messages):
            yield self._spoil(up) if up.client in self._who else up

    def query(self, messages):
        for answer in self._inner.query(messages):
            yield self._spoil(answer) if answer.client in self._who else answer


def spoiled(spoil, *parts, who=(1,)):
    with Contract.of(Method("own", (Stage(parts=parts),)), MLP).trial() as trial:
        state = trial.run(Spoiling(trial.host, spoil, who))
    return trial, state


def with_model(change):
    return lambda up: replace(up, models=(change(up.models[0].clone()),))


def with_note(**changed):
    return lambda up: replace(up, notes={"Telling": {**up.notes["Telling"], **changed}})


def poisoned(vector, value=float("nan")):
    vector[3] = value
    return vector


REFUSED = {
    "NaN": (with_model(poisoned), "FS203", "the model holds NaN or infinity"),
    "infinity": (with_model(lambda v: poisoned(v, float("inf"))), "FS203", "the model holds NaN or infinity"),
    "short": (with_model(lambda v: v[:-1]), "FS202", "models of shape"),
    "two models": (lambda up: replace(up, models=up.models * 2), "FS202", "instead of 1 x"),
    "square": (with_model(lambda v: v[None]), "FS202", "models of shape"),
    "another round": (lambda up: replace(up, round=5), "FS204", "the report is of round 6, not 1"),
    "another group": (lambda up: replace(up, group=7), "FS202", "group 7 instead of 0"),
    "a negative size": (lambda up: replace(up, n=-1), "FS202", "-1 samples"),
    "a model of no samples": (lambda up: replace(up, n=0), "FS202", "0 samples"),
    "a loss that is NaN": (lambda up: replace(up, loss=float("nan")), "FS203", "the training loss is nan"),
    "half a sample": (lambda up: replace(up, n=2.5), "FS202", "2.5 samples"),
    "no notes": (lambda up: replace(up, notes={}), "FS202", "notes of [] instead of ['Telling']"),
    "foreign notes": (lambda up: replace(up, notes={**up.notes, "O": {}}), "FS202", "notes of ['O', 'Telling']"),
    "a missing name": (lambda up: replace(up, notes={"Telling": {}}), "FS202", "Telling reports [] instead of"),
    "an extra name": (with_note(extra=1.0), "FS202", "Telling reports ['counts', 'extra', 'level', 'scores']"),
    "a wrong shape": (with_note(counts=torch.ones(3)), "FS202", "Telling.counts has the shape (3,) instead of (4,)"),
    "too few rows": (with_note(scores=torch.zeros(5)), "FS202", "Telling.scores has the shape (5,) instead of (24,)"),
    "a scalar vector": (with_note(level=torch.ones(2)), "FS202", "Telling.level has the shape (2,) instead of ()"),
    "a nested tensor": (
        with_note(counts=torch.nested.nested_tensor([torch.ones(2), torch.ones(1)])),
        "FS202",
        "Telling.counts holds",
    ),
    "text": (with_note(level="high"), "FS202", "Telling.level is text instead of a number"),
    "a NaN tensor": (with_note(counts=torch.full((4,), torch.nan)), "FS203", "Telling.counts holds NaN or infinity"),
    "an infinite number": (with_note(level=float("inf")), "FS203", "Telling.level is inf"),
}


@pytest.mark.parametrize(("spoil", "code", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_a_wrong_report_is_refused_and_the_round_goes_on(spoil, code, reason):
    trial, state = spoiled(spoil, Telling())
    (what,) = trial.record.rounds
    (event,) = what.refused
    assert (event.code, event.client) == (code, 1)
    assert reason in event.message
    assert sorted(what.ups) == sorted(what.weights) == [0, 2, 3]
    honest = [up.models[0] for up in trial.record.ups if up.client != 1]
    assert torch.allclose(state.models[0][0], sum(honest) / 3, atol=1e-6)
    assert not what.events


def test_if_every_report_is_refused_the_model_stays_and_that_is_logged():
    trial, state = spoiled(with_model(poisoned), Telling(), who=(0, 1, 2, 3))
    (what,) = trial.record.rounds
    assert torch.equal(state.models[0][0], trial.plan.initial[0])
    assert len(what.refused) == 4
    assert what.weights == {}
    assert [event.code for event in what.events] == ["FS211"]


def test_a_refused_report_leaves_the_clients_state_as_it_was():
    with Contract.of("moon", {"rounds": 2}).trial() as trial:
        trial.run(Spoiling(trial.host, lambda up: up if up.round == 0 else replace(up, round=9)))
        first = next(up for up in trial.record.ups if up.client == 1)
        assert first.version in trial.states.versions(1)
        state = trial.states.load(1, first.version)
        assert int(state["keep/ModelContrast/0/stamp"]) == 0


def test_wrong_answers_are_left_out_of_a_conversation():
    trial, state = spoiled(
        lambda said: replace(said, payload={"x": torch.ones(3)}) if hasattr(said, "payload") else said, Asking()
    )
    assert state.memory["Asking", 0]["total"].tolist() == [3.0, 3.0]
    (event,) = trial.record.rounds[0].events
    assert (event.code, event.client) == ("FS202", 1)
    assert "an answer is refused: Asking.x has the shape (3,) instead of (2,)" in event.message


def test_what_is_refused_still_weighed_on_the_wire():
    trial, _ = spoiled(with_model(poisoned))
    assert trial.record.rounds[0].bytes_up == 4 * 4 * trial.plan.layout.size


def test_a_client_that_skips_may_have_no_samples():
    trial, _ = spoiled(lambda up: replace(up, n=0, models=None, notes={}, skipped="nothing to do"))
    (what,) = trial.record.rounds
    assert not what.refused
    assert what.ups[1].models is None
    assert sorted(what.weights) == [0, 2, 3]


@dataclass(frozen=True, kw_only=True)
class Ranged(Part):
    """Reports a share and probabilities."""

    up = {"share": proportion(), "guess": probabilities("C")}
    sees = "sum"

    def finish(self, c):
        return {"share": 0.5, "guess": torch.full((c.n_classes,), 1 / c.n_classes)}


def ranged(**changed):
    return lambda up: replace(up, notes={"Ranged": {**up.notes["Ranged"], **changed}})


OUTSIDE = {
    "a share above one": (ranged(share=1.5), "FS203", "Ranged.share is 1.5, not 0 to 1"),
    "no probabilities": (ranged(guess=torch.ones(4)), "FS203", "Ranged.guess holds other numbers than probabilities"),
    "complex": (ranged(guess=torch.ones(4) + 0j), "FS202", "Ranged.guess holds complex64 instead of float32"),
    "a whole number": (ranged(share=1), "FS202", "Ranged.share is int instead of a number"),
    "lone surrogates": (ranged(share="\ud800"), "FS202", "Ranged.share is text instead of a number"),
    "more samples than declared": (lambda up: replace(up, n=25), "FS202", "25 samples, where the client has 24"),
    "400 digits": (lambda up: replace(up, n=10**400), "FS202", "a whole number of more than 12 digits samples"),
    "another client": (lambda up: replace(up, client=2), "FS202", "a report of client 2 instead of 1"),
    "a foreign state": (lambda up: replace(up, version=77), "FS202", "version 77 of its state instead of"),
    "text for notes": (lambda up: replace(up, notes="none"), "FS202", "the notes are str instead of"),
    "no report": (lambda up: "hello", "FS202", "the reply is str instead of a report"),
}


@pytest.mark.parametrize(("spoil", "code", "reason"), OUTSIDE.values(), ids=OUTSIDE.keys())
def test_numbers_outside_their_range_are_refused(spoil, code, reason):
    trial, _ = spoiled(spoil, Ranged())
    (event,) = trial.record.rounds[0].refused
    assert (event.code, event.client) == (code, 1)
    assert reason in event.message


def test_a_report_into_another_group_that_there_is_is_refused():
    with Contract.of("ifca", {**MLP, "rounds": 2}).trial() as trial:
        trial.run(
            Spoiling(trial.host, lambda said: replace(said, group=1 - said.group) if hasattr(said, "n") else said)
        )
        refused = [event for what in trial.record.rounds for event in what.refused]
        assert [(event.code, event.client) for event in refused] == [("FS202", 1)] * 2


def test_a_negative_variance_is_refused():
    def spoil(up):
        vector = up.models[0].clone()
        vector[trial.plan.variances[0]] = -1.0
        return replace(up, models=(vector,))

    with Contract.of("fedavg", {"rounds": 1}).trial() as trial:
        trial.run(Spoiling(trial.host, spoil))
        (event,) = trial.record.rounds[0].refused
        assert (event.code, event.message) == ("FS203", "the model holds a negative variance")


def test_a_model_whose_outputs_are_not_finite_is_taken_out():
    class Dazzled(Spoiling):
        def assess(self, messages):
            for k, logits in enumerate(self._inner.assess(messages)):
                yield torch.full_like(logits, torch.nan) if k == 1 else logits

    for more in ({}, {"fedds.votes": "soft"}):
        with Contract.of("fedds", {**MLP, **more}).trial() as trial:
            trial.run(Dazzled(trial.host, lambda up: up))
            (what,) = trial.record.rounds
            assert sorted(what.weights) == sorted(what.ups) == [0, 2, 3]
            assert [(event.code, event.client) for event in what.refused] == [("FS203", 1)]


def test_an_answer_with_a_foreign_state_or_of_another_client_is_refused():
    for wrong in ({"version": 77}, {"client": 2}, {"payload": None}):
        _, state = spoiled(lambda said, w=wrong: replace(said, **w) if hasattr(said, "payload") else said, Asking())
        assert state.memory["Asking", 0]["total"].tolist() == [3.0, 3.0]


def test_the_disclosure_says_the_ranges():
    plan = Contract.of("fedrn", {}).plan(tiny_federation())
    ranges = {row["name"]: row["range"] for row in disclosure(plan) if row["direction"] == "up"}
    assert (ranges["accuracy"], ranges["probe"], ranges["weights"]) == ("0 to 1", "probabilities", None)
    plan = Contract.of("fedrn", {"fedrn.similarity": "logits"}).plan(tiny_federation())
    ranges = {row["name"]: row["range"] for row in disclosure(plan) if row["direction"] == "up"}
    assert ranges["probe"] == "-1e+06 to 1e+06"
