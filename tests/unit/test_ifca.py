"""IFCA-PFL: who joins which group, by hand, and groups that find the tasks."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fedsieve
from fedsieve.base.errors import CompositionError, ConfigError
from fedsieve.core.server import Server
from fedsieve.data.truth import GroundTruth
from fedsieve.evaluate.evaluator import Evaluator
from fedsieve.methods.ifca import PickCluster, ifca
from fedsieve.methods.ifca_groups import closest, fill_empty, refill
from fedsieve.testing import Contract, tiny_federation

MLP = {"model": "mlp", "model.hidden": [8], "augment": "none"}


def table(*rows):
    return {client: torch.tensor(row) for client, row in enumerate(rows)}


def loss_of(plan, federation, client, vector):
    """The mean cross entropy on the client's labels, by an independent path."""
    named = plan.layout.named(vector)
    pixels = torch.from_numpy(federation.images[federation.rows[client]]).float().permute(0, 3, 1, 2) / 255
    x = (pixels - federation.mean[0]) / federation.std[0]
    logits = torch.func.functional_call(plan.build(0), named, x)
    return float(F.cross_entropy(logits, torch.from_numpy(federation.given[client])))


def two_tasks():
    """Clients 0 and 2 hold the classes 0 and 1, clients 1 and 3 the others; all labels are right."""
    rows = 24
    federation = tiny_federation(4 * rows)
    pool = np.concatenate(federation.rows)
    right = np.concatenate(federation.served)
    given = np.concatenate(federation.given)
    low, high = (pool[right & mask][: 2 * rows] for mask in (given < 2, given >= 2))
    mine = (low[:rows], high[:rows], low[rows:], high[rows:])
    return replace(
        federation,
        rows=mine,
        given=tuple(given[np.searchsorted(pool, part)] for part in mine),
        served=tuple(np.ones(rows, bool) for _ in mine),
        tasks=((0, 1), (2, 3)) * 2,
    )


class Scripted(PickCluster):
    """Clients say what the test tells them to: for each question in turn, the losses of all clients."""

    script = ()
    keeps = {"asked": ()}

    def answer(self, c, topic, question):
        asked = int(c.keep(self).get("asked", 0))
        c.keep(self)["asked"] = torch.tensor(asked + 1)
        return {"losses": torch.tensor(type(self).script[asked][c.id])}


def scripted(script, rounds, federation=None, **options):
    Scripted.script = script
    with Contract.of(ifca(Scripted(**options)), MLP | {"rounds": rounds}).trial(federation) as trial:
        return trial, trial.run()


# Who joins whom


def test_the_closest_group_is_that_of_the_smallest_loss():
    assert closest(table([0.3, 0.2, 0.9], [0.1, 0.4, 0.0])) == {0: 1, 1: 2}


def test_refilling_goes_group_by_group_and_keeps_the_sizes():
    losses = table([0.1, 0.9], [0.2, 0.1], [0.3, 0.8], [0.4, 0.7])
    assert refill(losses, [1, 3]) == {0: 0, 1: 1, 2: 1, 3: 1}
    assert refill(losses, [3, 1]) == {0: 0, 1: 0, 2: 0, 3: 1}, "the first group has the first choice"
    assert refill(losses, [0, 4]) == dict.fromkeys(range(4), 1)


def test_equal_losses_go_by_the_clients_number():
    assert refill(table([0.5, 0.5], [0.5, 0.5], [0.5, 0.5]), [2, 1]) == {0: 0, 1: 0, 2: 1}


def test_an_empty_group_is_given_the_client_that_minds_least():
    losses = table([0.1, 0.9, 0.9], [0.1, 0.5, 0.9], [0.1, 0.6, 0.7])
    assert fill_empty(losses, 3) == {0: 0, 1: 1, 2: 2}
    assert fill_empty(losses, 2) == {0: 0, 1: 1, 2: 0}
    assert fill_empty(table([0.1, 0.2]), 2) == {0: 0}, "nobody can be spared"
    assert fill_empty({}, 2) == {}


# What clients tell


def test_losses_are_those_of_every_model_on_the_clients_own_labels():
    with Contract.of("ifca", MLP | {"rounds": 1, "ifca.groups": 3}).trial() as trial:
        trial.run()
        (client, question), told = trial.record.questions[-1], trial.record.answers[-1].payload["losses"]
        models = question.payload["models"]
        assert models.shape == (3, 1, trial.plan.layout.size)
        by_hand = [loss_of(trial.plan, trial.federation, client, model[0]) for model in models]
        assert told.tolist() == pytest.approx(by_hand, rel=1e-5)


def test_a_client_without_samples_has_no_preference_and_stays():
    with Contract.of("ifca", MLP | {"rounds": 2}).trial(tiny_federation(degenerate=True)) as trial:
        state = trial.run()
        silent = [answer.payload["losses"] for answer in trial.record.answers if answer.client == 4]
        assert silent
        assert all(losses.tolist() == [0.0, 0.0] for losses in silent)
        assert state.group_of(4) == 0
        assert {state.group_of(k) for k in (0, 1, 2, 3, 5, 6, 7, 8)} == {0, 1}, "those who have one fill both groups"


# The first models


def test_first_models_are_drawn_until_each_is_somebodys_closest():
    with Contract.of("ifca", MLP | {"rounds": 1}).trial(two_tasks()) as trial:
        trial.run()
        plan, federation = trial.plan, trial.federation
        first = [down.models[0] for _, down in trial.record.downs]
        attempts = (len(trial.record.questions) - 4) // 4
        for attempt in range(attempts):
            drawn = [plan.fresh(2 * attempt + group)[0] for group in range(2)]
            picked = [int(np.argmin([loss_of(plan, federation, k, model) for model in drawn])) for k in range(4)]
            assert (len(set(picked)) == 2) == (attempt == attempts - 1)
        assert all(torch.equal(first[k], drawn[picked[k]]) for k in range(4))


def test_where_all_clients_are_alike_one_is_forced():
    whole = tiny_federation()
    alike = replace(whole, rows=(whole.rows[0],) * 4, given=(whole.given[0],) * 4)
    with Contract.of("ifca", MLP | {"rounds": 1, "ifca.tries": 3}).trial(alike) as trial:
        trial.run()
        assert len(trial.record.questions) == (3 + 1) * 4
        groups = [up.group for up in trial.record.ups]
        assert sorted(groups.count(group) for group in (0, 1)) == [1, 3]
        drawn = [trial.plan.fresh(4 + group)[0] for group in range(2)]
        assert all(torch.equal(down.models[0], drawn[down.mail.group]) for _, down in trial.record.downs)


# After each round


def test_a_group_is_the_plain_mean_of_its_clients_whatever_their_size():
    federation = two_tasks()
    federation = replace(
        federation,
        rows=(federation.rows[0][:6], *federation.rows[1:]),
        given=(federation.given[0][:6], *federation.given[1:]),
    )
    trial, state = scripted([[[0.0, 1.0], [1.0, 0.0]] * 2] * 2, 1, federation)
    reported = {up.client: up.models[0].double() for up in trial.record.ups}
    for group in (0, 1):
        mean = (reported[group] + reported[group + 2]) / 2
        assert torch.allclose(state.models[group][0].double(), mean, atol=1e-7)
    assert trial.record.rounds[0].weights == dict.fromkeys(range(4), 0.5)


def test_clients_move_and_models_stay_with_their_group():
    begin, moved = [[0.0, 1.0]] * 3 + [[1.0, 0.0]], [[1.0, 0.0]] * 2 + [[0.0, 1.0]] * 2
    trial, state = scripted([begin, moved, moved], 2)
    assert [up.group for up in trial.record.ups] == [0, 0, 0, 1, 1, 1, 0, 0]
    first = {up.client: up.models[0].double() for up in trial.record.ups[:4]}
    second = [down.models[0].double() for _, down in trial.record.downs[4:]]
    assert torch.allclose(second[0], first[3], atol=1e-7), "client 0 now trains what client 3 trained"
    assert torch.allclose(second[3], sum(first[k] for k in (0, 1, 2)) / 3, atol=1e-6)
    assert state.columns["group"].tolist() == [1, 1, 0, 0]


def test_a_group_that_nobody_wants_is_refilled():
    begin, collapse = [[0.0, 1.0]] * 3 + [[1.0, 0.0]], [[0.1, 0.5], [0.2, 0.4], [0.4, 0.6], [0.3, 0.7]]
    _, state = scripted([begin, collapse], 1)
    assert state.columns["group"].tolist() == [0, 0, 1, 0], "three of the smallest losses, and one that is left"


def test_without_refilling_a_group_may_wait_for_clients():
    begin, collapse = [[0.0, 1.0]] * 3 + [[1.0, 0.0]], [[0.1, 0.5]] * 4
    trial, state = scripted([begin, collapse, [[0.5, 0.1]] * 4], 2, refill=False)
    assert [up.group for up in trial.record.ups[4:]] == [0] * 4
    assert torch.allclose(state.models[1][0], trial.record.ups[3].models[0], atol=1e-7)
    assert state.columns["group"].tolist() == [1] * 4


def test_two_tasks_are_told_apart():
    with Contract.of("ifca", MLP | {"rounds": 6, "lr": 0.2}).trial(two_tasks()) as trial:
        state = trial.run()
        judge = Evaluator(trial.federation, GroundTruth(None, np.zeros(0, int), np.zeros(0, int)), trial.states)
        assert judge.clustering(Server(state, trial.plan, lambda: trial.host)) == 1.0


@pytest.mark.parametrize(
    ("method", "settings"), [("ifca+scaffold", {}), ("ifca+co-teaching", {}), ("ifca", {"norm": "local"})]
)
def test_it_goes_with_others(method, settings):
    with Contract.of(method, {"rounds": 2, "ifca.tries": 2, **settings}).trial() as trial:
        state = trial.run()
        assert len(state.models) == 2
        assert set(state.columns["group"].tolist()) == {0.0, 1.0}


# What is refused, and what is left behind


def test_more_groups_than_clients_are_refused():
    with pytest.raises(ConfigError, match=r"ifca.groups=5, but there are 4 clients") as problem:
        Contract.of("ifca", {"ifca.groups": 5}).plan(tiny_federation())
    assert problem.value.code == "FS002"


@pytest.mark.parametrize("other", ["local", "rhfl"])
def test_groups_without_a_mean_are_refused(other):
    with pytest.raises(CompositionError, match="nothing is averaged") as problem:
        Contract.of(f"ifca+{other}", {}).plan(tiny_federation())
    assert problem.value.code == "FS114"


def test_a_run_says_how_far_the_groups_are_the_tasks(tmp_path, tiny_file):
    settings = {"clients": 4, "rounds": 2, "epochs": 1, "batch": 10, "partition": "tasks", "runtime": "serial"}
    result = fedsieve.run(
        data=str(tiny_file), method="ifca", out=str(tmp_path / "run"), quiet=True, **settings, **{"ifca.tries": 1}
    )
    assert all(-0.5 <= row["clustering_ari"] <= 1 for row in result["rows"])
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["clustering_ari"] == result["rows"][-1]["clustering_ari"]
    asked = [row for row in summary["disclosure"] if row["part"] == "PickCluster (losses)"]
    size = next(row["bytes"] for row in summary["disclosure"] if row["part"] == "model" and row["direction"] == "down")
    assert {row["direction"]: row["bytes"] for row in asked} == {"down": 2 * size, "up": 2 * 4}
    assert summary["messages"] == "1 (+ PickCluster)"
    assert result["rows"][-1]["bytes_down"] == 4 * (1 + 2) * size, "the model to train, and all models to compare"
