"""What is tested and saved may be other models than clients go on with; an average of the last ones is such."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

import fedsieve
from fedsieve.base.errors import CompositionError
from fedsieve.core import Method, Part, Stage
from fedsieve.core.layout import pack
from fedsieve.core.server import Server, ServerState
from fedsieve.evaluate.serving import delivered, own_model, serving
from fedsieve.parts.model_average import ModelAverage
from fedsieve.testing import Contract, Interruption, tiny_federation

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


def ran(*parts, settings=MLP):
    """The server after all rounds, and each round's own model."""
    NEWEST.clear()
    with Contract.of(Method("own", (Stage(parts=(*parts, Noting())),)), settings).trial() as trial:
        state = trial.run()
        return Server(state, trial.plan, lambda: trial.host), list(NEWEST)


def delivered_after(values, decay, settings=MLP):
    """What is delivered when the server's models are these numbers one after the other, weights and the rest."""
    part = ModelAverage(decay=decay)
    with Contract.of(Method("own", (Stage(parts=(part,)),)), settings).trial() as trial:
        s = Server(ServerState.fresh(trial.plan), trial.plan, lambda: trial.host).by(part)
        s.memory.update(part.recall(s))
        layout = trial.plan.layout
        for value in values:
            s.models = (torch.full((layout.size,), value),)
            part.learn(s, {}, {})
        found = part.deliver(s, s.models)[0]
        return found[: layout.trainable], found[layout.trainable :]


def test_three_models_by_hand():
    """1, 3, 5 with decay 1/2. Means: 1, (1/2 + 3) / (3/2) = 7/3, (7/4 + 5) / (7/4) = 27/7; theirs: 1, 17/9, 443/147.

    The mean is as far behind as its own mean is behind it, so twice the one less the other is delivered.
    """
    for values, expected in (([1.0], 1.0), ([1.0, 3.0], 14 / 3 - 17 / 9), ([1.0, 3.0, 5.0], 54 / 7 - 443 / 147)):
        weights, _ = delivered_after(values, 0.5)
        assert torch.allclose(weights, torch.tensor(expected)), values


def test_a_straight_line_is_not_lagged_behind():
    weights, _ = delivered_after([float(k) for k in range(60)], 0.7)
    assert float(weights[0]) == pytest.approx(59.0, abs=1e-3)


def test_what_swings_is_calmed():
    swings = [float((-1) ** k) for k in range(40)]
    weights, _ = delivered_after(swings, 0.8)
    assert abs(float(weights[0])) < 0.3


@pytest.mark.parametrize(("values", "expected"), [([9.0, 0.0], 3 / 2), ([0.0, 9.0], 8.0), ([-9.0, 0.0], -3 / 2)])
def test_running_statistics_go_by_half_of_themselves_at_most(values, expected):
    """9 then 0, decay 1/2: the mean is 3 and its mean 5. A variance would be delivered as 1; it is half of 3."""
    settings = {"model": "resnet10", "model.width": 2}
    weights, statistics = delivered_after(values, 0.5, settings)
    assert len(statistics)
    assert torch.allclose(statistics, torch.tensor(expected))
    assert float(weights[0]) == pytest.approx({9.0: 1.0, 0.0: 8.0, -9.0: -1.0}[values[0]])


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
    means = [sum(0.8 ** (t - k) * newest[k].double() for k in range(t + 1)) for t in range(3)]
    masses = [sum(0.8**k for k in range(t + 1)) for t in range(3)]
    means = [mean / mass for mean, mass in zip(means, masses, strict=True)]
    again = sum(0.8 ** (2 - k) * means[k] for k in range(3)) / masses[2]
    assert torch.allclose(s.delivered()[0].double(), 2 * means[2] - again, atol=1e-6)
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


def test_a_client_with_layers_of_its_own_is_tested_with_what_is_delivered():
    s, newest = ran(Doubled(), settings={"model": "resnet10", "model.width": 2, "norm": "local"})
    expected = pack(2 * newest[-1], s.plan.down_slices)
    assert torch.equal(own_model(s, 0, delivered(s))[1][0], expected)


def test_it_joins_other_methods_and_changes_nothing_but_what_is_tested(tmp_path):
    """Clients train alike with and without it, also where normalisation layers stay with them."""
    labels = np.arange(240) % 4
    images = (60 * labels[:, None, None] + np.random.default_rng(0).integers(0, 60, (240, 8, 8))).astype(np.uint8)
    np.savez(tmp_path / "x.npz", x_train=images, y_train=labels, x_test=images[::2], y_test=labels[::2])
    small = {"data": tmp_path / "x.npz", "model": "resnet10", "model.width": 2, "augment": "none"}
    steps = {"clients": 2, "rounds": 2, "epochs": 1, "batch": 16, "lr": 0.1}
    for norm in ("average", "local"):
        plain, averaged = (
            fedsieve.run(
                **small, **steps, method=name, norm=norm, runtime="serial", quiet=True, out=tmp_path / f"{name}-{norm}"
            )
            for name in ("gce", "gce+averaged")
        )
        assert [row["train_loss"] for row in plain["rows"]] == [row["train_loss"] for row in averaged["rows"]]
        first, last = ([run["rows"][at]["macro_f1"] for run in (plain, averaged)] for at in (0, -1))
        assert first[0] == first[1]
        assert last[0] != last[1]


def test_where_each_client_keeps_its_model_there_is_nothing_to_average():
    with pytest.raises(CompositionError, match=r"ModelAverage.*each keeps its own") as caught:
        Contract.of("local+averaged", MLP).plan(tiny_federation())
    assert caught.value.code == "FS114"


def test_sieve_brings_it_already():
    plan = Contract.of("sieve+averaged", MLP).plan(tiny_federation())
    assert [sum(isinstance(part, ModelAverage) for part in stage.parts) for stage in plan.stages] == [0, 1, 0, 1]


def test_a_part_that_says_nothing_delivers_what_there_is():
    models = (torch.zeros(3),)
    assert Part().deliver(None, models) is models
