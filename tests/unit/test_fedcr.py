"""FedCR: its contrast by published vectors, by hand and by finite differences; who learns what, and what travels."""

import math

import pytest
import torch
import torch.nn.functional as F

from fedsieve.base.errors import CompositionError, ConfigError
from fedsieve.methods.fedcr_exchange import OnlineLabels, PretrainedClassifier
from fedsieve.methods.fedcr_pairs import alike, density, log_apart, pair_contrast, spread
from fedsieve.methods.fedcr_regulariser import ContrastiveLoss, ContrastiveTerm
from fedsieve.parts.losses import generalised_cross_entropy
from fedsieve.parts.two_views import regression, still
from fedsieve.testing import Contract, fake_client, fake_reports, fake_server, tiny_federation

Q = torch.tensor([[1.0, 0.2, 0.0], [0.9, 0.3, 0.1], [0.0, 1.0, 0.5], [-0.2, 0.1, 1.0]], dtype=torch.float64)
Z = torch.tensor([[0.8, 0.1, 0.1], [1.0, 0.0, -0.1], [0.1, 0.9, 0.4], [0.0, -0.3, 1.0]], dtype=torch.float64)
LOGITS = [[6.0, 0.0, 0.0], [5.0, 0.0, 1.0], [0.0, 4.0, 0.0], [0.0, 0.5, 0.6]]
P = torch.tensor(LOGITS, dtype=torch.float64).softmax(1)
HARD, SOFT = alike(P, 0.8, soft=False), alike(P, 0.8, soft=True)
TINY = {"rounds": 2, "fedcr.pretrain": 2, "fedcr.server.epochs": 1}


def value(mask=HARD, singular="clamp", raw=False, q=Q, z=Z, eps=1e-4, own_by="cosine"):
    return pair_contrast(q, z, mask, eps, singular, raw, own_by).mean().item()


# --- the formula


def test_the_vectors_of_the_specification():
    assert HARD.tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    assert value() == pytest.approx(-1.6728679953342624, abs=1e-9)
    assert value(SOFT) == pytest.approx(-1.662229267258278, abs=1e-9)
    assert value(own_by="log") == pytest.approx(-3.7261662025930997, abs=1e-9)
    assert value(raw=True) == pytest.approx(-7.663732996251573, abs=1e-9)
    assert 2 + value(SOFT, "components") == pytest.approx(0.3293256095365198, abs=1e-9), "CTRR's form"


def test_the_gradient_of_the_specification_and_none_of_the_target():
    q, z = Q.clone().requires_grad_(), Z.clone().requires_grad_()
    pair_contrast(q, z, HARD, 1e-4, "clamp", False).mean().backward()
    expected = [
        [-0.19489661995386598, 0.974483101989776, 0.48711727806960425],
        [-0.41898171176946164, 1.2941851359471457, -0.11172000058401466],
        [-0.02258769760121737, -0.004517539453630093, 0.009035079018282488],
        [-0.04317621238314473, 0.0916938118766808, -0.017804623664297026],
    ]
    assert torch.allclose(q.grad, torch.tensor(expected, dtype=torch.float64), atol=1e-5)
    assert z.grad is None


@pytest.mark.parametrize("singular", ["clamp", "taylor"])
@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("own_by", ["cosine", "log"])
def test_gradients_are_those_of_finite_differences(singular, raw, own_by):
    q = Q.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: pair_contrast(x, Z, SOFT, 1e-4, singular, raw, own_by), (q,))


def test_a_row_alone_counts_by_its_own_views_either_way():
    """M = I: −cos of each row, or log(1 − cos)."""
    cosines = F.cosine_similarity(Q, Z)
    alone = torch.eye(4, dtype=torch.float64)
    assert value(alone) == pytest.approx(-cosines.mean().item(), abs=1e-12)
    assert value(alone, own_by="log") == pytest.approx((1 - cosines).log().mean().item(), abs=1e-12)


def test_how_a_row_s_own_views_count_is_an_option():
    part = ContrastiveLoss(views="weak", own_by="log", eta=2.0)
    c, net, batch = started(part)
    own = F.cosine_similarity(
        net.head("predictor", batch, "weak#1"), part.target(c, net).head("projector", batch, "weak#2")
    )
    assert torch.allclose(part.loss(c, net, batch), (1 - own.clamp(max=1 - 1e-4)).log(), atol=1e-5)


@pytest.mark.parametrize("s", [-0.5, 0.0, 0.6, 0.95])
def test_the_length_of_the_gradient(s):
    """|d log(1 − s)/dq|² = (1 + s) / ((1 − s) |q|²); the paper's Eq. 9 lacks one factor."""
    q = torch.tensor([2.0, 0.0], dtype=torch.float64, requires_grad=True)
    z = torch.tensor([s, math.sqrt(1 - s * s)], dtype=torch.float64)
    torch.log1p(-F.cosine_similarity(q, z, dim=0)).backward()
    assert float(q.grad.square().sum()) == pytest.approx((1 + s) / (1 - s) / 4)


def test_without_alike_pairs_it_is_byol_in_one_direction():
    alone = alike(P, 1.5, soft=False)
    assert torch.equal(alone, torch.eye(4, dtype=torch.float64))
    assert torch.allclose(2 + 2 * pair_contrast(Q, Z, alone, 1e-4, "clamp", False), regression(Q, Z))


def test_scale_and_order_do_not_matter():
    q = Q.clone().requires_grad_()
    pair_contrast(q, Z, HARD, 1e-4, "clamp", False).sum().backward()
    longer = (5 * Q).requires_grad_()
    pair_contrast(longer, Z, HARD, 1e-4, "clamp", False).sum().backward()
    assert torch.allclose(longer.grad, q.grad / 5)
    turn = [2, 0, 3, 1]
    assert value(alike(P[turn], 0.8, soft=False), q=Q[turn], z=Z[turn]) == pytest.approx(value())


@pytest.mark.parametrize("singular", ["clamp", "taylor", "components"])
def test_equal_vectors_give_finite_numbers(singular):
    same = torch.ones(3, 4, dtype=torch.float64).requires_grad_()
    loss = pair_contrast(same, torch.ones(3, 4, dtype=torch.float64), torch.ones(3, 3), 1e-4, singular, False).sum()
    loss.backward()
    assert math.isfinite(loss.item())
    assert bool(torch.isfinite(same.grad).all())


def test_beyond_the_bound_it_is_flat_or_a_line():
    s = torch.tensor([0.5, 0.9999, 1.0], dtype=torch.float64)
    assert log_apart(s, 1e-3, "clamp").tolist() == pytest.approx([math.log(0.5), math.log(1e-3), math.log(1e-3)])
    line = [math.log(0.5), math.log(1e-3) - 0.9, math.log(1e-3) - 1.0]
    assert log_apart(s, 1e-3, "taylor").tolist() == pytest.approx(line)


def test_alike_pairs_have_one_class():
    p = torch.randn(40, 5, generator=torch.Generator().manual_seed(0)).mul(6).softmax(1)
    mask = alike(p, 0.8, soft=False)
    assert torch.equal(mask, mask.T)
    first, second = (mask - torch.eye(40)).nonzero(as_tuple=True)
    assert len(first)
    assert torch.equal(p.argmax(1)[first], p.argmax(1)[second])


def test_density_and_spread():
    assert density(HARD) == pytest.approx(2 / 12)
    assert density(torch.ones(1, 1)) == 0.0
    assert spread(torch.ones(5, 3)) == pytest.approx(0.0, abs=1e-6)
    assert spread(torch.tensor([[1.0, 0.0], [-3.0, 0.0], [0.0, 2.0], [0.0, -1.0]])) == pytest.approx(1.0)


# --- the two halves


def started(part, **settings):
    c = fake_client(part, **settings)
    part.start(c)
    return c, c.nets[0], c.batch(torch.arange(8), 0)


@pytest.mark.parametrize("symmetric", [False, True])
def test_the_loss_of_a_client_is_the_contrast_alone(symmetric):
    part = ContrastiveLoss(views="weak", symmetric=symmetric, weight=50.0, eta=0.3)
    c, net, batch = started(part)
    loss = part.loss(c, net, batch)
    target = part.target(c, net)
    mask = alike(net.logits(batch, "weak").softmax(1), 0.3, soft=False)
    expected = sum(
        pair_contrast(
            net.head("predictor", batch, seen), target.head("projector", batch, other), mask, 1e-4, "clamp", False
        )
        for seen, other in (("weak#1", "weak#2"), ("weak#2", "weak#1"))[: 1 + symmetric]
    )
    assert torch.allclose(loss, expected, atol=1e-6)
    loss.mean().backward()
    assert not bool(target.grad.any())


def test_the_server_adds_it_with_its_weight():
    c, net, batch = started(ContrastiveTerm(weight=7.0, views="weak"))
    part = ContrastiveTerm(weight=7.0, views="weak")
    assert part.term(c, net, batch).item() == pytest.approx(7 * part.contrast(c, net, batch).mean().item(), rel=1e-5)
    nothing = ContrastiveTerm(weight=0.0).term(c, net, batch)
    assert nothing.item() == 0.0


def test_byols_distance_may_stand_in_its_place():
    part = ContrastiveLoss(pairs="mse", views="weak")
    c, net, batch = started(part)
    target = part.target(c, net)
    expected = regression(net.head("predictor", batch, "weak#1"), target.head("projector", batch, "weak#2"))
    assert torch.allclose(part.loss(c, net, batch), expected)


def test_guesses_leave_the_running_statistics_alone():
    part = ContrastiveLoss()
    c, net, batch = started(part, model="resnet10", **{"model.width": 2})
    before = net.vector.clone()
    net.module.train()
    part.probabilities(c, net, batch)
    assert torch.equal(net.vector, before)


def test_guesses_of_the_net_received_are_made_once():
    part = ContrastiveLoss(mask_from="round")
    c, net, batch = started(part)
    expected = c.outputs(net).logits.softmax(1)[batch.rows]
    net.vector.zero_()
    assert torch.allclose(part.probabilities(c, net, batch), expected)


def test_a_client_tells_how_full_its_mask_is():
    part = ContrastiveLoss(eta=0.0, views="weak")
    c, net, batch = started(part)
    part.loss(c, net, batch)
    told = part.finish(c)
    assert told["mask_density"] == 1.0
    seen = part.target(c, net).head("projector", batch, "weak#2").detach()
    assert told["spread"] == pytest.approx(spread(seen), rel=1e-4)
    s = fake_server(part)
    part.learn(s, fake_reports(part, {1: {"mask_density": 0.25, "spread": 0.5}}), {})
    assert float(s.columns["mask_density"][1]) == 0.25
    assert float(s.columns["spread"][1]) == 0.5


def test_a_loss_of_zero_moves_nothing():
    _, net, _ = started(ContrastiveLoss())
    still(net).backward()
    assert not bool(net.grad.any())


# --- whole runs


def run(**settings):
    with Contract.of("fedcr", TINY | settings).trial() as trial:
        state = trial.run()
        return trial, state


def head_of(trial, vector):
    return torch.cat([entry.view(vector).flatten() for entry in trial.plan.layout.select(("head",))])


def test_the_classifier_is_trained_at_the_server_only():
    trial, state = run(**{"fedcr.server.epochs": 0, "fedcr.pretrain": 1})
    up, down = trial.plan.up_slices, trial.plan.down_slices
    size = sum(part.stop - part.start for part in up)
    assert size == trial.plan.layout.size - len(head_of(trial, trial.plan.initial[0]))
    assert sum(part.stop - part.start for part in down) == trial.plan.layout.size
    assert {len(report.models[0]) for report in trial.record.ups} == {size}
    alone, _ = run(**{"fedcr.server.epochs": 0, "fedcr.pretrain": 1, "fedcr.weight": 0.0})
    assert not alone.record.ups, "without the contrast clients have nothing to learn"
    assert not torch.equal(head_of(trial, state.models[0][0]), head_of(trial, trial.plan.initial[0]))


def test_nobodys_guesses_equal_a_bar_that_no_pair_reaches():
    settings = {"fedcr.pretrain": 0, "fedcr.server.epochs": 0}
    _, none = run(**settings, **{"fedcr.classifier": "none", "fedcr.eta": 0.0})
    _, high = run(**settings, **{"fedcr.eta": 2.0})
    _, low = run(**settings, **{"fedcr.eta": 0.0})
    assert torch.equal(none.models[0][0], high.models[0][0])
    assert not torch.equal(none.models[0][0], low.models[0][0])


def test_clients_may_look_through_the_classifier_of_the_pretraining():
    part = PretrainedClassifier()
    s = fake_server(part)
    named = s.plan.layout.named(s.models[0])
    told = part.brief(s, 0)
    assert torch.equal(told["weight"], named["head.weight"])
    c = fake_client(part, brief={name: value + 1 for name, value in told.items()})
    part.start(c)
    now = c.plan.layout.named(c.nets[0].vector)
    assert torch.equal(now["head.weight"], named["head.weight"] + 1)
    assert torch.equal(now["head.bias"], named["head.bias"] + 1)
    _, state = run(**{"fedcr.classifier": "init"})
    assert bool(torch.isfinite(state.models[0][0]).all())


def test_the_whole_model_may_travel():
    trial, state = run(**{"fedcr.exchange": "whole"})
    assert len(state.models[0]) == 2
    online, target = (model[: trial.plan.layout.trainable] for model in state.models[0])
    assert not torch.equal(online, target)
    begun = trial.plan.initial[0][: trial.plan.layout.trainable]
    assert (target - begun).norm() < (online - begun).norm(), "the target follows slowly"


def test_a_target_that_travels_must_not_shrink():
    with pytest.raises(ConfigError, match="Set weight_decay=0") as caught:
        Contract.of("fedcr", TINY | {"fedcr.exchange": "whole", "weight_decay": 0.01}).plan(tiny_federation())
    assert caught.value.code == "FS002"


def test_of_two_nets_the_second_learns_nothing_by_itself():
    part = ContrastiveLoss(travels=True, views="weak")
    method = Contract.of("fedcr", TINY | {"fedcr.exchange": "whole"})
    plan = method.plan(tiny_federation())
    c = fake_client(part, plan=plan, stage=1)
    part.start(c)
    first, second = c.nets
    assert torch.equal(first.vector, second.vector), "in the first round both begin alike"
    batch = c.batch(torch.arange(8), 0)
    (part.loss(c, first, batch).mean() + part.loss(c, second, batch)).backward()
    assert bool(first.grad.any())
    assert not bool(second.grad.any())
    OnlineLabels(q=0.5).loss(c, second, batch).backward()
    assert not bool(second.grad.any())
    expected = generalised_cross_entropy(first.logits(batch, "weak"), first.target(batch), 0.5)
    assert torch.equal(OnlineLabels(q=0.5).loss(c, first, batch), expected)
    first.weights.add_(1.0)
    held = second.weights.clone()
    part.stepped(c, first, batch)
    part.stepped(c, second, batch)
    assert torch.allclose(second.weights, held + 0.01, atol=1e-6)


def test_fedema_without_a_share_differs_only_by_the_targets_that_clients_keep():
    settings = {"rounds": 1, "fedcr.share": 0.0}
    _, ema = run(**settings, **{"fedcr.exchange": "fedema"})
    _, plain = run(rounds=1)
    assert torch.equal(ema.models[0][0], plain.models[0][0]), "a first round"
    _, later = run(**{"fedcr.exchange": "fedema"})
    _, other = run()
    assert not torch.equal(later.models[0][0], other.models[0][0])


@pytest.mark.parametrize(
    "change", [{"decay": 0.0}, {"q": 0.0}, {"pairs": "mse"}, {"classifier_on": "backbone"}, {"singular": "components"}]
)
def test_the_ablations_run_and_differ(change):
    settings = {f"fedcr.{key}": value for key, value in change.items()}
    _, other = run(**settings)
    _, plain = run()
    assert bool(torch.isfinite(other.models[0][0]).all())
    assert len(other.models[0][0]) != len(plain.models[0][0]) or not torch.equal(other.models[0][0], plain.models[0][0])


@pytest.mark.parametrize("method", ["fedcr+fedds", "fedcr+ksim", "fedcr+fedprox", "fedcr+scaffold"])
def test_it_composes(method):
    with Contract.of(method, TINY).trial() as trial:
        assert bool(torch.isfinite(trial.run().models[0][0]).all())


@pytest.mark.parametrize(
    ("method", "code"),
    [
        ("fedcr+gce", "FS103"),
        ("fedcr+fixmatch", "FS106"),
        ("fedcr+byol", "FS102"),
        ("fedcr+moon", "FS102"),
        ("fedcr+fedrn", "FS115"),
        ("fedcr+focus", "FS115"),
        ("local+fedcr", "FS101"),
    ],
)
def test_what_has_no_sense_is_refused(method, code):
    with pytest.raises(CompositionError) as problem:
        Contract.of(method, {}).plan(tiny_federation())
    assert problem.value.code == code
