"""(FL)²: thresholds, the step uphill and back, weights by learning status, and what they reduce to."""

from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call

from fedsieve.base.errors import CompositionError
from fedsieve.core.client import Skipped
from fedsieve.core.layout import Layout
from fedsieve.core.part import Method, Stage
from fedsieve.methods.fl2 import SharpnessAware, ascent, class_thresholds, shares, status
from fedsieve.methods.semifl import FixAndMix
from fedsieve.parts.guesses import GuessOnce
from fedsieve.parts.server_labels import TAUGHT, Pretraining, ServerLabels
from fedsieve.parts.server_momentum import ServerMomentum
from fedsieve.parts.static_norm import StaticNorm
from fedsieve.testing import CHECKS, Contract, fake_client, fake_reports, fake_server, tiny_federation

P = torch.tensor([[0.9, 0.05, 0.05], [0.55, 0.35, 0.1], [0.2, 0.5, 0.3], [0.3, 0.3, 0.4]], dtype=torch.float64)
MLP = {"model": "mlp", "model.hidden": [8], "momentum": 0.0, "rounds": 2}
PART = SharpnessAware(weak="none", strong="none")


def ran(method="fl2", **settings):
    with Contract.of(method, MLP | settings).trial() as trial:
        return trial.run(), trial


def begun(part=PART, p=P, **settings):
    """A client whose model says these probabilities, after its table for the round is made."""
    c = fake_client(part, given=[1] * len(p), says=p.log().tolist(), **settings)
    net = c.nets[0]
    part.start(c)
    net.labels = part.relabel(c, net, net.labels)
    return c, net


# Thresholds


def test_thresholds_by_hand():
    assert float(status(P)) == pytest.approx(0.5875, abs=1e-5)
    assert class_thresholds(P).tolist() == pytest.approx([0.5875, 0.3615384615384615, 0.2560897435897436], abs=1e-5)


def test_acceptance_by_hand():
    c, net = begun()
    assert net.labels.training_rows().tolist() == [0, 2, 3]
    assert net.labels.target.argmax(1).tolist() == [0, 0, 1, 2]
    assert c.guesses["used"].tolist() == [True, False, True, True]


def test_no_class_is_held_to_more_than_the_client():
    p = (3 * torch.randn(200, 5, generator=torch.Generator().manual_seed(0))).double().softmax(1)
    found = class_thresholds(p)
    assert float(found.max()) == float(status(p)) == float(found[p.mean(0).argmax()])
    assert int((found < status(p)).sum()) == 4


@pytest.mark.parametrize("rows", [1, 3, 7, 49, 1000])
def test_equal_rows_are_all_accepted(rows):
    """Whatever the rounding of their mean; uniform predictions hold every class to the same."""
    p = torch.full((rows, 3), 1 / 3, dtype=torch.float64)
    assert (p.amax(1) >= class_thresholds(p)[0]).all()
    assert torch.equal(class_thresholds(p), status(p).expand(3))
    odd = torch.tensor([[0.7, 0.2, 0.1]], dtype=torch.float64).expand(rows, 3)
    assert (odd.amax(1) >= class_thresholds(odd)[0]).all()


def test_a_row_at_its_threshold_is_accepted():
    _, net = begun(p=P[:1].expand(3, 3))
    assert net.labels.training_rows().tolist() == [0, 1, 2]


def test_a_threshold_for_all():
    _, net = begun(replace(PART, threshold=0.5))
    assert net.labels.training_rows().tolist() == [0, 1, 2]
    with pytest.raises(Skipped, match="no guess is sure"):
        begun(replace(PART, threshold=1.5))


# The step uphill


def uphill(rho, slope, weights):
    layout = Layout.of(torch.nn.Linear(2, 1))
    assert [entry.name for entry in layout.entries] == ["weight", "bias"]
    return ascent(torch.tensor(weights), torch.tensor(slope), layout, rho)


def test_the_ascent_by_hand():
    """T = (0.30, 0.40, 1), T g = (0.3, 0.4, 0) of length 0.5, T² g = (0.09, 0.16, 0)."""
    found = uphill(0.1, [1.0, 1.0, 0.0], [0.29, -0.39, 5.0])
    assert found.tolist() == pytest.approx([0.018, 0.032, 0.0], rel=1e-5)
    found = uphill(0.1, [0.0, 0.0, -2.0], [0.29, -0.39, 5.0])
    assert found.tolist() == pytest.approx([0.0, 0.0, -0.1], rel=1e-5)


def test_its_length_is_rho_by_the_size_of_the_weights():
    slope, weights = [0.3, -0.7, 0.2], [0.5, 0.0, -3.0]
    size = torch.tensor([0.51, 0.01, 1.0])
    one, two = (uphill(rho, slope, weights) for rho in (0.1, 0.2))
    assert float((one / size).norm()) == pytest.approx(0.1, rel=1e-5)
    assert torch.allclose(2 * one, two)


def test_without_a_slope_nothing_moves():
    assert uphill(0.1, [0.0, 0.0, 0.0], [1.0, 1.0, 1.0]).tolist() == [0.0, 0.0, 0.0]


def stepped(part, **settings):
    """A client of the tiny federation, one of its batches, and its gradient before and after the hook."""
    c = fake_client(part, **settings)
    net = c.nets[0]
    net.module.train()
    part.start(c)
    net.labels = part.relabel(c, net, net.labels)
    batch = c.batch(net.labels.training_rows()[:12], 0)
    part.loss(c, net, batch).mean().backward()
    net.forget()
    before, weights = net.grad.clone(), net.vector.clone()
    part.gradient(c, net, batch)
    assert torch.equal(net.vector, weights), "weights and running statistics are what they were"
    return c, net, batch, before


@pytest.mark.parametrize("rho", [0.1, 1.0])
def test_the_consistency_is_recomputed_with_autograd(rho):
    """Over the strict half of a batch of normalised features: a slope at moved weights, added at the old ones."""
    part = SharpnessAware(weak="none", strong="none", threshold=0.0, rho=rho)
    middle = float(part.seen(c := fake_client(part), c.nets[0]).double().softmax(1).amax(1)[:12].median())
    part = replace(part, strict=middle)
    c, net, batch, before = stepped(part)
    strict = (c.scratch(part)["0"].amax(1) >= middle)[batch.rows]
    assert 0 < int(strict.sum()) < len(batch)
    module, x, y = c.plan.build(0).train(), batch.images("none"), net.target(batch).argmax(1)
    module.load_state_dict(net.layout.named(net.vector), strict=False)
    names, params = zip(*module.named_parameters(), strict=True)

    def logits(values):
        frozen = {name: value.clone() for name, value in module.named_buffers()}
        return functional_call(module, dict(zip(names, values, strict=True)) | frozen, (x,))

    still = logits(params)
    slopes = torch.autograd.grad(F.cross_entropy(still[strict], y[strict]), params)
    sizes = [p.abs() + 0.01 if n.endswith("weight") else torch.ones_like(p) for n, p in zip(names, params, strict=True)]
    length = sum(((t * g) ** 2).sum() for t, g in zip(sizes, slopes, strict=True)).sqrt()
    triples = zip(params, sizes, slopes, strict=True)
    moved = [(p + rho * t**2 * g / length).detach().requires_grad_() for p, t, g in triples]
    p = still.detach().softmax(1)
    divergence = (p * (p.log() - logits(moved).log_softmax(1))).sum(1)
    expected = torch.autograd.grad(divergence[strict].sum() / len(batch), moved)
    added = dict(net.layout.named(torch.cat([net.grad - before, net.vector[len(net.grad) :]])))
    assert max(float(added[name].abs().max()) for name in names) > 1e-5
    for name, value in zip(names, expected, strict=True):
        assert torch.allclose(added[name], value, atol=1e-5), name


@pytest.mark.parametrize("part", [SharpnessAware(rho=0.0, strict=0.0), SharpnessAware(strict=1.5)])
def test_without_rho_or_strict_rows_the_gradient_is_plain(part):
    _, net, _, before = stepped(replace(part, threshold=0.0))
    assert torch.equal(net.grad, before)


def test_a_divergence_from_itself_has_no_slope():
    """A step of next to nothing: the consistency vanishes with it."""
    far, near = (
        stepped(SharpnessAware(threshold=0.0, strict=0.0, weak="none", strong="none", rho=rho)) for rho in (1.0, 1e-6)
    )
    lengths = [float((net.grad - before).norm()) for _, net, _, before in (far, near)]
    assert lengths[1] < 1e-5 < lengths[0]


# At the server


def test_weights_by_hand():
    assert shares({3: 0.6, 5: 0.9}) == pytest.approx({3: 0.8, 5: 0.2})
    assert shares({0: 0.7, 1: 0.7}) == pytest.approx({0: 0.5, 1: 0.5})
    assert shares({0: 1.0, 1: 1.0, 2: 1.0}) == pytest.approx(dict.fromkeys(range(3), 1 / 3))
    assert shares({0: 1.0, 1: 0.5}) == {0: 0.0, 1: 1.0}


def test_who_is_surer_never_weighs_more():
    sureness = dict(enumerate(torch.rand(20, generator=torch.Generator().manual_seed(0)).tolist()))
    found = shares(sureness)
    order = sorted(sureness, key=sureness.get)
    assert [found[k] for k in order] == sorted(found.values(), reverse=True)
    assert sum(found.values()) == pytest.approx(1.0)


@pytest.mark.parametrize(("weights", "expected"), [("status", {1: 0.8, 2: 0.2}), ("equal", {1: 0.5, 2: 0.5})])
def test_the_server_weighs_by_what_it_is_told(weights, expected):
    part = SharpnessAware(weights=weights)
    ups = fake_reports(part, {1: {"status": 0.6}, 2: {"status": 0.9}})
    assert part.weigh(fake_server(part), ups, {1: 0.9, 2: 0.1}) == pytest.approx(expected)


def test_what_travels():
    """The model, and how sure the received one is on the whole."""
    _, trial = ran(rounds=1, **{"fl2.weak": "none"})
    for (client, down), up in zip(trial.record.downs, trial.record.ups, strict=True):
        assert down.briefs.get("SharpnessAware", {}) == {}
        assert up.notes.keys() == {"SharpnessAware"}
        c = trial.host.client(client, down.mail, down.models, {})
        sure = c.logits(c.nets[0]).softmax(1).amax(1).mean()
        assert up.notes["SharpnessAware"] == {"status": pytest.approx(float(sure), abs=1e-5)}
    told = {up.client: up.notes["SharpnessAware"]["status"] for up in trial.record.ups[-4:]}
    assert trial.record.rounds[-1].weights == pytest.approx(shares(told))


# What it reduces to


@dataclass(frozen=True, kw_only=True)
class Unmixed(FixAndMix):
    """SemiFL's guesses without its mixtures."""

    def loss(self, c, net, batch):
        return GuessOnce.loss(self, c, net, batch)


def test_fixed_thresholds_without_the_step_and_equal_weights_are_semifl_without_mixtures():
    options = {"fl2.threshold": 0.3, "fl2.rho": 0.0, "fl2.weights": "equal", "fl2.strict": 0.3}
    mine, trial = ran(**options)
    assert any(up.models for up in trial.record.ups)
    fit = replace(TAUGHT, parts=(ServerLabels(), StaticNorm()))
    together = Stage(parts=(Unmixed(threshold=0.3), ServerMomentum()), base="equal")
    semifl, _ = ran(Method("semifl", Pretraining().stages(fit, together)))
    assert torch.allclose(mine.models[0][0], semifl.models[0][0], atol=1e-7)
    moved, _ = ran(**options | {"fl2.rho": 1.0})
    assert not torch.allclose(mine.models[0][0], moved.models[0][0], atol=1e-5)


def test_running_statistics_are_measured_at_the_server():
    """Of a model that has some, they are not those that training left."""
    found = []
    for sbn in ("server", "off"):
        with Contract.of("fl2", {"rounds": 1, "epochs": 0, "fl2.sbn": sbn}).trial() as trial:
            found.append(trial.run().models[0][0][trial.plan.layout.trainable :])
    assert not torch.allclose(*found, rtol=1e-2)


def test_where_nobody_is_sure_only_the_server_moves_the_model():
    state, trial = ran(**{"fl2.threshold": 1.5})
    assert {up.skipped for up in trial.record.ups} == {"no guess is sure"}
    alone, _ = ran("server-sl")
    assert torch.equal(state.models[0][0], alone.models[0][0])


@pytest.mark.parametrize("method", ["fedprox+fl2", "moon+fl2", "scaffold+fl2", "ksim+fl2"])
def test_it_composes(method):
    with Contract.of(method, {"fl2.strict": 0.3}).trial() as trial:
        assert bool(torch.isfinite(trial.run().models[0][0]).all())
        assert any(up.models for up in trial.record.ups)


@pytest.mark.parametrize(
    ("method", "code"),
    [
        ("fl2+fedrn", "FS115"),
        ("fl2+gce", "FS103"),
        ("fl2+semifl", "FS106"),
        ("local+fl2", "FS114"),
        ("fl2+focus", "FS115"),
    ],
)
def test_what_has_no_sense_is_refused(method, code):
    with pytest.raises(CompositionError) as problem:
        Contract.of(method, {}).plan(tiny_federation())
    assert problem.value.code == code


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_contract_where_guesses_are_strict(check):
    """On the tiny federation hardly any guess reaches the usual threshold."""
    check(Contract.of("fl2", {"fl2.strict": 0.3, "fl2.pretrain": 2}))
