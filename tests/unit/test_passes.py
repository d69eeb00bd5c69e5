"""Passes besides local training: the steps of one that trains, and the mean of one that looks, by hand."""

from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F

from fedsieve.core import Part, mean_loss, train_on
from fedsieve.parts.losses import CrossEntropy
from fedsieve.testing import fake_client, tiny_federation

PLAIN = {"model": "mlp", "model.hidden": [6], "augment": "none", "batch": 5, "lr": 0.3, "momentum": 0.9}


@dataclass(frozen=True, kw_only=True)
class Idle(Part):
    """Does nothing."""


def squares(net):
    """A loss whose gradient is the row's number times the weights."""
    return lambda rows: rows.float() * 0.5 * net.module.head.bias.square().sum()


def order(seed=3):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("fresh", [False, True])
def test_each_batch_is_one_step_of_the_experiments_optimiser(fresh):
    c = fake_client(Idle(), **PLAIN)
    (net,), rows = c.nets, torch.arange(2, 14)
    bias = net.module.head.bias.detach().clone()
    speed = torch.zeros_like(bias)
    for some in torch.split(rows[torch.randperm(12, generator=order())], 5):
        speed = (0.0 if fresh else 0.9) * speed + some.float().mean() * bias
        bias = bias - 0.3 * speed
    others = net.vector[: net.layout.trainable - len(bias)].clone()
    train_on(c, net, rows, squares(net), order(), fresh=fresh)
    assert torch.allclose(net.module.head.bias, bias, atol=1e-6)
    assert torch.equal(net.vector[: len(others)], others), "what the loss does not reach stays"


def test_another_fit_and_some_sections_alone():
    c = fake_client(Idle(), **PLAIN)
    (net,) = c.nets
    before = net.vector.clone()

    def loss(rows):
        return sum(p.square().sum() for p in net.module.parameters()) * rows.float()

    train_on(c, net, torch.arange(1, 9), loss, order(), fit=replace(c.fit, batch=100, momentum=0.0), sections=("head",))
    for entry in net.layout.entries:
        moved = not torch.equal(entry.view(before), entry.view(net.vector))
        assert moved == entry.name.startswith("head.")
    head = next(entry for entry in net.layout.entries if entry.name == "head.weight")
    assert torch.allclose(head.view(net.vector), head.view(before) * (1 - 0.3 * 2 * 4.5), atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_a_pass_leaves_the_mode_as_it_was(training):
    c = fake_client(Idle(), **PLAIN)
    (net,) = c.nets
    net.module.train(training)
    seen = []
    train_on(c, net, torch.arange(3), lambda rows: seen.append(net.module.training) or squares(net)(rows), order())
    assert seen == [True]
    mean_loss(c, net)
    assert net.module.training == training


def test_the_mean_loss_is_over_the_rows_to_train_on_by_running_statistics():
    """More rows than are evaluated at once, the last of them left out, and a loss that is not the mean of a batch."""
    federation = tiny_federation(rows=70)
    c = fake_client(CrossEntropy(), federation=federation, model="cnn-lite", augment="flip")
    (net,) = c.nets
    net.module.train()
    net.labels = c.labels.only(torch.arange(70) < 64)
    losses = F.cross_entropy(c.logits(net), c.labels.given, reduction="none")
    assert mean_loss(c, net) == pytest.approx(float(losses[:64].mean()), rel=1e-5)
    assert mean_loss(c, net) != pytest.approx(float(losses.mean()), rel=1e-3)
