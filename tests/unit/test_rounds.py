"""The round loop: who is chosen, who drops out, what is counted, and that it names no method."""

import io
import re
import tokenize
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

import pytest
import torch

import fedsieve.core
from fedsieve.base.errors import RunError
from fedsieve.core.part import Method, Part, Share, Stage
from fedsieve.core.rounds import Faults, Loop
from fedsieve.core.samplers import Nobody, Sweep, Uniform
from fedsieve.core.server import Server, ServerState
from fedsieve.core.types import Ask, Topic
from fedsieve.methods import METHODS
from fedsieve.runs.checkpoint import Checkpoints
from fedsieve.runtime.serial import SerialRuntime
from fedsieve.testing import Contract, Listening, tiny_federation

MLP = {"model": "mlp", "model.hidden": [8]}


@contextmanager
def loop(method=None, faults=Faults(), **settings):
    """A trial with its loop and server, before the first round."""
    with Contract.of(method or Method("own"), {**MLP, **settings}).trial() as trial:
        store = Checkpoints(trial.folder, trial.states)
        server = Server(ServerState.fresh(trial.plan), trial.plan, lambda: trial.host, store.retained)
        yield trial, Loop(Listening(SerialRuntime(trial.host), trial.record), store, trial.record, faults), server


# Samplers


def sampled(sampler, rounds, ids=None, clients=10, seed=0):
    plan = replace(Contract.of("fedavg", {"seed": seed}).plan(tiny_federation()), clients=clients)
    server = Server(ServerState.fresh(plan), plan, lambda: None)
    picks = []
    for number in range(rounds):
        server.state.round = server.state.t = number
        picks.append(sampler(server, list(range(clients)) if ids is None else ids))
    return picks


def test_uniform_takes_a_fraction_of_all_clients_without_replacement():
    for fraction, size in ((0.3, 3), (0.01, 1), (1.0, 10)):
        picks = sampled(Uniform(fraction=fraction), 20)
        assert all(len(set(pick)) == size for pick in picks)
    assert sampled(Uniform(fraction=0.3), 5) == sampled(Uniform(fraction=0.3), 5)
    assert sampled(Uniform(fraction=0.3), 5) != sampled(Uniform(fraction=0.3), 5, seed=1)


def test_uniform_is_fair_and_keeps_to_those_eligible():
    picks = sampled(Uniform(fraction=0.3), 1000)
    counts = torch.bincount(torch.tensor(picks).flatten(), minlength=10)
    assert counts.min() > 240
    assert counts.max() < 360
    assert all(set(pick) <= {2, 5, 7} and len(pick) == 3 for pick in sampled(Uniform(fraction=0.5), 20, [2, 5, 7]))


def test_sweep_lets_each_have_a_turn_before_any_comes_again():
    picks = sampled(Sweep(size=3), 8)
    assert [len(pick) for pick in picks] == [3, 3, 3, 1] * 2
    laps = [[k for pick in picks[start : start + 4] for k in pick] for start in (0, 4)]
    assert [sorted(lap) for lap in laps] == [list(range(10))] * 2
    assert laps[0] != laps[1]


def test_nobody_is_a_round_of_the_server_alone():
    with loop(Method("own", (Stage(sampler=Nobody()),)), rounds=2) as (trial, run, server):
        run.run(server)
        assert torch.equal(server.models[0], trial.plan.initial[0])
        assert server.round == 2
        assert not trial.record.ups
        assert not any(what.events for what in trial.record.rounds), "nobody was meant to report"


# Eligibility


@dataclass(frozen=True, kw_only=True)
class Even(Part):
    def eligible(self, s, ids):
        return [k for k in ids if k % 2 == 0]


@dataclass(frozen=True, kw_only=True)
class Upper(Part):
    def eligible(self, s, ids):
        return [k for k in ids if k >= 2]


@dataclass(frozen=True, kw_only=True)
class Lowest(Part):
    def eligible(self, s, ids):
        return [k for k in ids if k == 0]


def test_only_clients_that_every_part_lets_in_are_chosen():
    with loop(Method("own", (Stage(parts=(Even(), Upper())),))) as (_, run, server):
        stage, hooks = server.plan.stages[0], server.plan.hooks[0]
        assert run.choose(stage, hooks, server) == ([2], [])


def test_no_eligible_client_stops_the_run_and_names_the_filters():
    with (
        loop(Method("own", (Stage(parts=(Upper(), Lowest())),))) as (_, run, server),
        pytest.raises(RunError, match=r"round 1: .*Upper removed 2, Lowest removed 2") as problem,
    ):
        run.run(server)
    assert problem.value.code == "FS201"


# Simulated trouble


def test_dropout_is_seeded_and_has_its_rate():
    def gone(seed, rounds=400):
        with loop(faults=Faults(dropout=0.3), seed=seed) as (_, run, server):
            found = []
            for number in range(rounds):
                server.state.round = number
                stays, drops = run.choose(server.plan.stages[0], server.plan.hooks[0], server)
                assert sorted(stays + drops) == [0, 1, 2, 3]
                found.append(drops)
            return found

    first = gone(0)
    rate = sum(map(len, first)) / (4 * len(first))
    assert abs(rate - 0.3) < 0.05  # four standard deviations of 1600 draws
    assert first == gone(0)
    assert first[:20] != gone(1, 20)


def test_dropped_clients_take_no_part():
    with loop(faults=Faults(dropout=0.5), rounds=6) as (trial, run, server):
        run.run(server)
        for what in trial.record.rounds:
            assert sorted([*what.ups, *what.dropped]) == [0, 1, 2, 3]
            assert not set(what.ups) & set(what.dropped)
        assert any(what.dropped for what in trial.record.rounds)


def test_if_all_drop_out_the_model_is_unchanged_and_that_is_logged():
    with loop(faults=Faults(dropout=0.999999), rounds=1) as (trial, run, server):
        run.run(server)
        assert torch.equal(server.models[0], trial.plan.initial[0])
        assert trial.record.rounds[0].dropped == [0, 1, 2, 3]
        assert [event.code for event in trial.record.rounds[0].events] == ["FS211"]


def test_stragglers_do_fewer_epochs_but_at_least_one():
    with loop(faults=Faults(stragglers=0.5), rounds=25, epochs=3, batch=100) as (trial, run, server):
        run.run(server)
        epochs = [down.epochs for _, down in trial.record.downs]
        assert set(epochs) == {1, 2, 3}
        assert 0.3 < sum(done < 3 for done in epochs) / len(epochs) < 0.7
        alone = SerialRuntime(trial.host).train(iter(trial.record.downs[:1]))
        assert torch.equal(next(alone).models[0], trial.record.ups[0].models[0])


# What is counted


def test_bytes_are_those_of_models_and_payloads():
    with Contract.of("scaffold", {**MLP, "rounds": 1}).trial() as trial:
        trial.run()
        what, layout = trial.record.rounds[0], trial.plan.layout
        assert what.bytes_down == what.bytes_up == 4 * 4 * (layout.size + layout.trainable)


def test_nothing_travels_where_each_learns_alone():
    with Contract.of("local", {**MLP, "rounds": 1}).trial() as trial:
        trial.run()
        assert (trial.record.rounds[0].bytes_down, trial.record.rounds[0].bytes_up) == (0, 0)


def test_clients_without_samples_skip():
    with Contract.of("fedavg", {**MLP, "rounds": 1}).trial(tiny_federation(degenerate=True)) as trial:
        trial.run()
        what = trial.record.rounds[0]
        assert what.ups[4].models is None
        assert what.ups[4].skipped == "the client has no samples"
        assert sorted(what.weights) == [0, 1, 2, 3, 5, 6, 7, 8]
        assert what.weights[5] == pytest.approx(1 / (7 * 24 + 1))


@dataclass(frozen=True, kw_only=True)
class Chat(Part):
    """Asks everybody a tensor of 10 floats at one moment."""

    moment: str = "start"
    topics = {"x": Topic({"q": (10,)}, {"a": (5,)})}

    def talk(self, s, moment):
        if moment == self.moment:
            yield Ask("x", {k: {"q": torch.zeros(10)} for k in s.clients})

    def answer(self, c, topic, question):
        return {"a": torch.zeros(5)}


ALONE = Share(down=(), up=(), keep=("*",))


@pytest.mark.parametrize("moment", ["start", "round", "round_end", "end"])
def test_conversations_are_counted(moment):
    method = Method("own", (Stage(parts=(Chat(moment=moment),)),), share=ALONE, test="clients")
    assert counted(method) == (4 * 40, 4 * 20)


def test_conversations_of_a_stage_without_rounds_are_counted():
    method = Method("own", (Stage("ask", rounds=0, parts=(Chat(),)), Stage()), share=ALONE, test="clients")
    assert counted(method) == (4 * 40, 4 * 20)


def counted(method):
    with Contract.of(method, MLP | {"rounds": 1}).trial() as trial:
        state = trial.run()
        assert len(trial.record.answers) == 4
        rounds = trial.record.rounds
        down, up = (sum(getattr(what, name) for what in rounds) for name in ("bytes_down", "bytes_up"))
        return down + state.talk_down, up + state.talk_up


# The loop names no method


def words(path):
    """Every word of the code but for docstrings."""
    previous = tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        docstring = token.type == tokenize.STRING and previous in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
        if token.type in (tokenize.NAME, tokenize.STRING, tokenize.COMMENT) and not docstring:
            yield from re.findall(r"[\w+-]+", token.string)
        if token.type not in (tokenize.NL, tokenize.COMMENT):
            previous = token.type


def test_the_core_names_no_method():
    modules = [import_module(entry.target.partition(":")[0]) for entry in METHODS.values()]
    classes = {
        name
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Part) and value.__module__ == module.__name__
    }
    assert classes >= {"ControlVariates", "ModelContrast"}
    files = sorted(Path(fedsieve.core.__file__).parent.glob("*.py"))
    assert len(files) > 10
    for path in files:
        assert not (set(METHODS) | classes) & set(words(path)), path.name
