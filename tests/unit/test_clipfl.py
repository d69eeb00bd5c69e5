"""ClipFL: who is suspected, who is pruned and when, by hand and in whole rounds."""

from dataclasses import replace

import numpy as np
import pytest

from fedsieve.methods.clipfl import Suspicion, WithoutSuspects
from fedsieve.methods.ifca import PickCluster
from fedsieve.parts.credit import CleanScore
from fedsieve.testing import Contract, check_method, fake_server, tiny_federation

PLAIN = {"model": "mlp", "model.hidden": [6], "augment": "none"}
SCORES = "fedsieve.methods.clipfl.scores_on_clean"


@pytest.mark.parametrize(("rounds", "lengths"), [(80, [20, 60]), (10, [3, 7]), (4, [1, 3]), (1, [1, 0])])
def test_a_quarter_of_the_rounds_screens(rounds, lengths):
    plan = Contract.of("clipfl", PLAIN | {"rounds": rounds}).plan(tiny_federation())
    assert [(stage.name, stage.rounds) for stage in plan.stages] == list(zip(["screen", "train"], lengths, strict=True))


def test_the_screen_can_be_set():
    plan = Contract.of("clipfl", PLAIN | {"rounds": 9, "clipfl.screen": 7}).plan(tiny_federation())
    assert [stage.rounds for stage in plan.stages] == [7, 2]


def accuracies(monkeypatch, *rounds):
    """Reports are scored with these numbers, whatever their models; asked for once a screening round."""
    left = iter(rounds)

    def scores(_, ups):
        values = next(left)
        return {k: CleanScore(0.0, values[k]) for k in ups}

    monkeypatch.setattr(SCORES, scores)


def run(settings, federation=None):
    settings = {f"clipfl.{k}" if k in ("screen", "keep", "prune") else k: v for k, v in settings.items()}
    with Contract.of("clipfl", PLAIN | settings).trial(federation) as trial:
        return trial.run(), trial.record.rounds


def test_screening_marks_the_worse_half_and_leaves_it_out(monkeypatch):
    accuracies(monkeypatch, [0.9, 0.1, 0.8, 0.2], [0.9, 0.8, 0.3, 0.2])
    state, rounds = run({"rounds": 3, "screen": 2})
    assert rounds[0].weights == {0: 0.5, 1: 0.0, 2: 0.5, 3: 0.0}
    assert rounds[1].weights == {0: 0.5, 1: 0.5, 2: 0.0, 3: 0.0}
    assert state.columns["suspected"].tolist() == [0.0, 1.0, 1.0, 2.0]
    assert state.columns["screened"].tolist() == [2.0] * 4
    assert state.columns["standing"].tolist() == [1.0, 0.5, 0.5, 0.0]


def test_later_the_most_suspected_take_no_part_and_nothing_is_scored(monkeypatch):
    accuracies(monkeypatch, [0.9, 0.1, 0.8, 0.2])
    state, rounds = run({"rounds": 4})
    assert ["assess" in what.seconds for what in rounds] == [True, False, False, False]
    assert [sorted(what.ups) for what in rounds] == [[0, 1, 2, 3], [0, 2], [0, 2], [0, 2]]
    assert rounds[3].weights == {0: 0.5, 2: 0.5}
    assert state.columns["screened"].tolist() == [1.0] * 4


def test_a_run_is_not_longer_than_asked_for(monkeypatch):
    accuracies(monkeypatch, *[[0.9, 0.1, 0.8, 0.2]] * 2)
    _, rounds = run({"rounds": 2, "screen": 20})
    assert [sorted(what.ups) for what in rounds] == [[0, 1, 2, 3]] * 2


def test_equal_scores_suspect_nobody(monkeypatch):
    accuracies(monkeypatch, [0.5] * 4)
    state, rounds = run({"rounds": 2})
    assert state.columns["suspected"].tolist() == [0.0] * 4
    assert sorted(rounds[1].ups) == [0, 1, 2, 3]


def test_one_client_a_round_is_never_suspected():
    state, rounds = run({"rounds": 6, "screen": 4, "fraction": 0.25})
    assert set(state.columns["suspected"].nan_to_num(0.0).tolist()) == {0.0}
    assert all(list(what.weights.values()) == [1.0] for what in rounds)


@pytest.fixture
def server():
    """A server of four clients after the screen."""
    plan = Contract.of("clipfl", PLAIN | {"rounds": 8}).plan(tiny_federation())
    return fake_server(Suspicion(), plan=plan, stage=1)


def left(server, part, trust):
    server.columns.write("standing", trust)
    return part.eligible(server.by(part), [0, 1, 2, 3])


@pytest.mark.parametrize(
    ("prune", "trust", "expected"),
    [
        (0.5, {0: 0.0, 1: 0.2, 2: 0.4, 3: 1.0}, [2, 3]),
        (0.25, {0: 0.0, 1: 0.2, 2: 0.4, 3: 1.0}, [1, 2, 3]),
        (0.0, {0: 0.0, 1: 0.2, 2: 0.4, 3: 1.0}, [0, 1, 2, 3]),
        (0.75, {0: 0.0, 1: 0.2, 2: 0.4, 3: 1.0}, [3]),
        (0.5, {0: 0.0, 1: 0.5, 2: 0.5, 3: 1.0}, [1, 2, 3]),  # of equals at the border nobody is pruned
        (0.5, {0: 0.0, 3: 0.4}, [1, 2]),  # 1 and 2 were never sampled
        (0.75, {0: 0.0, 3: 0.4}, [1, 2]),
        (0.75, {}, [0, 1, 2, 3]),
    ],
)
def test_whom_pruning_leaves(server, prune, trust, expected):
    assert left(server, WithoutSuspects(prune=prune), trust) == expected


def test_each_group_is_pruned_by_itself(server):
    server.by(PickCluster()).split({2: 1, 3: 1})
    assert left(server, WithoutSuspects(), {0: 0.0, 1: 0.1, 2: 0.8, 3: 0.9}) == [1, 3]


def test_whom_others_ruled_out_stays_out(server):
    part = WithoutSuspects()
    server.columns.write("standing", {0: 0.0, 1: 0.2, 2: 0.4, 3: 1.0})
    assert part.eligible(server.by(part), [0, 3]) == [3]


def test_suspicion_is_by_times_sampled(monkeypatch):
    """Two of four clients a round: one of the two is marked each time, however often a client was sampled."""
    accuracies(monkeypatch, *[[0.9, 0.1, 0.8, 0.2]] * 6)
    state, rounds = run({"rounds": 7, "screen": 6, "fraction": 0.5, "epochs": 0})
    seen = [sum(k in what.ups for what in rounds[:6]) for k in range(4)]
    marks = [sum(what.weights.get(k) == 0.0 for what in rounds[:6]) for k in range(4)]
    assert len(set(seen)) > 1
    assert state.columns["screened"].nan_to_num(0.0).tolist() == seen
    known = [k for k in range(4) if seen[k]]
    assert state.columns["standing"][known].tolist() == pytest.approx([1 - marks[k] / seen[k] for k in known])


def test_noisy_clients_are_pruned():
    """Clients 1 and 2 have nothing but wrong labels."""
    whole = tiny_federation(rows=60)
    wrong = [np.where(right, (g + 1) % 4, g) for right, g in zip(whole.served, whole.given, strict=True)]
    federation = replace(whole, given=(whole.given[0], *wrong[1:3], whole.given[3]))
    state, rounds = run({"rounds": 4, "screen": 3, "epochs": 3}, federation)
    assert sorted(rounds[-1].ups) == [0, 3]
    trust = state.columns["standing"].tolist()
    assert max(trust[1:3]) < min(trust[0], trust[3])


@pytest.mark.parametrize("method", ["scaffold+clipfl", "moon+clipfl+symce"])
def test_it_composes(method):
    check_method(method, **PLAIN)
