"""SSFL: groups with a replica of the server each, by numbers, by hand and by what they reduce to."""

from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedsieve.base.errors import CompositionError
from fedsieve.core.part import Method, Part, Stage
from fedsieve.core.samplers import WithServer
from fedsieve.methods.ssfl import Grouping, GuessOrLabel
from fedsieve.parts.server_fit import ServerFit
from fedsieve.parts.server_labels import ServerLabels
from fedsieve.testing import Contract, fake_client, tiny_federation

MLP = {"model": "mlp", "model.hidden": [8], "momentum": 0.0, "rounds": 2, "ssfl.pretrain": 0}
REPORTS: dict[int, float] = {}
BEGUN: list[tuple[int, int, int, float]] = []


def ran(method="ssfl", federation=None, edit=None, **settings):
    with Contract.of(method, MLP | settings).trial(federation, edit=edit) as trial:
        return trial.run(), trial


def five_clients():
    many, chosen = tiny_federation(degenerate=True), (0, 1, 2, 3, 7)
    kept = {name: tuple(getattr(many, name)[k] for k in chosen) for name in ("rows", "given", "served")}
    return replace(many, **kept)


# Grouping


@dataclass(frozen=True, kw_only=True)
class Saying(Part):
    """Notes what everybody begins with, and reports a model of one number."""

    def loss(self, c, net, batch):
        return 0.0 * net.logits(batch).sum()

    def finish(self, c):
        (net,) = c.nets
        BEGUN.append((c.t, c.id, c.group, float(net.received[0])))
        net.vector.fill_(REPORTS.get(c.id, 1.0))
        return {}


def saying(mode):
    """Two rounds in which clients and replicas report these numbers, in the groups to which they are dealt."""

    def edit(method):
        stage = method.stages[-1]
        return replace(method, stages=(replace(stage, parts=(Saying(), *stage.parts[1:])),))

    BEGUN.clear()
    settings = {"ssfl.mode": mode, "admit.factor": 0.0}
    state, _ = ran(federation=five_clients(), edit=edit, **settings)
    return state


def deal():
    """Who is in which group in the first round: three clients in group 0, two in group 1."""
    REPORTS.clear()
    saying("parallel")
    groups = {k: g for t, k, g, _ in BEGUN if t == 0 and k >= 0}
    return [[k for k, g in sorted(groups.items()) if g == which] for which in (0, 1)]


@pytest.mark.parametrize("mode", ["parallel", "alternate"])
def test_the_grouping_rule_in_numbers(mode):
    """Replicas 0 and 6, clients (3, 6) and (9, 12, 15): groups of 3 and 10.5, replicas go on from 6.75."""
    three, two = deal()
    assert sorted([*three, *two]) == [0, 1, 2, 3, 4]
    assert (len(three), len(two)) == (3, 2)
    REPORTS.update({-1: 6.0, -2: 0.0, **dict(zip(two, (3.0, 6.0), strict=True))})
    REPORTS.update(dict(zip(three, (9.0, 12.0, 15.0), strict=True)))
    saying(mode)
    own = {0: 10.5, 1: 3.0} if mode == "parallel" else {0: 6.75, 1: 6.75}
    second = [(k, g, began) for t, k, g, began in BEGUN if t == 1]
    assert len(second) == 7
    for k, group, began in second:
        assert began == pytest.approx(6.75 if k < 0 else own[group], abs=1e-6)


@pytest.mark.parametrize("mode", ["parallel", "alternate"])
def test_equal_members_are_a_fixed_point(mode):
    REPORTS.clear()
    state = saying(mode)
    assert all(torch.equal(nets[0], torch.ones_like(nets[0])) for nets in state.models.values())


def test_the_means_of_the_groups_are_what_is_tested():
    plan = Contract.of("ssfl", MLP).plan(tiny_federation())
    assert plan.method.test == "mean"
    assert plan.stages[0].base == "equal"


# Losses


def test_labels_at_the_server_and_guesses_at_clients():
    part = GuessOrLabel(threshold=0.6, weak="none", strong="none", labelled=ServerLabels(view="none"))
    says = [[4.0, 0.0, 0.0], [0.1, 0.0, 0.0]]
    c = fake_client(part, given=[2, 1], says=says)
    batch = c.batch(torch.arange(2), 0)
    logits = torch.tensor(says)
    at_client = part.loss(c, c.nets[0], batch)
    assert not c.at_server
    assert at_client.tolist() == pytest.approx([float(F.cross_entropy(logits[:1], torch.tensor([0]))), 0.0], rel=1e-5)
    assert c.guesses["used"].tolist() == [True, False]
    c.id, c.guesses = -2, {}
    assert c.at_server
    at_server = part.loss(c, c.nets[0], batch)
    expected = F.cross_entropy(logits, torch.tensor([2, 1]), reduction="none")
    assert torch.allclose(at_server, expected, atol=1e-6)
    assert not c.guesses, "the server guesses nothing"


def test_where_nobody_is_sure_clients_dilute_the_server():
    """w + Δ / (|group| + 1) in each group, Δ one full-batch step of the server."""
    federation = five_clients()
    settings = {"batch": 1000, "lr": 0.3, "rounds": 1, "ssfl.threshold": 1.5, "ssfl.view": "none"}
    state, trial = ran(federation=federation, **settings)
    held, module = federation.server["noisy"], trial.plan.build(0)
    pixels = torch.from_numpy(federation.images[held.rows]).float().permute(0, 3, 1, 2) / 255
    x = (pixels - federation.mean[0]) / federation.std[0]
    F.cross_entropy(module(x), torch.from_numpy(held.labels)).backward()
    first = trial.plan.initial[0]
    change = trial.plan.layout.flat({name: -0.3 * p.grad for name, p in module.named_parameters()})
    for group, size in ((0, 3), (1, 2)):
        assert torch.allclose(state.models[group][0], first + change / (size + 1), atol=1e-6)
    (what,) = trial.record.rounds
    assert [what.weights[k] for k in (-1, -2)] == pytest.approx([1 / 4, 1 / 3])


def test_the_server_is_let_in_where_it_alone_moves():
    """Five epochs take it further than seven fiftieths of the model, and no client moves at all."""
    _, trial = ran(epochs=5, batch=8, **{"ssfl.threshold": 1.5})
    assert not any(what.refused for what in trial.record.rounds)
    assert all({-1, -2} <= what.weights.keys() for what in trial.record.rounds)


# What it reduces to


def test_one_group_is_the_mean_over_server_and_clients():
    """Bit by bit, in both modes."""
    options = {"ssfl.threshold": 0.3, "rounds": 3}
    part = GuessOrLabel(threshold=0.3)
    own = Method("own", (Stage(parts=(part,), sampler=WithServer(on="noisy"), base="equal"),))
    plain = {k: v for k, v in MLP.items() if "ssfl" not in k}
    with Contract.of(own, plain | {"rounds": 3}).trial() as trial:
        expected = trial.run().models[0][0]
    for mode in ("parallel", "alternate"):
        state, _ = ran(**options, **{"ssfl.groups": 1, "ssfl.mode": mode})
        assert state.groups() == [0]
        assert torch.equal(state.models[0][0], expected)


def test_modes_differ_from_the_second_round_on():
    runs = {}
    for rounds in (1, 2):
        for mode in ("parallel", "alternate"):
            state, _ = ran(rounds=rounds, **{"ssfl.threshold": 0.0, "ssfl.mode": mode})
            runs[rounds, mode] = state.models[0][0]
    assert torch.equal(runs[1, "parallel"], runs[1, "alternate"])
    assert not torch.equal(runs[2, "parallel"], runs[2, "alternate"])


def test_the_server_is_pretrained_alone():
    settings = {"ssfl.pretrain": 4, "rounds": 1}
    state, trial = ran(**settings)
    assert [what.stage for what in trial.record.rounds] == ["pretrain", "train"]
    assert state.server_epochs == {0: 4, 1: 4}
    assert all(not torch.equal(down.models[0], trial.plan.initial[0]) for _, down in trial.record.downs)


def test_nothing_but_models_travels():
    _, trial = ran()
    assert {up.client for up in trial.record.ups} == {0, 1, 2, 3}
    assert not any(down.briefs for _, down in trial.record.downs)
    assert not any(note for up in trial.record.ups for note in up.notes.values())


@pytest.mark.parametrize("model", [{"model": "cnn-lite"}, {"model": "resnet10", "model.width": 4}])
def test_with_group_norm_a_sample_does_not_depend_on_its_batch(model):
    plan = Contract.of("ssfl", {"norm": "group", **model}).plan(tiny_federation())
    module = plan.build(0).train()
    assert not any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in module.modules())
    assert plan.layout.size == plan.layout.trainable, "there are no running statistics"
    x = torch.randn(6, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(module(x)[2:3], module(x[2:3]), atol=1e-5)


@pytest.mark.parametrize("method", ["fedprox+ssfl", "moon+ssfl", "scaffold+ssfl"])
def test_it_composes(method):
    state, trial = ran(method)
    assert all(bool(torch.isfinite(nets[0]).all()) for nets in state.models.values())
    assert trial.record.ups


@pytest.mark.parametrize(
    ("method", "code"),
    [
        ("ssfl+gce", "FS103"),
        ("ssfl+fixmatch", "FS106"),
        ("ssfl+fedrn", "FS118"),
        ("ssfl+ifca", "FS105"),
        ("ssfl+focus", "FS115"),
        ("local+ssfl", "FS101"),
    ],
)
def test_what_has_no_sense_is_refused(method, code):
    with pytest.raises(CompositionError) as problem:
        Contract.of(method, {}).plan(tiny_federation())
    assert problem.value.code == code


def test_the_servers_loss_has_its_options():
    plan = Contract.of("ssfl", {"ssfl.q": 0.4, "ssfl.view": "flip"}).plan(tiny_federation())
    alone = ServerFit(on="noisy", epochs=30, parts=(ServerLabels(q=0.4, view="flip"),))
    assert plan.stages[0].parts == (alone,)
    assert plan.stages[1].parts[0] == GuessOrLabel(labelled=ServerLabels(q=0.4, view="flip"))


def test_the_options_reach_the_sampler():
    stage = Grouping(groups=3, on="clean").stage(GuessOrLabel())
    assert (stage.sampler.group_count(), stage.sampler.holding()) == (3, "clean")
