"""FedDiv: the shared filter, what a client makes of it, the debiased predictions, and whole rounds."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import norm

from fedsieve.core.types import Role
from fedsieve.estimate.gmm1d import GaussianMixture1D
from fedsieve.methods.feddiv import EvenMixUp
from fedsieve.methods.feddiv_filter import SharedFilter, debias, mean_mixture, scaled_losses
from fedsieve.methods.feddiv_published import PublishedFilter
from fedsieve.parts.mixtures import mixture_of, tensor_of
from fedsieve.testing import Contract, fake_client, tiny_federation

PLAIN = {"model": "mlp", "model.hidden": [6], "augment": "none", "batch": 1000, "momentum": 0.0, "lr": 0.1}
FILTER = torch.tensor([[0.1, 0.01, 0.6], [0.9, 0.01, 0.4]])
"""Losses below about a half are clean."""


# Mathematics


def test_the_mean_of_filters_by_hand_whatever_the_order_of_their_components():
    one = torch.tensor([[0.1, 0.01, 0.8], [0.7, 0.04, 0.2]])
    two = torch.tensor([[0.9, 0.02, 0.6], [0.3, 0.03, 0.4]])
    expected = torch.tensor([[0.25 * 0.1 + 0.75 * 0.3, 0.25 * 0.01 + 0.75 * 0.03, 0.25 * 0.8 + 0.75 * 0.4]])
    shares = torch.tensor([0.25, 0.75])
    for other in (two, two.flip(0)):
        mean = mean_mixture(torch.stack([one, other]), shares).float()
        assert torch.allclose(mean[:1], expected)
        assert mean[1].tolist() == pytest.approx([0.85, 0.025, 0.5])
    published = PublishedFilter().global_filter(torch.stack([one, two]), shares).float()
    assert published[0, 1].item() == pytest.approx(0.25**2 * 0.01 + 0.75**2 * 0.03)
    assert torch.equal(published[:, [0, 2]], mean[:, [0, 2]])


def test_a_mixture_travels_as_six_numbers_and_one_that_is_none_as_nothing():
    values = np.r_[np.linspace(0, 0.2, 30), np.linspace(0.8, 1, 20)]
    mixture = GaussianMixture1D().fit(values)
    sent = tensor_of(mixture)
    assert sent.shape == (2, 3)
    assert mixture_of(sent).predict_proba(values) == pytest.approx(mixture.predict_proba(values), abs=1e-5)
    assert tensor_of(GaussianMixture1D().fit([0.3] * 40)).shape == (0, 3)
    assert mixture_of(torch.empty(0, 3)) is None


def test_debiasing_by_hand():
    found = debias(torch.tensor([[1.0, 0.9]]), torch.tensor([0.8, 0.2]), 0.5)
    assert found[0].tolist() == pytest.approx([1 - 0.5 * math.log(0.8), 0.9 - 0.5 * math.log(0.2)])
    assert found.argmax().item() == 1, "the rarer class wins"
    assert debias(torch.zeros(1, 2), torch.tensor([1.0, 0.0]), 0.5).isfinite().all()


def test_losses_are_scaled_and_equal_ones_are_zero():
    logits = torch.tensor([[math.log(3), 0.0], [0.0, 0.0], [0.0, math.log(3)]])
    target = torch.tensor([[1.0, 0.0]] * 3)
    low, middle, high = (-math.log(p) for p in (3 / 4, 1 / 2, 1 / 4))
    assert scaled_losses(logits, target).tolist() == pytest.approx([0, (middle - low) / (high - low), 1])
    assert scaled_losses(torch.zeros(4, 2), target[:1].expand(4, 2)).tolist() == [0.0] * 4


# What a client does with the filter


def client_of(given, says, mixture=FILTER, **kept):
    """A client whose model says what it is told, with this filter."""
    return fake_client(SharedFilter(), given, says, brief={"mixture": mixture}, keep=kept, batch=2)


def kept_by(client):
    return client.keep(SharedFilter())


def sure_of(*classes, by=4.0):
    return [[by, 0.0] if label == 0 else [0.0, by] for label in classes]


def relabelled(client, kind=SharedFilter, **options):
    return kind(**options).relabel(client, client.nets[0], client.labels)


def test_the_received_filter_scores_the_labels():
    client = client_of([0, 0, 0, 0], [[2.0, 0.0], [0.5, 0.0], [0.0, 0.5], [0.0, 2.0]])
    losses = scaled_losses(client.logits(client.nets[0]), client.labels.target).numpy()
    density = [0.6 * norm.pdf(losses, 0.1, 0.1), 0.4 * norm.pdf(losses, 0.9, 0.1)]
    assert relabelled(client).score.tolist() == pytest.approx(density[0] / (density[0] + density[1]), abs=1e-5)


def test_sure_predictions_replace_labels_that_look_wrong_and_other_samples_are_left_out():
    wide = torch.tensor([[0.0, 0.001, 0.5], [0.8, 0.5, 0.5]])
    client = client_of([0, 1, 0, 1], [*sure_of(0, 1, 1), [0.9, 0.0]], wide)  # the last is wrong, but only 71 % sure
    table = relabelled(client)
    assert (table.weight > 0).tolist() == [True, True, True, False]
    assert table.target.argmax(1).tolist()[:3] == [0, 1, 1]
    assert table.role[3] == Role.DROPPED
    assert relabelled(client, confidence=0.7).weight.tolist() == [1.0] * 4
    assert (relabelled(client, confidence=0.99).weight > 0).tolist() == [True, True, False, False]
    assert client.labels.target.argmax(1).tolist() == [0, 1, 0, 1], "the lasting labels stay"


def test_a_client_with_few_wrong_labels_trains_on_all():
    client = client_of([0] * 9 + [1], sure_of(*[0] * 10))
    table = relabelled(client)
    assert table.weight.tolist() == [1.0] * 10
    assert torch.equal(table.target, client.labels.target)
    assert table.score[9] < 0.5 < table.score[0]
    assert relabelled(client, tolerance=0.05).target[9].tolist() == [1.0, 0.0]


@pytest.mark.parametrize("mixture", [FILTER, torch.empty(0, 3), torch.tensor([[0.5, 0.01, 0.5], [0.6, 2.0, 0.5]])])
def test_losses_that_do_not_vary_are_all_clean(mixture):
    table = relabelled(client_of([0] * 12, sure_of(*[1] * 12), mixture))
    assert table.score.tolist() == [1.0] * 12
    assert table.weight.tolist() == [1.0] * 12


def test_before_any_filter_exists_a_client_takes_its_own():
    logits = sure_of(*[0] * 8, *[1] * 8)
    given = [0] * 6 + [1] * 2 + [1] * 6 + [0] * 2
    table = relabelled(client_of(given, logits, torch.empty(0, 3)))
    assert (table.score < 0.5).nonzero().flatten().tolist() == [6, 7, 14, 15]
    assert table.target.argmax(1).tolist() == [0] * 8 + [1] * 8
    tiny = relabelled(client_of(given[5:8], logits[5:8], torch.empty(0, 3)))
    assert tiny.score.tolist() == [1.0] * 3, "too few to make one"


def test_samples_that_both_models_do_not_predict_alike_are_left_out():
    past = torch.tensor(sure_of(0, 1, 1, 0, by=0.1))
    client = client_of([0, 1, 0, 1], sure_of(0, 0, 1, 0), logits=past, prior=torch.tensor([0.5, 0.5]))
    assert (relabelled(client).weight > 0).tolist() == [True, False, True, True]
    assert relabelled(client, consistency=False).weight.tolist() == [1.0] * 4
    kept_by(client)["prior"] = torch.tensor([0.9, 0.1])  # so often predicted, class 0 would have to be more certain
    assert (relabelled(client).weight > 0).tolist() == [False, False, True, False]
    assert (relabelled(client, xi=0.0).weight > 0).tolist() == [True, False, True, True]


def test_a_client_without_a_sample_left_still_learns_what_it_predicts():
    past = torch.tensor(sure_of(1, 0))
    client = client_of([0, 0], sure_of(0, 1), logits=past, prior=torch.tensor([0.5, 0.5]))
    assert not relabelled(client, confidence=1.0).weight.any()
    assert torch.equal(kept_by(client)["logits"], client.logits(client.nets[0]))


def test_class_frequencies_by_hand():
    client = client_of([0, 1], [[0.0, 0.0], [math.log(3), 0.0]])
    part = SharedFilter()
    part.remember(client, client.logits(client.nets[0]))
    first = 0.2 * 0.5 + 0.8 * (0.5 + 0.75) / 2
    assert kept_by(client)["prior"].tolist() == pytest.approx([first, 1 - first])
    part.remember(client, client.logits(client.nets[0]))
    assert kept_by(client)["prior"][0].item() == pytest.approx(0.2 * first + 0.8 * 0.625)
    assert int(kept_by(client)["visits"]) == 2


# The authors' code


def test_the_published_code_counts_only_sure_predictions():
    client = client_of([0, 1], [[0.0, 0.0], [4.0, 0.0]])
    part = PublishedFilter()
    part.remember(client, client.logits(client.nets[0]))
    sure = 1 / (1 + math.exp(-4))
    assert kept_by(client)["prior"][0].item() == pytest.approx(0.2 * 0.5 + 0.8 * sure)
    unsure = client_of([0, 1], [[0.0, 0.0], [0.1, 0.0]])
    part.remember(unsure, unsure.logits(unsure.nets[0]))
    assert kept_by(unsure)["prior"].tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("visits", "given", "rows"),
    [
        (0, [0, 0, 0, 1, 1], [0, 1, 2]),  # young: the clean samples, whatever is predicted
        (5, [0, 0, 0, 1, 1], [1, 2, 3, 4]),  # then the relabelled ones too, and only where predictions agree
        (5, [0, 0, 0, 0, 0, 1], [1, 2, 3, 4]),  # a sixth looks wrong: nothing is relabelled
        (5, [0, 0, 1, 1, 1], [1, 2, 3, 4]),
        (0, [0, 0, 1, 1, 1], []),  # no more samples than a batch holds
    ],
)
def test_what_the_published_code_trains_on(visits, given, rows):
    past = torch.tensor(sure_of(1, *[0] * (len(given) - 1)))
    kept = {"logits": past, "prior": torch.tensor([0.5, 0.5]), "visits": torch.tensor(visits)}
    client = client_of(given, sure_of(*[0] * len(given)), **kept)
    assert (relabelled(client, PublishedFilter).weight > 0).nonzero().flatten().tolist() == rows


# Loss


@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_the_loss_without_mixing_is_cross_entropy_and_the_even_term(eta):
    part = EvenMixUp(alpha=0, eta=eta)
    c = fake_client(part, given=[0, 0], says=[[math.log(3), 0.0], [0.0, 0.0]])
    found = part.loss(c, c.nets[0], c.batch(torch.arange(2), 0))
    even = 0.5 * math.log(0.5 / 0.625) + 0.5 * math.log(0.5 / 0.375)
    assert found.tolist() == pytest.approx([-math.log(0.75) + eta * even, -math.log(0.5) + eta * even], rel=1e-5)


# Whole rounds


def trial_of(federation=None, **settings):
    return Contract.of("feddiv", PLAIN | settings).trial(federation)


def logits_of(trial, vector, client):
    """A model's outputs on a client's images, by an independent path."""
    federation = trial.federation
    pixels = torch.from_numpy(federation.images[federation.rows[client]]).float().permute(0, 3, 1, 2) / 255
    x = (pixels - federation.mean[0]) / federation.std[0]
    return torch.func.functional_call(trial.plan.build(0), trial.plan.layout.named(vector), x)


@pytest.mark.parametrize(
    ("settings", "lengths"),
    [
        ({"rounds": 20}, [16, 16]),  # four clients: 4 laps fit into a fifth, and cost 4 rounds
        ({"rounds": 6}, [4, 5]),
        ({"rounds": 2}, [4, 1]),
        ({"rounds": 20, "feddiv.iterations": 2}, [8, 18]),
    ],
)
def test_how_long_the_warm_up_is(settings, lengths):
    plan = Contract.of("feddiv", PLAIN | settings).plan(tiny_federation())
    assert [(stage.name, stage.rounds) for stage in plan.stages] == list(zip(["warm", "train"], lengths, strict=True))


def test_the_filter_goes_round():
    """Nothing at first; then the mean of the last mixtures, each learnt from the losses of the client's new model."""
    federation = tiny_federation(rows=30)
    with trial_of(federation, rounds=4) as trial:
        state = trial.run()
        downs = [(k, d) for k, d in trial.record.downs if "SharedFilter" in d.briefs]
        ups = trial.record.ups[-len(downs) :]
        assert len(downs) == 12
        told = [d.briefs["SharedFilter"]["mixture"] for _, d in downs]
        assert [len(mixture) for mixture in told] == [0] * 4 + [2] * 8
        sent = torch.stack([up.notes["SharedFilter"]["mixture"] for up in ups])
        for turn in (1, 2):
            expected = sent[4 * turn - 4 : 4 * turn].mean(0)
            for mixture in told[4 * turn : 4 * turn + 4]:
                assert torch.allclose(mixture, expected, atol=1e-6)
        for up, mixture, start in zip(ups, sent, told, strict=True):
            given = torch.from_numpy(federation.given[up.client])
            losses = F.cross_entropy(logits_of(trial, up.models[0], up.client), given, reduction="none")
            scaled = ((losses - losses.min()) / (losses.max() - losses.min())).detach().numpy()
            found = GaussianMixture1D().fit(scaled, mixture_of(start))
            assert mixture[:, 0].tolist() == pytest.approx(found.means_, abs=1e-3)
            assert mixture[:, 2].tolist() == pytest.approx(found.weights_, abs=1e-2)
        assert state.columns["clean_share"].tolist() == pytest.approx(sent[-4:, 0, 2].tolist())


def test_clients_that_were_not_sampled_keep_their_filter():
    with trial_of(rounds=8, fraction=0.5) as trial:
        state = trial.run()
        last = {up.client: up.notes["SharedFilter"]["mixture"] for up in trial.record.ups if up.notes}
        kept = state.rows["SharedFilter", "mixture"]
        assert kept.keys() == last.keys()
        assert all(torch.equal(kept[k], last[k]) for k in last)


def test_small_clients_use_the_filter_and_send_none():
    """Client 0 holds 6 samples."""
    whole = tiny_federation(rows=30)
    federation = replace(
        whole,
        rows=(whole.rows[0][:6], *whole.rows[1:]),
        given=(whole.given[0][:6], *whole.given[1:]),
        served=(whole.served[0][:6], *whole.served[1:]),
    )
    with trial_of(federation, rounds=3) as trial:
        state = trial.run()
        mine = [up.notes["SharedFilter"]["mixture"] for up in trial.record.ups if up.client == 0 and up.notes]
        assert mine
        assert all(len(mixture) == 0 for mixture in mine)
        assert sorted(state.rows["SharedFilter", "mixture"]) == [1, 2, 3]
        assert state.columns["clean_share"][0].isnan()


def test_wrong_labels_are_found_and_mended():
    """A third of the labels is wrong at every client."""
    federation = tiny_federation(rows=120)
    settings = {"rounds": 6, "epochs": 5, "batch": 20, "model.hidden": [32]}
    with trial_of(federation, **settings) as trial:
        state = trial.run()
        right, kept, mended = [], [], []
        for client in range(4):
            audit = trial.states.load(client, state.versions[client])
            correct = torch.from_numpy(federation.served[client])
            right.append(audit["judged/score"][correct].mean() - audit["judged/score"][~correct].mean())
            kept.append(audit["judged/kept"][correct].float().mean() - audit["judged/kept"][~correct].float().mean())
            changed = audit["judged/suggested"] != torch.from_numpy(federation.given[client])
            mended.append((~correct)[changed].float().mean() if changed.any() else torch.tensor(1.0))
        assert min(right) > 0.5
        assert min(kept) > 0.5
        assert min(mended) > 0.8, "of the labels that were changed"


@pytest.mark.parametrize(
    "options", [{}, {"feddiv.published": True}, {"feddiv.tolerance": 0.0, "feddiv.confidence": 1.0}]
)
def test_odd_clients_are_survived(options):
    with Contract.of("feddiv", {"rounds": 4, **options}).trial(tiny_federation(degenerate=True)) as trial:
        assert torch.isfinite(trial.run().models[0][0]).all()
        assert 4 in {up.client for up in trial.record.ups if up.models is None}


def test_a_client_ends_with_a_mixture_learnt_from_the_global_one():
    """A few steps of EM on the losses of its new model and its lasting labels, from where the global filter stands."""
    draw = torch.Generator().manual_seed(4)
    says, given = (2 * torch.randn(60, 2, generator=draw)).tolist(), (torch.arange(60) % 2).tolist()
    start = torch.tensor([[0.3, 0.02, 0.3], [0.5, 0.02, 0.7]])
    client = client_of(given, says, mixture=start)
    guessed = client.labels.towards(client.labels.target.roll(1, dims=1))
    client.nets[0].labels = guessed
    losses = F.cross_entropy(torch.tensor(says), torch.tensor(given), reduction="none")
    scaled = ((losses - losses.min()) / (losses.max() - losses.min())).numpy()
    sent = PublishedFilter().finish(client)["mixture"]
    expected = GaussianMixture1D(max_iter=3).fit(scaled, mixture_of(start))
    assert sent[:, 0].tolist() == pytest.approx(expected.means_, abs=1e-5)
    assert sent[:, 1].tolist() == pytest.approx(expected.variances_, abs=1e-5)
    afresh = GaussianMixture1D(max_iter=3).fit(scaled)
    assert abs(afresh.means_ - expected.means_).max() > 0.02
