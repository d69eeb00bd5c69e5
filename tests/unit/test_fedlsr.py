"""FedLSR: sharpened mixture, divergence of the views and entropy by hand, the ramp, and whole rounds."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedsieve.base.errors import ConfigError
from fedsieve.data.augment import rotate
from fedsieve.methods.fedlsr_loss import SelfRegularise, jensen_shannon, log_sharpened_mix
from fedsieve.methods.fedlsr_published import PublishedSelfRegularise
from fedsieve.testing import Contract, tiny_federation

PLAIN = {"model": "mlp", "model.hidden": [6], "augment": "none", "batch": 1000, "momentum": 0.0, "lr": 0.1}
Z1 = torch.tensor([[math.log(3.0), 0.0]], dtype=torch.float64)
"""p = (3/4, 1/4)."""
Z2 = torch.zeros(1, 2, dtype=torch.float64)
"""p = (1/2, 1/2)."""
LABEL = torch.tensor([[0.0, 1.0]], dtype=torch.float64)


def objective(z1, z2, target, weight, gamma, lambda_e, published=False):
    kind = PublishedSelfRegularise if published else SelfRegularise
    return kind(lambda_e=lambda_e).objective(z1, z2, target, weight, gamma)


def kl(p, q):
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


def js(p, q):
    middle = [(a + b) / 2 for a, b in zip(p, q, strict=True)]
    return (kl(p, middle) + kl(q, middle)) / 2


def entropy(p):
    return -sum(a * math.log(a) for a in p)


def test_the_sharpened_mixture_by_hand():
    p_s = log_sharpened_mix(Z1, Z2, 0.4).exp()  # p = 0.4 (3/4, 1/4) + 0.6 (1/2, 1/2) = (0.6, 0.4)
    assert p_s[0].tolist() == pytest.approx([0.36 / 0.52, 0.16 / 0.52])


@pytest.mark.parametrize(("weight", "p"), [(1.0, (9 / 10, 1 / 10)), (0.0, (0.5, 0.5))])
def test_a_mixture_of_one_view_alone(weight, p):
    z1, z2 = Z1.clone().requires_grad_(), Z2.clone().requires_grad_()
    log_p = log_sharpened_mix(z1, z2, weight)
    assert log_p.exp()[0].tolist() == pytest.approx(p)
    log_p[0, 0].backward()
    unused, used = (z2, z1) if weight else (z1, z2)
    assert not unused.grad.any()
    assert used.grad.isfinite().all()


def test_the_sharpened_mixture_stays_finite_where_both_views_are_sure_of_another_class():
    sure = torch.tensor([[400.0, 0.0]], requires_grad=True)
    value = log_sharpened_mix(sure, sure.detach(), 0.5)[0, 1]
    assert value.item() == pytest.approx(-800)
    value.backward()
    assert sure.grad.abs().max() > 0, "p and its square would have been 0, and the label without a gradient"


def test_jensen_shannon_by_hand():
    p, q = [0.75, 0.25], [0.5, 0.5]
    found = jensen_shannon(torch.tensor([p, q, p]).log(), torch.tensor([q, p, p]).log())
    assert found.tolist() == pytest.approx([js(p, q), js(p, q), 0.0], abs=1e-6)
    opposite = jensen_shannon(torch.tensor([[0.0, -100.0]]), torch.tensor([[-100.0, 0.0]]))
    assert opposite.item() == pytest.approx(math.log(2), rel=1e-5)


def test_the_loss_by_hand():
    p1, p2 = [27 / 28, 1 / 28], [0.5, 0.5]  # softmax(3 z)
    found = objective(Z1, Z2, LABEL, 0.4, 0.3, 0.6, published=False)
    expected = -math.log(0.16 / 0.52) + 0.3 * js(p1, p2) + 0.6 * (entropy(p1) + entropy(p2)) / 2
    assert found.tolist() == pytest.approx([expected])


def test_the_loss_of_the_published_code_by_hand():
    p1, p2 = [27 / 28, 1 / 28], [0.5, 0.5]
    first, second = 0.36 / 0.52, 0.16 / 0.52
    doubled = second - math.log(math.exp(first) + math.exp(second))
    sure = 1 / (1 + math.exp(p1[1] - p1[0]))
    expected = -doubled + 0.3 * js(p1, p2) / 2 + 0.6 * entropy([sure, 1 - sure])
    found = objective(Z1, Z2, LABEL, 0.4, 0.3, 0.6, published=True)
    assert found.tolist() == pytest.approx([expected])


def test_the_second_softmax_bounds_what_a_wrong_label_costs():
    sure = torch.tensor([[40.0, 0.0]])
    target = torch.tensor([[0.0, 1.0]])
    assert objective(sure, sure, target, 0.5, 0, 0, published=False).item() == pytest.approx(80)
    bounded = objective(sure, sure, target, 0.5, 0, 0, published=True).item()
    assert bounded == pytest.approx(math.log(1 + math.e), rel=1e-4)


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("only", ["label", "gamma", "lambda_e"])
def test_each_term_reaches_the_logits(only, published):
    draw = torch.Generator().manual_seed(2)
    z1, z2 = torch.randn(2, 5, 4, generator=draw, dtype=torch.float64)
    target = F.one_hot(torch.tensor([0, 1, 2, 3, 0]), 4).double()
    weights = {"gamma": 0.0, "lambda_e": 0.0} | ({only: 1.0} if only != "label" else {})

    def term(a, b):
        whole = objective(a, b, target, 0.3, **weights, published=published).sum()
        base = objective(a, b, target, 0.3, 0.0, 0.0, published=published).sum()
        return whole if only == "label" else whole - base

    z1, z2 = z1.requires_grad_(), z2.requires_grad_()
    assert torch.autograd.gradcheck(term, (z1, z2))
    gradients = torch.autograd.grad(term(z1, z2), (z1, z2))
    assert gradients[0].abs().max() > 1e-3
    assert (gradients[1].abs().max() > 1e-3) == (not (published and only == "lambda_e")), "its code takes view 1 twice"


@pytest.mark.parametrize(
    ("ramp", "rounds", "t", "gamma"),
    [
        (None, 100, 0, 0.0),
        (None, 100, 5, 0.1),
        (None, 100, 20, 0.4),
        (None, 100, 99, 0.4),
        (4, 100, 1, 0.1),
        (0, 9, 0, 0.4),
    ],
)
def test_the_weight_of_the_divergence_rises_over_a_fifth_of_the_rounds(ramp, rounds, t, gamma):
    assert SelfRegularise(ramp=ramp).weight_now(t, rounds) == pytest.approx(gamma)


@pytest.mark.parametrize(("channels", "view"), [(1, "rotate"), (3, "colour")])
def test_the_second_view_follows_the_channels(channels, view):
    federation = tiny_federation()
    federation = replace(
        federation,
        images=np.repeat(federation.images, channels, axis=3),
        test_images=np.repeat(federation.test_images, channels, axis=3),
        mean=(0.5,) * channels,
        std=(0.25,) * channels,
    )
    plan = Contract.of("fedlsr", PLAIN).plan(federation)
    (part,) = plan.stages[0].parts
    assert part.second(plan) == view  # type: ignore[attr-defined]  # of this part
    assert SelfRegularise(view="weak").second(plan) == "weak"


def test_an_unknown_view_is_refused_before_anything_runs():
    with pytest.raises(ConfigError, match=r"unknown augmentation 'colur'\. Did you mean 'colour'"):
        Contract.of("fedlsr", PLAIN | {"fedlsr.view": "colur"}).plan(tiny_federation())


@pytest.mark.parametrize("published", [False, True])
def test_a_round_trains_on_this_loss(published):
    """With a second view that changes nothing, the mixture is the prediction itself and the views agree."""
    federation = tiny_federation()
    settings = PLAIN | {"rounds": 1, "fedlsr.view": "none", "fedlsr.ramp": 0, "fedlsr.published": published}
    with Contract.of("fedlsr", settings).trial(federation) as trial:
        trial.run()
        for up in trial.record.ups:
            pixels = torch.from_numpy(federation.images[federation.rows[up.client]]).float().permute(0, 3, 1, 2) / 255
            named = trial.plan.layout.named(trial.plan.initial[0])
            z = torch.func.functional_call(trial.plan.build(0), named, (pixels - 0.5) / 0.25)
            given = torch.from_numpy(federation.given[up.client])
            sharpened = (2 * z).softmax(1)
            loss = F.cross_entropy(sharpened if published else 2 * z, given)
            assert up.loss == pytest.approx(loss.item(), rel=1e-4)


def test_views_that_differ_are_drawn_together():
    """Trained on the divergence as well, two views of a sample are predicted more alike than without it."""
    federation = tiny_federation(rows=60)
    apart = {}
    for gamma in (0.0, 5.0):
        settings = PLAIN | {"rounds": 4, "epochs": 8, "batch": 20, "fedlsr.gamma": gamma, "fedlsr.ramp": 0}
        with Contract.of("fedlsr", settings).trial(federation) as trial:
            named = trial.plan.layout.named(trial.run().models[0][0])
        pixels = torch.from_numpy(federation.test_images).float().permute(0, 3, 1, 2) / 255
        turned = rotate(pixels, torch.Generator().manual_seed(0))
        with torch.no_grad():
            z = [torch.func.functional_call(trial.plan.build(0), named, (v - 0.5) / 0.25) for v in (pixels, turned)]
        apart[gamma] = jensen_shannon(F.log_softmax(3 * z[0], 1), F.log_softmax(3 * z[1], 1)).mean().item()
    assert apart[5.0] < 0.9 * apart[0.0]


@pytest.mark.parametrize("options", [{"fedlsr.published": True}, {"fedlsr.lambda_e": 0.6}, {"fedlsr.view": "weak"}])
def test_odd_clients_are_survived(options):
    with Contract.of("fedlsr", {"rounds": 2, **options}).trial(tiny_federation(degenerate=True)) as trial:
        assert torch.isfinite(trial.run().models[0][0]).all()
        assert {up.client for up in trial.record.ups if up.models is None} == {4}
