"""Steps of the server from its old model to the combined one, and momentum as one of them."""

from dataclasses import dataclass

import pytest
import torch
from small_parts import Halves

from fedsieve.base.errors import CompositionError
from fedsieve.core.part import Method, Part, Share, Stage
from fedsieve.core.server import Server, ServerState
from fedsieve.parts.server_momentum import ServerMomentum
from fedsieve.testing import Contract, Interruption, check_method, tiny_federation

MLP = {"model": "mlp", "model.hidden": [8], "augment": "none", "lr": 0.1}
CNN = {"model": "cnn-lite"}
SEEN: list = []


@dataclass(frozen=True, kw_only=True)
class Seeing(Part):
    """Writes down what it is handed."""

    def step(self, s, before, after):
        SEEN.append((s.round, s.group, before[0], after[0]))
        return after


@dataclass(frozen=True, kw_only=True)
class Afterwards(Seeing):
    """The same, of what the parts before it made of it."""


def ran(*parts, settings=MLP, rounds=3, **fields):
    SEEN.clear()
    method = Method("own", (Stage(parts=parts),), **fields)
    with Contract.of(method, settings | {"rounds": rounds}).trial() as trial:
        return trial, trial.run()


def test_three_rounds_follow_the_closed_form():
    beta, eta = 0.6, 0.7
    trial, state = ran(Seeing(), ServerMomentum(beta=beta, eta=eta), Afterwards())
    firsts, lasts = SEEN[::2], SEEN[1::2]
    for t in range(3):
        mean = sum(up.models[0].double() for up in trial.record.ups if up.round == t) / 4
        assert torch.allclose(firsts[t][3].double(), mean, atol=1e-6)
    change = [before.double() - after.double() for *_, before, after in firsts]
    old = [before.double() for *_, before, _ in firsts]
    velocity = [
        change[0],
        beta * change[0] + change[1],
        beta**2 * change[0] + beta * change[1] + change[2],
    ]
    for t in range(3):
        assert torch.allclose(lasts[t][3].double(), old[t] - eta * velocity[t], atol=1e-6)
    assert torch.equal(state.models[0][0], lasts[2][3])
    assert torch.equal(old[1].float(), lasts[0][3])


def test_two_rounds_by_hand():
    """One weight at 1, means of 0 and 0.2, beta 0.5: 0, then 0 - (0.5 + (0 - 0.2)) = -0.3."""
    with Contract.of(Method("own", (Stage(parts=(ServerMomentum(),)),)), MLP).trial() as trial:
        part, size = ServerMomentum(beta=0.5), trial.plan.layout.size
        state = ServerState.fresh(trial.plan)
        s = Server(state, trial.plan, lambda: trial.host).by(part)
        s.memory["velocity"] = part.recall(s)["velocity"]
        one = part.step(s, (torch.ones(size),), (torch.zeros(size),))
        two = part.step(s, one, (torch.full((size,), 0.2),))
    assert torch.equal(one[0], torch.zeros(size))
    assert torch.allclose(two[0], torch.full((size,), -0.3))


@pytest.mark.parametrize("settings", [MLP, CNN], ids=["mlp", "cnn"])
def test_without_momentum_it_is_the_mean_bit_for_bit(settings):
    _, plain = ran(settings=settings)
    _, stepped = ran(ServerMomentum(beta=0.0, eta=1.0), settings=settings)
    assert plain.models[0][0].numpy().tobytes() == stepped.models[0][0].numpy().tobytes()


def test_running_statistics_are_those_that_were_combined():
    trial, _ = ran(Seeing(), ServerMomentum(beta=0.9), Afterwards(), settings=CNN)
    trainable = trial.plan.layout.trainable
    for (*_, combined), (*_, stepped) in zip(SEEN[::2], SEEN[1::2], strict=True):
        assert torch.equal(combined[trainable:], stepped[trainable:])
    assert not torch.equal(SEEN[4][3][:trainable], SEEN[5][3][:trainable])


def test_the_velocity_follows_groups():
    beta = 0.5
    _, state = ran(Halves(), Seeing(), ServerMomentum(beta=beta))
    steps = {(t, g): before.double() - after.double() for t, g, before, after in SEEN}
    for group in (0, 1):
        expected = beta**2 * steps[0, 0] + beta * steps[1, group] + steps[2, group]
        assert torch.allclose(state.memory["ServerMomentum", group]["velocity"][0].double(), expected, atol=1e-6)


def test_it_resumes():
    method = Method("own", (Stage(parts=(ServerMomentum(),)),))
    settings = MLP | {"rounds": 3}
    with Contract.of(method, settings).trial() as whole, Contract.of(method, settings).trial() as cut:
        expected = whole.run()
        with pytest.raises(Interruption):
            cut.run(fail_after=9)
        found = type(cut)(cut.plan, cut.federation, cut.folder).run()
        assert torch.equal(found.models[0][0], expected.models[0][0])


def test_it_keeps_the_contract():
    check_method(Method("own", (Stage(parts=(ServerMomentum(),)),)), **MLP)


@dataclass(frozen=True, kw_only=True)
class Absent(Part):
    def start(self, c):
        c.skip("by design")


def test_where_nobody_reports_no_step_is_taken():
    _, state = ran(Absent(), Seeing(), ServerMomentum())
    assert not SEEN
    assert not bool(state.memory["ServerMomentum", 0]["velocity"].any())


@dataclass(frozen=True, kw_only=True)
class Astray(Part):
    """Steps to what is no model in the second round, after it has noted the step."""

    how: str
    remembers = {"steps": ()}

    def recall(self, s):
        return {"steps": torch.tensor(0)}

    def step(self, s, before, after):
        s.memory["steps"] = s.memory["steps"] + 1
        if s.round != 1:
            return after
        if self.how == "shape":
            return tuple(net[1:] for net in after)
        if self.how == "number":
            return (*after, *after)
        return tuple(net / 0 if self.how == "infinite" else -net - 1 for net in after)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("shape", "has the shapes"),
        ("number", "has the shapes"),
        ("infinite", "NaN or infinity"),
        ("variance", "a negative variance"),
    ],
)
def test_a_step_to_no_model_is_not_taken(how, said):
    trial, state = ran(Seeing(), Astray(how=how), Afterwards(), settings=CNN)
    events = [(number, event) for number, what in enumerate(trial.record.rounds) for event in what.events]
    assert [(number, event.code) for number, event in events] == [(1, "FS231")]
    assert said in events[0][1].message
    befores = [before for round, _, before, _ in SEEN if round == 2]
    assert torch.equal(befores[0], SEEN[2][2])
    assert int(state.memory["Astray", 0]["steps"]) == 2


def test_where_nothing_is_combined_a_step_is_refused():
    share = Share(down=(), up=(), keep=("*",))
    method = Method("own", (Stage(parts=(ServerMomentum(),)),), share=share, test="clients")
    with pytest.raises(CompositionError, match="ServerMomentum steps to what is combined") as problem:
        Contract.of(method, MLP).plan(tiny_federation())
    assert problem.value.code == "FS114"
