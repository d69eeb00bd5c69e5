"""Client selection: running scores and choices by hand, and who is averaged or sampled in whole rounds."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedsieve.methods.client_selection import SelectByAccuracy
from fedsieve.parts.credit import CleanScore, best, epsilon_greedy, share_of
from fedsieve.testing import Contract, check_method, fake_server, tiny_federation

PLAIN = {"model": "mlp", "model.hidden": [6], "augment": "none"}
SCORES = "fedsieve.methods.client_selection.scores_on_clean"


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


# Choices


def test_the_best_and_all_who_equal_the_last_of_them():
    scores = {3: 0.9, 5: 0.5, 7: 0.7, 9: 0.7}
    assert best(scores, 1) == {3}
    assert best(scores, 2) == {3, 7, 9}
    assert best(scores, 3) == {3, 7, 9}
    assert best(scores, 4) == {3, 5, 7, 9}
    assert best(dict.fromkeys(range(4), 0.2), 1) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("count", "share", "part"), [(4, 0.5, 2), (5, 0.5, 3), (1, 0.5, 1), (30, 0.1, 3), (3, 0.01, 1), (7, 1.0, 7)]
)
def test_a_share_is_rounded_up(count, share, part):
    assert share_of(count, share) == part


def test_greedy_takes_the_best():
    scores = {0: 0.1, 1: 0.9, 2: 0.5, 3: 0.7}
    assert epsilon_greedy(scores, 3, 0.0, generator()) == [1, 3, 2]


def test_exploring_takes_anybody_but_nobody_twice():
    scores = {k: float(k) for k in range(10)}
    picks = [epsilon_greedy(scores, 5, 1.0, generator(seed)) for seed in range(40)]
    assert all(len(set(chosen)) == 5 for chosen in picks)
    assert set(np.concatenate(picks).tolist()) == set(range(10))


def test_epsilon_is_the_chance_of_a_place():
    """One place among 100: the best gets it but for a share of about ε (1 − 1/100)."""
    scores = {k: float(k) for k in range(100)}
    missed = sum(epsilon_greedy(scores, 1, 0.3, generator(seed)) != [99] for seed in range(1000))
    assert 250 < missed < 350


def test_equal_clients_are_chosen_at_random():
    first = {epsilon_greedy(dict.fromkeys(range(6), 0.5), 1, 0.0, generator(seed))[0] for seed in range(60)}
    assert first == set(range(6))


# Scores


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [0.2, 0.5, 0.6]),  # means of 0.2, 0.8, 0.8
        ({"score": "ema"}, [0.2, 0.26, 0.314]),
        ({"score": "ema", "decay": 0.0}, [0.2, 0.8, 0.8]),
    ],
)
def test_running_scores_by_hand(settings, expected):
    part, found, past = SelectByAccuracy(**settings), [], float("nan")
    for times, accuracy in enumerate([0.2, 0.8, 0.8]):
        past = part.renew(past, times, accuracy)
        found.append(past)
    assert found == pytest.approx(expected)


def accuracies(monkeypatch, *rounds):
    """Reports are scored with these numbers, whatever their models."""
    left = iter(rounds)

    def scores(_, ups):
        values = next(left)
        return {k: CleanScore(0.0, values[k]) for k in ups}

    monkeypatch.setattr(SCORES, scores)


def run(settings, federation=None):
    with Contract.of("client-selection", PLAIN | settings).trial(federation) as trial:
        return trial.run(), trial.record.rounds


def test_post_averages_the_better_half_by_size(monkeypatch):
    accuracies(monkeypatch, [0.4, 0.9, 0.8, 0.1])
    whole = tiny_federation()
    federation = replace(
        whole, rows=(*whole.rows[:2], whole.rows[2][:8], whole.rows[3]), served=None,
        given=(*whole.given[:2], whole.given[2][:8], whole.given[3]),
    )  # fmt: skip
    state, (what,) = run({"rounds": 1}, federation)
    assert what.weights == {0: 0.0, 1: 0.75, 2: 0.25, 3: 0.0}
    assert state.columns["score"].tolist() == [0.4, 0.9, 0.8, 0.1]


def test_post_ranks_by_the_running_score(monkeypatch):
    """After 0.9 and 0.1 client 0 has the mean 0.5, below the others' 0.6 and 0.55."""
    accuracies(monkeypatch, [0.1, 0.6, 0.55, 0.0], [0.9, 0.6, 0.55, 0.0])
    _, rounds = run({"rounds": 2})
    assert [k for k, weight in rounds[1].weights.items() if weight] == [1, 2]
    accuracies(monkeypatch, [0.1, 0.6, 0.55, 0.0], [0.9, 0.6, 0.55, 0.0])
    _, rounds = run({"rounds": 2, "client-selection.score": "ema", "client-selection.decay": 0.0})
    assert [k for k, weight in rounds[1].weights.items() if weight] == [0, 1]


def test_equal_scores_make_it_fedavg(monkeypatch):
    accuracies(monkeypatch, [0.5] * 4)
    _, (what,) = run({"rounds": 1})
    assert what.weights == dict.fromkeys(range(4), 0.25)


def test_one_report_is_kept():
    _, (what,) = run({"rounds": 1, "fraction": 0.25, "client-selection.keep": 0.1})
    assert list(what.weights.values()) == [1.0]


def test_pre_tries_everybody_first_and_then_the_best(monkeypatch):
    truth = [0.2, 0.9, 0.8, 0.1]
    accuracies(monkeypatch, *[truth] * 4)
    state, rounds = run({"rounds": 4, "client-selection.mode": "pre", "client-selection.epsilon": 0.0})
    tried = [set(what.ups) for what in rounds]
    assert all(len(chosen) == 2 for chosen in tried)
    assert tried[0] | tried[1] == {0, 1, 2, 3}
    assert tried[2] == tried[3] == {1, 2}
    assert state.columns["score"].tolist() == pytest.approx(truth)
    assert set(rounds[3].weights.values()) == {0.5}


def test_pre_goes_on_exploring(monkeypatch):
    accuracies(monkeypatch, *[[0.2, 0.9, 0.8, 0.1]] * 12)
    settings = {"client-selection.mode": "pre", "client-selection.epsilon": 0.8, "epochs": 0}
    _, rounds = run({"rounds": 12} | settings)
    assert {k for what in rounds[2:] for k in what.ups} == {0, 1, 2, 3}


def test_an_empty_client_is_not_tried_for_ever():
    whole = tiny_federation()
    nothing = np.empty(0, np.int64)
    federation = replace(whole, rows=(nothing, *whole.rows[1:]), given=(nothing, *whole.given[1:]), served=None)
    settings = {"client-selection.mode": "pre", "client-selection.epsilon": 0.0, "rounds": 4}
    state, rounds = run(settings, federation)
    assert state.columns["score"][0] == 0.0
    assert not any(0 in what.ups for what in rounds[2:])


def test_groups_are_chosen_from_apart():
    part = SelectByAccuracy(mode="pre", epsilon=0.0)
    s = fake_server(part, columns={"group": [0, 0, 1, 1], "score": [0.9, 0.8, 0.2, 0.1]}, **PLAIN)
    assert part.eligible(s, [0, 1, 2, 3]) == [0, 2]


def test_noisy_clients_score_lower():
    """Clients 2 and 3 have nothing but wrong labels, and are left out."""
    whole = tiny_federation(rows=60)
    wrong = [np.where(right, (g + 1) % 4, g) for right, g in zip(whole.served, whole.given, strict=True)]
    federation = replace(whole, given=(*whole.given[:2], *wrong[2:]))
    state, rounds = run({"rounds": 3, "epochs": 3}, federation)
    scores = state.columns["score"].tolist()
    assert max(scores[2:]) < min(scores[:2])
    assert [k for k, weight in rounds[-1].weights.items() if weight] == [0, 1]


def test_pre_keeps_the_contract():
    check_method("client-selection", **PLAIN, **{"client-selection.mode": "pre"})


def test_it_composes():
    check_method("fedprox+client-selection+gce", **PLAIN)
