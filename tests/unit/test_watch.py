"""A watched run: losses and gradients by hand and by autograd, the same wherever clients run, seen by nobody else."""

import json
from dataclasses import replace
from math import log, sqrt

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import fedsieve
from fedsieve.base.errors import DataError
from fedsieve.core import Method
from fedsieve.core.server import Server, ServerState
from fedsieve.data.truth import GroundTruth
from fedsieve.evaluate import watch
from fedsieve.evaluate.evaluator import Evaluator
from fedsieve.evaluate.schema import names
from fedsieve.evaluate.watch import Watch, cross_entropies, head_gradients
from fedsieve.runtime.serial import SerialRuntime
from fedsieve.testing import Contract, tiny_federation

MLP = {"model": "mlp", "model.hidden": [8]}
WATCHED = names("watched")
TEST = np.arange(40) % 4


def truth_of(federation, every=3):
    """Every so manieth label is wrong."""
    right = (np.arange(len(given)) % every != 0 for given in federation.given)
    true = (np.where(r, given, (given + 1) % 4) for r, given in zip(right, federation.given, strict=True))
    return GroundTruth(tuple(true), TEST, TEST[:0])


# Formulas


def test_losses_and_gradients_by_hand():
    """p = (1/4, 3/4) and z = (2, 2): for the first class −log 1/4 and ‖(−3/4, 3/4)‖ · √(8 + 1)."""
    logits, features = torch.tensor([[0.0, log(3)]] * 2), torch.full((2, 2), 2.0)
    given = torch.tensor([0, 1])
    assert cross_entropies(logits, given) == pytest.approx([log(4), log(4 / 3)])
    found = head_gradients(logits, features, given, with_bias=True)
    assert found == pytest.approx([0.75 * sqrt(2) * 3, 0.25 * sqrt(2) * 3])
    assert head_gradients(logits, features, given, with_bias=False) == pytest.approx(found * sqrt(8) / 3)


@pytest.mark.parametrize("bias", [True, False])
def test_gradients_are_those_of_autograd(bias):
    torch.manual_seed(0)
    head, z, given = torch.nn.Linear(5, 4, bias=bias).double(), torch.randn(9, 5).double(), torch.arange(9) % 4
    expected = []
    for row, label in zip(z, given, strict=True):
        grads = torch.autograd.grad(cross_entropy(head(row[None]), label[None]), tuple(head.parameters()))
        expected.append(float(torch.cat([grad.flatten() for grad in grads]).norm()))
    assert head_gradients(head(z).detach(), z, given, with_bias=bias) == pytest.approx(expected)


# Rows


def test_rows_are_evenly_spaced_and_know_what_is_wrong(monkeypatch):
    whole = tiny_federation()
    given = tuple(np.where(np.arange(24) == 5, -1, labels) for labels in whole.given)
    federation, truth = replace(whole, given=given), truth_of(whole)
    monkeypatch.setattr(watch, "MOST_WATCHED", 40)
    rows = Watch(federation, truth).rows
    assert rows.client.tolist() == np.repeat(np.arange(4), 24)[::3].tolist()
    assert np.array_equal(rows.row, np.concatenate(federation.rows)[::3])
    assert np.array_equal(rows.given, np.concatenate(given)[::3])
    monkeypatch.undo()
    rows = Watch(federation, truth).rows
    assert len(rows) == 96
    assert np.array_equal(rows.wrong, np.tile((np.arange(24) % 3 == 0) & (np.arange(24) != 5), 4))


def test_without_the_truth_nothing_is_watched(tmp_path):
    with pytest.raises(DataError, match=r"watch=true: nobody knows.*Leave watch out.*\[FS307\]"):
        Watch(tiny_federation(), GroundTruth(None, TEST, TEST[:0]))
    rows = [f"{i % 2},{i * 0.1},{i % 7}" for i in range(40)]
    (tmp_path / "mine.csv").write_text("\n".join(["label,a,b", *rows]) + "\n")
    settings = {"data": str(tmp_path / "mine.csv"), "clients": 2, "rounds": 1, "runtime": "serial", "model": "mlp"}
    with pytest.raises(DataError, match=r"\[FS307\]"):
        fedsieve.run(quiet=True, **settings, watch=True, out=str(tmp_path / "run"))
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


# Which model


def expected_of(plan, federation, truth, model_of):
    """The four numbers, each row by the model of its owner, with PyTorch's own loss."""
    losses, gradients, wrong = [], [], []
    for k, (rows, given, true) in enumerate(zip(federation.rows, federation.given, truth.labels, strict=True)):
        module = plan.build(0).eval()
        module.load_state_dict(plan.layout.named(model_of(k)), strict=False)
        x = (torch.from_numpy(federation.images[rows]).float() / 255 - 0.5) / 0.25
        z = module.features(x.permute(0, 3, 1, 2)).detach()
        for row, label in zip(z, torch.from_numpy(given), strict=True):
            loss = cross_entropy(module.head(row[None]), label[None])
            grads = torch.autograd.grad(loss, tuple(module.head.parameters()))
            losses.append(loss.item())
            gradients.append(float(torch.cat([grad.flatten() for grad in grads]).norm()))
        wrong += (given != true).tolist()
    loss, gradient, wrong = map(np.array, (losses, gradients, wrong))
    means = loss[~wrong].mean(), loss[wrong].mean(), gradient[~wrong].mean(), gradient[wrong].mean()
    return dict(zip(WATCHED, means, strict=True))


def watched(method, federation, truth, settings=MLP, models=None, groups=None):
    with Contract.of(method, settings).trial(federation) as trial:
        state = trial.run() if models is None else ServerState.fresh(trial.plan)
        if models:
            state.models = {g: (model,) for g, model in models(trial.plan).items()}
        if groups:
            state.columns["group"] = torch.tensor(groups, dtype=torch.float64)
        judge = Evaluator(federation, truth, trial.states, watch=True)
        judge.tester = SerialRuntime(trial.host)
        scores = judge.scores(Server(state, trial.plan, lambda: trial.host))
        own = {k: trial.states.load(k, v).get("net/0") for k, v in state.versions.items()}
        return trial.plan, state, scores, own


def two_models(plan):
    return {0: plan.initial[0], 1: -0.5 * plan.initial[0]}


def test_each_row_is_seen_by_the_model_of_its_owner_s_group():
    federation = tiny_federation()
    truth, groups = truth_of(federation), [0, 1, 1, 0]
    plan, state, scores, _ = watched(Method("own"), federation, truth, models=two_models, groups=groups)
    expected = expected_of(plan, federation, truth, lambda k: state.models[groups[k]][0])
    assert {name: scores[name] for name in WATCHED} == pytest.approx(expected, rel=1e-5)


def test_where_the_mean_of_groups_is_tested_it_is_what_is_watched():
    federation = tiny_federation()
    truth, own = truth_of(federation), Method("own", test="mean")
    plan, _, scores, _ = watched(own, federation, truth, models=two_models, groups=[0, 1, 1, 0])
    expected = expected_of(plan, federation, truth, lambda _: 0.25 * plan.initial[0])
    assert {name: scores[name] for name in WATCHED} == pytest.approx(expected, rel=1e-5)


def test_where_clients_have_their_own_model_each_is_seen_by_it():
    federation = tiny_federation()
    truth = truth_of(federation)
    plan, _, scores, own = watched("local", federation, truth)
    assert not torch.equal(own[0], own[1])
    expected = expected_of(plan, federation, truth, lambda k: own[k])
    assert {name: scores[name] for name in WATCHED} == pytest.approx(expected, rel=1e-5)


def test_what_is_not_there_has_no_number():
    federation = tiny_federation()
    _, _, scores, _ = watched("fedavg", federation, GroundTruth(federation.given, TEST, TEST[:0]))
    assert (scores["loss_wrong"], scores["gradient_wrong"]) == (None, None)
    assert scores["loss_right"] > 0
    bare = replace(federation, given=tuple(np.full(24, -1) for _ in range(4)))
    assert Watch(bare, GroundTruth(federation.given, TEST, TEST[:0])).scores(None, None) == {}
    plan = Contract.of(Method("own", test="probe"), MLP).plan(federation)
    judge = Evaluator(federation, truth_of(federation), states=None, watch=True)
    with Contract.of("fedavg", MLP).trial(federation) as trial:
        judge.tester = SerialRuntime(trial.host)
        assert not set(WATCHED) & judge.scores(Server(ServerState.fresh(plan), plan, lambda: None)).keys()


def test_features_are_those_of_the_model_that_serves_most():
    federation = tiny_federation()
    with Contract.of(Method("own"), MLP).trial(federation) as trial:
        state = ServerState.fresh(trial.plan)
        state.models = {g: (model,) for g, model in two_models(trial.plan).items()}
        state.columns["group"] = torch.tensor([0.0, 1.0, 1.0, 1.0], dtype=torch.float64)
        server, tester = Server(state, trial.plan, lambda: trial.host), SerialRuntime(trial.host)
        rows, features = Watch(federation, truth_of(federation)).features(server, tester, 36)
        assert set(rows.client) == {1, 2, 3}
        assert len(rows) == 36
        assert torch.equal(features, tester.features(state.models[1], "training", torch.from_numpy(rows.row)))
    with Contract.of("local", MLP).trial(federation) as trial:
        server = Server(ServerState.fresh(trial.plan), trial.plan, lambda: trial.host)
        assert Watch(federation, truth_of(federation)).features(server, SerialRuntime(trial.host), 36) is None


# In a run

RUN = {"clients": 3, "rounds": 3, "epochs": 1, "batch": 20, "noise": "symmetric", "noise.rate": 0.4} | MLP


def rows_of(folder, *keys):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [[json.loads(line)[key] for key in keys or WATCHED] for line in lines]


@pytest.fixture(scope="module")
def plain(tmp_path_factory, tiny_file):
    folder = tmp_path_factory.mktemp("plain") / "run"
    keys = RUN | {"method": "ksim", "data": str(tiny_file), "runtime": "serial"}
    return fedsieve.run(quiet=True, **keys, out=str(folder)), folder


@pytest.fixture(scope="module")
def seen(tmp_path_factory, tiny_file):
    folder = tmp_path_factory.mktemp("seen") / "run"
    keys = RUN | {"method": "ksim", "data": str(tiny_file), "runtime": "serial", "watch": True}
    return fedsieve.run(quiet=True, **keys, out=str(folder)), folder


def test_watching_changes_nothing(plain, seen):
    assert plain[0]["model_sha256"] == seen[0]["model_sha256"]
    assert rows_of(plain[1], "test_accuracy", "train_loss") == rows_of(seen[1], "test_accuracy", "train_loss")
    assert rows_of(plain[1]) == [[None] * 4] * 3
    assert all(value > 0 for row in rows_of(seen[1]) for value in row)
    assert [seen[0][name] for name in WATCHED] == rows_of(seen[1])[-1]
    assert not (plain[1] / "inside.npz").exists()


def test_a_pool_sees_the_same(seen, tmp_path, tiny_file):
    keys = RUN | {"method": "ksim", "data": str(tiny_file), "runtime": "pool", "workers": 1, "watch": True}
    fedsieve.run(quiet=True, **keys, out=str(tmp_path / "pool"))
    assert rows_of(tmp_path / "pool") == rows_of(seen[1])
    assert (tmp_path / "pool" / "inside.npz").read_bytes() == (seen[1] / "inside.npz").read_bytes()


def test_a_resumed_run_keeps_what_was_seen(seen, tmp_path, tiny_file, monkeypatch):
    folder, scores, calls = tmp_path / "cut", Watch.scores, []

    def cut(self, s, tester):
        calls.append(s.state.round)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return scores(self, s, tester)

    keys = RUN | {"method": "ksim", "data": str(tiny_file), "runtime": "serial", "watch": True}
    monkeypatch.setattr(Watch, "scores", cut)
    with pytest.raises(KeyboardInterrupt):
        fedsieve.run(quiet=True, **keys, out=str(folder))
    assert len(rows_of(folder)) == 1
    fedsieve.resume(folder, quiet=True)
    assert rows_of(folder) == rows_of(seen[1])
    assert (folder / "inside.npz").read_bytes() == (seen[1] / "inside.npz").read_bytes()


def test_a_finished_run_can_be_looked_into_afterwards(plain, seen, tmp_path, tiny_file):
    keys = RUN | {"method": "ksim", "data": str(tiny_file), "runtime": "serial"}
    fedsieve.run(quiet=True, **keys, out=str(tmp_path / "run"))
    fedsieve.resume(tmp_path / "run", quiet=True, watch=True)
    assert (tmp_path / "run" / "inside.npz").read_bytes() == (seen[1] / "inside.npz").read_bytes()
    assert rows_of(tmp_path / "run") == [[None] * 4] * 3
