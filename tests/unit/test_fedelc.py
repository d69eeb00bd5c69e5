"""FedELC: the loss, the step of the latent labels, what is merged after a visit, and whole rounds."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedsieve.core.types import Labels
from fedsieve.methods.fedelc import correction_loss, latent_gradient, learn_labels
from fedsieve.testing import Contract, tiny_federation

PLAIN = {"model": "mlp", "model.hidden": [6], "augment": "none", "batch": 24, "momentum": 0.0, "lr": 0.1}
DETECTED = "fedsieve.parts.noisy_clients.noisier_half"


def test_the_loss_by_hand():
    """p = (3/4, 1/4), y^d = (1/2, 1/2), the given label is the second."""
    logits, latent = torch.tensor([[math.log(3), 0.0]]), torch.tensor([[2.0, 2.0]])
    divergence = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    entropy = 0.75 * math.log(4 / 3) + 0.25 * math.log(4)
    found = correction_loss(logits, latent, torch.tensor([[0.0, 1.0]]), 0.5, 0.2)
    assert found.tolist() == pytest.approx([divergence / 2 + 0.5 * math.log(2) + 0.2 * entropy / 2])


def test_the_gradient_of_the_latent_labels_is_that_of_the_loss():
    draw = torch.Generator().manual_seed(3)
    logits, latent = torch.randn(2, 7, 4, generator=draw, dtype=torch.float64)
    given = F.one_hot(torch.arange(7) % 4, 4).double()
    latent.requires_grad_()
    (expected,) = torch.autograd.grad(correction_loss(logits, latent, given, 0.5, 0.2).sum(), latent)
    assert torch.allclose(latent_gradient(logits.softmax(1), latent.detach(), given, 0.5), expected)


def test_the_net_is_drawn_to_the_learnt_label_and_not_to_the_given_one():
    logits = torch.zeros(1, 3, requires_grad=True)
    correction_loss(logits, torch.tensor([[0.0, 9.0, 0.0]]), torch.tensor([[1.0, 0.0, 0.0]]), 0.5, 0.2).sum().backward()
    assert logits.grad[0, 1] < 0 < logits.grad[0, 0]


def test_a_learnt_label_is_scored_by_what_is_left_of_the_given_one():
    labels = Labels.of(torch.tensor([0, 1, -1]), 2)
    target = torch.tensor([[0.3, 0.7], [0.2, 0.8], [0.5, 0.5]])
    table = learn_labels(labels, target)
    assert table.score.tolist() == pytest.approx([0.3, 0.8, math.nan], nan_ok=True)
    assert torch.equal(table.target, target)
    assert torch.equal(table.given, labels.given)


def noisy_are(monkeypatch, *clients):
    """The detector finds these clients noisy, whatever their losses."""
    monkeypatch.setattr(DETECTED, lambda points, *_: torch.tensor([k in clients for k in range(len(points))]))


def trial_of(federation=None, **settings):
    return Contract.of("fedelc", PLAIN | settings).trial(federation)


def softmax_of(trial, vector, client):
    """A model's outputs on a client's images, by an independent path."""
    federation = trial.federation
    pixels = torch.from_numpy(federation.images[federation.rows[client]]).float().permute(0, 3, 1, 2) / 255
    x = (pixels - federation.mean[0]) / federation.std[0]
    return torch.func.functional_call(trial.plan.build(0), trial.plan.layout.named(vector), x).softmax(1).detach()


@pytest.mark.parametrize(
    ("settings", "lengths"), [({"rounds": 120}, [20, 0, 100]), ({"rounds": 6, "fedelc.warm": 3}, [3, 0, 3])]
)
def test_the_stages(settings, lengths):
    plan = Contract.of("fedelc", PLAIN | settings).plan(tiny_federation())
    assert [stage.name for stage in plan.stages] == ["warm", "detect", "correct"]
    assert [stage.rounds for stage in plan.stages] == lengths


def test_the_latent_labels_of_a_visit_by_hand(monkeypatch):
    """One epoch of one batch: the loss, the step with the batch's mean gradient, and the merger with the prediction."""
    noisy_are(monkeypatch, 1)
    federation = tiny_federation()
    with trial_of(federation, rounds=3, **{"fedelc.label_lr": 50.0}) as trial:
        trial.run()
        given = F.one_hot(torch.from_numpy(federation.given[1]), 4).float()
        latent = 10 * given
        visits = [
            (down.models[0], up)
            for (client, down), up in zip(trial.record.downs, trial.record.ups, strict=True)
            if client == 1 and down.mail.stage == 2
        ]
        assert len(visits) == 2
        for received, up in visits:
            p = softmax_of(trial, received, 1)
            learned = latent.softmax(1)
            kl = (p * (p / learned).log()).sum(1)
            entropy = -(p * p.log()).sum(1)
            loss = (kl / 4 - 0.5 * (given * learned.log()).sum(1) + 0.2 * entropy / 4).mean()
            assert up.loss == pytest.approx(loss.item(), rel=1e-4)
            latent = latent - 50 * ((learned - p) / 4 + 0.5 * (learned - given)) / 24
            merged = (latent.softmax(1) + softmax_of(trial, up.models[0], 1)) / 2
            latent = 10 * merged
            state = trial.states.load(1, up.version)
            assert torch.allclose(state["keep/LearnLabels/latent"], latent, atol=1e-4)
            assert torch.allclose(state["judged/score"], (merged * given).sum(1), atol=1e-5)
            assert torch.equal(state["judged/suggested"], merged.argmax(1))


def test_labels_step_once_an_epoch(monkeypatch):
    """Two epochs at a standing net: the second begins where the first one's step ended."""
    noisy_are(monkeypatch, 0)
    federation = tiny_federation()
    with trial_of(federation, rounds=2, epochs=2, lr=1e-30, **{"fedelc.label_lr": 50.0}) as trial:
        trial.run()
        given = F.one_hot(torch.from_numpy(federation.given[0]), 4).float()
        p, latent = softmax_of(trial, trial.plan.initial[0], 0), 10 * given
        for _ in range(2):
            learned = latent.softmax(1)
            latent = latent - 50 * ((learned - p) / 4 + 0.5 * (learned - given)) / 24
        up = next(up for up in reversed(trial.record.ups) if up.client == 0)
        state = trial.states.load(0, up.version)
        assert torch.allclose(state["keep/LearnLabels/latent"], 5 * (latent.softmax(1) + p), atol=1e-4)


@pytest.mark.parametrize("batch", [10, 1000])
def test_the_step_is_by_the_batch_size_in_a_small_last_batch_too(monkeypatch, batch):
    """24 rows: batches of 10, 10 and 4, or one of 24 where 1,000 would fit."""
    noisy_are(monkeypatch, 0)
    federation = tiny_federation()
    with trial_of(federation, rounds=2, batch=batch, lr=1e-30, **{"fedelc.label_lr": 50.0}) as trial:
        state = trial.run()
        given = F.one_hot(torch.from_numpy(federation.given[0]), 4).float()
        p, latent = softmax_of(trial, trial.plan.initial[0], 0), 10 * given
        latent = latent - 50 * ((latent.softmax(1) - p) / 4 + 0.5 * (latent.softmax(1) - given)) / batch
        found = trial.states.load(0, state.versions[0])["keep/LearnLabels/latent"]
        assert torch.allclose(found, 5 * (latent.softmax(1) + p), atol=1e-5)


def test_clean_clients_train_on_adjusted_logits_and_learn_no_labels(monkeypatch):
    noisy_are(monkeypatch, 1)
    federation = tiny_federation()
    with trial_of(federation, rounds=2) as trial:
        trial.run()
        for (client, down), up in zip(trial.record.downs, trial.record.ups, strict=True):
            if client == 1 and down.mail.stage == 2:
                assert down.briefs["LearnLabels"] == {"noisy": True}
                continue
            given = torch.from_numpy(federation.given[client])
            frequencies = torch.bincount(given, minlength=4) / 24
            adjusted = softmax_of(trial, down.models[0], client).log() + frequencies.log()
            assert up.loss == pytest.approx(F.cross_entropy(adjusted, given).item(), rel=1e-4)
            if down.mail.stage == 2:
                assert down.briefs["LearnLabels"] == {"noisy": False}
                state = trial.states.load(client, up.version)
                assert "keep/LearnLabels/latent" not in state
                assert state["judged/score"].isnan().all()


def test_the_model_of_a_noisy_client_weighs_less(monkeypatch):
    noisy_are(monkeypatch, 1)
    with trial_of(rounds=2) as trial:
        trial.run()
        warm, correct = (what.weights for what in trial.record.rounds)
        assert warm == dict.fromkeys(range(4), 0.25)
        assert correct[1] == pytest.approx(correct[0] / math.e)


@pytest.mark.parametrize("noisy", [(), (0, 1, 2, 3)])
def test_all_clean_or_all_noisy(monkeypatch, noisy):
    noisy_are(monkeypatch, *noisy)
    with trial_of(rounds=3) as trial:
        state = trial.run()
        assert trial.record.rounds[-1].weights == dict.fromkeys(range(4), 0.25)
        kept = ["keep/LearnLabels/latent" in trial.states.load(k, state.versions[k]) for k in range(4)]
        assert kept == [bool(noisy)] * 4


def noisy_federation():
    """Clients 0, 1 and 2 are right; 60 % of the labels of client 3 are wrong."""
    whole = tiny_federation(rows=120)
    true = [np.where(right, given, -1) for right, given in zip(whole.served, whole.given, strict=True)]
    rows, given, served = [], [], []
    for client, labels in enumerate(true):
        right = labels >= 0
        rows.append(whole.rows[client][right])
        flip = (np.arange(right.sum()) % 5 < 3) & (client == 3)
        given.append(np.where(flip, (labels[right] + 1) % 4, labels[right]))
        served.append(~flip)
    return replace(whole, rows=tuple(rows), given=tuple(given), served=tuple(served))


def test_the_noisy_client_is_found_and_learns_its_labels():
    """The published batch and, with four classes in place of ten, the published step."""
    federation = noisy_federation()
    settings = {"rounds": 12, "epochs": 3, "batch": 64, "model.hidden": [32]}
    settings |= {"fedelc.warm": 4, "fedelc.label_lr": 400.0}
    with trial_of(federation, **settings) as trial:
        state = trial.run()
        assert state.columns["clean"].tolist() == [1.0, 1.0, 1.0, 0.0]
        audit = trial.states.load(3, state.versions[3])
    right, given = torch.from_numpy(federation.served[3]), torch.from_numpy(federation.given[3])
    true = torch.where(right, given, (given - 1) % 4)
    assert (audit["judged/suggested"] == true).float().mean() > right.float().mean() + 0.15
    assert audit["judged/score"][right].mean() > audit["judged/score"][~right].mean() + 0.2


@pytest.mark.parametrize("noisy", [tuple(range(9)), (4, 5), (6, 7, 8)])
def test_odd_clients_are_survived(monkeypatch, noisy):
    noisy_are(monkeypatch, *noisy)
    with Contract.of("fedelc", {"rounds": 3}).trial(tiny_federation(degenerate=True)) as trial:
        assert torch.isfinite(trial.run().models[0][0]).all()
        assert {up.client for up in trial.record.ups if up.models is None} == {4}
