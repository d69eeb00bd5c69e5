"""Probes against scikit-learn's estimators and by hand; which rows they learn from; what a run records of them."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

import fedsieve
from fedsieve.base.errors import CompositionError, ConfigError, DataError
from fedsieve.core import Method
from fedsieve.core.server import Server, ServerState
from fedsieve.data.truth import GroundTruth
from fedsieve.evaluate import evaluator
from fedsieve.evaluate.evaluator import Evaluator
from fedsieve.evaluate.probe import (
    feature_rank,
    feature_spread,
    has_collapsed,
    linear_probe,
    logistic_regression,
    nearest_neighbours,
    probe,
)
from fedsieve.runs.prediction import predict_samples
from fedsieve.runtime.serial import SerialRuntime
from fedsieve.testing import Contract, tiny_federation

MLP = {"model": "mlp", "model.hidden": [8]}


def blobs(n, seed, classes=4, d=6, spread=1.6):
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(0).standard_normal((classes, d)) * 2
    labels = rng.integers(0, classes, n)
    return torch.from_numpy(centres[labels] + spread * rng.standard_normal((n, d))).float(), labels


@pytest.mark.parametrize(("k", "temperature"), [(200, 0.1), (5, 0.1), (1, 0.5), (20, 0.05), (1000, 1.0)])
def test_neighbours_are_those_of_scikit_learn(k, temperature):
    (x, y), (queries, _) = blobs(300, 1), blobs(500, 2)
    theirs = KNeighborsClassifier(
        min(k, 300), metric="cosine", weights=lambda distances: np.exp((1 - distances) / temperature)
    ).fit(x.double().numpy(), y)
    found = nearest_neighbours(x, y, queries, k, temperature)
    assert (found == theirs.predict(queries.double().numpy())).mean() > 0.995


def test_neighbours_by_hand():
    """Two rows at 0 and 60 degrees against three at 90: weights e^10, e^5 and 3; length does not matter."""
    angles = np.radians([0, 60, 90, 90, 90])
    x = torch.tensor(np.stack([np.cos(angles), np.sin(angles)], 1) * [[3], [1], [2], [5], [1]]).float()
    labels, asked = np.array([7, 3, 3, 3, 3]), torch.tensor([[0.5, 0.0]])
    assert nearest_neighbours(x, labels, asked).tolist() == [7]
    assert nearest_neighbours(x, labels, asked, temperature=1.0).tolist() == [3], "e against sqrt(e) + 3"
    assert nearest_neighbours(x, labels, asked, k=1, temperature=1.0).tolist() == [7]
    assert nearest_neighbours(x, labels, asked[:0]).tolist() == []
    assert nearest_neighbours(torch.zeros(2, 2), np.array([1, 0]), asked).tolist() == [0], "no direction, a tie"
    assert nearest_neighbours(x, labels, asked, temperature=1e-4).tolist() == [7], "no overflow"


@pytest.mark.parametrize("penalty", [0.1, 1.0, 30.0])
def test_the_regression_is_that_of_scikit_learn(penalty):
    (x, y), (queries, _) = blobs(300, 3), blobs(400, 4)
    weights, bias = logistic_regression(x.double(), y, 4, penalty, steps=1000)
    theirs = LogisticRegression(C=1 / penalty, tol=1e-8, max_iter=5000).fit(x.double().numpy(), y)
    assert np.allclose(weights.numpy(), theirs.coef_, atol=2e-3)
    mine = (queries.double() @ weights.T + bias).softmax(1).numpy()
    assert np.allclose(mine, theirs.predict_proba(queries.double().numpy()), atol=1e-3)


def test_the_linear_probe_scales_its_features():
    (x, y), (queries, _) = blobs(300, 5), blobs(400, 6)
    scale, shift = torch.tensor([1e-3, 1, 1e3, 1, 1, 1]), torch.tensor([0, 5.0, -1e3, 0, 0, 0])
    found = linear_probe(x * scale + shift, y, queries * scale + shift)
    assert (found == linear_probe(x, y, queries)).mean() > 0.995
    scaled = (x - x.mean(0)) / x.std(0, correction=0)
    theirs = LogisticRegression(tol=1e-8, max_iter=5000).fit(scaled.numpy(), y)
    expected = theirs.predict(((queries - x.mean(0)) / x.std(0, correction=0)).numpy())
    assert (found == expected).mean() > 0.995
    assert np.array_equal(found, linear_probe(x * scale + shift, y, queries * scale + shift)), "nothing is drawn"


def test_classes_that_no_labelled_row_has_are_not_predicted():
    (x, y), (queries, _) = blobs(60, 7, classes=2), blobs(20, 8)
    for found in probe(x, y * 5 + 2, queries)[:2]:
        assert set(found.tolist()) <= {2, 7}
    for found in probe(x, np.full(60, 3), queries)[:2]:
        assert set(found.tolist()) == {3}
    constant = torch.ones(60, 3)
    assert all(len(found) == 2 for found in probe(constant, y, constant[:2])[:2])


# In a run


def judge_of(federation, truth, method=None):
    plan = Contract.of(method or Method("own", test="probe"), MLP).plan(federation)
    state = ServerState.fresh(plan)
    judge = Evaluator(federation, truth, states=None)
    with Contract.of(Method("own", test="probe"), MLP).trial(federation) as trial:
        judge.tester = SerialRuntime(trial.host)
    return judge, Server(state, plan, lambda: None)


TEST = np.arange(40) % 4


@pytest.mark.parametrize("which", ["validation", "training"])
def test_the_rows_that_a_probe_learns_from(which):
    federation = tiny_federation()
    true = tuple((given + 1) % 4 for given in federation.given)
    held, labels = np.arange(100, 112), np.arange(12) % 4
    if which == "validation":
        federation = replace(federation, validation=held)
    judge, server = judge_of(federation, GroundTruth(true, TEST, labels if which == "validation" else labels[:0]))
    scores = judge.scores(server)
    rows = held if which == "validation" else np.concatenate(federation.rows)
    module = server.plan.build(0).eval()

    def features(images):
        x = (torch.from_numpy(images).float() / 255 - 0.5) / 0.25
        return module.features(x.permute(0, 3, 1, 2)).detach()

    known = labels if which == "validation" else np.concatenate(true)
    expected = probe(features(federation.images[rows]), known, features(federation.test_images))
    assert scores["probe_rows"] == which
    assert scores["knn_accuracy"] == scores["test_accuracy"] == pytest.approx((expected.knn == TEST).mean())
    assert scores["linear_accuracy"] == pytest.approx((expected.linear == TEST).mean())
    assert "validation_accuracy" not in scores


def test_a_probe_learns_from_some_of_many_rows(monkeypatch):
    federation = tiny_federation()
    judge, _ = judge_of(federation, GroundTruth(federation.given, TEST, TEST[:0]))
    monkeypatch.setattr(evaluator, "MOST_PROBED", 40)
    which, rows, labels = judge.probe_set()
    assert (which, len(rows), len(labels)) == ("training", 32, 32)
    everything = np.concatenate(federation.given)
    assert np.array_equal(labels, everything[::3])


def test_a_probe_without_labelled_rows_is_refused_before_the_first_round(tmp_path):
    x = np.random.default_rng(0).standard_normal((40, 3)).astype(np.float32)
    rows = [f"{i % 2},{','.join(map(str, row))}" for i, row in enumerate(x)]
    (tmp_path / "mine.csv").write_text("\n".join(["label,a,b,c", *rows]) + "\n")
    settings = {"data": str(tmp_path / "mine.csv"), "clients": 2, "rounds": 1, "runtime": "serial", "model": "mlp"}
    with pytest.raises(DataError, match=r"by a probe.*Set validation.*\[FS307\]"):
        fedsieve.run(quiet=True, **settings, method="label_free:encoder", out=str(tmp_path / "run"))


def test_a_probe_tests_the_server_s_model_and_no_client_s_own():
    with pytest.raises(CompositionError, match=r"norm=local.*test='clients'.*probe") as caught:
        Contract.of(Method("own", test="probe"), {"norm": "local"}).plan(tiny_federation())
    assert caught.value.code == "FS101"


@pytest.mark.parametrize("more", [{}, {"validation": 20}], ids=["training", "validation"])
def test_what_a_run_records_of_its_probe(tmp_path, tiny_file, more):
    settings = {
        "data": str(tiny_file), "clients": 2, "rounds": 2, "epochs": 1, "method": "label_free:encoder",
        "client_labels": False, **MLP, **more,
    }  # fmt: skip
    results = []
    for runtime in ("serial", "pool"):
        folder = tmp_path / runtime
        fedsieve.run(quiet=True, **settings, runtime=runtime, workers=1, out=str(folder))
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        summary = json.loads((folder / "summary.json").read_text())
        for row in rows:
            assert row["test_accuracy"] == row["knn_accuracy"]
            assert 0 <= row["linear_accuracy"] <= 1
            assert row["probe_rows"] == ("validation" if more else "training")
        for key in ("knn_accuracy", "linear_accuracy", "probe_rows"):
            assert summary[key] == rows[-1][key]
        results.append([(row["knn_accuracy"], row["linear_accuracy"]) for row in rows])
    assert results[0] == results[1], "wherever the features are computed"
    with pytest.raises(ConfigError, match=r"trained no classifier.*\[FS007\]"):
        predict_samples(tmp_path / "serial", np.load(tiny_file)["x_test"])


def test_spread_and_rank_by_hand():
    """Four directions of the plane, one twice as long: every coordinate has the deviation √½; the second has more."""
    cross = torch.tensor([[2.0, 0.0], [-2.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    assert feature_spread(cross) == pytest.approx(1.0)
    shares = np.array([2 / 3, 1 / 3])
    assert feature_rank(cross) == pytest.approx(np.exp(-(shares * np.log(shares)).sum()))
    assert feature_rank(cross + 7.0) == pytest.approx(feature_rank(cross)), "centred"
    assert feature_spread(3 * cross) == pytest.approx(feature_spread(cross)), "of any length"


def test_a_collapse_is_told():
    same, line = torch.ones(9, 4), torch.arange(9.0)[:, None] * torch.tensor([[1.0, -1.0, 2.0, 0.0]]) + 5
    assert (feature_spread(same), feature_rank(same)) == pytest.approx((0.0, 0.0), abs=1e-6)
    assert feature_rank(line) == pytest.approx(1.0, abs=1e-4)
    healthy = torch.from_numpy(np.random.default_rng(0).standard_normal((200, 8)))
    assert feature_rank(healthy) > 7
    assert has_collapsed(feature_spread(same), feature_rank(same))
    assert has_collapsed(feature_spread(line), feature_rank(line))
    assert not has_collapsed(feature_spread(healthy), feature_rank(healthy))
