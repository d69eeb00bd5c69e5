"""SemiFL: guesses that stay for a round, mixtures, momentum at the server and measured statistics."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedsieve.base.errors import CompositionError
from fedsieve.core.client import Skipped
from fedsieve.core.part import Method, Stage
from fedsieve.core.samplers import Nobody
from fedsieve.methods.semifl import FixAndMix, mix_loss
from fedsieve.parts.server_fit import ServerFit
from fedsieve.parts.server_labels import ServerLabels
from fedsieve.parts.server_momentum import ServerMomentum
from fedsieve.parts.static_norm import StaticNorm
from fedsieve.testing import CHECKS, Contract, fake_client, fake_server, tiny_federation

MLP = {"model": "mlp", "model.hidden": [8], "momentum": 0.0, "rounds": 2, "semifl.weak": "none"}
SAYS = [[4.0, 0.0, 0.0], [0.1, 0.0, 0.0], [0.0, 0.0, 4.0], [0.0, 0.2, 0.0]]
PART = FixAndMix(threshold=0.6, weak="none", strong="none")


def ran(**settings):
    with Contract.of("semifl", MLP | settings).trial() as trial:
        state = trial.run()
    return state, trial


def fixed(part=PART, says=SAYS):
    c = fake_client(part, given=[1] * len(says), says=says)
    net = c.nets[0]
    net.labels = part.relabel(c, net, net.labels)
    return c, net


# At the client


def test_the_mixed_loss_by_hand():
    logits = torch.tensor([[math.log(3.0), 0.0]])
    one, zero = torch.tensor([0]), torch.tensor([1])
    assert mix_loss(logits, one, zero, 0.25).item() == pytest.approx(0.25 * math.log(4 / 3) + 0.75 * math.log(4.0))
    assert mix_loss(logits, one, zero, 1.0).item() == pytest.approx(math.log(4 / 3))
    assert mix_loss(logits, one, zero, 0.0).item() == pytest.approx(math.log(4.0))


def test_the_sure_rows_are_fixed():
    c, net = fixed()
    assert net.labels.training_rows().tolist() == [0, 2]
    assert net.labels.target.argmax(1).tolist() == [0, 0, 2, 1]
    assert c.guesses["guessed"].tolist() == [0, 0, 2, 1]
    assert c.guesses["used"].tolist() == [True, False, True, False]


def test_as_many_draws_from_all_rows_are_mixed_in():
    """In each epoch each draw is met once; among many draws are rows that are not sure, and rows twice."""
    says = [[4.0, 0.0, 0.0]] * 30 + [[0.1, 0.0, 0.0]] * 30
    c, net = fixed(says=says)
    rows, seen = net.labels.training_rows(), []
    for epoch in (0, 1):
        c.epoch = epoch
        seen.append(PART.partners(c, net, rows))
    assert [len(each) for each in seen] == [30, 30]
    assert seen[0].sort().values.tolist() == seen[1].sort().values.tolist()
    assert seen[0].tolist() != seen[1].tolist()
    assert len(set(seen[0].tolist())) < 30
    assert int((seen[0] >= 30).sum()) > 5


def test_a_batch_costs_what_the_formula_says(monkeypatch):
    monkeypatch.setattr("fedsieve.methods.semifl.mixing_weight", lambda alpha, generator: 0.3)
    c, net = fixed()
    batch = c.batch(torch.tensor([2, 0]), 0)
    others = PART.partners(c, net, batch.rows)
    x, guess = torch.tensor(SAYS), torch.tensor([0, 0, 2, 1])
    mixed = 0.3 * x[batch.rows] + 0.7 * x[others]
    expected = F.cross_entropy(x[batch.rows], guess[batch.rows], reduction="none")
    expected = expected + 0.3 * F.cross_entropy(mixed, guess[batch.rows], reduction="none")
    expected = expected + 0.7 * F.cross_entropy(mixed, guess[others], reduction="none")
    assert PART.loss(c, net, batch).tolist() == pytest.approx(expected.tolist(), rel=1e-5)


def test_guesses_stay_while_the_model_changes():
    """What a batch is taught in the last epoch is what the received model said, not what the present one says."""
    c, net = fixed()
    before = [c.scratch(PART)["0"][0].clone(), net.labels.target.clone()]
    net.vector.mul_(-1.0)
    c.epoch = 4
    PART.loss(c, net, c.batch(torch.tensor([0, 2]), 0))
    assert torch.equal(c.scratch(PART)["0"][0], before[0])
    assert torch.equal(net.labels.target, before[1])


def test_guesses_are_made_in_evaluation_mode():
    """Running statistics are what they were, and the mode too."""
    c = fake_client(FixAndMix(threshold=0.0))
    net = c.nets[0]
    net.module.train()
    before = net.vector.clone()
    FixAndMix(threshold=0.0).relabel(c, net, net.labels)
    assert torch.equal(net.vector, before)
    assert net.module.training


def test_a_client_that_is_sure_of_nothing_skips():
    with pytest.raises(Skipped, match="no guess is sure"):
        fixed(FixAndMix(threshold=1.5, weak="none"))


# At the server


def test_momentum_by_hand():
    """Client means of 0 and 0.2 from 1: the first step is the mean itself, the second goes beyond."""
    part = ServerMomentum(beta=0.5)
    s = fake_server(part, model="mlp", **{"model.hidden": [2]})
    size, w, trace = s.plan.layout.size, 1.0, []
    for mean in (0.0, 0.2):
        (new,) = part.step(s, (torch.full((size,), w),), (torch.full((size,), mean),))
        w = float(new[0])
        trace.append(w)
    assert trace == pytest.approx([0.0, -0.3], abs=1e-6)


def test_the_first_step_is_the_mean_for_any_momentum():
    (one, _), (two, _) = (ran(rounds=1, **{"semifl.threshold": 0.0, "semifl.beta": beta}) for beta in (0.0, 0.9))
    assert torch.equal(one.models[0][0], two.models[0][0])


def test_without_momentum_it_is_the_plain_mean():
    """Every client weighs the same, however many samples it has, and no momentum leaves what they are combined to."""
    whole, sizes = tiny_federation(), (24, 12, 8, 6)
    rows, given = (tuple(a[:n] for a, n in zip(of, sizes, strict=True)) for of in (whole.rows, whole.given))
    settings = {"rounds": 1, "semifl.threshold": 0.0, "semifl.beta": 0.0, "semifl.server.epochs": 0}
    with Contract.of("semifl", MLP | settings).trial(replace(whole, rows=rows, given=given)) as trial:
        state = trial.run()
    mean = torch.stack([up.models[0] for up in trial.record.ups]).double().mean(0).float()
    assert torch.allclose(state.models[0][0], mean, atol=1e-6)
    assert trial.record.rounds[-1].weights == dict.fromkeys(range(4), 0.25)


def test_where_nobody_is_sure_only_the_server_moves_the_model():
    """Every round is one of the server alone, bit by bit."""
    with Contract.of("server-sl", {k: v for k, v in MLP.items() if "semifl" not in k}).trial() as alone:
        expected = alone.run().models[0][0]
    state, trial = ran(**{"semifl.threshold": 1.5})
    assert all(up.models is None for up in trial.record.ups)
    assert {up.skipped for up in trial.record.ups} == {"no guess is sure"}
    assert torch.equal(state.models[0][0], expected)


def test_momentum_rests_where_nobody_reports():
    first = Stage("a", rounds=1, parts=(FixAndMix(threshold=0.0), ServerMomentum(beta=0.9)))
    silent = Stage("b", rounds=1, parts=(FixAndMix(threshold=1.5), ServerMomentum(beta=0.9)))
    plain = {k: v for k, v in MLP.items() if "semifl" not in k}
    with Contract.of(Method("own", (first, silent)), plain).trial() as trial:
        state = trial.run()
        assert bool(state.memory["ServerMomentum", 0]["velocity"].any())
    with Contract.of(Method("own", (first,)), plain).trial() as trial:
        assert torch.equal(trial.run().models[0][0], state.models[0][0])


# Measured statistics


def statistics(sbn, batch):
    fit = ServerFit(parts=(ServerLabels(), StaticNorm(sbn=sbn)), on="noisy", batch=batch)
    method = Method("own", (Stage(parts=(fit,), sampler=Nobody()),))
    federation = tiny_federation()
    with Contract.of(method, {"rounds": 1}).trial(federation) as trial:
        (vector,) = trial.run().models[0]
        module = trial.plan.build(0)
        module.load_state_dict(trial.plan.layout.named(vector), strict=False)
    pixels = torch.from_numpy(federation.images[federation.server["noisy"].rows]).float().permute(0, 3, 1, 2) / 255
    seen = {}
    layers = {name: layer for name, layer in module.named_modules() if isinstance(layer, nn.BatchNorm2d)}
    for name, layer in layers.items():
        layer.register_forward_hook(lambda _, given, __, name=name: seen.__setitem__(name, given[0].detach()))
    module.train()
    held = {name: (layer.running_mean.clone(), layer.running_var.clone()) for name, layer in layers.items()}
    module((pixels - federation.mean[0]) / federation.std[0])
    return held, seen


def test_statistics_of_one_batch_are_those_of_the_layers_inputs():
    held, seen = statistics("server", 1000)
    assert held
    for name, (mean, variance) in held.items():
        assert torch.allclose(mean, seen[name].mean((0, 2, 3)), atol=1e-4), name
        assert torch.allclose(variance, seen[name].var((0, 2, 3)), rtol=1e-3), name


def test_statistics_are_the_mean_over_batches_and_may_be_left_as_they_are():
    held, seen = statistics("server", 8)
    name = next(iter(held))  # of later layers the inputs depend on the batch
    assert torch.allclose(held[name][0], seen[name].mean((0, 2, 3)), atol=1e-4)
    followed, seen = statistics("off", 1000)
    assert any(not torch.allclose(mean, seen[name].mean((0, 2, 3)), atol=1e-3) for name, (mean, _) in followed.items())


def test_layers_follow_batches_as_before():
    """Its momentum is back, so that what trains next tracks its statistics."""
    part = StaticNorm()
    c = fake_client(part)
    part.finish(c)
    layers = [layer for layer in c.nets[0].module.modules() if isinstance(layer, nn.BatchNorm2d)]
    assert [layer.momentum for layer in layers] == [0.1] * len(layers) != []


@pytest.mark.parametrize(
    ("method", "code"), [("semifl+fedrn", "FS115"), ("semifl+gce", "FS103"), ("local+semifl", "FS114")]
)
def test_what_has_no_sense_is_refused(method, code):
    with pytest.raises(CompositionError) as problem:
        Contract.of(method, {}).plan(tiny_federation())
    assert problem.value.code == code


def test_it_composes():
    with Contract.of("fedprox+semifl", {"semifl.threshold": 0.3}).trial() as trial:
        assert bool(torch.isfinite(trial.run().models[0][0]).all())
        assert any(up.models for up in trial.record.ups)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_contract_where_clients_are_sure(check):
    """On the tiny federation hardly any guess reaches the usual threshold."""
    check(Contract.of("semifl", {"semifl.threshold": 0.3, "semifl.pretrain": 2}))
