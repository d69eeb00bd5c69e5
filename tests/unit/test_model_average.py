"""What is tested and saved may be other models than clients go on with; an average of the last ones is such."""

from dataclasses import dataclass

import pytest
import torch

from fedsieve.core import Method, Part, Stage
from fedsieve.core.server import Server, ServerState
from fedsieve.evaluate.serving import delivered, serving
from fedsieve.parts.model_average import ModelAverage
from fedsieve.testing import Contract, Interruption

MLP = {"model": "mlp", "model.hidden": [8], "augment": "none", "lr": 0.1, "rounds": 3}
NEWEST: list = []


@dataclass(frozen=True, kw_only=True)
class Noting(Part):
    """Writes down each round's combined model."""

    def learn(self, s, ups, w):
        NEWEST.append(s.models[0])


@dataclass(frozen=True, kw_only=True)
class Doubled(Part):
    def deliver(self, s, models):
        return tuple(2 * net for net in models)


@dataclass(frozen=True, kw_only=True)
class OneMore(Part):
    def deliver(self, s, models):
        return tuple(net + 1 for net in models)


def ran(*parts, **settings):
    """The server after all rounds, and each round's own model."""
    NEWEST.clear()
    with Contract.of(Method("own", (Stage(parts=(*parts, Noting())),)), MLP | settings).trial() as trial:
        state = trial.run()
        return Server(state, trial.plan, lambda: trial.host), list(NEWEST)


def test_two_models_by_hand():
    """1, then 3, decay 0.5: the first weighs half as much as the second, (0.5 + 3) / 1.5; then 5: (1.75 + 5) / 1.75."""
    part = ModelAverage(decay=0.5)
    with Contract.of(Method("own", (Stage(parts=(part,)),)), MLP).trial() as trial:
        s = Server(ServerState.fresh(trial.plan), trial.plan, lambda: trial.host).by(part)
        s.memory.update(part.recall(s))
        size, found = trial.plan.layout.size, []
        for value in (1.0, 3.0, 5.0):
            s.models = (torch.full((size,), value),)
            part.learn(s, {}, {})
            found.append(float(part.deliver(s, s.models)[0][0]))
    assert found == pytest.approx([1.0, 3.5 / 1.5, 6.75 / 1.75])


def test_before_any_round_the_models_are_delivered_as_they_are():
    part = ModelAverage()
    with Contract.of(Method("own", (Stage(parts=(part,)),)), MLP).trial() as trial:
        s = Server(ServerState.fresh(trial.plan), trial.plan, lambda: trial.host)
        s.prepare()
        assert s.delivered() is s.models


def test_clients_go_on_with_the_newest_model_and_the_average_is_delivered():
    plain, _ = ran()
    s, newest = ran(ModelAverage(decay=0.8))
    assert torch.equal(s.models[0], plain.models[0])
    weights = [0.64, 0.8, 1.0]
    expected = sum(w * net.double() for w, net in zip(weights, newest, strict=True)) / sum(weights)
    assert torch.allclose(s.delivered()[0].double(), expected, atol=1e-6)
    assert torch.equal(serving(s)[0][0][0], s.delivered()[0])


def test_without_decay_it_is_the_newest():
    s, newest = ran(ModelAverage(decay=0.0))
    assert torch.equal(s.delivered()[0], newest[-1])


@pytest.mark.parametrize(
    ("parts", "expected"),
    [((Doubled(), OneMore()), lambda net: 2 * net + 1), ((OneMore(), Doubled()), lambda net: 2 * (net + 1))],
)
def test_deliveries_are_a_chain(parts, expected):
    s, newest = ran(*parts)
    assert torch.equal(delivered(s)[0][0], expected(newest[-1]))


def test_it_resumes():
    method = Method("own", (Stage(parts=(ModelAverage(),)),))
    with Contract.of(method, MLP).trial() as whole, Contract.of(method, MLP).trial() as cut:
        expected = whole.run()
        with pytest.raises(Interruption):
            cut.run(fail_after=9)
        found = type(cut)(cut.plan, cut.federation, cut.folder).run()
        one, other = (state.memory["ModelAverage", 0]["mean"] for state in (expected, found))
        assert torch.equal(one, other)


def test_a_part_that_says_nothing_delivers_what_there_is():
    models = (torch.zeros(3),)
    assert Part().deliver(None, models) is models
