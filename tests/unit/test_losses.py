"""Losses against hand-computed values, PyTorch, and their limits."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedsieve.core.part import Method, Stage
from fedsieve.parts.losses import (
    AdjustedLogits,
    ClippedLogits,
    CrossEntropy,
    GeneralisedCrossEntropy,
    MeanAbsoluteError,
    SymmetricCrossEntropy,
    clipped_logits,
    cross_entropy,
    generalised_cross_entropy,
    mean_absolute_error,
    symmetric_cross_entropy,
)
from fedsieve.testing import Contract, tiny_federation

TWO = torch.tensor([[math.log(3.0), 0.0]])
"""p = (3/4, 1/4)."""
THREE = torch.tensor([[math.log(5.0), math.log(3.0), math.log(2.0)]])
"""p = (0.5, 0.3, 0.2)."""
SOFT = torch.tensor([[0.2, 0.5, 0.3]])


def hot(label, classes):
    return F.one_hot(torch.tensor([label]), classes).float()


def random_logits(rows=6, classes=5):
    return 3 * torch.randn(rows, classes, generator=torch.Generator().manual_seed(4))


def random_targets(rows=6, classes=5):
    return torch.rand(rows, classes, generator=torch.Generator().manual_seed(5)).softmax(1)


LOSSES = {
    "ce": cross_entropy,
    "symce": lambda z, t: symmetric_cross_entropy(z, t, 0.1, 1.0, 1e-4),
    "gce": lambda z, t: generalised_cross_entropy(z, t, 0.7),
    "gce q=0": lambda z, t: generalised_cross_entropy(z, t, 0.0),
    "mae": mean_absolute_error,
    "logitclip": lambda z, t: cross_entropy(clipped_logits(z, 1.0), t),
}


def test_cross_entropy_by_hand():
    assert cross_entropy(TWO, hot(1, 2)).item() == pytest.approx(math.log(4))
    expected = -(0.2 * math.log(0.5) + 0.5 * math.log(0.3) + 0.3 * math.log(0.2))
    assert cross_entropy(THREE, SOFT).item() == pytest.approx(expected)


def test_cross_entropy_as_pytorch_has_it():
    z, t = random_logits(), random_targets()
    assert torch.allclose(cross_entropy(z, t), F.cross_entropy(z, t, reduction="none"))
    labels = t.argmax(1)
    assert torch.allclose(cross_entropy(z, F.one_hot(labels, 5).float()), F.cross_entropy(z, labels, reduction="none"))


def test_symmetric_cross_entropy_is_minus_a_times_one_minus_p():
    floor = 1e-4
    for z, p, label in ((TWO, 0.75, 0), (THREE, 0.3, 1)):
        reverse = symmetric_cross_entropy(z, hot(label, z.shape[1]), 0.0, 1.0, floor).item()
        assert reverse == pytest.approx(-math.log(floor) * (1 - p), rel=1e-5)
    both = symmetric_cross_entropy(THREE, hot(0, 3), 0.5, 2.0, floor).item()
    assert both == pytest.approx(0.5 * math.log(2) + 2.0 * -math.log(floor) * 0.5, rel=1e-5)


def test_symmetric_cross_entropy_of_a_soft_target():
    expected = -(0.5 * math.log(0.2) + 0.3 * math.log(0.5) + 0.2 * math.log(0.3))
    assert symmetric_cross_entropy(THREE, SOFT, 0.0, 1.0, 1e-4).item() == pytest.approx(expected)


@pytest.mark.parametrize("q", [0.3, 0.7, 1.0])
def test_generalised_cross_entropy_by_hand(q):
    assert generalised_cross_entropy(TWO, hot(1, 2), q).item() == pytest.approx((1 - 0.25**q) / q)
    soft = sum(t * (1 - p**q) / q for t, p in zip((0.2, 0.5, 0.3), (0.5, 0.3, 0.2), strict=True))
    assert generalised_cross_entropy(THREE, SOFT, q).item() == pytest.approx(soft)


def test_generalised_cross_entropy_lies_between_its_limits():
    z, t = random_logits(), random_targets()
    assert torch.allclose(generalised_cross_entropy(z, t, 1e-5), cross_entropy(z, t), atol=1e-3)
    assert torch.allclose(generalised_cross_entropy(z, t, 0.0), cross_entropy(z, t), atol=1e-5)
    assert torch.allclose(generalised_cross_entropy(z, t, 1.0), mean_absolute_error(z, t), atol=1e-6)


def test_mean_absolute_error_is_half_the_l1_distance():
    z = random_logits()
    labels = F.one_hot(torch.tensor([0, 1, 2, 3, 4, 0]), 5).float()
    half = (z.softmax(1) - labels).abs().sum(1) / 2
    assert torch.allclose(mean_absolute_error(z, labels), half, atol=1e-6)
    assert mean_absolute_error(THREE, hot(2, 3)).item() == pytest.approx(0.8)


def test_clipped_logits_have_at_most_the_norm_and_keep_their_order():
    z = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    clipped = clipped_logits(z, 1.0)
    assert torch.allclose(clipped, torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]))
    many = random_logits(50, 7) * 10
    assert float(clipped_logits(many, 0.5).norm(dim=1).max()) <= 0.5 + 1e-6
    assert torch.equal(clipped_logits(many, 0.5).argmax(1), many.argmax(1))


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())
def test_one_value_a_sample_with_finite_gradients_at_extreme_logits(loss):
    extremes = [[0.0, 0.0, 0.0], [1e4, -1e4, 0.0], [-1e4, 1e4, 0.0], [80.0, -80.0, 0.0], [1e-30, 0.0, -1e-30]]
    z = torch.tensor(extremes, requires_grad=True)
    for target in (hot(1, 3), SOFT, torch.zeros(1, 3)):
        values = loss(z, target.expand(5, 3))
        assert values.shape == (5,)
        assert bool(torch.isfinite(values).all())
        (gradient,) = torch.autograd.grad(values.sum(), z)
        assert bool(torch.isfinite(gradient).all())


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())
def test_gradients_are_those_of_finite_differences(loss):
    z = random_logits(3, 4).double().requires_grad_()
    t = random_targets(3, 4).double()
    assert torch.autograd.gradcheck(lambda x: loss(x, t), z)


PARTS = {
    "ce": (CrossEntropy(), cross_entropy),
    "symce": (
        SymmetricCrossEntropy(alpha=0.3, beta=0.7, floor=1e-3),
        lambda z, t: symmetric_cross_entropy(z, t, 0.3, 0.7, 1e-3),
    ),
    "gce": (GeneralisedCrossEntropy(q=0.4), lambda z, t: generalised_cross_entropy(z, t, 0.4)),
    "mae": (MeanAbsoluteError(), mean_absolute_error),
    "logitclip": (ClippedLogits(tau=0.2), lambda z, t: F.cross_entropy(0.2 * F.normalize(z), t, reduction="none")),
}


def first_losses(part, federation):
    """Each client's loss on its whole set at the initial weights, as reported and as (logits, targets, given)."""
    settings = {"model": "mlp", "model.hidden": [], "augment": "none", "batch": 1000, "rounds": 1}
    with Contract.of(Method("own", (Stage(parts=(part,)),)), settings).trial(federation) as trial:
        trial.run()
        model = trial.plan.build(0)
        for up in trial.record.ups:
            rows, given = federation.rows[up.client], torch.from_numpy(federation.given[up.client])
            pixels = torch.from_numpy(federation.images[rows]).float().permute(0, 3, 1, 2) / 255
            logits = model((pixels - federation.mean[0]) / federation.std[0]).detach()
            yield up.loss, logits, F.one_hot(given, 4).float(), given


@pytest.mark.parametrize(("part", "formula"), PARTS.values(), ids=PARTS.keys())
def test_parts_hand_their_options_on(part, formula):
    for found, logits, target, _ in first_losses(part, tiny_federation()):
        assert found == pytest.approx(formula(logits, target).mean().item(), rel=1e-4)


def test_adjusted_logits_add_the_log_of_the_clients_class_shares():
    part = AdjustedLogits(tau=0.5)
    for found, logits, target, given in first_losses(part, tiny_federation()):
        prior = torch.bincount(given, minlength=4) / len(given)
        assert found == pytest.approx(F.cross_entropy(logits + 0.5 * prior.log(), target).item(), rel=1e-4)


def test_adjusted_logits_are_finite_where_a_class_is_absent():
    whole = tiny_federation()
    one_class = replace(whole, given=tuple(np.full_like(given, 2) for given in whole.given))
    for found, logits, target, _ in first_losses(AdjustedLogits(), one_class):
        prior = torch.tensor([1e-8, 1e-8, 24 + 1e-8, 1e-8]) / (24 + 4e-8)
        assert found == pytest.approx(F.cross_entropy(logits + prior.log(), target).item(), rel=1e-3, abs=1e-6)
        assert math.isfinite(found)
