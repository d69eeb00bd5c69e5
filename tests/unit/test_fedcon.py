"""FedCon: what travels, the two losses by hand, the two averages that follow, and what it reduces to."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from fedsieve.base.errors import CompositionError
from fedsieve.core.part import Method, Stage
from fedsieve.core.samplers import Nobody
from fedsieve.core.schedules import rise
from fedsieve.evaluate.probe import feature_spread
from fedsieve.methods.fedcon import BodyContrast, MeanTeacher, consistency, disagreement
from fedsieve.parts.server_fit import ServerFit
from fedsieve.testing import Contract, fake_client, tiny_federation

TINY = {"rounds": 2, "fedcon.pretrain": 2, "fedcon.server.epochs": 1}
MLP = {"model": "mlp", "model.hidden": [6], "momentum": 0.0}


def drawn(rows, width, seed, **how):
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed), **how)


# The formulas


def test_the_clients_loss_by_hand():
    predicted, target = torch.tensor([[1.0, 0.0], [3.0, 3.0], [1.0, 0.0]]), torch.tensor([[5.0, 0.0], [0, 1], [-2, 0]])
    assert disagreement(predicted, target).tolist() == pytest.approx([-1.0, -math.sqrt(0.5), 1.0], abs=1e-6)
    some, others = drawn(200, 5, 0), drawn(200, 5, 1)
    assert disagreement(some, others).abs().max() <= 1 + 1e-6
    assert torch.allclose(disagreement(7 * some, 0.1 * others), disagreement(some, others), atol=1e-6)


def test_consistency_by_hand():
    """KL of (3/4, 1/4) from (1/2, 1/2); the other way round it would be another number."""
    teacher, student = torch.tensor([[math.log(3.0), 0.0]]), torch.zeros(1, 2)
    expected = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert consistency(teacher, student).item() == pytest.approx(expected, rel=1e-5)
    assert consistency(teacher, teacher + 3.0).abs().max() < 1e-6


@pytest.mark.parametrize("loss", [lambda mine, fixed: disagreement(mine, fixed), lambda m, f: consistency(f, m)])
def test_gradients_are_those_of_finite_differences_and_one_side_has_none(loss):
    mine, fixed = (drawn(4, 3, seed, dtype=torch.float64).requires_grad_() for seed in (2, 3))
    assert torch.autograd.gradcheck(lambda x: loss(x, fixed.detach()), (mine,))
    loss(mine, fixed).sum().backward()
    assert fixed.grad is None
    assert mine.grad.any()


def test_the_weight_of_consistency_rises():
    assert [rise(t, 100) for t in (0, 50, 100, 300)] == pytest.approx([math.exp(-5), math.exp(-1.25), 1.0, 1.0])


def test_the_servers_average_slows_down():
    part = MeanTeacher()
    found = [1.0 - part.decay_at(k) for k in (0, 10_000, 20_000, 30_000)]
    assert found == pytest.approx([4e-4, 2e-4, 0.0, 0.0], abs=1e-12)
    assert MeanTeacher(decay=0.5, decay_steps=4).decay_at(2) == pytest.approx(0.75)


# At the client


def test_each_view_is_predicted_from_the_other():
    part = BodyContrast()
    c = fake_client(part)
    part.start(c)
    (net,), batch = c.nets, c.batch(torch.arange(8), 0)
    target = part.target(c, net)
    target.weights.add_(0.1 * drawn(1, len(target.grad), 4)[0])
    loss = part.loss(c, net, batch)
    ways = [("weak#1", "weak#2"), ("weak#2", "weak#1")]
    cosines = [F.cosine_similarity(net.head("predictor", batch, a), target.features(batch, b), dim=1) for a, b in ways]
    assert torch.allclose(loss, -0.5 * (cosines[0] + cosines[1]), atol=1e-6)
    loss.mean().backward()
    assert not target.grad.any(), "the target learns nothing"
    slopes = c.plan.layout.named(torch.cat([net.grad, torch.zeros(len(net.vector) - len(net.grad))]))
    assert not any(slope.any() for name, slope in slopes.items() if name.startswith("head"))
    assert slopes["predictor.0.weight"].any()


def test_the_target_follows_by_a_moving_average():
    part = BodyContrast(decay=0.99)
    c = fake_client(part)
    part.start(c)
    (net,), target = c.nets, part.target(c, c.nets[0])
    net.weights[:3], target.weights[:3] = torch.tensor([1.0, 2.0, -1.0]), torch.tensor([0.0, 4.0, 1.0])
    part.stepped(c, net, c.batch(torch.arange(8), 0))
    assert target.weights[:3].tolist() == pytest.approx([0.01, 3.98, 0.98])


def test_predictor_and_target_stay_with_their_client():
    """In a second round each client begins with the server's body, its own predictor and its own target."""
    with Contract.of("fedcon", TINY).trial() as trial:
        state = trial.run()
        layout, part = trial.plan.layout, BodyContrast()
        (own,) = layout.slices(("predictor",), trainable_only=True)
        (_, down), mine = trial.record.downs[-1], []
        for k in (0, 1):
            c = trial.host.client(k, replace(down.mail, version=state.versions[k]), down.models, {})
            kept = trial.states.load(k, state.versions[k])
            part.start(c)
            (net,) = c.nets
            assert torch.equal(net.vector[trial.plan.down_slices[0]], down.models[0][: trial.plan.down_slices[0].stop])
            assert torch.equal(part.target(c, net).vector, kept["keep/BodyContrast/0/target"])
            mine.append([net.vector[own].clone(), part.target(c, net).vector.clone()])
        for one, other in zip(*mine, strict=True):
            assert not torch.equal(one, other)
        assert not torch.equal(mine[0][0], trial.plan.initial[0][own])


def test_a_first_visit_begins_with_the_body_received():
    part = BodyContrast()
    c = fake_client(part)
    part.start(c)
    assert torch.equal(part.target(c, c.nets[0]).vector, c.nets[0].received)


def test_only_the_body_travels():
    with Contract.of("fedcon", TINY).trial() as trial:
        state = trial.run()
    plan = trial.plan
    names = [e.name for e in plan.layout.entries]
    for way, slices in ((plan.share.down, plan.down_slices), (plan.share.up, plan.up_slices)):
        chosen = [e.name for e in plan.layout.select(way)]
        assert chosen == [name for name in names if name.split(".")[0] == "body"]
        count = sum(part.stop - part.start for part in slices)
        assert {len(m) for _, d in trial.record.downs for m in d.models} == {count}
        assert {len(m) for up in trial.record.ups for m in up.models} == {count}
    assert all(not note for up in trial.record.ups for note in up.notes.values())
    (vector,), first = state.models[0], plan.initial[0]
    for section, moved in (("head", True), ("predictor", False)):
        for part in plan.layout.slices((section,)):
            assert torch.equal(vector[part], first[part]) != moved, section


# At the server


@pytest.mark.parametrize("teacher", ["average", "net"])
def test_the_servers_loss_by_hand(teacher):
    part = MeanTeacher(views="weak", rampup=4, teacher=teacher, q=0.3)
    c = fake_client(part, t=2, **MLP)
    part.start(c)
    (net,), batch = c.nets, c.batch(torch.arange(8), 0)
    average = part.target(c, net)
    average.weights.add_(0.3 * drawn(1, len(average.grad), 5)[0])
    one, two = (net.logits(batch, f"weak#{i}") for i in (1, 2))
    taught = [(average if teacher == "average" else net).logits(batch, f"weak#{i}").softmax(1) for i in (1, 2)]
    given = net.given(batch)
    expected = torch.zeros(8)
    for logits, other in ((one, taught[1]), (two, taught[0])):
        p = logits.softmax(1)
        expected += 0.5 * (1 - p[torch.arange(8), given] ** 0.3) / 0.3
        expected += 0.5 * math.exp(-1.25) * (other * (other.log() - p.log())).sum(1)
    loss = part.loss(c, net, batch)
    assert torch.allclose(loss, expected, atol=1e-5)
    loss.mean().backward()
    assert not average.grad.any()


def test_equal_views_and_an_average_that_is_the_net_cost_nothing_more():
    part = MeanTeacher(views="none", rampup=1)
    c = fake_client(part, t=5, **MLP)
    part.start(c)
    (net,), batch = c.nets, c.batch(torch.arange(8), 0)
    plain = F.cross_entropy(net.logits(batch, "none"), net.given(batch), reduction="none")
    assert torch.allclose(part.loss(c, net, batch), plain, atol=1e-6)


def test_the_servers_training_is_recomputed_with_autograd():
    """Three full-batch steps over two rounds: labels, the average of all steps so far, and its slowing pace."""
    options = {"fedcon.views": "none", "fedcon.decay": 0.2, "fedcon.decay_steps": 4, "fedcon.rampup": 1}
    settings = {**MLP, "lr": 0.5, "batch": 1000, "epochs": 0, "rounds": 2, "fedcon.pretrain": 1, **options}
    federation = tiny_federation()
    with Contract.of("fedcon", settings | {"fedcon.server.epochs": 1}).trial(federation) as trial:
        (found,) = trial.run().models[0]
    plan, held = trial.plan, federation.server["noisy"]
    pixels = torch.from_numpy(federation.images[held.rows]).float().permute(0, 3, 1, 2) / 255
    x, y = (pixels - federation.mean[0]) / federation.std[0], torch.from_numpy(held.labels)
    student, average = plan.build(0), plan.build(0)
    for step, weight in enumerate((math.exp(-5), math.exp(-5), 1.0)):
        known = average(x).detach().softmax(1)
        loss = F.cross_entropy(student(x), y)
        loss = loss + weight * (known * (known.log() - student(x).log_softmax(1))).sum(1).mean()
        student.zero_grad()
        loss.backward()
        keeps = 1 - 0.8 * (math.cos(math.pi * step / 4) + 1) / 2
        with torch.no_grad():
            for mine, slow in zip(student.parameters(), average.parameters(), strict=True):
                if mine.grad is not None:
                    mine -= 0.5 * mine.grad
                slow.copy_(keeps * slow + (1 - keeps) * mine)
    mine = {name: value.detach() for name, value in student.state_dict().items()}
    for name, value in plan.layout.named(found).items():
        assert torch.allclose(value, mine[name], atol=1e-5), name


# What it reduces to


def test_idle_clients_leave_labels_and_the_average():
    """Bit by bit the training of a server alone."""
    idle = {"epochs": 0, **TINY}
    with Contract.of("fedcon", idle).trial() as trial:
        beside = trial.run().models[0][0]
        fits = [stage.parts[-1] for stage in trial.plan.stages]
        method = trial.plan.method

    assert all(isinstance(fit, ServerFit) for fit in fits)
    stages = tuple(Stage(str(i), rounds=1 + i, parts=(fit,), sampler=Nobody()) for i, fit in enumerate(fits))
    own = Method("own", stages, heads=method.heads)
    with Contract.of(own, {"rounds": 3}).trial() as trial:
        assert torch.equal(trial.run().models[0][0], beside)


def test_clients_move_the_body_alone():
    one, other = ({**TINY, "epochs": epochs, "fedcon.server.epochs": 0} for epochs in (0, 1))
    vectors = []
    for settings in (one, other):
        with Contract.of("fedcon", settings).trial() as trial:
            vectors.append(trial.run().models[0][0])
    (head,) = trial.plan.layout.slices(("head",))
    assert torch.equal(vectors[0][head], vectors[1][head])
    assert not torch.equal(vectors[0][trial.plan.down_slices[0]], vectors[1][trial.plan.down_slices[0]])


def test_features_do_not_collapse():
    with Contract.of("fedcon", {"rounds": 6, "fedcon.pretrain": 5, "epochs": 2}).trial() as trial:
        models = trial.run().models[0]
        rows = torch.arange(len(trial.federation.images))
        assert feature_spread(trial.host.features(models, "train", rows)) > 0.3


@pytest.mark.parametrize("method", ["fedprox+fedcon", "scaffold+fedcon", "moon+fedcon", "fedds+fedcon"])
def test_it_composes(method):
    with Contract.of(method, TINY).trial() as trial:
        assert bool(torch.isfinite(trial.run().models[0][0]).all())
        assert trial.record.ups


@pytest.mark.parametrize(
    ("method", "settings", "code"),
    [
        ("fedcon+gce", {}, "FS103"),
        ("fedcon+byol", {}, "FS102"),
        ("fedcon+fixmatch", {}, "FS106"),
        ("fedcon+fedrn", {}, "FS115"),
        ("fedcon+focus", {}, "FS115"),
        ("local+fedcon", {}, "FS101"),
        ("fedcon", {"norm": "local"}, "FS101"),
    ],
)
def test_what_has_no_sense_is_refused(method, settings, code):
    with pytest.raises(CompositionError) as problem:
        Contract.of(method, settings).plan(tiny_federation())
    assert problem.value.code == code
