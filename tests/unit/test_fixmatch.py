"""FixMatch and UDA at clients without labels, by hand, by autograd and by what they reduce to."""

import math

import pytest
import torch
import torch.nn.functional as F

from fedsieve.base.errors import CompositionError
from fedsieve.methods.fixmatch import FixMatch, fixmatch_loss
from fedsieve.methods.uda import AnnealedLabels, Consistency, annealed, uda_loss
from fedsieve.parts.guesses import is_sure
from fedsieve.parts.server_fit import ServerFit
from fedsieve.parts.server_labels import server_progress
from fedsieve.testing import Contract, fake_client, tiny_federation

WEAK = torch.tensor([[8.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 4.0, 0.0]])
STRONG = torch.tensor([[2.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 1.0, 3.0]])
TINY = {"model": "mlp", "model.hidden": [8], "momentum": 0.0, "rounds": 2}


def model_of(method, edit=None, **settings):
    with Contract.of(method, TINY | settings).trial(edit=edit) as trial:
        return trial.run().models[0][0], trial


# The formulas


def test_fixmatch_by_hand():
    """The mean over the full batch, not over the two sure rows."""
    losses = fixmatch_loss(WEAK, STRONG, 0.95)
    first, last = -math.log(math.e**2 / (math.e**2 + math.e + 1)), -math.log(math.e / (1 + math.e + math.e**3))
    assert losses.tolist() == pytest.approx([first, 0.0, last], abs=1e-6)
    assert float(losses.mean()) == pytest.approx(0.8591506613335554, abs=1e-5)


def test_uda_by_hand():
    losses = uda_loss(WEAK, STRONG, 0.8, 0.4)
    assert (losses > 0).tolist() == [True, False, True]
    assert float(losses.mean()) == pytest.approx(0.8588025986379293, abs=1e-5)


def test_the_threshold_belongs_to_the_sure():
    logits = torch.tensor([[math.log(3.0), 0.0], [0.0, 0.0]], dtype=torch.float64)
    assert is_sure(logits, 0.75).tolist() == [True, False]
    assert is_sure(logits, 0.5).tolist() == [True, True]
    assert is_sure(logits, 0.0).all()
    assert not is_sure(100 * logits, 1.01).any()


def test_divergence_is_never_negative_and_zero_between_equal_views():
    draws = torch.Generator().manual_seed(0)
    weak, strong = (3 * torch.randn(200, 5, generator=draws) for _ in range(2))
    assert float(uda_loss(weak, strong, 0.0, 0.4).min()) >= 0.0
    assert uda_loss(weak, weak, 0.0, 1.0).abs().max() < 1e-6


def test_uda_at_a_low_temperature_is_fixmatch():
    """Where the largest logit stands out by more than a few hundredths."""
    weak = 4 * torch.eye(5) + torch.linspace(0, 1, 5)
    strong = torch.randn(5, 5, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(uda_loss(weak, strong, 0.6, 0.01), fixmatch_loss(weak, strong, 0.6), atol=1e-3)


@pytest.mark.parametrize("loss", [lambda w, s: fixmatch_loss(w, s, 0.6), lambda w, s: uda_loss(w, s, 0.6, 0.4)])
def test_gradients_are_those_of_finite_differences_and_stop_at_the_weak_view(loss):
    weak, strong = (x.double().requires_grad_() for x in (WEAK.clone(), STRONG.clone()))
    assert torch.autograd.gradcheck(lambda s: loss(weak.detach(), s), (strong,))
    loss(weak, strong).sum().backward()
    assert weak.grad is None or not weak.grad.any()
    assert not strong.grad[1].any()
    assert strong.grad[0].any()


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("linear", [0.1, 0.55, 1.0]),
        ("log", [0.1, 0.9261235012384911, 0.9939358477008231]),
        ("exp", [0.10606415229917693, 0.17387649876150893, 1.0]),
    ],
)
def test_annealing_by_hand(how, expected):
    assert [annealed(t, 10, how) for t in (0.0, 0.5, 1.0)] == pytest.approx(expected)


def test_annealed_labels_are_averaged_over_those_kept():
    """Half of the way is done with four classes: labels beyond 0.625 are left out, and a batch of none costs none."""
    part = AnnealedLabels(tsa="linear", view="none")
    says = [[math.log(9.0), 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, math.log(3.0)]]
    method = Contract.of("uda", {"rounds": 4, "uda.pretrain": 0, "uda.server.epochs": 1}).plan(tiny_federation())
    c = fake_client(part, given=[0, 1, 3], says=says, plan=method, t=2)
    assert server_progress(c) == 0.5
    net = c.nets[0]
    value = part.loss(c, net, c.batch(torch.arange(3), 0))
    assert value.item() == pytest.approx((math.log(4.0) + math.log(2.0)) / 2, rel=1e-5)
    assert part.loss(c, net, c.batch(torch.tensor([0]), 0)).item() == 0.0
    off = AnnealedLabels(view="none").loss(c, net, c.batch(torch.arange(3), 0))
    assert off.tolist() == pytest.approx([math.log(12 / 9), math.log(4.0), math.log(2.0)], rel=1e-5)


def test_progress_counts_all_epochs_of_the_server():
    plan = Contract.of("uda", {"rounds": 4, "uda.pretrain": 6, "uda.server.epochs": 2}).plan(tiny_federation())
    part = AnnealedLabels()
    found = []
    for stage, t, epoch in ((0, 0, 0), (0, 0, 5), (1, 0, 0), (1, 3, 1)):
        c = fake_client(part, plan=plan, stage=stage, t=t)
        c.epoch = epoch
        found.append(server_progress(c))
    assert found == [0.0, 5 / 14, 6 / 14, 13 / 14]


# The parts


@pytest.mark.parametrize("part", [FixMatch(threshold=0.6, strong="none"), Consistency(threshold=0.6, strong="none")])
def test_a_batch_notes_its_guesses(part):
    says = [[4.0, 0.0, 0.0], [0.1, 0.0, 0.0], [0.0, 0.0, 4.0]]
    c = fake_client(part, given=[1, 1, 1], says=says)
    losses = part.loss(c, c.nets[0], c.batch(torch.arange(3), 0))
    assert c.guesses["guessed"].tolist() == [0, 0, 2]
    assert c.guesses["used"].tolist() == [True, False, True]
    assert float(losses[1]) == 0.0


def test_the_weight_scales_the_loss():
    says = [[4.0, 0.0], [0.0, 4.0]]
    once, twice = (
        part.loss(c := fake_client(part, given=[0, 0], says=says), c.nets[0], c.batch(torch.arange(2), 0))
        for part in (FixMatch(strong="none"), FixMatch(strong="none", weight=2.0))
    )
    assert torch.allclose(2 * once, twice)


@pytest.mark.parametrize("name", ["fixmatch", "uda"])
def test_a_step_is_recomputed_with_autograd(name):
    """One full-batch step of each client: weak views guess, strong views learn, and nothing else moves."""
    settings = {f"{name}.threshold": 0.3, f"{name}.weak": "none", f"{name}.strong": "rotate", f"{name}.pretrain": 2}
    _, trial = model_of(name, batch=1000, lr=1.0, rounds=1, epochs=1, **settings)
    part = trial.plan.stages[1].parts[0]
    for (client, down), up in zip(trial.record.downs, trial.record.ups, strict=True):
        c = trial.host.client(client, down.mail, down.models, {})
        batch = c.batch(torch.randperm(24, generator=c.stream("order", 0, 0)), 0)
        images = {view: batch.images(view) for view in ("none", "rotate")}
        module = trial.plan.build(0)
        module.load_state_dict(trial.plan.layout.named(down.models[0]))
        weak, strong = module(images["none"]).detach(), module(images["rotate"])
        sure = (weak.softmax(1).amax(1) >= 0.3).float()
        if name == "fixmatch":
            losses = F.cross_entropy(strong, weak.argmax(1), reduction="none")
        else:
            p = (weak / part.temperature).softmax(1)
            losses = (p * (p.log() - strong.log_softmax(1))).sum(1)
        ((sure * losses).sum() / 24).backward()
        slope = torch.cat([parameter.grad.flatten() for parameter in module.parameters()])
        assert torch.allclose(down.models[0] - up.models[0], slope, atol=1e-5), client


# What it reduces to


@pytest.mark.parametrize("name", ["fixmatch", "uda"])
def test_a_client_step_moves_the_weights(name):
    _, trial = model_of(name, rounds=1, **{f"{name}.threshold": 0.0})
    for (_, down), up in zip(trial.record.downs, trial.record.ups, strict=True):
        assert not torch.equal(down.models[0], up.models[0])


@pytest.mark.parametrize("name", ["fixmatch", "uda"])
def test_nobody_sure_is_server_sl(name):
    """Above 1 no client has a gradient, so that a round is one of the server alone, bit by bit."""
    mine, trial = model_of(name, **{f"{name}.threshold": 1.5})
    for (_, down), up in zip(trial.record.downs, trial.record.ups, strict=True):
        assert torch.equal(down.models[0], up.models[0])
    alone, _ = model_of("server-sl")
    assert torch.equal(mine, alone)


@pytest.mark.parametrize("name", ["fixmatch", "uda"])
def test_without_mu_fedprox_changes_no_bit(name):
    options = {f"{name}.threshold": 0.3}
    plain, _ = model_of(name, **options)
    prox, _ = model_of(f"fedprox+{name}", **options, **{"fedprox.mu": 0.0})
    assert torch.equal(plain, prox)
    held, _ = model_of(f"fedprox+{name}", **options, **{"fedprox.mu": 1.0})
    assert not torch.equal(plain, held)


def test_the_proximal_term_is_the_clients_alone():
    """FedProx-FixMatch: its penalty stands in the clients' stage, and not in what the server minimises."""
    plan = Contract.of("fedprox+fixmatch", {}).plan(tiny_federation())
    pretrain, train = plan.stages
    assert [part.name for part in pretrain.parts] == ["ServerFit"]
    assert [part.name for part in train.parts] == ["FixMatch", "ServerFit", "Prox"]
    (fit,) = (part for part in train.parts if isinstance(part, ServerFit))
    assert [part.name for part in fit.parts] == ["ServerLabels"]


def test_equal_views_without_a_threshold_teach_uda_nothing():
    """KL(p ‖ p) is zero and so is its slope: only the server learns."""
    same = {"uda.weak": "none", "uda.strong": "none", "uda.threshold": 0.0, "uda.temperature": 1.0}
    mine, _ = model_of("uda", **same)
    alone, _ = model_of("server-sl")
    assert torch.allclose(mine, alone, atol=1e-5)


@pytest.mark.parametrize("method", ["moon+uda", "scaffold+fixmatch", "fedds+fixmatch", "fedprox+uda", "ksim+fixmatch"])
def test_it_composes(method):
    with Contract.of(method, {"rounds": 2}).trial() as trial:
        assert bool(torch.isfinite(trial.run().models[0][0]).all())
        assert trial.record.ups


@pytest.mark.parametrize(
    ("method", "code"),
    [
        ("fixmatch+uda", "FS106"),
        ("fixmatch+gce", "FS103"),
        ("fixmatch+fedrn", "FS115"),
        ("fixmatch+focus", "FS115"),
        ("uda+fb-nll-repair", "FS115"),
        ("fixmatch+fedcorr", "FS106"),
        ("local+fixmatch", "FS114"),
    ],
)
def test_what_has_no_sense_is_refused(method, code):
    with pytest.raises(CompositionError) as problem:
        Contract.of(method, {}).plan(tiny_federation())
    assert problem.value.code == code
