"""Learning at the server alone, from labels of which some may be wrong."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedsieve.data.federation import Holding
from fedsieve.parts.server_labels import ServerLabels
from fedsieve.testing import Contract, tiny_federation

PLAIN = {"rounds": 2, "server-sl.view": "none", "server-sl.pretrain": 5}


def trained(federation, **settings):
    with Contract.of("server-sl", PLAIN | settings).trial(federation) as trial:
        state = trial.run()
        return state, trial


def accuracy(trial, state, images, labels):
    held = torch.from_numpy(images)
    net = trial.host._load(state.models[0])
    return float((trial.host._predict(net, held).numpy() == labels).mean())


def test_no_client_takes_part_and_nothing_travels():
    state, trial = trained(tiny_federation())
    assert not trial.record.downs
    assert not trial.record.ups
    assert [(what.bytes_up, what.bytes_down) for what in trial.record.rounds] == [(0, 0)] * 3
    assert [what.stage for what in trial.record.rounds] == ["pretrain", "train", "train"]
    assert state.server_epochs == {0: 5 + 2 * 5}


def test_the_clients_data_make_no_difference():
    federation = tiny_federation()
    other = replace(federation, rows=federation.rows[::-1], given=tuple(1 - g % 2 for g in federation.given[::-1]))
    one, two = (trained(each)[0].models[0][0] for each in (federation, other))
    assert torch.equal(one, two)


def test_it_is_the_training_of_a_method_with_idle_clients():
    """Streams follow the server's epochs, so that clients that are there and learn nothing change no bit."""
    idle = {"rounds": 2, "epochs": 0, "fixmatch.view": "none", "fixmatch.pretrain": 5}
    with Contract.of("fixmatch", idle).trial() as trial:
        beside = trial.run().models[0][0]
    assert torch.equal(beside, trained(tiny_federation())[0].models[0][0])


def test_q_is_that_of_generalised_cross_entropy():
    plain, zero, robust = (
        trained(tiny_federation(), **options)[0].models[0][0]
        for options in ({}, {"server-sl.q": 0.0}, {"server-sl.q": 0.7})
    )
    assert torch.equal(plain, zero)
    assert not torch.equal(plain, robust)


@pytest.mark.parametrize(
    ("q", "mean"), [(0.6, 0.894306640165621), (1.0, 0.6249750000000001), (1e-6, 3.0778469623515825)]
)
def test_the_vector_of_the_specification(q, mean):
    """The last label is so improbable that it counts as 1e-4."""
    p = torch.tensor([0.9, 0.5, 0.1, 1e-6], dtype=torch.float64)
    logits = torch.stack([p, 1 - p], dim=1).log().requires_grad_()
    loss = ServerLabels(q=q).on_labels(logits, torch.tensor([[1.0, 0.0]] * 4, dtype=torch.float64))
    assert loss.mean().item() == pytest.approx(mean, abs=1e-6)
    loss.sum().backward()
    assert logits.grad[:3].all()
    assert not logits.grad[3].any(), "nothing is learnt from it"


def test_the_set_is_a_choice():
    noisy, clean = (trained(tiny_federation(), **{"server-sl.server.on": on})[0] for on in ("noisy", "clean"))
    assert not torch.equal(noisy.models[0][0], clean.models[0][0])


def stripes(labels, rng):
    phase = np.arange(12)[None, :, None] * (1 + labels[:, None, None])
    noisy = 127 + 80 * np.sin(phase * 2 * np.pi / 12) + rng.normal(0, 30, (len(labels), 12, 12))
    return np.clip(noisy, 0, 255).astype(np.uint8)[..., None]


@pytest.mark.parametrize("right", [True, False])
def test_it_learns_what_its_labels_say(right):
    """It overfits fifty labels to the last one, and from labels by chance it learns nothing of samples it never saw."""
    base, rng = tiny_federation(), np.random.default_rng(0)
    true, unseen = np.arange(50) % 4, np.arange(400) % 4
    images = np.concatenate([base.images, stripes(true, rng)])
    labels = true if right else rng.integers(0, 4, 50)
    held = Holding(np.arange(len(base.images), len(images)), labels)
    federation = replace(base, images=images, server={"noisy": held})
    state, trial = trained(federation, **{"server-sl.pretrain": 60, "lr": 0.1})
    found = accuracy(trial, state, stripes(unseen, rng), unseen)
    if right:
        assert accuracy(trial, state, images[held.rows], labels) == 1.0
        assert found > 0.9
    else:
        assert found < 0.5


def test_without_pretraining_there_is_one_stage():
    _, trial = trained(tiny_federation(), **{"server-sl.pretrain": 0})
    assert [stage.name for stage in trial.plan.stages] == ["train"]
