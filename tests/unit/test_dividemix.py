"""DivideMix: its mathematics by hand, its division of samples, and views that are drawn twice."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats

from fedsieve.core.net import Net
from fedsieve.core.part import Method, Part, Stage
from fedsieve.core.types import Labels, Role
from fedsieve.methods import dividemix as module
from fedsieve.methods.dividemix import DivideMix, guess, mixmatch_loss, sharpen
from fedsieve.models import build_model
from fedsieve.parts import selection
from fedsieve.parts.losses import divergence_from_uniform
from fedsieve.parts.mixup import mixing_weight, mixup
from fedsieve.parts.selection import clean_probability
from fedsieve.testing import Contract, fake_client, tiny_federation

PLAIN = {"model": "mlp", "model.hidden": [6], "augment": "none"}
STILL = PLAIN | {"batch": 1000, "lr": 1e-9, "momentum": 0.0, "rounds": 1, "dividemix.warmup": 0}
"""One step a net that moves nothing, so that losses can be computed from the first models."""


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


# Mathematics


def test_sharpen_by_hand():
    p = torch.tensor([[0.5, 0.3, 0.2], [1.0, 0.0, 0.0]])
    by_hand = torch.tensor([[0.25, 0.09, 0.04], [0.38, 0.0, 0.0]]) / 0.38
    assert torch.allclose(sharpen(p, 0.5), by_hand)
    assert torch.allclose(sharpen(p, 1.0), p)


def test_sharpen_at_a_tiny_temperature_is_the_arg_max():
    p = torch.full((1, 10), 0.09)
    p[0, 3] = 0.19
    assert torch.equal(sharpen(p, 1e-3), F.one_hot(torch.tensor([3]), 10).float())


def test_divergence_from_uniform_by_hand():
    p = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    by_hand = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    assert divergence_from_uniform(p).item() == pytest.approx(by_hand)
    assert divergence_from_uniform(torch.tensor([[1.0, 0.0], [0.0, 1.0]])).item() == pytest.approx(0.0)


def test_divergence_of_a_class_never_predicted_is_finite():
    logits = torch.tensor([[0.0, -500.0]], requires_grad=True)
    value = divergence_from_uniform(logits.softmax(1))
    value.backward()
    assert math.isfinite(value.item())
    assert bool(torch.isfinite(logits.grad).all())


def test_the_objective_by_hand():
    logits = torch.tensor([[math.log(3.0), 0.0], [0.0, 0.0]])  # predictions (3/4, 1/4) and (1/2, 1/2)
    target = torch.tensor([[0.0, 1.0], [0.9, 0.1]])
    supervised, squared = math.log(4.0), 0.4**2
    spread = 0.5 * math.log(0.5 / 0.625) + 0.5 * math.log(0.5 / 0.375)
    value = mixmatch_loss(logits, target, 1, 25.0, 2.0)
    assert value.item() == pytest.approx(supervised + 25.0 * squared + 2.0 * spread, rel=1e-5)


def test_the_objective_without_unlabelled_rows():
    logits, target = torch.randn(4, 3, generator=rng()), torch.eye(3)[[0, 1, 2, 0]]
    assert mixmatch_loss(logits, target, 4, 25.0, 0.0).item() == pytest.approx(
        F.cross_entropy(logits, target).item(), rel=1e-6
    )


def test_mixup_by_hand():
    x, target = torch.tensor([[0.0, 4.0], [8.0, 0.0]]), torch.eye(2)
    mixed, mixed_target = mixup(x, target, 0.75, torch.tensor([1, 0]))
    assert mixed.tolist() == [[2.0, 3.0], [6.0, 1.0]]
    assert mixed_target.tolist() == [[0.75, 0.25], [0.25, 0.75]]


def test_mixing_weights_follow_their_stream_and_the_beta_distribution():
    one, two = rng(3), rng(3)
    drawn = [mixing_weight(4.0, one) for _ in range(800)]
    assert drawn[:5] == [mixing_weight(4.0, two) for _ in range(5)]
    assert stats.kstest(drawn, stats.beta(4, 4).cdf).pvalue > 0.01
    assert np.var(drawn) == pytest.approx(1 / 36, rel=0.15)


@pytest.mark.parametrize(("t", "weight"), [(2, 0.0), (3, 2.0), (4, 4.0), (6, 8.0), (9, 8.0)])
@pytest.mark.parametrize("warmup", [2, None])
def test_the_weight_of_the_squared_error_rises_after_the_warm_up(warmup, t, weight):
    """A fifth of ten rounds is two."""
    assert DivideMix(warmup=warmup, lambda_u=8.0, ramp=4).weight_now(t, rounds=10) == pytest.approx(weight)


def test_a_ramp_of_no_rounds_is_a_constant():
    assert DivideMix(warmup=0, ramp=0).weight_now(0, rounds=3) == 25.0


# Guessing


def test_a_guess_is_the_mean_over_nets_and_views():
    nets = [Net(build_model("mlp", (1, 4, 4), 3, options={"hidden": [5]}), index) for index in range(2)]
    views = [torch.randn(6, 1, 4, 4, generator=rng(seed)) for seed in (1, 2)]
    by_hand = sum(net.module(x).softmax(1) for net in nets for x in views) / 4
    assert torch.allclose(guess(nets, views), by_hand, atol=1e-6)


def test_a_guess_leaves_no_trace():
    net = Net(build_model("cnn-lite", (1, 12, 12), 4))
    net.module.train()
    before = net.vector.clone()
    guessed = guess([net], [torch.randn(3, 1, 12, 12, generator=rng())] * 2)
    assert torch.equal(net.vector, before)
    assert net.module.training
    assert not guessed.requires_grad


# The division


@dataclass(frozen=True, kw_only=True)
class Witness(Part):
    """Stands after DivideMix and writes down each table beside what the peer makes of the samples."""

    every = "epoch"

    def relabel(self, c, net, labels):
        peer = c.nets[1 - net.index]
        moved = any(not torch.equal(n.vector, n.received) for n in c.nets)
        SEEN.append((c.t, c.epoch, net.index, labels, c.outputs(peer).logits, moved))
        return labels


SEEN: list = []


@pytest.fixture
def witnessed():
    SEEN.clear()

    def run(federation=None, **settings):
        options = DivideMix(**settings)
        method = Method("own", (Stage(parts=(options, Witness())),), nets=2, turns="alternate")
        with Contract.of(method, PLAIN | {"rounds": 2, "epochs": 2}).trial(federation) as trial:
            trial.run()
            return trial.record.ups

    return run


def test_the_peer_divides_before_either_net_trains(witnessed):
    witnessed(warmup=1)
    divided = [seen for seen in SEEN if seen[0] == 1]
    assert len(divided) == 4 * 2 * 2
    for _, epoch, _, labels, peer_logits, moved in divided:
        clean = clean_probability(peer_logits, labels.target)
        assert torch.equal(labels.score, clean)
        assert torch.equal(labels.role == Role.LABELLED, clean > 0.5)
        assert moved == (epoch > 0)
    tables = [labels.score for _, _, _, labels, _, _ in divided]
    assert not torch.equal(tables[0], tables[1])


def test_nothing_is_divided_during_the_warm_up(witnessed):
    witnessed(warmup=1)
    assert not any(labels.is_judged() for t, _, _, labels, _, _ in SEEN if t == 0)


def test_rows_without_a_label_stay_unlabelled(witnessed):
    federation = tiny_federation()
    given = tuple(np.where(np.arange(len(g)) < 6, -1, g) for g in federation.given)
    witnessed(replace(federation, given=given), warmup=0)
    for _, _, _, labels, _, _ in SEEN:
        assert bool((labels.role[:6] == Role.UNLABELLED).all())
        assert bool(labels.score[:6].isnan().all())
        assert not bool(labels.score[6:].isnan().any())


def test_rows_that_another_part_dropped_stay_dropped(witnessed, monkeypatch):
    dropped = torch.arange(24) < 5
    original = Labels.of
    monkeypatch.setattr(Labels, "of", staticmethod(lambda given, n: original(given, n).only(~dropped)))
    witnessed(warmup=0)
    for _, _, _, labels, _, _ in SEEN:
        assert bool((labels.role[dropped] == Role.DROPPED).all())
        assert bool((labels.weight[dropped] == 0).all())


def test_where_no_row_is_in_play_nothing_is_divided():
    part = DivideMix(warmup=0)
    c = fake_client(part, rounds=1)
    table = c.labels.only(torch.zeros(c.n, dtype=torch.bool))
    assert part.relabel(c, c.nets[0], table) is table


# The loss


def first_losses(trial, federation, client, lambda_u):
    """The mean over both nets of the loss at their first models, without MixUp, by an independent path."""
    pixels = torch.from_numpy(federation.images[federation.rows[client]]).float().permute(0, 3, 1, 2) / 255
    x = (pixels - federation.mean[0]) / federation.std[0]
    given = torch.from_numpy(federation.given[client])
    with torch.no_grad():
        logits = [trial.plan.build(index)(x) for index in range(2)]
    p = [z.softmax(1) for z in logits]
    both = (p[0] + p[1]) ** 2
    both = both / both.sum(1, keepdim=True)
    total = 0.0
    for mine, peer in ((0, 1), (1, 0)):
        w = clean_probability(logits[peer], F.one_hot(given, 4).float())
        believed = w > 0.5
        refined = (w[:, None] * F.one_hot(given, 4) + (1 - w)[:, None] * p[mine]) ** 2
        refined = refined / refined.sum(1, keepdim=True)
        total += F.cross_entropy(logits[mine][believed], refined[believed]).item()
        total += lambda_u * F.mse_loss(p[mine][~believed], both[~believed]).item()
        mean = p[mine].mean(0)
        total += F.kl_div(mean.log(), torch.full((4,), 0.25), reduction="sum").item()
    return total / 2


def test_the_loss_of_a_first_step(monkeypatch):
    """Without augmentation both views are one image; λ = 1 mixes nothing; every unlabelled row is drawn."""
    monkeypatch.setattr(module, "mixing_weight", lambda alpha, generator: 1.0)
    draw = module.unlabelled_rows
    monkeypatch.setattr(module, "unlabelled_rows", lambda labels, count, generator: draw(labels, 99, generator))
    federation = tiny_federation()
    with Contract.of("dividemix", STILL | {"dividemix.ramp": 0, "dividemix.lambda_u": 9.0}).trial(federation) as trial:
        trial.run()
        for up in trial.record.ups:
            assert up.loss == pytest.approx(first_losses(trial, federation, up.client, 9.0), rel=1e-4)


def test_as_many_unlabelled_rows_as_labelled_ones_without_repetition():
    labels = Labels.of(torch.tensor([0, -1, -1, 1, -1, -1]), 2)
    few, all_of_them = module.unlabelled_rows(labels, 3, rng()), module.unlabelled_rows(labels, 9, rng())
    assert len(set(few.tolist())) == 3
    assert sorted(all_of_them.tolist()) == [1, 2, 4, 5]
    assert set(few.tolist()) < {1, 2, 4, 5}
    assert not len(module.unlabelled_rows(Labels.of(torch.tensor([0, 1]), 2), 3, rng()))


def test_the_larger_share_stays_with_the_sample_itself(monkeypatch):
    shares = []

    def spied(x, target, weight, partner):
        shares.append(weight)
        assert len(x) == len(target) == len(partner)
        assert torch.allclose(target.sum(1), torch.ones(len(x)), atol=1e-5)
        return mixup(x, target, weight, partner)

    monkeypatch.setattr(module, "mixing_weight", lambda alpha, generator: 0.2)
    monkeypatch.setattr(module, "mixup", spied)
    with Contract.of("dividemix", STILL).trial() as trial:
        trial.run()
    assert shares == [0.8] * 8


def final_models(name, **settings):
    with Contract.of(name, PLAIN | {"rounds": 1} | settings).trial() as trial:
        return trial.run().models[0]


def test_the_warm_up_is_fedavg_on_each_net():
    nets = final_models("dividemix", **{"dividemix.warmup": 1})
    assert torch.equal(nets[0], final_models("fedavg")[0])
    assert not torch.equal(nets[0], nets[1])


def test_without_a_believed_label_it_is_cross_entropy(monkeypatch):
    plain = final_models("dividemix", **{"dividemix.warmup": 1})
    monkeypatch.setattr(selection, "clean_probability", lambda logits, target, **_: torch.zeros(len(target)))
    fallen_back = final_models("dividemix", **{"dividemix.warmup": 0})
    assert all(torch.equal(a, b) for a, b in zip(plain, fallen_back, strict=True))


def test_without_a_doubtful_label_there_is_no_squared_error():
    """Six rows are too few to divide: all are believed, and λ_u means nothing."""
    models = []
    for lambda_u in (0.0, 1000.0):
        settings = PLAIN | {"rounds": 1, "dividemix.warmup": 0, "dividemix.ramp": 0, "dividemix.lambda_u": lambda_u}
        with Contract.of("dividemix", settings).trial(tiny_federation(rows=6)) as trial:
            models.append(trial.run().models[0])
    assert torch.equal(models[0][0], models[1][0])
    assert bool(torch.isfinite(models[0][0]).all())


def test_the_squared_error_reaches_both_nets():
    off, on = (
        final_models("dividemix", **{"dividemix.warmup": 0, "dividemix.ramp": ramp, "dividemix.prior": 0.0})
        for ramp in (9, 0)
    )
    assert all(not torch.equal(a, b) for a, b in zip(off, on, strict=True))


# Views that are drawn twice


@dataclass(frozen=True, kw_only=True)
class SecondLook(Part):
    """Draws further views, and rows of its own choice, and adds nothing."""

    def term(self, c, net, batch):
        others = c.batch(torch.arange(5), net.index)
        LOOKS.append([batch.images(view).clone() for view in ("train", "train#2", "clean")])
        LOOKS[-1].append(others.images("train#3").clone())
        return net.grad.new_zeros(())


LOOKS: list = []


def test_a_second_draw_is_another_one_and_shifts_nothing():
    LOOKS.clear()
    settings = {"model": "mlp", "rounds": 1, "augment": "flip"}
    with Contract.of(Method("own", (Stage(parts=(SecondLook(),)),)), settings).trial() as looked:
        model = looked.run().models[0][0]
    with Contract.of("fedavg", settings).trial() as plain:
        assert torch.equal(model, plain.run().models[0][0])
    assert any(not torch.equal(first, second) for first, second, _, _ in LOOKS)
    for first, second, clean, others in LOOKS:
        assert others.shape[0] == 5
        for view in (first, second):
            kept = (view == clean).flatten(1).all(1)
            mirrored = (view == clean.flip(3)).flatten(1).all(1)
            assert bool((kept | mirrored).all()), "the second draw is of the same augmentation"


def test_views_are_drawn_anew_and_labelled_rows_are_mixed_with_unlabelled_ones(monkeypatch):
    """Of one batch: two draws of each labelled row, two of each unlabelled one, and partners from all of them."""
    mixed, objectives = [], []

    def spied_mixup(x, target, weight, partner):
        mixed.append((x, target, partner))
        return mixup(x, target, weight, partner)

    def spied_objective(logits, target, labelled, *rest):
        objectives.append(labelled)
        return mixmatch_loss(logits, target, labelled, *rest)

    monkeypatch.setattr(module, "mixup", spied_mixup)
    monkeypatch.setattr(module, "mixmatch_loss", spied_objective)
    settings = PLAIN | {"augment": "weak", "rounds": 2, "dividemix.warmup": 1, "batch": 8}
    with Contract.of("dividemix", settings).trial() as trial:
        trial.run()
    across = 0
    for (x, target, partner), labelled in zip(mixed, objectives, strict=True):
        half, rest = labelled // 2, (len(x) - labelled) // 2
        assert sorted(partner.tolist()) == list(range(len(x))), "every row is a partner once"
        first, second = x[:half], x[half:labelled]
        assert not torch.equal(first, second)
        assert torch.equal(target[:half], target[half:labelled])
        third, fourth = x[labelled : labelled + rest], x[labelled + rest :]
        assert not torch.equal(third, fourth)
        assert torch.equal(target[labelled : labelled + rest], target[labelled + rest :])
        across += int((partner[:labelled] >= labelled).sum())
    assert across > 0


def test_the_division_follows_the_options_of_the_mixture(monkeypatch):
    asked = []
    monkeypatch.setattr(
        selection,
        "clean_probability",
        lambda logits, target, **options: asked.append(options) or torch.ones(len(target)),
    )
    options = {"dividemix.tol": 0.3, "dividemix.max_iter": 7, "dividemix.guard": True}
    with Contract.of("dividemix", STILL | options).trial() as trial:
        trial.run()
    assert asked
    assert all(each == {"guard": True, "tol": 0.3, "max_iter": 7} for each in asked)
    assert (DivideMix().tol, DivideMix().max_iter) == (0.01, 100)
