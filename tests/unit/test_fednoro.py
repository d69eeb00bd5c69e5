"""FedNoRo: its schedule, its loss by hand, and whom it finds in a whole run."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedsieve.core.schedules import rise
from fedsieve.methods.fednoro import DistilNoisy, divergence
from fedsieve.parts.losses import cross_entropy
from fedsieve.parts.noisy_clients import UNSEEN
from fedsieve.testing import Contract, fake_client, tiny_federation

PLAIN = {"model": "mlp", "model.hidden": [6], "augment": "none"}


@pytest.mark.parametrize(("rounds", "lengths"), [(100, [10, 0, 90]), (20, [2, 0, 18]), (1, [1, 0, 0])])
def test_a_tenth_of_the_rounds_warms_up(rounds, lengths):
    plan = Contract.of("fednoro", PLAIN | {"rounds": rounds}).plan(tiny_federation())
    assert [(s.name, s.rounds) for s in plan.stages] == list(zip(["warm", "detect", "robust"], lengths, strict=True))


def test_the_weight_of_the_teacher_rises_as_published():
    """λ(t) = 0.8 exp(−5 (1 − (t − 10) / (49 − 10))²) in rounds 10 to 49 of 100, then 0.8."""
    part = DistilNoisy()
    for t in (10, 20, 48, 49, 50, 99):
        expected = 0.8 * np.exp(-5 * (1 - min((t - 10) / 39, 1)) ** 2)
        assert part.weight_now(t - 10, 90) == pytest.approx(expected)
    assert DistilNoisy(ramp=4, distil=0.5).weight_now(2, 90) == pytest.approx(0.5 * np.exp(-1.25))
    assert [rise(5, 5), rise(0, 1)] == pytest.approx([1.0, np.exp(-5)])
    assert part.weight_now(0, 1) < part.weight_now(1, 1) == 0.8


def test_divergence_by_hand():
    teacher, student = torch.tensor([[0.5, 0.5], [0.9, 0.1]]), torch.tensor([[0.8, 0.2], [0.9, 0.1]])
    expected = [0.5 * np.log(0.5 / 0.8) + 0.5 * np.log(0.5 / 0.2), 0.0]
    both, first = torch.tensor([True, True]), torch.tensor([True, False])
    assert divergence(teacher.log(), student.log(), both).tolist() == pytest.approx(expected, abs=1e-6)
    assert divergence(teacher.log(), student.log(), first)[0].item() == pytest.approx(0.5 * np.log(0.5 / 0.8), abs=1e-6)


@pytest.fixture
def client():
    """Client 0 in the last round of a stage of five, told that it is clean or noisy."""
    plan = Contract.of("fednoro", PLAIN | {"rounds": 6}).plan(tiny_federation())
    part = plan.stages[2].parts[0]

    def told(noisy):
        c = fake_client(part, plan=plan, stage=2, t=4, brief={"noisy": noisy})
        part.start(c)
        return part, c, c.nets[0], c.batch(torch.arange(5), 0)

    return told


def adjusted(c, net, batch):
    counts = torch.bincount(c.labels.given, minlength=4).float()
    return net.logits(batch) + (counts / counts.sum()).log()


def test_clean_clients_learn_from_labels_alone(client):
    part, c, net, batch = client(False)
    expected = cross_entropy(adjusted(c, net, batch), net.target(batch))
    assert torch.allclose(part.loss(c, net, batch), expected, atol=1e-6)


def test_noisy_clients_learn_from_the_received_model_too(client):
    part, c, net, batch = client(True)
    teacher = net.logits(batch).detach() / 0.8
    net.vector.mul_(0.5)
    net.forget()
    z = adjusted(c, net, batch)
    expected = 0.8 * divergence(teacher, z, torch.ones(4, dtype=torch.bool)) + 0.2 * cross_entropy(z, net.target(batch))
    found = part.loss(c, net, batch)
    assert torch.allclose(found, expected, atol=1e-6)
    net.grad.zero_()
    found.sum().backward()
    assert net.grad.abs().max() > 0
    assert not any(p.grad.abs().max() > 0 for p in c.scratch(part)["teachers"][0].module.parameters())


@pytest.mark.parametrize("mask", [True, False])
def test_the_received_model_teaches_nothing_of_classes_that_the_client_lacks(mask):
    """Class 3 is absent. Masked, the loss's gradient on its logit is what the softmax makes of it, next to 0."""
    federation = tiny_federation()
    given = (np.arange(24) % 3, *federation.given[1:])
    plan = Contract.of("fednoro", PLAIN | {"rounds": 6, "fednoro.mask": mask}).plan(federation)
    part, federation = plan.stages[2].parts[0], replace(federation, given=given)
    c = fake_client(part, plan=plan, federation=federation, stage=2, t=4, brief={"noisy": True})
    part.start(c)
    net, batch = c.nets[0], c.batch(torch.arange(5), 0)
    teacher = (net.logits(batch).detach() / 0.8).softmax(1)
    part.loss(c, net, batch).sum().backward()
    # d/dz_3 of 0.8 KL is −0.8 q_3, where the term of class 3 counts; d/db_3 is its sum over the rows.
    bias = dict(net.module.named_parameters())["head.bias"].grad
    assert float(bias[3]) == pytest.approx(0.0 if mask else -0.8 * float(teacher[:, 3].sum()), abs=1e-6)
    # d/dz_c = 0.8 (Q p_c − q_c) + 0.2 (p_c − y_c), Q the teacher's share of the classes that count.
    p = (net.logits(batch).detach() + torch.tensor([8.0, 8.0, 8.0, 1e-8]).log()).softmax(1)
    counted = teacher * torch.tensor([1.0, 1.0, 1.0, 0.0 if mask else 1.0])
    by_hand = 0.8 * (counted.sum(1, keepdim=True) * p - counted) + 0.2 * (p - net.target(batch))
    assert torch.allclose(bias, by_hand.sum(0), atol=1e-5)


def noisy_federation():
    """Six clients: in the first two all labels are wrong, in the others all are right."""
    a, b = tiny_federation(rows=60), tiny_federation(rows=60, seed=1)
    rows = [*a.rows[:4], *(r + len(a.images) for r in b.rows[:2])]
    right = [*a.served, *b.served[:2]]
    kept = [(r[ok], g[ok]) for r, g, ok in zip(rows, [*a.given, *b.given[:2]], right, strict=True)]
    given = [(g + 1) % 4 if k < 2 else g for k, (_, g) in enumerate(kept)]
    return replace(
        a, images=np.concatenate([a.images, b.images]), rows=tuple(r for r, _ in kept), given=tuple(given), served=None
    )


def test_noisy_clients_are_found_told_and_weighed_down():
    settings = PLAIN | {"rounds": 5, "fednoro.warm": 3, "epochs": 3, "clients": 6}
    with Contract.of("fednoro", settings).trial(noisy_federation()) as trial:
        state = trial.run()
        assert state.columns["clean"].tolist() == [0, 0, 1, 1, 1, 1]
        told = [(client, d.briefs["DistilNoisy"]["noisy"]) for client, d in trial.record.downs if d.mail.stage == 2]
        assert told == [(k, k < 2) for k in range(6)] * 2
        for what in trial.record.rounds[3:]:
            assert max(what.weights[0], what.weights[1]) < 1 / 6 < min(what.weights[k] for k in (2, 3, 4, 5))
        assert [a.payload.keys() for a in trial.record.answers] == [{"losses"}] * 6


def test_every_client_is_asked_once_and_few_take_part_in_a_round():
    with Contract.of("fednoro", PLAIN | {"fraction": 0.5, "rounds": 4}).trial() as trial:
        trial.run()
        assert sorted(client for client, _ in trial.record.questions) == [0, 1, 2, 3]
        assert [len(what.weights) for what in trial.record.rounds] == [2] * 4


def test_a_client_without_samples_or_with_one_says_nothing_and_is_not_judged():
    with Contract.of("fednoro", PLAIN).trial(tiny_federation(degenerate=True)) as trial:
        state = trial.run()
        for client in (4, 5):
            assert trial.record.answers[client].payload["losses"].tolist() == [UNSEEN] * 4
        assert state.columns["clean"].isnan().tolist() == [k in (4, 5) for k in range(9)]


def test_both_weighers_count_in_composition():
    """FedDS replaces the sizes, the distance scales what it says."""
    with Contract.of("fedds+fednoro", PLAIN | {"rounds": 2}).trial() as trial:
        state = trial.run()
        trust, weights = state.columns["reliability"], trial.record.rounds[-1].weights
    clean = [k for k in range(4) if state.columns["clean"][k] == 1]
    assert 0 < len(clean) < 4
    shares = [weights[k] / float(trust[k]) for k in clean]
    assert shares == pytest.approx([shares[0]] * len(clean), rel=1e-5)
    assert all(weights[k] / float(trust[k]) < shares[0] for k in range(4) if k not in clean)
