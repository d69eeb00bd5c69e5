import numpy as np
import pytest

from fedsieve.estimate import lid
from fedsieve.estimate.lid import local_dimensions


def by_double_loop(points, k):
    estimates = []
    for i, point in enumerate(points):
        distances = sorted(np.sqrt(((point - other) ** 2).sum()) for j, other in enumerate(points) if j != i)[:k]
        estimates.append(-len(distances) / sum(np.log(r / distances[-1]) for r in distances))
    return np.array(estimates)


def uniform_ball(rng, n, dimension):
    directions = rng.normal(size=(n, dimension))
    return directions / np.linalg.norm(directions, axis=1, keepdims=True) * rng.random((n, 1)) ** (1 / dimension)


def softmax(logits):
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


@pytest.mark.parametrize(("n", "k"), [(60, 20), (60, 2), (12, 20), (3, 20)])
def test_a_double_loop_gives_the_same(n, k):
    points = np.random.default_rng(0).normal(size=(n, 4))
    expected = np.minimum(by_double_loop(points, k), lid.LARGEST_PER_COLUMN * 4)
    assert local_dimensions(points, k) == pytest.approx(expected, rel=1e-12)


def test_three_points_by_hand():
    # From 0 the others are 1 and 4 away: 2 / log 4; from 1: 1 and 3; from 4: 3 and 4.
    expected = [2 / np.log(4), 2 / np.log(3), 2 / np.log(4 / 3)]
    assert local_dimensions([[0.0], [1.0], [4.0]]) == pytest.approx(expected)


def test_blocks_change_nothing(monkeypatch):
    points = np.random.default_rng(1).normal(size=(101, 3))
    whole = local_dimensions(points)
    monkeypatch.setattr(lid, "CELLS", 101 * 7)
    assert local_dimensions(points).tolist() == whole.tolist()
    monkeypatch.setattr(lid, "CELLS", 1)
    assert local_dimensions(points).tolist() == whole.tolist()


@pytest.mark.parametrize("dimension", [1, 2, 4])
def test_points_in_a_ball_have_the_dimension_of_the_ball(dimension):
    rng = np.random.default_rng(dimension)
    ball = uniform_ball(rng, 2000, dimension)
    # The ball lies askew in a space of eight dimensions, which must not matter; the mean leaves out its rim.
    askew = ball @ np.linalg.qr(rng.normal(size=(8, dimension)))[0].T + 3
    inside = np.linalg.norm(ball, axis=1) < 0.6
    estimates = local_dimensions(askew)
    assert estimates[inside].mean() == pytest.approx(dimension * 20 / 18, rel=0.06)
    assert np.median(estimates) == pytest.approx(dimension, rel=0.15)


def test_scale_shift_and_order_do_not_matter():
    rng = np.random.default_rng(2)
    points = rng.normal(size=(50, 5))
    order = rng.permutation(50)
    plain = local_dimensions(points, 10)
    assert local_dimensions(points * 1e-8, 10) == pytest.approx(plain)
    assert local_dimensions(points + 7, 10) == pytest.approx(plain)
    assert local_dimensions(points[order], 10) == pytest.approx(plain[order])


def test_tiny_distances_between_confident_outputs_keep_their_digits():
    rng = np.random.default_rng(3)
    outputs = softmax(np.column_stack([np.full(40, 25.0), rng.normal(size=(40, 3))]))
    assert np.ptp(outputs, axis=0).max() < 1e-9
    assert local_dimensions(outputs, 10) == pytest.approx(by_double_loop(outputs, 10), rel=1e-9)


def test_duplicates_pull_the_dimension_towards_zero():
    points = np.random.default_rng(4).normal(size=(40, 3))
    plain = local_dimensions(points, 10)
    points[1] = points[0]
    doubled = local_dimensions(points, 10)
    distances = np.sort(np.linalg.norm(points - points[0], axis=1))[1:11]
    expected = 10 / (np.log(1e12) - np.log(distances[1:] / distances[-1]).sum())
    assert doubled[0] == pytest.approx(expected)
    assert 0 < doubled[0] < plain[0]
    assert doubled[0] == doubled[1]


def test_a_point_mass_has_dimension_zero():
    assert local_dimensions(np.ones((30, 4))).tolist() == [0.0] * 30


def test_equal_distances_give_the_largest_estimate_and_not_infinity():
    corners = np.eye(6)
    assert local_dimensions(corners).tolist() == [lid.LARGEST_PER_COLUMN * 6] * 6


@pytest.mark.parametrize("n", [0, 1, 2])
def test_fewer_than_two_neighbours_tell_nothing(n):
    assert local_dimensions(np.arange(float(n * 2)).reshape(n, 2)).tolist() == [0.0] * n


def test_published_formula_on_ordinary_points():
    points = softmax(np.random.default_rng(5).normal(size=(60, 10)) * 3).astype(np.float32)
    published = local_dimensions(points, published=True)
    assert published == pytest.approx(local_dimensions(points), rel=1e-3)
    assert published.tolist() != local_dimensions(points).tolist()


def test_published_formula_by_hand():
    first, second = local_dimensions([[0.0], [1.0], [4.0]], k=20, published=True)[:2]
    assert first == pytest.approx(-20 / (np.log(1 / (4 + 1e-6)) + np.log(4 / (4 + 1e-6)) + 1e-6), rel=1e-12)
    assert second == pytest.approx(-20 / (np.log(1 / (3 + 1e-6)) + np.log(3 / (3 + 1e-6)) + 1e-6), rel=1e-12)


def test_published_formula_where_it_breaks():
    points = np.array([[0.0], [0.0], [1.0], [3.0], [7.0]])
    published = local_dimensions(points, 3, published=True)
    assert published[:2].tolist() == [0.0, 0.0]
    assert (published[2:] > 0).all()
    assert local_dimensions(np.eye(6), 5, published=True).min() > 1e5
    assert np.isfinite(local_dimensions(np.ones((30, 4)), published=True)).all()


@pytest.mark.parametrize(
    ("points", "k", "message"),
    [
        ([[np.nan, 1.0]], 20, "NaN"),
        ([1.0, 2.0], 20, "2 dimensions"),
        ([[1.0], [2.0]], 1, "at least 2"),
    ],
)
def test_what_cannot_be_estimated_is_refused(points, k, message):
    with pytest.raises(ValueError, match=message):
        local_dimensions(points, k)
