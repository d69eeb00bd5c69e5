"""RSCFed: teachers that follow, the consensus by distance in numbers, and what both reduce to."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from fedsieve.base.errors import CompositionError
from fedsieve.core.types import Up
from fedsieve.methods.rscfed import Student, StudentOrLabel, sharpen, squared_error
from fedsieve.methods.rscfed_consensus import Consensus, coefficients, distances
from fedsieve.parts.server_fit import ServerFit
from fedsieve.parts.server_labels import ServerLabels
from fedsieve.testing import Contract, fake_client, fake_server, tiny_federation

MLP = {"model": "mlp", "model.hidden": [8], "momentum": 0.0, "rounds": 2, "rscfed.pretrain": 2}
MODELS = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 4.0]], dtype=torch.float64)
ROWS = torch.tensor([100.0, 100.0, 200.0], dtype=torch.float64)
WHOLE = [slice(0, 2)]


def drawn(*shape, seed=0, **how):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), **how)


def ran(method="rscfed", edit=None, **settings):
    with Contract.of(method, MLP | settings).trial(edit=edit) as trial:
        return trial.run(), trial


# The consensus


def test_the_consensus_in_numbers():
    shares = ROWS / ROWS.sum()
    apart = distances(MODELS, shares, WHOLE)
    assert apart.tolist() == pytest.approx([2.0155644370746373, 2.1360009363293826, 2.0155644370746373])
    found = coefficients(apart, shares, ROWS, 10.0)
    assert found.tolist() == pytest.approx([0.2380900666363359, 0.23523979153330019, 0.526670141830364])
    assert (found @ MODELS).tolist() == pytest.approx([0.23523979153330019, 2.106680567321456])


def test_distances_are_summed_over_layers():
    """From the mean (1/3, 4/3): two layers of one number each."""
    apart = distances(MODELS, torch.full((3,), 1 / 3, dtype=torch.float64), [slice(0, 1), slice(1, 2)])
    assert apart.tolist() == pytest.approx([5 / 3, 2.0, 3.0])


def test_the_ends_of_the_coefficients():
    shares = ROWS / ROWS.sum()
    apart = distances(MODELS, shares, WHOLE)
    assert torch.allclose(coefficients(apart, shares, ROWS, 0.0), shares)
    assert torch.allclose(coefficients(torch.zeros(3, dtype=torch.float64), shares, ROWS, 1e4), shares)
    sharp = coefficients(1e6 * apart, shares, ROWS, 1e4)
    assert float(sharp.sum()) == pytest.approx(1.0), "however far apart"
    alike = torch.tensor([[0.0, 0.0], [0.1, 0.0], [9.0, 9.0]], dtype=torch.float64)
    third = torch.full((3,), 1 / 3, dtype=torch.float64)
    outlier = coefficients(distances(alike, third, WHOLE), third, ROWS[:1].expand(3), 10.0)
    assert float(outlier[2]) < 1 / 3
    assert float(outlier.sum()) == pytest.approx(1.0)


def weighed(part, values, sizes, weights=None):
    """The weights of reports that are this number everywhere, of clients with so many rows."""
    s = fake_server(part, model="mlp", **{"model.hidden": [2]})
    size = s.plan.layout.size
    ups = {k: Up(k, 0, sizes[k], 0, (torch.full((size,), v),), {}, 0, 0.0) for k, v in values.items()}
    return part.weigh(s, ups, weights or {k: float(n) for k, n in sizes.items()}), s


def by_hand(values, sizes, beta, s, more):
    """The coefficients of one subset, written out; `more` multiplies share and coefficient of the server."""
    widths = [entry.stop - entry.start for entry in s.plan.layout.entries if entry.trainable]
    shares = {k: sizes[k] * (more if k < 0 else 1.0) for k in values}
    mean = sum(shares[k] * values[k] for k in values) / sum(shares.values())
    apart = {k: sum(math.sqrt(width) * abs(values[k] - mean) for width in widths) for k in values}
    raw = {k: shares[k] * math.exp(-beta * apart[k] / sizes[k]) * (more if k < 0 else 1.0) for k in values}
    return {k: value / sum(raw.values()) for k, value in raw.items()}


def test_one_subset_of_all_is_the_formula():
    values, sizes = {0: 0.0, 1: 1.0, 2: 1.5}, {0: 10, 1: 20, 2: 40}
    found, s = weighed(Consensus(subsets=1, size=9, dist_scale=2.0), values, sizes)
    assert found == pytest.approx(by_hand(values, sizes, 2.0, s, 1.0))
    sized, _ = weighed(Consensus(subsets=1, size=9, dist_scale=0.0), values, sizes)
    assert sized == pytest.approx({0: 1 / 7, 1: 2 / 7, 2: 4 / 7})


def test_the_server_is_in_every_subset_and_counts_twice_more():
    values, sizes = {-1: 0.5, 0: 0.0, 1: 1.0}, {-1: 16, 0: 10, 1: 20}
    part = Consensus(subsets=1, size=2, sup_scale=3.0, dist_scale=1e9, w_mul=6.0)
    found, s = weighed(part, values, sizes)
    assert found == pytest.approx(by_hand(values, sizes, 3.0, s, 6.0))
    many, _ = weighed(Consensus(subsets=5, size=1, sup_scale=0.0), values, sizes)
    assert many[-1] > 0.9
    assert sum(many.values()) == pytest.approx(1.0)


def test_weights_are_the_mean_over_subsets():
    """Equal models of equal clients: one subset gives a half to two of them, many give about a quarter to each."""
    values, sizes = dict.fromkeys(range(4), 1.0), dict.fromkeys(range(4), 24)
    once, _ = weighed(Consensus(subsets=1, size=2), values, sizes)
    assert sorted(once.values()) == pytest.approx([0.0, 0.0, 0.5, 0.5])
    often, _ = weighed(Consensus(subsets=400, size=2), values, sizes)
    assert list(often.values()) == pytest.approx([0.25] * 4, abs=0.06)
    silent, _ = weighed(Consensus(subsets=9, size=4), values, sizes, {0: 0.0, 1: 1.0, 2: 1.0, 3: 2.0})
    assert silent == pytest.approx({0: 0.0, 1: 0.25, 2: 0.25, 3: 0.5}), "weights of others are where it begins"
    fewer, _ = weighed(Consensus(subsets=9, size=2), values, sizes, {0: 0.0, 1: 0.0, 2: 1.0, 3: 1.0})
    assert fewer == pytest.approx({0: 0.0, 1: 0.0, 2: 0.5, 3: 0.5}), "who has no weight takes nobody's place"


def test_running_statistics_have_no_distance():
    part = Consensus(subsets=1, size=9)
    s = fake_server(part)
    (first,), edge = s.models, s.plan.layout.trainable
    assert edge < s.plan.layout.size
    other = first.clone()
    other[edge:] += 100.0
    ups = {k: Up(k, 0, 24, 0, (model,), {}, 0, 0.0) for k, model in enumerate((first, first, other))}
    assert part.weigh(s, ups, dict.fromkeys(ups, 24.0)) == pytest.approx(dict.fromkeys(ups, 1 / 3))


# Teacher and student


def test_sharpening():
    p = torch.tensor([[0.6, 0.3, 0.1]])
    assert sharpen(p.log(), 0.5)[0].tolist() == pytest.approx([0.36 / 0.46, 0.09 / 0.46, 0.01 / 0.46], rel=1e-5)
    logits = drawn(50, 4)
    assert torch.allclose(sharpen(logits, 1.0), logits.softmax(1))
    for temperature in (0.1, 0.5, 2.0):
        found = sharpen(logits, temperature)
        assert torch.allclose(found.sum(1), torch.ones(50))
        assert torch.equal(found.argmax(1), logits.argmax(1))


def test_the_loss_by_hand():
    """p = (1/2, 1/2) against (3/4, 1/4) sharpened to (0.9, 0.1)."""
    teacher, student = torch.tensor([[math.log(3.0), 0.0]]), torch.zeros(1, 2)
    assert squared_error(student, teacher, 0.5).item() == pytest.approx(2 * 0.4**2, rel=1e-5)


def test_gradients_are_those_of_finite_differences_and_the_teacher_has_none():
    student, teacher = (drawn(4, 3, seed=seed, dtype=torch.float64).requires_grad_() for seed in (2, 3))
    assert torch.autograd.gradcheck(lambda x: squared_error(x, teacher.detach(), 0.5), (student,))
    squared_error(student, teacher, 0.5).sum().backward()
    assert teacher.grad is None
    assert student.grad.any()


def test_the_teacher_first_copies_and_then_slows_down():
    part = Student()
    assert [part.decay_at(t) for t in (0, 1, 9, 5000)] == pytest.approx([0.0, 0.5, 0.9, 0.999])
    c = fake_client(part)
    part.start(c)
    (net,), teacher = c.nets, part.target(c, c.nets[0])
    net.vector.add_(1.0)
    part.stepped(c, net, c.batch(torch.arange(8), 0))
    assert torch.allclose(teacher.vector, net.vector), "the first step copies the student"
    before = teacher.weights.clone()
    net.vector.add_(1.0)
    part.stepped(c, net, c.batch(torch.arange(8), 0))
    assert torch.allclose(teacher.weights, 0.5 * (before + net.weights), atol=1e-6)
    assert torch.equal(teacher.vector[len(net.grad) :], net.vector[len(net.grad) :])
    part.finish(c)
    assert int(c.keep(part, net)["steps"]) == 2


def test_a_batch_costs_what_the_formula_says():
    part = Student(temperature=0.5, weight=0.3)
    c = fake_client(part)
    part.start(c)
    (net,), batch = c.nets, c.batch(torch.arange(8), 0)
    net.module.train()
    teacher = part.target(c, net)
    teacher.weights.add_(0.1 * drawn(len(teacher.grad), seed=4))
    held = teacher.vector.clone()
    loss = part.loss(c, net, batch)
    assert torch.equal(teacher.vector, held), "it is in evaluation mode"
    p = teacher.logits(batch, "weak#1").softmax(1).square()
    target = p / p.sum(1, keepdim=True)
    expected = 0.3 * (net.logits(batch, "weak#2").softmax(1) - target).square().sum(1)
    assert torch.allclose(loss, expected, atol=1e-6)
    assert torch.equal(c.guesses["guessed"][:8], p.argmax(1))
    assert bool(c.guesses["used"][:8].all())
    loss.mean().backward()
    assert not teacher.grad.any()


def test_the_teacher_stays_with_its_client():
    with Contract.of("rscfed", MLP).trial() as trial:
        state = trial.run()
        kept = [trial.states.load(k, state.versions[k]) for k in (0, 1)]
        part = trial.plan.stages[1].parts[0]
        teachers = [each[f"keep/{part.name}/0/target"] for each in kept]
        assert not torch.equal(*teachers)
        assert [int(each[f"keep/{part.name}/0/steps"]) for each in kept] == [6, 6], (
            "three batches in each of two rounds"
        )
    assert {len(up.models[0]) for up in trial.record.ups} == {trial.plan.layout.size}
    assert not any(note for up in trial.record.ups for note in up.notes.values())


def test_labels_at_the_server_where_it_takes_part():
    part = StudentOrLabel(labelled=ServerLabels(view="none"))
    c = fake_client(part)
    part.start(c)
    (net,), batch = c.nets, c.batch(torch.arange(8), 0)
    c.id = -1
    expected = F.cross_entropy(net.logits(batch, "none"), net.given(batch), reduction="none")
    assert torch.allclose(part.loss(c, net, batch), expected, atol=1e-6)


@pytest.mark.parametrize("mode", ["alternate", "participant"])
def test_the_servers_loss_has_its_options(mode):
    plan = Contract.of("rscfed", {"rscfed.q": 0.4, "rscfed.mode": mode}).plan(tiny_federation())
    assert plan.stages[0].parts == (ServerFit(on="noisy", epochs=30, parts=(ServerLabels(q=0.4),)),)
    assert plan.stages[1].parts[:2] == (StudentOrLabel(labelled=ServerLabels(q=0.4)), Consensus())


# What it reduces to


def test_without_weight_clients_return_what_they_received():
    mine, trial = ran(**{"rscfed.client.weight": 0.0})
    for (_, down), up in zip(trial.record.downs, trial.record.ups, strict=True):
        assert torch.equal(down.models[0], up.models[0])
    alone = {"server-sl.pretrain": 2, **{name: value for name, value in MLP.items() if "rscfed" not in name}}
    with Contract.of("server-sl", alone).trial() as beside:
        assert torch.allclose(beside.run().models[0][0], mine.models[0][0], atol=1e-6)


def test_one_subset_of_all_without_beta_is_the_mean_by_size():
    """FedAvg of teachers and students: the same run without the consensus."""

    def without(method):
        stages = [replace(s, parts=tuple(p for p in s.parts if p.name != "Consensus")) for s in method.stages]
        return replace(method, stages=tuple(stages))

    options = {"rscfed.subsets": 1, "rscfed.size": 99, "rscfed.dist_scale": 0.0, "rscfed.client.weight": 1.0}
    one, _ = ran(**options)
    other, _ = ran(edit=without, **options)
    assert torch.allclose(one.models[0][0], other.models[0][0], atol=1e-6)
    third, _ = ran(**options | {"rscfed.dist_scale": 1e4})
    assert not torch.allclose(one.models[0][0], third.models[0][0], atol=1e-6)


def test_the_model_is_the_mean_of_the_subsets_models():
    """The first round's next model, from the reports and the weights in the record."""
    state, trial = ran(rounds=1, **{"rscfed.server.epochs": 0, "rscfed.client.weight": 1.0})
    weights = trial.record.rounds[-1].weights
    mean = sum(weights[up.client] * up.models[0].double() for up in trial.record.ups)
    assert torch.allclose(state.models[0][0].double(), mean, atol=1e-6)
    assert sum(weights.values()) == pytest.approx(1.0)


def test_as_a_participant_the_server_reports_in_the_round():
    state, trial = ran(**{"rscfed.mode": "participant"})
    assert state.server_epochs == {0: 2}, "those before the first round"
    assert all(-1 in what.weights for what in trial.record.rounds[1:])
    alternate, beside = ran()
    assert alternate.server_epochs == {0: 2 + 2 * 5}
    assert not any(-1 in what.weights for what in beside.record.rounds)


@pytest.mark.parametrize("method", ["fedprox+rscfed", "scaffold+rscfed", "fedds+rscfed"])
def test_it_composes(method):
    state, trial = ran(method)
    assert bool(torch.isfinite(state.models[0][0]).all())
    assert trial.record.ups


@pytest.mark.parametrize(
    ("method", "settings", "code"),
    [
        ("rscfed+gce", {}, "FS103"),
        ("rscfed+fixmatch", {}, "FS106"),
        ("rscfed+fedrn", {}, "FS115"),
        ("rscfed", {"combine": "median"}, "FS114"),
        ("rscfed", {"secure_aggregation": True}, "FS117"),
        ("local+rscfed", {}, "FS114"),
    ],
)
def test_what_has_no_sense_is_refused(method, settings, code):
    with pytest.raises(CompositionError) as problem:
        Contract.of(method, settings).plan(tiny_federation())
    assert problem.value.code == code
