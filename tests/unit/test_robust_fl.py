"""Robust FL: centroids and losses by hand, and whole rounds by an independent path."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedsieve.methods.robust_fl import SharedCentroids
from fedsieve.parts.centroids import class_means, follow, margin, merge, pull, similarities
from fedsieve.testing import Contract, tiny_federation

PLAIN = {"model": "mlp", "model.hidden": [6], "augment": "none", "batch": 1000, "momentum": 0.0}
PART = "SharedCentroids"


# Centroids


def test_similarities_by_hand():
    features = torch.tensor([[3.0, 4.0], [0.0, -2.0]])
    centroids = torch.tensor([[1.0, 0.0], [0.0, 5.0], [0.0, 0.0]])
    assert torch.allclose(similarities(features, centroids), torch.tensor([[0.6, 0.8, -1.0], [0.0, -1.0, -1.0]]))


def test_class_means_by_hand():
    features = torch.tensor([[1.0, 2.0], [3.0, 4.0], [7.0, 7.0]])
    means = class_means(features, torch.tensor([2, 2, 0]), 3)
    assert means.tolist() == [[7.0, 7.0], [0.0, 0.0], [2.0, 3.0]]


def test_centroids_follow_at_the_squared_cosine():
    """s = 0.6 moves by 0.36; at right angles nothing moves; no F̂, no change; no F, F̂ is taken."""
    centroids = torch.tensor([[1.0, 0.0], [1.0, 0.0], [2.0, 3.0], [0.0, 0.0]])
    fresh = torch.tensor([[3.0, 4.0], [0.0, 4.0], [0.0, 0.0], [5.0, 6.0]])
    by_hand = torch.tensor([[0.64 + 0.36 * 3, 0.36 * 4], [1.0, 0.0], [2.0, 3.0], [5.0, 6.0]])
    assert torch.allclose(follow(centroids, fresh), by_hand)


def test_the_server_weighs_by_cosine():
    centroids = torch.tensor([[1.0, 0.0]])
    reported = torch.tensor([[[2.0, 0.0]], [[3.0, 4.0]]])  # cosines 1 and 0.6
    by_hand = torch.tensor([[(2.0 + 0.6 * 3.0) / 1.6, 0.6 * 4.0 / 1.6]])
    assert torch.allclose(merge(centroids, reported, torch.ones(2, 1)), by_hand)


def test_a_centroid_that_points_away_has_no_weight():
    reported = torch.tensor([[[2.0, 1.0]], [[-9.0, 0.0]]])
    assert torch.allclose(merge(torch.tensor([[1.0, 0.0]]), reported, torch.ones(2, 1)), reported[0])


@pytest.mark.parametrize("centroid", [[0.0, 0.0], [1.0, 0.0]], ids=["unknown", "all point away"])
def test_without_any_agreement_it_is_the_plain_mean(centroid):
    reported = torch.tensor([[[-2.0, 1.0]], [[-4.0, 3.0]], [[-100.0, 100.0]]])
    seen = torch.tensor([[1.0], [1.0], [0.0]])
    assert merge(torch.tensor([centroid]), reported, seen).tolist() == [[-3.0, 2.0]]


def test_a_class_seen_by_nobody_stays_and_an_absent_one_does_not_count():
    centroids = torch.tensor([[1.0, 2.0], [0.0, 0.0], [1.0, 0.0]])
    reported = torch.tensor([[[0.0, 0.0], [0.0, 0.0], [4.0, 0.0]], [[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]])
    seen = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    assert merge(centroids, reported, seen).tolist() == [[1.0, 2.0], [0.0, 0.0], [4.0, 0.0]]


# Losses


def test_the_pull_has_a_gradient_through_the_features():
    features = torch.tensor([[1.0, 2.0], [5.0, 5.0], [0.0, 1.0]], requires_grad=True)
    towards, mask = torch.tensor([[0.0, 0.0], [0.0, 0.0], [3.0, 1.0]]), torch.tensor([True, False, True])
    value = pull(features, towards, mask, "mean")
    value.backward()
    assert value.item() == pytest.approx((5.0 + 9.0) / 2)
    assert features.grad.tolist() == [[1.0, 2.0], [0.0, 0.0], [-3.0, 0.0]]
    assert pull(features, towards, mask, "sum").item() == pytest.approx(14.0)
    assert pull(features, towards, mask, "features").item() == pytest.approx(3.5)


@pytest.mark.parametrize("over", ["mean", "sum", "features"])
def test_no_trusted_row_no_pull(over):
    assert pull(torch.ones(2, 3), torch.zeros(2, 3), torch.tensor([False, False]), over).item() == 0.0


def test_margin_by_hand():
    similarity = torch.tensor([[0.9, 0.5, -1.0], [0.2, 0.6, 0.1], [-1.0, 1.0, -1.0]])
    assert torch.allclose(margin(similarity, torch.tensor([0, 0, 1])), torch.tensor([0.7, 0.3, 1.0]))


@pytest.mark.parametrize(("t", "weight"), [(0, 0.0), (1, 1.5), (2, 3.0), (7, 3.0)])
@pytest.mark.parametrize("correct_after", [2, None])
def test_the_pull_rises_until_correction_begins(correct_after, t, weight):
    """A fifth of ten rounds is two."""
    part = SharedCentroids(correct_after=correct_after, lambda_cen=3.0)
    assert part.pull_now(t, rounds=10) == pytest.approx(weight)


def test_without_a_wait_the_pull_is_there_at_once():
    assert SharedCentroids(correct_after=0, lambda_cen=3.0).pull_now(0, rounds=10) == 3.0


def test_a_wait_longer_than_the_run_is_taken_at_its_word():
    assert SharedCentroids(correct_after=40).pull_now(10, rounds=20) == 0.25


# Whole rounds


def load(plan, vector):
    model = plan.build(0)
    model.load_state_dict(plan.layout.named(vector))
    return model


def samples(federation, client):
    pixels = torch.from_numpy(federation.images[federation.rows[client]]).float().permute(0, 3, 1, 2) / 255
    return (pixels - federation.mean[0]) / federation.std[0], torch.from_numpy(federation.given[client])


def expected_report(model, x, given, centroids, kept_share, weights):
    """The loss of one step on everything, and the centroids after it: loops and scalars only."""
    with torch.no_grad():
        features = model.features(x)
        logits = model.head(features)
    centroids = centroids.clone()
    for label in range(4):
        if not centroids[label].any() and (given == label).any():
            centroids[label] = features[given == label].mean(0)
    order = F.cross_entropy(logits, given, reduction="none").argsort(stable=True)
    kept = order[: int(kept_share * len(order))].tolist()
    supervised, pulls, uncertain = [], [], []
    for i in kept:
        cosines = [F.cosine_similarity(features[i], f, dim=0).item() if f.any() else -1.0 for f in centroids]
        trusted = int(np.argmax(cosines)) == int(given[i])
        label = int(given[i]) if trusted else int(logits[i].argmax())
        p = logits[i].softmax(0)
        supervised.append(-math.log(p[label]))
        uncertain.append(-float((p * p.log()).sum()))
        if trusted:
            pulls.append(float(((features[i] - centroids[label]) ** 2).sum()))
    loss = np.mean(supervised) + weights[0] * (np.mean(pulls) if pulls else 0.0) + weights[1] * np.mean(uncertain)
    for label in {int(given[i]) for i in kept}:
        fresh = torch.stack([features[i] for i in kept if int(given[i]) == label]).mean(0)
        s = F.cosine_similarity(centroids[label], fresh, dim=0)
        centroids[label] = (1 - s**2) * centroids[label] + s**2 * fresh
    seen = torch.tensor([float(any(int(given[i]) == label for i in kept)) for label in range(4)])
    return loss, centroids * seen[:, None], seen


def test_two_rounds_by_hand():
    federation = tiny_federation()
    options = {
        "lambda_cen": 0.3,
        "lambda_ent": 0.5,
        "forget_rate": 0.5,
        "ramp": 0,
        "correct_after": 0,
        "reduce": "mean",
    }
    settings = PLAIN | {"rounds": 2} | {f"robust-fl.{name}": value for name, value in options.items()}
    with Contract.of("robust-fl", settings).trial(federation) as trial:
        state = trial.run()
        centroids = torch.zeros(4, trial.plan.sizes["d"])
        for number in range(2):
            reports = []
            for client in range(4):
                down, up = trial.record.downs[4 * number + client][1], trial.record.ups[4 * number + client]
                assert torch.allclose(down.briefs[PART]["centroids"], centroids, atol=1e-5)
                model = load(trial.plan, down.models[0])
                x, given = samples(federation, client)
                loss, mine, seen = expected_report(model, x, given, centroids, 0.5, (0.3, 0.5))
                assert up.loss == pytest.approx(loss, rel=1e-4)
                rows = torch.bincount(torch.from_numpy(federation.given[client]), minlength=4)
                seen, mine = seen * (rows >= 5), mine * (rows >= 5)[:, None]  # of few rows nothing is told
                assert torch.allclose(up.notes[PART]["centroids"], mine, atol=1e-5)
                assert torch.equal(up.notes[PART]["seen"], seen)
                reports.append((mine, seen))
            for label in range(4):
                told = [mine[label] for mine, seen in reports if seen[label]]
                cosines = [max(0.0, F.cosine_similarity(centroids[label], f, dim=0).item()) for f in told]
                cosines = cosines if sum(cosines) else [1.0] * len(told)
                if told:
                    centroids[label] = sum(s * f for s, f in zip(cosines, told, strict=True)) / sum(cosines)
        assert torch.allclose(state.memory[PART, 0]["centroids"], centroids, atol=1e-5)


def trained(federation=None, **settings):
    with Contract.of("robust-fl", PLAIN | {"rounds": 1} | settings).trial(federation) as trial:
        return trial.run().models[0][0]


def test_the_pull_changes_the_model():
    without, gentle = (
        trained(**{"robust-fl.correct_after": 0, "robust-fl.lambda_cen": weight}) for weight in (0.0, 0.1)
    )
    assert not torch.allclose(without, gentle, atol=1e-4)


def test_the_sum_pulls_hardest():
    losses = []
    for over in ("features", "mean", "sum"):
        settings = PLAIN | {"rounds": 1, "robust-fl.correct_after": 0, "robust-fl.reduce": over}
        with Contract.of("robust-fl", settings).trial() as trial:
            trial.run()
            losses.append(sum(up.loss for up in trial.record.ups))
    assert losses[0] < losses[1] < losses[2]


def test_the_first_round_without_entropy_is_plain_training():
    """No row is left out yet, no label corrected, and nothing pulled; all clients are of one size."""
    with Contract.of("fedavg", PLAIN | {"rounds": 1}).trial() as trial:
        plain = trial.run().models[0][0]
    first = trained(**{"robust-fl.correct_after": 1, "robust-fl.lambda_ent": 0.0})
    assert torch.allclose(first, plain, atol=1e-6)


def test_clients_count_alike_whatever_their_size():
    whole = tiny_federation()
    uneven = replace(
        whole, rows=(whole.rows[0], whole.rows[1][:6]), given=(whole.given[0], whole.given[1][:6]), served=None
    )
    with Contract.of("robust-fl", PLAIN | {"rounds": 1}).trial(uneven) as trial:
        trial.run()
        assert trial.record.rounds[0].weights == {0: 0.5, 1: 0.5}


def test_a_client_tells_of_the_classes_it_has_only():
    whole = tiny_federation()
    given = (np.full(24, 1), *whole.given[1:])
    with Contract.of("robust-fl", PLAIN | {"rounds": 1}).trial(replace(whole, given=given)) as trial:
        trial.run()
        note = trial.record.ups[0].notes[PART]
        assert note["seen"].tolist() == [0.0, 1.0, 0.0, 0.0]
        assert not note["centroids"][[0, 2, 3]].any()
        assert note["centroids"][1].any()


def test_a_client_without_labels_takes_no_part():
    whole = tiny_federation()
    given = (np.full(24, -1), *whole.given[1:])
    with Contract.of("robust-fl", PLAIN | {"rounds": 1}).trial(replace(whole, given=given)) as trial:
        trial.run()
        assert trial.record.ups[0].skipped == "no labelled sample"
        assert set(trial.record.rounds[0].weights) == {1, 2, 3}


def test_the_owner_is_told_what_the_received_model_thinks():
    federation = tiny_federation()
    settings = PLAIN | {"rounds": 2, "robust-fl.correct_after": 1}
    with Contract.of("robust-fl", settings).trial(federation) as trial:
        state = trial.run()
        flagged = 0
        for client in range(4):
            down, x, given = trial.record.downs[4 + client][1], *samples(federation, client)
            model = load(trial.plan, down.models[0])
            with torch.no_grad():
                features = model.features(x)
                guessed = model.head(features).argmax(1)
            centroids = down.briefs[PART]["centroids"]
            nearest = F.cosine_similarity(features[:, None], centroids[None], dim=2).argmax(1)
            audit = trial.states.load(client, state.versions[client])
            suggested = torch.where(nearest == given, given, guessed)
            assert torch.equal(audit["judged/suggested"], suggested)
            assert torch.equal(audit["judged/kept"], suggested == given)
            assert torch.equal(audit["judged/score"] > 0.5, nearest == given)
            flagged += int((suggested != given).sum())
        assert flagged
