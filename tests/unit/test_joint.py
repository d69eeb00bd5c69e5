"""Joint optimisation: the queue of outputs, the targets, and the three terms of the loss."""

import math

import pytest
import torch
import torch.nn.functional as F

from fedsieve.methods.joint import mean_target
from fedsieve.parts.losses import entropy, prior_divergence
from fedsieve.parts.selection import enqueue
from fedsieve.testing import Contract, tiny_federation

PLAIN = {"model": "mlp", "model.hidden": [6], "augment": "none", "batch": 1000, "momentum": 0.0, "lr": 0.1}
LOGITS = torch.tensor([[math.log(3.0), 0.0], [0.0, 0.0]])
"""p = (3/4, 1/4) and (1/2, 1/2)."""


def images(federation, client):
    pixels = torch.from_numpy(federation.images[federation.rows[client]]).float().permute(0, 3, 1, 2) / 255
    return (pixels - federation.mean[0]) / federation.std[0]


def softmax_of(trial, vector, client):
    """A model's outputs on a client's images, by an independent path."""
    named = trial.plan.layout.named(vector)
    return torch.func.functional_call(trial.plan.build(0), named, images(trial.federation, client)).softmax(1)


def test_a_queue_has_no_empty_slots_and_drops_the_oldest():
    queue = None
    for number in range(5):
        queue = enqueue(queue, torch.full((2,), float(number)), 3)
        assert len(queue) == min(number + 1, 3)
    assert queue[:, 0].tolist() == [2.0, 3.0, 4.0]


@pytest.mark.parametrize("slots", [1, 2, 15])
def test_targets_sum_to_one_however_full_the_queue(slots):
    outputs = torch.rand(slots, 6, 4, generator=torch.Generator().manual_seed(1)).softmax(2)
    assert torch.allclose(mean_target(outputs).sum(1), torch.ones(6))


def test_targets_by_hand():
    outputs = torch.tensor([[[0.9, 0.1]], [[0.5, 0.5]]])
    assert torch.allclose(mean_target(outputs), torch.tensor([[0.7, 0.3]]))


def test_the_prior_term_by_hand():
    p = torch.tensor([0.625, 0.375])  # the mean of both rows
    uniform = 0.5 * math.log(0.5 / 0.625) + 0.5 * math.log(0.5 / 0.375)
    assert prior_divergence(LOGITS, torch.tensor([0.5, 0.5])).item() == pytest.approx(uniform, rel=1e-5)
    assert prior_divergence(LOGITS, torch.tensor([1.0, 0.0])).item() == pytest.approx(-math.log(0.625), rel=1e-5)
    assert prior_divergence(LOGITS, p).item() == pytest.approx(0, abs=1e-6)


def test_the_prior_term_stays_finite_where_a_class_is_never_predicted():
    logits = torch.tensor([[300.0, 0.0], [300.0, 0.0]], requires_grad=True)
    value = prior_divergence(logits, torch.tensor([0.5, 0.5]))
    assert value.item() == pytest.approx(150 - math.log(2), rel=1e-5)
    value.backward()
    assert logits.grad.abs().max() > 0, "it pulls the class back"


def test_entropy_by_hand():
    expected = [0.75 * math.log(4 / 3) + 0.25 * math.log(4), math.log(2)]
    assert entropy(LOGITS).tolist() == pytest.approx(expected)
    assert entropy(torch.tensor([[500.0, 0.0]])).item() == 0


@pytest.mark.parametrize("prior", ["uniform", "local"])
def test_the_warm_up_trains_on_the_given_labels_with_all_three_terms(prior):
    federation = tiny_federation()
    with Contract.of("joint", PLAIN | {"rounds": 1, "joint.prior": prior}).trial(federation) as trial:
        state = trial.run()
        for up in trial.record.ups:
            given = torch.from_numpy(federation.given[up.client])
            p = softmax_of(trial, trial.plan.initial[0], up.client)
            pi = torch.full((4,), 0.25) if prior == "uniform" else torch.bincount(given, minlength=4) / 24
            divergence = (pi * (pi / p.mean(0)).log()).sum()
            loss = F.nll_loss(p.log(), given) + 1.2 * divergence - 0.8 * (p * p.log()).sum(1).mean()
            assert up.loss == pytest.approx(loss.item(), rel=1e-4)
            kept = trial.states.load(up.client, state.versions[up.client])
            assert torch.allclose(
                kept["keep/JointTargets/outputs"], softmax_of(trial, up.models[0], up.client)[None], atol=1e-5
            )
            assert kept["judged/kept"].all()


def test_after_the_warm_up_the_mean_of_past_outputs_is_the_target():
    federation = tiny_federation()
    settings = PLAIN | {"rounds": 3, "joint.warmup": 2, "joint.alpha": 0, "joint.beta": 0}
    with Contract.of("joint", settings).trial(federation) as trial:
        trial.run()
        for client in range(4):
            ups = [up for up in trial.record.ups if up.client == client]
            received = next(d.models[0] for c, d in trial.record.downs[8:] if c == client)
            past = [softmax_of(trial, up.models[0], client) for up in ups[:2]]
            target = (past[0] + past[1]) / 2
            loss = -(target * softmax_of(trial, received, client).log()).sum(1).mean()
            assert ups[2].loss == pytest.approx(loss.item(), rel=1e-4)
            audit, given = trial.states.load(client, ups[2].version), torch.from_numpy(federation.given[client])
            assert torch.allclose(audit["judged/score"], target[range(24), given], atol=1e-5)
            assert torch.equal(audit["judged/suggested"], target.argmax(1))
            assert torch.equal(audit["judged/kept"], target.argmax(1) == given)


def test_the_queue_grows_by_one_an_epoch_up_to_its_length():
    settings = PLAIN | {"rounds": 3, "epochs": 2, "joint.history": 5}
    with Contract.of("joint", settings).trial() as trial:
        trial.run()
        state = trial.states.load(0, trial.record.ups[-4].version)
        assert state["keep/JointTargets/outputs"].shape == (5, 24, 4)
        assert torch.allclose(state["keep/JointTargets/outputs"].sum(2), torch.ones(5, 24), atol=1e-5)
        before = trial.states.load(0, trial.record.ups[-8].version)["keep/JointTargets/outputs"]
        assert before.shape == (4, 24, 4)
        assert torch.equal(state["keep/JointTargets/outputs"][:3], before[1:])


@pytest.mark.parametrize("prior", ["uniform", "local"])
def test_odd_clients_are_survived_after_the_warm_up(prior):
    settings = {"rounds": 2, "joint.warmup": 0, "joint.prior": prior}
    with Contract.of("joint", settings).trial(tiny_federation(degenerate=True)) as trial:
        assert torch.isfinite(trial.run().models[0][0]).all()
        assert {up.client for up in trial.record.ups if up.models is None} == {4}


def test_targets_do_not_move_in_the_warm_up():
    """Outputs are recorded from the first round on, but the second round of a warm-up still trains on given labels."""
    federation = tiny_federation()
    settings = PLAIN | {"rounds": 3, "joint.warmup": 2, "joint.alpha": 0, "joint.beta": 0}
    with Contract.of("joint", settings).trial(federation) as trial:
        trial.run()
        for (client, down), up in list(zip(trial.record.downs, trial.record.ups, strict=True))[:8]:
            given = torch.from_numpy(federation.given[client])
            loss = F.nll_loss(softmax_of(trial, down.models[0], client).log(), given)
            assert up.loss == pytest.approx(loss.item(), rel=1e-4)
