"""Noise and rates: realised against nominal, independence between clients, exact rules, and clear refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2_contingency, chisquare, truncnorm

from fedsieve.base.errors import ConfigError, DataError, FedSieveError
from fedsieve.base.options import build, options_of
from fedsieve.base.rng import numpy_rng
from fedsieve.data.instance_noise import confusions, truncated_normal
from fedsieve.data.noise import NOISES, RATES, NoiseOutcome, Owned, corrupt, transition_test

SELF_CONTAINED = sorted(set(NOISES) - {"human", "superclass", "asymmetric"})


def streams(seed: int) -> Any:
    return lambda *key: numpy_rng(seed, *key)


def rates_of(name: str, clients: int, seed: int = 0, **options: Any) -> np.ndarray:
    drawn: np.ndarray = build(RATES[name], options, "noise")(clients, np.random.default_rng(seed))
    return drawn


def noisy(name: str, labels: Any, rate: float, n_classes: int = 10, seed: int = 0, **options: Any) -> np.ndarray:
    noise = build(NOISES[name], options, "noise")
    given_labels: np.ndarray = noise(Owned(np.array(labels, np.int64), 0), rate, n_classes, np.random.default_rng(seed))
    return given_labels


def client(labels: Any, number: int = 0, n_classes: int = 10) -> Owned:
    """A client with everything any noise may ask for."""
    labels = np.array(labels, np.int64)
    rng = np.random.default_rng(number)
    return Owned(
        labels,
        number,
        task=(0, 1, 2),
        rows=np.arange(len(labels)),
        features=rng.standard_normal((len(labels), 8)).astype(np.float32),
        soft=rng.dirichlet(np.ones(n_classes), size=len(labels)),
    )


def outcome(
    name: str, clients: int = 50, n: int = 400, rate: float = 0.4, seed: int = 0, **options: Any
) -> NoiseOutcome:
    owned = [client(np.random.default_rng(i).integers(10, size=n), i) for i in range(clients)]
    return corrupt(
        build(NOISES[name], options, "noise"), build(RATES["fixed"], {"rate": rate}, "noise"), owned, 10, streams(seed)
    )


def symmetric_matrix(rate: float, n_classes: int = 10) -> np.ndarray:
    matrix = np.full((n_classes, n_classes), rate / (n_classes - 1))
    np.fill_diagonal(matrix, 1 - rate)
    return matrix


# Rates


def test_ramp_never_reaches_its_upper_end() -> None:
    ramp = rates_of("ramp", 100, high=0.4, shuffle=False)
    assert ramp[0] == 0
    assert ramp[-1] == pytest.approx(0.396)
    assert ramp.mean() == pytest.approx(0.198)
    np.testing.assert_allclose(np.diff(ramp), 0.004)


def test_a_shuffled_ramp_has_the_same_rates_in_another_order() -> None:
    ramp, shuffled = rates_of("ramp", 100, shuffle=False), rates_of("ramp", 100)
    np.testing.assert_array_equal(np.sort(shuffled), ramp)
    assert abs(np.corrcoef(ramp, shuffled)[0, 1]) < 0.3


def test_rho_tau_draws_noisy_clients_one_by_one_or_exactly() -> None:
    drawn = rates_of("rho-tau", 10_000, rho=0.7, tau=0.2)
    assert (drawn > 0).mean() == pytest.approx(0.7, abs=0.02)
    assert drawn[drawn > 0].min() >= 0.2
    assert drawn[drawn > 0].mean() == pytest.approx(0.6, abs=0.01)
    exact = {
        int((rates_of("rho-tau", 20, seed, rho=0.29, tau=0.5, high=0.7, exact=True) > 0).sum()) for seed in range(20)
    }
    assert exact == {5}


def test_the_grid_is_fedds_s() -> None:
    drawn = rates_of("grid", 10_000)
    values, counts = np.unique(drawn.round(10), return_counts=True)
    np.testing.assert_allclose(values, np.arange(1, 11) / 10)
    assert chisquare(counts).pvalue > 1e-3


def test_beta_rates_are_mostly_extreme() -> None:
    drawn = rates_of("beta", 5000)
    assert drawn.mean() == pytest.approx(0.5, abs=0.03)
    assert ((drawn < 0.05) | (drawn > 0.95)).mean() > 0.7


def test_given_rates_are_one_per_client() -> None:
    np.testing.assert_array_equal(rates_of("given", 3, values=[0, 0.5, 1]), [0, 0.5, 1])
    with pytest.raises(ConfigError, match=r"noise\.values has 3 rates for 4 clients"):
        rates_of("given", 4, values=[0, 0.5, 1])


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(sorted(set(RATES) - {"given"})), clients=st.integers(0, 50), seed=st.integers(0, 99))
def test_rates_are_rates(name: str, clients: int, seed: int) -> None:
    drawn = rates_of(name, clients, seed)
    assert drawn.shape == (clients,)
    assert ((drawn >= 0) & (drawn <= 1)).all()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fixed", {"rate": 1.1}),
        ("fixed", {"rate": -0.1}),
        ("fixed", {"rate": float("nan")}),
        ("ramp", {"low": 0.5, "high": 0.4}),
        ("rho-tau", {"tau": 0.8, "high": 0.7}),
        ("rho-tau", {"rho": 2}),
        ("beta", {"a": 0}),
        ("grid", {"points": 0}),
        ("given", {"values": [0.1, 3]}),
    ],
)
def test_rates_outside_their_bounds_are_refused(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as refusal:
        rates_of(name, 5, **options)
    assert refusal.value.code == "FS002"


def test_options_of_noises_and_rates_do_not_collide_and_are_documented() -> None:
    of_rates = [option for kind in RATES.values() for option in options_of(kind).values()]
    of_noises = [option for kind in NOISES.values() for option in options_of(kind).values()]
    assert not {option.name for option in of_rates} & {option.name for option in of_noises}
    assert all(option.doc for option in of_rates + of_noises)


# Class noise


@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_symmetric_flips_exactly_its_share_to_other_classes(rate: float) -> None:
    result = outcome("symmetric", rate=rate)
    np.testing.assert_allclose(result.realised, rate)
    assert transition_test(result.transitions, symmetric_matrix(rate)) > 1e-3


def test_symmetric_by_chance_has_the_right_mean_and_a_spread() -> None:
    result = outcome("symmetric", rate=0.3, count="bernoulli")
    assert result.realised.mean() == pytest.approx(0.3, abs=0.015)
    assert result.realised.std() > 0.01
    assert transition_test(result.transitions, symmetric_matrix(0.3)) > 1e-3


def test_symmetric_self_may_draw_the_true_label() -> None:
    result = outcome("symmetric-self", rate=0.75)
    assert result.realised.mean() == pytest.approx(0.675, abs=0.01)
    matrix = np.full((10, 10), 0.075) + 0.25 * np.eye(10)
    assert transition_test(result.transitions, matrix) > 1e-3


def test_symmetric_self_uses_all_of_a_hundred_classes() -> None:
    flipped = noisy("symmetric-self", np.zeros(20_000), 0.75, n_classes=100)
    assert len(np.unique(flipped)) == 100
    assert (flipped != 0).mean() == pytest.approx(0.7425, abs=0.015)


def test_local_space_keeps_to_the_client_s_classes_unless_it_has_one() -> None:
    assert set(noisy("symmetric", [2, 7] * 500, 0.5, space="local")) == {2, 7}
    assert (noisy("symmetric", [2, 7] * 500, 1.0, space="local") == [7, 2] * 500).all()
    assert set(noisy("symmetric", [4] * 1000, 1.0, space="local")) == set(range(10)) - {4}


def test_pair_takes_one_step_either_way() -> None:
    labels = np.arange(10).repeat(10)
    np.testing.assert_array_equal(noisy("pair", labels, 1.0), (labels + 1) % 10)
    np.testing.assert_array_equal(noisy("pair", labels, 1.0, step=-1), (labels - 1) % 10)
    assert (noisy("pair", labels, 0.29) != labels).sum() == 29


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cifar10", [0, 1, 0, 5, 7, 5, 6, 7, 8, 1]),
        ("cifar10-two-way", [0, 1, 0, 5, 7, 3, 6, 7, 8, 1]),
        ("mnist", [0, 1, 7, 8, 4, 6, 5, 1, 8, 9]),
    ],
)
def test_asymmetric_maps(name: str, expected: list[int]) -> None:
    assert noisy("asymmetric", range(10), 1.0, map=name).tolist() == expected


def test_asymmetric_flips_only_source_classes_at_the_client_s_rate() -> None:
    result = outcome("asymmetric", rate=0.5)
    matrix = np.eye(10)
    for source, wrong in {9: 1, 2: 0, 4: 7, 3: 5}.items():
        matrix[source, [source, wrong]] = 0.5
    assert transition_test(result.transitions, matrix) > 1e-3
    assert result.realised.mean() == pytest.approx(0.4 * 0.5, abs=0.01)


@pytest.mark.parametrize("pairs", [{0: 1, 1: 2}, [(0, 1), (1, 2)], {"0": 1, "1": 2}])
def test_own_maps(pairs: Any) -> None:
    assert noisy("asymmetric", [0, 1, 2], 1.0, n_classes=3, map=pairs).tolist() == [1, 2, 2]


@pytest.mark.parametrize("pairs", [{0: 10}, {-1: 2}, {3: 3}])
def test_maps_of_unknown_or_equal_classes_are_refused(pairs: dict[int, int]) -> None:
    with pytest.raises(ConfigError, match=r"noise\.map sends class"):
        noisy("asymmetric", range(10), 0.5, map=pairs)


def test_superclass_noise_stays_in_the_true_superclass() -> None:
    flipped = noisy("superclass", range(100), 1.0, n_classes=100)
    # beaver -> dolphin, whale -> beaver, baby -> boy, apple -> mushroom
    assert flipped[[4, 95, 2, 0]].tolist() == [30, 4, 11, 51]
    assert sorted(flipped) == list(range(100))


def test_superclass_of_other_data_needs_a_map() -> None:
    with pytest.raises(ConfigError, match=r"Give noise\.map"):
        noisy("superclass", range(10), 0.5)
    assert noisy("superclass", range(4), 1.0, n_classes=4, map=[[0, 2], [1, 3]]).tolist() == [2, 3, 0, 1]


def test_mixed_halves_have_their_own_noise_and_their_own_ramp() -> None:
    owned = [client(np.arange(1000) % 10, i) for i in range(10)]
    ramp = build(RATES["ramp"], {"high": 0.4, "shuffle": False}, "noise")
    result = corrupt(build(NOISES["mixed"], {"step": -1}, "noise"), ramp, owned, 10, streams(0))
    np.testing.assert_allclose(result.nominal, [0, 0.08, 0.16, 0.24, 0.32] * 2)
    np.testing.assert_allclose(result.realised, result.nominal)
    for i, labels in enumerate(result.given):
        wrong = labels != owned[i].labels
        steps = set((labels[wrong] - owned[i].labels[wrong]) % 10)
        assert len(steps) == [0, 9, 9, 9, 9, 0, 1, 1, 1, 1][i]


def test_mixed_noise_takes_given_rates_for_all_clients_together() -> None:
    owned = [client([0] * 10, i) for i in range(3)]
    rates = build(RATES["given"], {"values": [0.1, 0.2, 0.3]}, "noise")
    assert corrupt(NOISES["mixed"](), rates, owned, 10, streams(0)).realised.tolist() == [0.1, 0.2, 0.3]


# Task noise


def test_class_independent_noise_gives_one_foreign_label() -> None:
    owned = client([0, 1, 2, 2] * 25)
    flipped = NOISES["class-independent"]()(owned, 0.25, 10, np.random.default_rng(0))
    wrong = flipped != owned.labels
    assert wrong.sum() == 25
    assert len(set(flipped[wrong])) == 1
    assert flipped[wrong][0] not in (0, 1, 2)
    assert len(set(owned.labels[wrong])) == 3


def test_class_dependent_noise_takes_one_class_before_the_next() -> None:
    owned = client([0] * 40 + [1] * 40 + [2] * 40 + [7] * 20)
    sources = set()
    for seed in range(30):
        flipped = NOISES["class-dependent"]()(owned, 0.25, 10, np.random.default_rng(seed))
        wrong = flipped != owned.labels
        assert wrong.sum() == 35
        assert len(set(flipped[wrong])) == len(set(owned.labels[wrong])) == 1
        sources |= set(owned.labels[wrong])
    assert sources == {0, 1, 2}
    spilt = NOISES["class-dependent"]()(owned, 0.5, 10, np.random.default_rng(0)) != owned.labels
    assert sorted(np.bincount(owned.labels[spilt], minlength=3)) == [0, 30, 40]


def test_class_dependent_noise_spares_rows_from_other_tasks() -> None:
    owned = client([0] * 10 + [8] * 90)
    flipped = NOISES["class-dependent"]()(owned, 0.5, 10, np.random.default_rng(3))
    assert (flipped[10:] == 8).all()
    assert (flipped[:10] > 2).all()


@pytest.mark.parametrize("name", ["class-independent", "class-dependent"])
def test_task_noise_needs_tasks(name: str) -> None:
    with pytest.raises(ConfigError, match="Use partition=tasks"):
        noisy(name, [0, 1], 0.5)
    with pytest.raises(ConfigError, match="holds every class"):
        NOISES[name]()(client([0, 1]), 0.5, 3, np.random.default_rng(0))


# Instance noise


def test_instance_soft_prefers_doubted_samples_and_the_helper_s_answer() -> None:
    labels = np.zeros(2000, np.int64)
    soft = np.tile([0.9, 0.08, 0.02], (2000, 1))
    soft[1000:] = [0.1, 0.3, 0.6]
    owned = Owned(labels, 0, soft=soft)
    flipped = NOISES["instance-soft"]()(owned, 0.1, 3, np.random.default_rng(0))
    assert (flipped != 0).sum() == 200
    sure, doubted = flipped[:1000], flipped[1000:]
    # Weights 0.1 and 0.9: 1 in 10 flips falls on a sure sample, a little more since drawn ones are not put back.
    assert (sure != 0).sum() == pytest.approx(21, abs=12)
    assert (
        chisquare([(doubted == 1).sum(), (doubted == 2).sum()], np.array([1, 2]) / 3 * (doubted != 0).sum()).pvalue
        > 1e-3
    )


def test_instance_soft_copes_with_a_helper_that_is_sure() -> None:
    owned = Owned(np.zeros(100, np.int64), 0, soft=np.tile([1.0, 0.0, 0.0], (100, 1)))
    flipped = NOISES["instance-soft"]()(owned, 0.5, 3, np.random.default_rng(0))
    assert np.bincount(flipped)[0] == 50
    assert min(np.bincount(flipped)[1:]) > 10


def test_instance_soft_needs_soft_labels_of_the_right_shape() -> None:
    with pytest.raises(ConfigError, match="needs soft labels of 2 x 10 at client 0"):
        noisy("instance-soft", [0, 1], 0.5)


def test_confusions_are_softmax_without_the_true_class() -> None:
    owned = [client([0, 2, 1], 0, n_classes=3), client([2, 2], 1, n_classes=3)]
    tables = confusions(owned, 3, np.random.default_rng(7))
    weights = np.random.default_rng(7).standard_normal((3, 8, 3), dtype=np.float32)
    for one, table in zip(owned, tables, strict=True):
        assert one.features is not None
        for x, y, row in zip(one.features, one.labels, table, strict=True):
            e = np.exp(x @ weights[y])
            e[y] = 0
            np.testing.assert_allclose(row, e / e.sum(), rtol=1e-4)


@pytest.mark.parametrize(("mean", "spread"), [(0.3, 0.1), (0.05, 0.1), (0.9, 0.3)])
def test_truncated_normal_agrees_with_scipy(mean: float, spread: float) -> None:
    draws = truncated_normal(mean, spread, 20_000, np.random.default_rng(0))
    law = truncnorm((0 - mean) / spread, (1 - mean) / spread, loc=mean, scale=spread)
    assert draws.min() >= 0
    assert draws.max() <= 1
    np.testing.assert_allclose(np.quantile(draws, [0.1, 0.5, 0.9]), law.ppf([0.1, 0.5, 0.9]), atol=0.01)


def test_a_normal_law_without_spread_is_its_mean() -> None:
    assert truncated_normal(0.3, 0.0, 3, np.random.default_rng(0)).tolist() == [0.3] * 3


def test_instance_part_has_the_client_s_rate_and_depends_on_the_sample() -> None:
    rng = np.random.default_rng(0)
    two_looks = rng.standard_normal((2, 32)).astype(np.float32)
    owned = [Owned(np.zeros(2000, np.int64), i, features=two_looks.repeat(1000, axis=0)) for i in range(2)]
    result = corrupt(NOISES["instance-part"](), RATES["fixed"](), owned, 5, streams(0))
    np.testing.assert_allclose(result.realised, 0.25, atol=0.04)
    tables = [[np.bincount(part, minlength=5) for part in np.split(labels, 2)] for labels in result.given]
    assert chi2_contingency(np.array(tables[0])[:, 1:] + 1).pvalue < 1e-6  # the looks are confused with other classes
    same_look = np.array([tables[0][0], tables[1][0]])
    assert chi2_contingency(same_look[:, same_look.sum(axis=0) > 10]).pvalue > 1e-3  # and alike at both clients


def test_instance_part_keeps_a_clean_client_clean_and_needs_features() -> None:
    assert outcome("instance-part", clients=3, rate=0.0).realised.max() == 0
    with pytest.raises(ConfigError, match="needs the features of client 0"):
        noisy("instance-part", [0, 1], 0.5)


# Human labels


@pytest.fixture
def human_file(tmp_path: Path) -> Path:
    path = tmp_path / "human.npz"
    np.savez(path, clean_label=np.arange(10), worse_label=np.arange(10)[::-1], random_label1=np.full(10, 3))
    return path


@pytest.mark.parametrize("key", ["worse_label", "worse"])
def test_human_labels_are_found_by_source_row(human_file: Path, key: str) -> None:
    owned = Owned(np.array([2, 7]), 4, rows=np.array([2, 7]))
    noise = build(NOISES["human"], {"file": str(human_file), "key": key}, "noise")
    result = corrupt(noise, RATES["fixed"](), [owned], 10, streams(0))
    assert result.given[0].tolist() == [7, 2]
    assert np.isnan(result.nominal).all()
    assert result.realised.tolist() == [1.0]


def test_human_labels_accept_short_names_and_structured_npy(tmp_path: Path) -> None:
    table = np.array([(0, 1), (1, 1)], dtype=[("clean", "u1"), ("random1", "u1")])
    np.save(tmp_path / "table.npy", table)
    noise = build(NOISES["human"], {"file": tmp_path / "table.npy", "key": "random_label1"}, "noise")
    assert noise(Owned(np.array([0, 1]), 0, rows=np.arange(2)), 0.0, 2, np.random.default_rng(0)).tolist() == [1, 1]


def test_human_labels_in_another_order_are_refused_by_row(human_file: Path) -> None:
    noise = build(NOISES["human"], {"file": human_file}, "noise")
    with pytest.raises(DataError, match="row 5 has clean label 5, but the data say 6") as refusal:
        noise(Owned(np.array([2, 6, 6]), 0, rows=np.array([2, 5, 7])), 0.0, 10, np.random.default_rng(0))
    assert refusal.value.code == "FS303"


@pytest.mark.parametrize(
    ("arrays", "rows", "says"),
    [
        ({"worse": [0, 1]}, [0, 1], "no clean labels"),
        ({"clean": [0, 1], "aggre": [0, 1]}, [0, 1], "noise.key=worse_label: not in"),
        ({"clean": [0, 1], "worse": [0]}, [0, 1], "have shapes"),
        ({"clean": [0], "worse": [0]}, [0, 1], "has 1 rows, but the data have row 1"),
        ({"clean": [0, 1], "worse": [0, 9]}, [0, 1], "labels outside 0 to 1"),
        ({"clean": [0, 1], "worse": [0, 1]}, None, "row numbers"),
        ({"clean": np.array([{}, {}], dtype=object)}, [0, 1], "cannot be read"),
    ],
)
def test_unusable_human_files_say_why(
    tmp_path: Path, arrays: dict[str, Any], rows: list[int] | None, says: str
) -> None:
    np.savez(tmp_path / "human.npz", **arrays)
    noise = build(NOISES["human"], {"file": tmp_path / "human.npz"}, "noise")
    owned = Owned(np.array([0, 1]), 0, rows=None if rows is None else np.array(rows))
    with pytest.raises(FedSieveError, match=says):
        noise(owned, 0.0, 2, np.random.default_rng(0))


@pytest.mark.parametrize("content", [None, b"", b"PK\x03\x04 broken"])
def test_missing_and_broken_human_files_are_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "human.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError) as refusal:
        build(NOISES["human"], {"file": path}, "noise")(client([0]), 0.0, 10, np.random.default_rng(0))
    assert refusal.value.code == ("FS303" if content is not None else "FS301")


def test_human_noise_without_a_file_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Give noise\.file"):
        noisy("human", [0], 0.0)


# Federations


@settings(max_examples=100, deadline=None)
@given(
    name=st.sampled_from(SELF_CONTAINED),
    labels=st.lists(st.integers(0, 9), max_size=60),
    rate=st.floats(0, 1),
    seed=st.integers(0, 9),
)
def test_noise_gives_labels_and_leaves_the_true_ones_alone(
    name: str, labels: list[int], rate: float, seed: int
) -> None:
    owned = client(labels)
    before = owned.labels.copy()
    flipped = NOISES[name]()(owned, rate, 10, np.random.default_rng(seed))
    assert flipped.shape == before.shape
    assert flipped.dtype == np.int64
    assert not np.shares_memory(flipped, owned.labels)
    assert ((flipped >= 0) & (flipped < 10)).all()
    np.testing.assert_array_equal(owned.labels, before)


@pytest.mark.parametrize("name", SELF_CONTAINED)
def test_the_seed_decides(name: str) -> None:
    first, again, other = (np.concatenate(outcome(name, 5, seed=seed).given) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert name == "none" or (first != other).any()


@pytest.mark.parametrize("name", ["symmetric", "symmetric-self", "pair"])
def test_flips_of_equal_clients_are_independent(name: str) -> None:
    owned = [client(np.zeros(500), i) for i in range(40)]
    result = corrupt(NOISES[name](), RATES["fixed"](), owned, 10, streams(0))
    masks = np.array([labels != 0 for labels in result.given])
    correlations = np.corrcoef(masks)[np.triu_indices(40, 1)]
    assert abs(correlations.mean()) < 0.01
    assert correlations.std() == pytest.approx(1 / np.sqrt(500), rel=0.2)


def test_a_client_s_flips_do_not_depend_on_the_others() -> None:
    few, many = outcome("symmetric", clients=3), outcome("symmetric", clients=30)
    for a, b in zip(few.given, many.given[:3], strict=True):
        np.testing.assert_array_equal(a, b)


def test_transitions_count_every_label_once() -> None:
    result = outcome("symmetric", clients=4, n=100)
    assert result.transitions.sum() == 400
    assert np.trace(result.transitions) == round((1 - result.realised).sum() * 100)


def test_no_noise_has_rate_zero() -> None:
    result = outcome("none", rate=0.4)
    assert not result.nominal.any()
    assert not result.realised.any()


@pytest.mark.parametrize("name", SELF_CONTAINED)
def test_an_empty_client_stays_empty(name: str) -> None:
    owned = [client([1, 2] * 20, 0), client([], 1)]
    result = corrupt(NOISES[name](), RATES["fixed"](), owned, 10, streams(0))
    assert len(result.given[1]) == 0
    assert result.realised[1] == 0


@pytest.mark.parametrize("name", ["symmetric", "pair", "instance-soft", "instance-part"])
def test_one_class_cannot_be_wrong(name: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        NOISES[name]()(client([0, 0], n_classes=1), 0.5, 1, np.random.default_rng(0))
    assert refusal.value.code == "FS002"


@pytest.mark.parametrize("name", ["none", "symmetric-self"])
def test_one_class_stays_as_it_is_where_that_is_the_rule(name: str) -> None:
    assert noisy(name, [0, 0, 0], 1.0, n_classes=1).tolist() == [0, 0, 0]


@pytest.mark.parametrize("rate", [-0.01, 1.01])
def test_rates_given_by_hand_are_checked(rate: float) -> None:
    with pytest.raises(ConfigError, match=r"outside \[0, 1\]"):
        noisy("symmetric", [0, 1], rate)


def test_labels_that_are_no_class_are_named() -> None:
    with pytest.raises(DataError, match="client 0, row 1: label 10 is not one of 10 classes"):
        noisy("symmetric", [0, 10], 0.5)


# The chi-square test


def test_transition_test_agrees_with_scipy() -> None:
    counts = np.array([[70, 20, 10], [5, 80, 15], [12, 8, 80]])
    nominal = symmetric_matrix(0.25, 3)
    expected = nominal * counts.sum(axis=1, keepdims=True)
    pooled = chisquare(counts.ravel(), expected.ravel(), ddof=2)  # one degree of freedom less for each further row
    assert transition_test(counts, nominal) == pytest.approx(pooled.pvalue)


def test_transition_test_rejects_the_wrong_noise() -> None:
    result = outcome("symmetric-self", rate=0.5)
    assert transition_test(result.transitions, symmetric_matrix(0.5)) < 1e-6
    assert transition_test(np.array([[9, 1], [0, 10]]), np.eye(2)) == 0
    assert transition_test(np.array([[9, 0], [0, 10]]), np.eye(2)) == 1
