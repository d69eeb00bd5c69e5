"""Robust combiners: by hand, against Flower's and scipy's, in runs, and where they are refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.server.strategy.aggregate import aggregate_krum, aggregate_median, aggregate_trimmed_avg
from scipy.optimize import minimize

from fedsieve.base.errors import CompositionError, ConfigError
from fedsieve.core import combiners
from fedsieve.core.combiners import COMBINERS, GeometricMedian, Krum, Median, TrimmedMean
from fedsieve.core.part import Method, Stage
from fedsieve.settings.planning import config_of, plan_of
from fedsieve.testing import Contract, tiny_federation

MLP = {"model": "mlp", "model.hidden": [8], "rounds": 2}
ROBUST = [name for name in COMBINERS if name != "mean"]


def reports(*rows):
    """One net a client."""
    return [(torch.tensor(row, dtype=torch.float32),) for row in rows]


def drawn(clients=9, size=6, seed=0):
    """A crowd with two far away, two nets each."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(clients, 2, size)).astype(np.float32)
    vectors[[1, 5]] += 30
    return vectors, [tuple(torch.from_numpy(net) for net in each) for each in vectors]


def flowers(vectors):
    return [(list(each), 1) for each in vectors]


def same(ours, theirs):
    return all(np.allclose(a.numpy(), b, atol=1e-6) for a, b in zip(ours, theirs, strict=True))


def test_the_median_by_hand():
    assert Median().combine(reports([0, 9], [1, -5], [100, 2]))[0].tolist() == [1, 2]
    assert Median().combine(reports([0, 0], [1, 0], [2, 0], [100, 0]))[0].tolist() == [1.5, 0]


def test_the_trimmed_mean_by_hand():
    five = reports([0, 5], [1, 4], [2, 3], [3, 2], [100, -100])
    assert TrimmedMean(trim=0.2).combine(five)[0].tolist() == [2, 3]
    assert TrimmedMean(trim=0.4).combine(five)[0].tolist() == [2, 3]
    assert TrimmedMean(trim=0.0).combine(five)[0].tolist() == pytest.approx([21.2, -17.2])
    assert TrimmedMean(trim=0.1).combine(five)[0].tolist() == [2, 3], "a share is rounded up"
    assert TrimmedMean(trim=0.49).combine(reports([1, 7]))[0].tolist() == [1, 7], "one value always stays"
    assert TrimmedMean(trim=0.49).combine(reports([1, 7], [3, 9]))[0].tolist() == [2, 8]


def test_blocks_of_coordinates_make_no_difference(monkeypatch):
    _, ours = drawn()
    whole = [kind.combine(ours) for kind in (Median(), TrimmedMean(trim=0.2))]
    monkeypatch.setattr(combiners, "BLOCK", 20)
    for kind, wanted in zip((Median(), TrimmedMean(trim=0.2)), whole, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(kind.combine(ours), wanted, strict=True))


def test_krum_by_hand():
    """Five on a line; f = 1, so the two nearest count: 0 | 1 + 4, 1 | 1 + 1, 2 | 1 + 1, 3 | 1 + 4, 50 | far."""
    line = reports([0], [1], [2], [3], [50])
    krum = Krum(faulty=1)
    scores = krum.scores(torch.tensor([[0.0], [1], [2], [3], [50]], dtype=torch.float64))
    assert scores.tolist() == [5, 2, 2, 5, 47**2 + 48**2]
    assert krum.combine(line)[0].tolist() == [1], "of equals the first"
    assert Krum(faulty=1, keep=2).combine(line)[0].tolist() == [1.5]
    assert Krum(faulty=1, keep=4).combine(line)[0].tolist() == [1.5]
    assert Krum(faulty=9).combine(line)[0].tolist() == [1], "as many as five reports bear"
    assert Krum().combine(reports([4]))[0].tolist() == [4]
    assert Krum().combine(reports([4], [5]))[0].tolist() == [4]


def test_the_geometric_median_by_hand():
    """Of three points on a line the middle one; of four corners and the centre the centre."""
    assert GeometricMedian().combine(reports([0], [1], [100]))[0].tolist() == pytest.approx([1], abs=1e-3)
    square = reports([0, 0], [0, 2], [2, 0], [2, 2], [1, 1])
    assert GeometricMedian().combine(square)[0].tolist() == pytest.approx([1, 1], abs=1e-5)
    assert GeometricMedian().combine(reports([3, 4]))[0].tolist() == [3, 4]
    assert GeometricMedian(iterations=1).combine(reports([0], [1], [100]))[0].item() > 2, "a step from the mean"


@pytest.mark.parametrize("seed", range(5))
def test_the_same_as_flower(seed):
    vectors, ours = drawn(seed=seed)
    assert same(Median().combine(ours), aggregate_median(flowers(vectors)))
    for trim in (1 / 9, 3 / 9):
        assert same(TrimmedMean(trim=trim).combine(ours), aggregate_trimmed_avg(flowers(vectors), trim + 1e-9))
    for faulty in (0, 1, 2, 3):
        assert same(Krum(faulty=faulty).combine(ours), aggregate_krum(flowers(vectors), faulty, 0))
        assert same(Krum(faulty=faulty, keep=4).combine(ours), aggregate_krum(flowers(vectors), faulty, 4))


@pytest.mark.parametrize("seed", range(3))
def test_the_geometric_median_is_the_minimum_that_scipy_finds(seed):
    vectors, ours = drawn(seed=seed)
    flat = vectors.reshape(len(vectors), -1).astype(float)

    def distances(z):
        return np.linalg.norm(flat - z, axis=1).sum()

    best = minimize(distances, flat.mean(axis=0), method="BFGS", options={"gtol": 1e-9}).x
    found = torch.cat(GeometricMedian(tolerance=1e-12, iterations=1000).combine(ours)).numpy()
    assert np.allclose(found, best, atol=1e-3)
    assert distances(found) <= distances(best) * (1 + 1e-6)


@pytest.mark.parametrize("name", ROBUST)
def test_far_reports_do_not_carry_the_result_away(name):
    vectors, ours = drawn()
    middle = np.delete(vectors, [1, 5], axis=0).mean(axis=0)
    combined = COMBINERS[name](**({"trim": 0.25} if name == "trimmed-mean" else {})).combine(ours)
    assert all(np.abs(net.numpy() - m).max() < 3 for net, m in zip(combined, middle, strict=True))
    assert np.abs(vectors.mean(axis=0) - middle).min() > 3, "the mean is carried away"


def uneven():
    whole = tiny_federation()
    return replace(
        whole,
        rows=tuple(rows[: 24 - 5 * k] for k, rows in enumerate(whole.rows)),
        given=tuple(given[: 24 - 5 * k] for k, given in enumerate(whole.given)),
    )


@pytest.mark.parametrize("name", ROBUST)
def test_the_key_combines_with_equal_weights(name):
    with Contract.of("fedavg", {**MLP, "combine": name, "rounds": 1}).trial(uneven()) as trial:
        model = trial.run().models[0]
        wanted = COMBINERS[name]().combine([up.models for up in trial.record.ups])
        assert all(torch.equal(a, b) for a, b in zip(model, wanted, strict=True))
        assert trial.record.rounds[0].weights == dict.fromkeys(range(4), 0.25)


def test_the_key_mean_changes_nothing():
    models = []
    for more in ({}, {"combine": "mean"}):
        with Contract.of("fedavg", {**MLP, **more}).trial(uneven()) as trial:
            models.append(trial.run().models[0][0])
    assert torch.equal(*models)


@pytest.mark.parametrize("method", ["co-teaching", "ifca", "fb-nll-minus", "fedcorr", "scaffold"])
def test_several_nets_groups_and_stages_combine_too(method):
    for name in ("krum", "geometric-median"):
        with Contract.of(method, {**MLP, "combine": name}).trial() as trial:
            state = trial.run()
            assert all(torch.isfinite(net).all() for nets in state.models.values() for net in nets)
            assert all(type(stage.combine) is COMBINERS[name] for stage in trial.plan.stages)


def test_options_are_checked_and_written_out():
    config = config_of({"combine": "krum", "combine.keep": 3})
    assert config.of("combine") == {"faulty": None, "keep": 3}
    for settings in ({"combine": "krum", "combine.trim": 0.1}, {"combine.trim": 0.1}):
        with pytest.raises(ConfigError, match="FS001"):
            plan_of(config_of({**MLP, **settings}), tiny_federation())
    with pytest.raises(ConfigError, match="FS002"):
        config_of({"combine": "trimmed-mean", "combine.trim": 0.5})
    with pytest.raises(ConfigError, match="FS002"):
        config_of({"combine": "mode"})


@pytest.mark.parametrize("method", ["fedds", "focus", "client-selection", "clipfl", "fednoro", "fedelc"])
def test_methods_that_weigh_are_refused(method):
    with pytest.raises(CompositionError, match="weighs reports, but Krum ignores weights") as problem:
        Contract.of(method, {"combine": "krum"}).plan(tiny_federation())
    assert problem.value.code == "FS114"


@pytest.mark.parametrize("method", ["local", "rhfl"])
def test_where_nothing_is_combined_the_key_is_refused(method):
    with pytest.raises(CompositionError, match="combines nothing") as problem:
        Contract.of(method, {"combine": "median"}).plan(tiny_federation())
    assert problem.value.code == "FS114"


def test_secure_aggregation_refuses_them():
    settings = {"combine": "trimmed-mean", "secure_aggregation": True}
    with pytest.raises(CompositionError, match="secure aggregation is on, but TrimmedMean sees") as problem:
        Contract.of("fedavg", settings).plan(tiny_federation())
    assert problem.value.code == "FS117"


def test_the_key_wins_over_the_methods_own_combiner():
    plan = Contract.of(Method("own", (Stage(combine=Median()),)), {"combine": "krum"}).plan(tiny_federation())
    assert isinstance(plan.stages[0].combine, Krum)
