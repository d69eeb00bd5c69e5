"""Partitions: every row dealt once, the statistics each one promises, and clear refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsieve.base.errors import ConfigError, DataError, FedSieveError
from fedsieve.base.options import build, options_of
from fedsieve.data.dealing import proportions, top_up, whole_part
from fedsieve.data.maps import CIFAR100_SUPERCLASSES, TASK_PRESETS, next_in_group
from fedsieve.data.partition import PARTITIONS, Pool, Split

SEEDED = sorted(set(PARTITIONS) - {"natural"})


def pool_of(n: int = 2000, n_classes: int = 10, owners: int = 40, seed: int = 0) -> Pool:
    rng = np.random.default_rng(seed)
    return Pool(rng.integers(n_classes, size=n), n_classes, rng.permutation(np.arange(n) % owners))


def split(name: str, pool: Pool, clients: int, seed: int = 0, **options: Any) -> Split:
    made: Split = build(PARTITIONS[name], options, "partition")(pool, clients, np.random.default_rng(seed))
    return made


def counts(pool: Pool, made: Split) -> np.ndarray:
    return np.array([np.bincount(pool.labels[rows], minlength=pool.n_classes) for rows in made.rows])


def mean_distance_from_uniform(table: np.ndarray) -> float:
    shares = table / table.sum(axis=1, keepdims=True)
    return float(0.5 * np.abs(shares - 1 / table.shape[1]).sum(axis=1).mean())


def assert_every_row_once(pool: Pool, made: Split, clients: int) -> None:
    assert len(made.rows) == clients
    assert all(len(rows) and (np.diff(rows) > 0).all() and rows.dtype == np.int64 for rows in made.rows)
    np.testing.assert_array_equal(np.sort(np.concatenate(made.rows)), np.arange(len(pool.labels)))


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(sorted(PARTITIONS)),
    labels=st.lists(st.integers(0, 5), min_size=1, max_size=120),
    clients=st.integers(1, 20),
    seed=st.integers(0, 9),
    alpha=st.sampled_from([1e-3, 0.1, 1.0, 100.0]),
    share=st.sampled_from([1e-3, 0.08, 0.5, 1.0]),
)
def test_every_row_is_dealt_exactly_once_or_the_request_is_refused(
    name: str, labels: list[int], clients: int, seed: int, alpha: float, share: float
) -> None:
    owners = np.arange(len(labels)) % clients
    pool = Pool(np.array(labels, np.int64), 6, owners)
    wanted = {"alpha": alpha, "p": share, "impurity": share}
    options = {key: value for key, value in wanted.items() if key in options_of(PARTITIONS[name])}
    try:
        made = split(name, pool, clients, seed, **options)
    except DataError as refusal:
        assert refusal.code == "FS305"  # noqa: PT017  refusing is one of two right answers
        assert len(labels) < clients or name in {"label-count", "shards", "tasks"}
    else:
        assert_every_row_once(pool, made, clients)


@pytest.mark.parametrize("name", SEEDED)
def test_the_seed_decides(name: str) -> None:
    pool = pool_of()
    first, again, other = split(name, pool, 20), split(name, pool, 20), split(name, pool, 20, seed=1)
    assert all(np.array_equal(a, b) for a, b in zip(first.rows, again.rows, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first.rows, other.rows, strict=True))


@pytest.mark.parametrize("name", sorted(PARTITIONS))
def test_every_option_is_documented(name: str) -> None:
    assert all(option.doc for option in options_of(PARTITIONS[name]).values())


@pytest.mark.parametrize("name", ["iid", "iid-balanced"])
def test_iid_sizes_differ_by_at_most_one(name: str) -> None:
    sizes = [len(rows) for rows in split(name, pool_of(n=1000), 17).rows]
    assert max(sizes) - min(sizes) == 1


def test_iid_balanced_gives_each_client_its_share_of_each_class() -> None:
    pool = pool_of(n=997)
    table = counts(pool, split("iid-balanced", pool, 13))
    assert (table.max(axis=0) - table.min(axis=0) <= 1).all()


def test_dirichlet_skews_labels_and_fedrn_s_split_does_not() -> None:
    pool = pool_of(n=50_000)
    skewed = split("dirichlet", pool, 100, alpha=0.5)
    blind = split("dirichlet-fedrn", pool, 100, alpha=0.5)
    assert mean_distance_from_uniform(counts(pool, skewed)) == pytest.approx(0.497, abs=0.04)
    assert mean_distance_from_uniform(counts(pool, blind)) == pytest.approx(0.056, abs=0.02)


def test_dirichlet_does_not_depend_on_the_order_of_rows_but_fedrn_s_does() -> None:
    sorted_pool = Pool(np.sort(pool_of(n=20_000).labels), 10)
    shuffled = Pool(np.random.default_rng(5).permutation(sorted_pool.labels), 10)
    distances = {
        (name, order): mean_distance_from_uniform(counts(pool, split(name, pool, 50)))
        for name in ("dirichlet", "dirichlet-fedrn")
        for order, pool in (("sorted", sorted_pool), ("shuffled", shuffled))
    }
    assert distances["dirichlet", "sorted"] == pytest.approx(distances["dirichlet", "shuffled"], abs=0.05)
    assert distances["dirichlet-fedrn", "sorted"] > 4 * distances["dirichlet-fedrn", "shuffled"]


@pytest.mark.parametrize("alpha", [1e-4, 0.01, 0.1, 0.3])
def test_dirichlet_ends_for_every_alpha_and_says_what_it_moved(alpha: float) -> None:
    pool = pool_of(n=5000)
    made = split("dirichlet", pool, 400, alpha=alpha)
    assert_every_row_once(pool, made, 400)
    assert min(len(rows) for rows in made.rows) >= 10
    assert any("moved" in note for note in made.notes)


def test_dirichlet_lowers_an_impossible_minimum_and_says_so() -> None:
    made = split("dirichlet", pool_of(n=350), 100)
    assert min(len(rows) for rows in made.rows) >= 3
    assert made.notes[0] == "min_size lowered from 10 to 3: 350 rows over 100 clients."


def test_dirichlet_gives_nothing_more_to_a_client_with_its_even_share() -> None:
    pool = pool_of(n=5000)
    made = split("dirichlet", pool, 20, alpha=0.3)
    assert not made.notes
    table = counts(pool, made)
    held_before = np.cumsum(table, axis=1) - table
    assert (table[held_before >= 5000 / 20] == 0).all()


def test_dirichlet_draws_again_before_it_moves_rows() -> None:
    pool = pool_of(n=5000)
    for seed in range(5):
        assert not split("dirichlet", pool, 50, seed, alpha=0.3, min_size=30).notes


def test_large_alpha_is_nearly_uniform() -> None:
    pool = pool_of(n=20_000)
    assert mean_distance_from_uniform(counts(pool, split("dirichlet", pool, 20, alpha=1e4))) < 0.03


def test_proportions_leave_out_closed_clients() -> None:
    shares = proportions(1e-4, np.array([False, True, True]), np.random.default_rng(0))
    assert shares[0] == 0
    assert shares.sum() == pytest.approx(1)


def test_topping_up_takes_from_the_largest_client() -> None:
    before = np.array([0] * 10 + [1] * 4)
    after, notes = top_up(before, 3, 3, np.random.default_rng(0))
    np.testing.assert_array_equal(np.bincount(after), [7, 4, 3])
    assert notes == ["Rows moved from the largest clients to those with fewer than 3: 3."]
    assert (before[after == 2] == 0).all()


def test_quantity_skews_sizes_and_not_labels() -> None:
    pool = pool_of(n=20_000, n_classes=4)
    made = split("quantity", pool, 10, alpha=1.0)
    sizes = np.array([len(rows) for rows in made.rows])
    assert sizes.max() > 3 * sizes.min()
    table = counts(pool, made)
    assert mean_distance_from_uniform(table[sizes > 500]) < 0.06


def test_shards_bound_the_number_of_classes() -> None:
    pool = Pool(np.repeat(np.arange(10), 100), 10)
    table = counts(pool, split("shards", pool, 50, shards=2))
    assert (table.sum(axis=1) == 20).all()
    assert ((table > 0).sum(axis=1) <= 2).all()


def test_shards_deal_the_remainder_and_say_so() -> None:
    made = split("shards", pool_of(n=1005), 50)
    assert sorted({len(rows) for rows in made.rows})[0] == 20
    assert made.notes == ["1005 rows do not divide into 100 equal shards: 5 shards hold one row more."]


def test_shards_are_random_within_a_class() -> None:
    pool = Pool(np.zeros(100, np.int64), 1)
    assert any((np.diff(rows) > 1).any() for rows in split("shards", pool, 5, shards=1).rows)


def test_bernoulli_dirichlet_holds_a_share_p_of_the_classes() -> None:
    pool = pool_of(n=50_000)
    held = (counts(pool, split("bernoulli-dirichlet", pool, 100, p=0.3)) > 0).mean()
    assert held == pytest.approx(0.3 / (1 - 0.7**10), abs=0.04)
    assert (counts(pool, split("bernoulli-dirichlet", pool, 100, p=1.0)) > 0).all()


def test_bernoulli_dirichlet_gives_a_class_nobody_drew_to_someone() -> None:
    pool = pool_of(n=1000)
    made = split("bernoulli-dirichlet", pool, 3, p=1e-9)
    assert_every_row_once(pool, made, 3)
    assert made.notes[0].startswith("No client drew class")


@pytest.mark.parametrize(("clients", "classes"), [(5, 2), (10, 1), (30, 3), (3, 10)])
def test_label_count_is_exact_and_every_class_has_an_owner(clients: int, classes: int) -> None:
    pool = pool_of(n=5000)
    table = counts(pool, split("label-count", pool, clients, classes=classes)) > 0
    assert (table.sum(axis=1) == classes).all()
    assert table.any(axis=0).all()


@pytest.mark.parametrize("preset", sorted(TASK_PRESETS))
def test_tasks_keep_clients_to_their_classes(preset: str) -> None:
    pool = pool_of(n=5000)
    made = split("tasks", pool, 20, tasks=preset)
    assert made.tasks is not None
    assert made.task_classes == [list(task) for task in TASK_PRESETS[preset]]
    assert sorted(c for task in made.task_classes for c in task) == list(range(10))
    for rows, task in zip(made.rows, made.tasks, strict=True):
        assert set(pool.labels[rows]) <= set(made.task_classes[task])
    per_task = np.bincount(made.tasks)
    assert per_task.max() - per_task.min() <= 1


def test_tasks_by_number_take_classes_in_order() -> None:
    assert split("tasks", pool_of(), 6, tasks=3).task_classes == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]


def test_impurity_moves_its_share_of_rows() -> None:
    pool = pool_of(n=10_000)
    made = split("tasks", pool, 20, tasks="cifar10-2", impurity=0.08)
    assert made.tasks is not None
    assert made.task_classes is not None
    foreign = sum(
        np.isin(pool.labels[rows], made.task_classes[task], invert=True).sum()
        for rows, task in zip(made.rows, made.tasks, strict=True)
    )
    # Of the 8 % that are pooled, half fall to clients of the other task, up to chance.
    assert foreign / 10_000 == pytest.approx(0.04, abs=0.006)


def test_natural_gives_each_owner_a_client() -> None:
    pool = Pool(np.zeros(6, np.int64), 2, np.array(["b", "a", "b", "c", "a", "b"]))
    assert [rows.tolist() for rows in split("natural", pool, 3).rows] == [[1, 4], [0, 2, 5], [3]]


def test_group_never_divides_an_owner_and_balances_sizes() -> None:
    rng = np.random.default_rng(0)
    owners = np.repeat(np.arange(300), rng.integers(1, 20, size=300))
    pool = Pool(np.zeros(len(owners), np.int64), 2, owners)
    made = split("group", pool, 7)
    held = [set(owners[rows]) for rows in made.rows]
    assert sum(map(len, held)) == 300
    sizes = [len(rows) for rows in made.rows]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("name", "options", "clients", "says"),
    [
        ("iid", {}, 2001, "2000 rows cannot be divided over 2001 clients"),
        ("shards", {"shards": 500}, 20, "cannot be cut into 10000 shards"),
        ("label-count", {"classes": 11}, 20, "the data have 10 classes"),
        ("label-count", {"classes": 2}, 4, "cannot own all 10 classes"),
        ("natural", {}, 20, "the data have 40 owners, but clients=20"),
        ("group", {}, 41, "40 owners cannot be divided over 41 clients"),
        ("tasks", {"tasks": [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9, 12]]}, 20, "names class 12"),
        ("tasks", {"tasks": [[0, 1], [2, 3]]}, 20, "leaves out class 4, 5, 6, 7, 8, 9"),
        ("tasks", {"tasks": 11}, 20, "partition.tasks=11"),
        ("tasks", {"tasks": 3}, 2, "2 clients cannot serve 3 tasks"),
    ],
)
def test_impossible_requests_say_what_to_change(name: str, options: dict[str, Any], clients: int, says: str) -> None:
    with pytest.raises(DataError, match=says) as refusal:
        split(name, pool_of(), clients, **options)
    assert refusal.value.code == "FS305"


@pytest.mark.parametrize("name", ["natural", "group"])
def test_owners_are_needed_where_they_are_used(name: str) -> None:
    with pytest.raises(DataError, match="needs owners"):
        split(name, Pool(np.zeros(9, np.int64), 2), 3)


def test_a_task_with_fewer_rows_than_clients_is_refused() -> None:
    pool = Pool(np.array([0] * 50 + [1] * 2), 2)
    with pytest.raises(DataError, match="task 1 has 2 rows for its 5 clients"):
        split("tasks", pool, 10)


@pytest.mark.parametrize(
    ("name", "options", "clients"),
    [
        ("dirichlet", {"alpha": 0}, 5),
        ("dirichlet", {"alpha": float("inf")}, 5),
        ("bernoulli-dirichlet", {"p": 0}, 5),
        ("shards", {"shards": 0}, 5),
        ("tasks", {"tasks": "cifar10-4"}, 5),
        ("tasks", {"tasks": [list(range(10)), [3]]}, 5),
        ("tasks", {"tasks": [list(range(10)), []]}, 5),
        ("iid", {}, 0),
    ],
)
def test_bad_option_values_are_refused(name: str, options: dict[str, Any], clients: int) -> None:
    with pytest.raises(ConfigError) as refusal:
        split(name, pool_of(), clients, **options)
    assert refusal.value.code == "FS002"


def test_refusals_are_one_line() -> None:
    with pytest.raises(FedSieveError) as refusal:
        split("iid", pool_of(), 5000)
    assert "\n" not in str(refusal.value)
    assert str(refusal.value).endswith("more data [FS305]")


def test_whole_part_survives_binary_fractions() -> None:
    assert [whole_part(0.29, 100), whole_part(0.07, 100), whole_part(0.999, 10), whole_part(1.0, 7)] == [29, 7, 9, 7]


SUPERCLASSES = {
    "aquatic mammals": "beaver dolphin otter seal whale",
    "fish": "aquarium_fish flatfish ray shark trout",
    "flowers": "orchid poppy rose sunflower tulip",
    "food containers": "bottle bowl can cup plate",
    "fruit and vegetables": "apple mushroom orange pear sweet_pepper",
    "household electrical devices": "clock keyboard lamp telephone television",
    "household furniture": "bed chair couch table wardrobe",
    "insects": "bee beetle butterfly caterpillar cockroach",
    "large carnivores": "bear leopard lion tiger wolf",
    "large man-made outdoor things": "bridge castle house road skyscraper",
    "large natural outdoor scenes": "cloud forest mountain plain sea",
    "large omnivores and herbivores": "camel cattle chimpanzee elephant kangaroo",
    "medium-sized mammals": "fox porcupine possum raccoon skunk",
    "non-insect invertebrates": "crab lobster snail spider worm",
    "people": "baby boy girl man woman",
    "reptiles": "crocodile dinosaur lizard snake turtle",
    "small mammals": "hamster mouse rabbit shrew squirrel",
    "trees": "maple_tree oak_tree palm_tree pine_tree willow_tree",
    "vehicles 1": "bicycle bus motorcycle pickup_truck train",
    "vehicles 2": "lawn_mower rocket streetcar tank tractor",
}


@pytest.mark.parametrize("coarse", sorted(SUPERCLASSES))
def test_cifar100_superclasses_are_the_published_ones(coarse: str) -> None:
    fine = sorted(" ".join(SUPERCLASSES.values()).split())  # CIFAR-100 numbers its classes in alphabetical order
    assert [fine[c] for c in CIFAR100_SUPERCLASSES[coarse]] == SUPERCLASSES[coarse].split()


def test_next_in_group_is_circular() -> None:
    assert next_in_group([[0, 3, 4], [1], [2, 5]]) == {0: 3, 3: 4, 4: 0, 2: 5, 5: 2}
    assert sorted(next_in_group(list(CIFAR100_SUPERCLASSES.values())).values()) == list(range(100))


def test_shards_are_dealt_at_random() -> None:
    """Two shards a class and two a client: dealt in order, everybody would hold one class."""
    pool = Pool(np.repeat(np.arange(10), 20), 10)
    held = [(counts(pool, split("shards", pool, 10, seed=seed, shards=2)) > 0) for seed in range(20)]
    assert np.mean([table.sum(axis=1) == 2 for table in held]) > 0.85
    assert len({table.tobytes() for table in held}) == 20


def test_a_shard_is_of_one_class_where_classes_divide_into_shards() -> None:
    pool = Pool(np.random.default_rng(0).permutation(np.repeat(np.arange(10), 20)), 10)
    table = counts(pool, split("shards", pool, 20, shards=1))
    assert ((table > 0).sum(axis=1) == 1).all()
