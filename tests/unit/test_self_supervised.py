"""Encoders learnt without labels: the losses by hand, the target that follows, and what clients start from."""

import math

import pytest
import torch
import torch.nn.functional as F

from fedsieve.base.errors import CompositionError, ConfigError
from fedsieve.methods.byol import Bootstrap
from fedsieve.methods.simclr import Contrast, nt_xent
from fedsieve.parts.previous import OwnPredictor, OwnShare, divergence, encoder_kernels
from fedsieve.parts.two_views import Perceptron, regression
from fedsieve.testing import Contract, fake_client, tiny_federation

MLP = {"model": "mlp", "model.hidden": [6]}


def drawn(rows, width, seed, **how):
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed), **how)


# --- losses


def test_the_contrast_by_hand():
    """Two images in the plane: each view has one partner and two others, and is not compared with itself."""
    one, two = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([[3.0, 0.0], [0.0, -1.0]])
    e = {c: math.exp(c / 0.5) for c in (-1.0, 0.0, 1.0)}
    first = -math.log(e[1.0] / (e[1.0] + 2 * e[0.0]))
    second = -math.log(e[-1.0] / (e[-1.0] + 2 * e[0.0]))
    assert nt_xent(one, two, 0.5).tolist() == pytest.approx([first, second], rel=1e-5)


def test_the_contrast_is_the_sum_over_all_pairs_written_out():
    one, two = drawn(5, 3, 0), drawn(5, 3, 1)
    z = [*one, *two]
    values = []
    for i, a in enumerate(z):
        likeness = [math.exp(F.cosine_similarity(a, b, dim=0).item() / 0.2) if k != i else 0.0 for k, b in enumerate(z)]
        values.append(-math.log(likeness[(i + 5) % 10] / sum(likeness)))
    expected = [(values[i] + values[i + 5]) / 2 for i in range(5)]
    assert nt_xent(one, two, 0.2).tolist() == pytest.approx(expected, rel=1e-4)


def test_the_regression_by_hand():
    predicted, target = torch.tensor([[1.0, 0.0], [3.0, 3.0]]), torch.tensor([[5.0, 0.0], [0.0, 1.0]])
    assert regression(predicted, target).tolist() == pytest.approx([0.0, 2 - math.sqrt(2)], abs=1e-6)
    assert torch.allclose(regression(predicted, target), (F.normalize(predicted) - F.normalize(target)).square().sum(1))


def test_no_gradient_reaches_the_target_and_scale_does_not_matter():
    predicted, target = drawn(4, 3, 2).requires_grad_(), drawn(4, 3, 3).requires_grad_()
    regression(predicted, target).sum().backward()
    assert target.grad is None
    slope = predicted.grad.clone()
    longer = (10 * predicted.detach()).requires_grad_()
    regression(longer, target).sum().backward()
    assert torch.allclose(longer.grad, slope / 10, atol=1e-6)


@pytest.mark.parametrize("loss", [lambda a, b: nt_xent(a, b, 0.5), regression])
def test_gradients_are_those_of_finite_differences(loss):
    one = drawn(4, 3, 4, dtype=torch.float64).requires_grad_()
    other = drawn(4, 3, 5, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: loss(x, other), (one,))


def batch_of(c):
    return c.batch(torch.arange(8), 0)


def test_two_views_are_two_draws_and_both_are_compared():
    part = Contrast(views="weak", temperature=0.7)
    c = fake_client(part)
    (net,), batch = c.nets, batch_of(c)
    one, two = (net.head("projection", batch, f"weak#{i}") for i in (1, 2))
    assert not torch.equal(batch.images("weak#1"), batch.images("weak#2"))
    assert torch.equal(part.loss(c, net, batch), nt_xent(one, two, 0.7))


@pytest.mark.parametrize("symmetric", [True, False])
def test_each_view_is_predicted_from_the_other(symmetric):
    part = Bootstrap(views="weak", symmetric=symmetric, decay=0.5)
    c = fake_client(part)
    part.start(c)
    (net,), batch = c.nets, batch_of(c)
    target = part.target(c, net)
    loss = part.loss(c, net, batch)
    ways = [("weak#1", "weak#2"), ("weak#2", "weak#1")][: 1 + symmetric]
    expected = sum(
        regression(net.head("predictor", batch, seen), target.head("projection", batch, other)) for seen, other in ways
    )
    assert torch.allclose(loss, expected)
    before = target.vector.clone()
    loss.mean().backward()
    assert torch.equal(target.vector, before)
    assert not bool(target.grad.any()), "the target learns nothing"
    assert bool(net.grad.any())


def test_tables_have_no_views():
    with pytest.raises(CompositionError, match="needs views of images") as caught:
        fake_client(Contrast(), given=[0, 1], says=[[1.0, 0.0], [0.0, 1.0]])
    assert caught.value.code == "FS119"


def test_an_unknown_view_is_refused():
    with pytest.raises(ConfigError, match="unknown augmentation 'weal'"):
        Contract.of("byol", {"byol.views": "weal"}).plan(tiny_federation())


# --- the target


def test_the_target_follows_by_a_moving_average():
    """ξ ← 0.99 ξ + 0.01 θ; after n steps towards the same θ: θ + τⁿ (ξ₀ − θ)."""
    part = Bootstrap(decay=0.99)
    c = fake_client(part)
    part.start(c)
    (net,), target = c.nets, part.target(c, c.nets[0])
    theta, begin = torch.tensor([1.0, 2.0, -1.0]), torch.tensor([0.0, 4.0, 1.0])
    net.weights[:3], target.weights[:3] = theta, begin
    statistics = target.vector[len(target.grad) :].clone()
    part.stepped(c, net, batch_of(c))
    assert target.weights[:3].tolist() == pytest.approx([0.01, 3.98, 0.98])
    for _ in range(9):
        part.stepped(c, net, batch_of(c))
    assert torch.allclose(target.weights[:3], theta + 0.99**10 * (begin - theta), atol=1e-5)
    assert torch.equal(target.vector[len(target.grad) :], statistics), "running statistics are its own"


def test_without_decay_the_target_is_the_net():
    part = Bootstrap(decay=0.0)
    c = fake_client(part)
    part.start(c)
    (net,) = c.nets
    net.weights.add_(1.0)
    part.stepped(c, net, batch_of(c))
    assert torch.equal(part.target(c, net).weights, net.weights)


@pytest.mark.parametrize("target_from", ["own", "received"])
def test_where_the_target_begins(target_from):
    part = Bootstrap(target_from=target_from)
    c = fake_client(part)
    part.start(c)
    (net,) = c.nets
    assert torch.equal(part.target(c, net).vector, net.received), "a first visit begins with what was received"
    part.target(c, net).vector.fill_(0.5)
    part.finish(c)
    part.start(c)
    assert torch.equal(part.target(c, net).vector, net.received) == (target_from == "received")
    assert ("target" in c.keep(part, net)) == (target_from == "own")


def test_the_target_never_travels():
    with Contract.of("fedema", {"rounds": 2}).trial() as trial:
        trial.run()
        sizes = {len(up.models[0]) for up in trial.record.ups}
        assert sizes == {trial.plan.layout.size}
        assert all(not note for up in trial.record.ups for note in up.notes.values())


# --- what clients start from


def own_start(part, own, **settings):
    """The net's weights as the part leaves them at the start, if the client's last model was this."""
    c = fake_client(part, **settings)
    (net,) = c.nets
    c.keep(part, net).update(own(net))
    part.start(c)
    return c, net


def test_the_divergence_is_the_mean_over_convolutions():
    plan = Contract.of("fedema", {"model": "resnet10", "model.width": 2}).plan(tiny_federation())
    kernels = encoder_kernels(plan)
    names = [e.name for e in plan.layout.entries if any(e.start == part.start for part in kernels)]
    assert len(names) == sum(len(e.shape) == 4 for e in plan.layout.entries)
    one = torch.zeros(plan.layout.size)
    other = one.clone()
    other[kernels[0].start], other[kernels[1].start], other[kernels[1].start + 1] = 6.0, 3.0, -4.0
    other[-1] = 100.0
    assert divergence(one, other, kernels) == pytest.approx((6.0 + 5.0) / len(kernels))


def test_a_net_without_convolutions_has_its_matrices_measured():
    plan = Contract.of("fedema", MLP).plan(tiny_federation())
    (matrix,) = encoder_kernels(plan)
    assert matrix.stop - matrix.start == 6 * 144


def test_fedemas_share_by_hand():
    """d = √5 first: λ = 0.7 / √5 and μ = 0.7; twice as far would be 1.4, cut to 1."""
    part = OwnShare()
    c = fake_client(part, **MLP)
    (net,) = c.nets
    net.received[:2] = torch.tensor([1.0, 1.0])
    for own, mixed, distance in (([0.0, 3.0], [0.3, 2.4], math.sqrt(5)), ([-1.0, 5.0], [-1.0, 5.0], 2 * math.sqrt(5))):
        net.vector.copy_(net.received)
        last = net.received.clone()
        last[:2] = torch.tensor(own)
        assert divergence(net.received, last, encoder_kernels(c.plan)) == pytest.approx(distance)
        c.keep(part, net).update({"online": last, "drift": torch.tensor(0.0), "stamp": torch.tensor(0)})
        part.start(c)
        assert net.vector[:2].tolist() == pytest.approx(mixed, abs=1e-6)
    assert float(c.keep(part, net)["scale"]) == pytest.approx(0.3130495168499705)


def test_a_client_that_is_not_apart_starts_from_the_same():
    part = OwnShare()
    c, net = own_start(part, lambda net: {"online": net.received.clone(), "stamp": torch.tensor(0)}, **MLP)
    assert torch.equal(net.vector, net.received)
    assert "scale" not in c.keep(part, net), "nothing was measured yet"


@pytest.mark.parametrize(("stamp", "mixes"), [(3, True), (2, False)])
def test_selective_takes_those_of_the_round_before(stamp, mixes):
    part = OwnShare(selective=True)

    def own(net):
        return {"online": net.received + 1.0, "drift": torch.tensor(0.0), "stamp": torch.tensor(stamp)}

    _, net = own_start(part, own, t=4, **MLP)
    assert torch.equal(net.vector, net.received) != mixes


def test_statistics_are_those_received():
    part = OwnShare(share=1.0)

    def own(net):
        return {"online": net.received + 1.0, "drift": torch.tensor(0.0), "stamp": torch.tensor(0)}

    _, net = own_start(part, own, model="resnet10", **{"model.width": 2})
    trainable = len(net.grad)
    assert torch.allclose(net.weights, net.received[:trainable] + 1.0)
    assert torch.equal(net.vector[trainable:], net.received[trainable:])


def test_the_drift_of_the_last_training_may_count_instead():
    part = OwnShare(measure="drift", share=0.5)

    def own(net):
        last = {"online": net.received + 1.0, "drift": torch.tensor(2.0), "stamp": torch.tensor(0)}
        return last | {"scale": torch.tensor(0.1, dtype=torch.float64)}

    _, net = own_start(part, own, **MLP)
    assert torch.allclose(net.weights, net.received[: len(net.grad)] + 0.2), "μ = 0.1 · 2"


@pytest.mark.parametrize(("threshold", "keeps"), [(0.1, True), (1e6, False)])
def test_fedu_keeps_the_predictor_of_a_client_that_is_far(threshold, keeps):
    part = OwnPredictor(threshold=threshold)
    c, net = own_start(part, lambda net: {"online": net.received + 1.0, "drift": torch.tensor(0.0)}, **MLP)
    changed = (net.vector != net.received).nonzero().flatten()
    (predictor,) = c.plan.layout.slices(("predictor",))
    expected = list(range(predictor.start, predictor.stop)) if keeps else []
    assert changed.tolist() == expected


def test_the_last_model_and_its_drift_are_kept():
    part = OwnShare()
    c = fake_client(part, t=2, **MLP)
    (net,) = c.nets
    net.begun = net.vector.clone()
    net.vector[:2] += torch.tensor([3.0, 4.0])
    part.finish(c)
    kept = c.keep(part, net)
    assert torch.equal(kept["online"], net.vector)
    assert float(kept["drift"]) == pytest.approx(5.0)
    assert int(kept["stamp"]) == 2


def models_of(method, **settings):
    with Contract.of(method, {"rounds": 3, **settings}).trial() as trial:
        return trial.run().models[0][0]


def test_without_a_share_fedema_is_byol_and_fedu_too():
    plain = models_of("byol")
    assert torch.equal(models_of("fedema", **{"fedema.share": 0.0}), plain)
    assert torch.equal(models_of("fedu", **{"fedu.threshold": 1e9}), plain)
    assert not torch.equal(models_of("fedema"), plain)
    assert not torch.equal(models_of("fedu", **{"fedu.threshold": 0.0}), plain)


def test_a_first_round_is_the_same_for_all_three():
    first = models_of("byol", rounds=1)
    assert torch.equal(models_of("fedema", rounds=1), first)
    assert torch.equal(models_of("fedu", rounds=1), first)


# --- heads, place, composition


def test_heads_have_the_papers_sizes_on_a_resnet18():
    plan = Contract.of("byol", {"model": "resnet18"}).plan(tiny_federation())
    with torch.device("meta"):
        model = plan.model()
    both = [*model.get_submodule("projection").children(), *model.get_submodule("predictor").children()]
    sizes = [(layer.in_features, layer.out_features) for layer in both if isinstance(layer, torch.nn.Linear)]
    assert sizes == [(512, 4096), (4096, 2048), (2048, 4096), (4096, 2048)]


def test_a_perceptron_is_a_side_head_with_normalisation():
    head = Perceptron(hidden=7, width=3).head("projection")
    assert (head.hidden, head.width, head.layers, head.norm, head.in_line) == (7, 3, 2, "batch", False)


@pytest.mark.parametrize("method", ["simclr", "byol"])
def test_the_server_may_learn_alone(method):
    settings = {"rounds": 2, f"{method}.at": "server", f"{method}.server.epochs": 2}
    with Contract.of(method, settings).trial() as trial:
        state = trial.run()
        assert not trial.record.ups
        assert state.server_epochs == {0: 4}
        assert not torch.equal(state.models[0][0], trial.plan.initial[0])


@pytest.mark.parametrize("method", ["simclr+fedprox", "byol+scaffold", "fedema+fedprox"])
def test_they_compose_with_what_reads_no_labels(method):
    assert bool(torch.isfinite(models_of(method, rounds=2)).all())


@pytest.mark.parametrize("method", ["simclr+symce", "simclr+byol"])
def test_two_losses_are_refused(method):
    with pytest.raises(CompositionError) as caught:
        Contract.of(method, {}).plan(tiny_federation())
    assert caught.value.code in ("FS103", "FS102")
