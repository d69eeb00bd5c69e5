"""The vote of the nearest neighbours, by hand and against scikit-learn."""

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

from fedsieve.estimate import neighbours
from fedsieve.estimate.neighbours import elected, nearest, share_outvoted, twins, votes


@pytest.fixture
def blobs():
    """Three clouds in eight dimensions, far from the origin, a quarter of the labels drawn anew."""
    rng = np.random.default_rng(0)
    true = rng.integers(0, 3, 200)
    points = 100 + 2 * np.eye(8)[true] + rng.normal(size=(200, 8))
    return points, np.where(rng.random(200) < 0.25, rng.integers(0, 3, 200), true)


@pytest.mark.parametrize("k", [1, 4, 10])
def test_scikit_learn_leaves_one_out_with_the_same_neighbours_and_votes(blobs, k):
    """An even k has ties, which both give to the smallest class."""
    points, labels = blobs
    reference = KNeighborsClassifier(k).fit(points, labels)
    near = nearest(points, k)
    assert np.array_equal(near, reference.kneighbors(return_distance=False))
    shares = votes(labels, near, 3)
    assert shares == pytest.approx(reference.predict_proba(None))
    ties = (shares == shares.max(axis=1, keepdims=True)).sum(axis=1) > 1
    assert ties.any() == (k > 1)
    assert np.array_equal(elected(labels, shares), reference.predict(None))
    assert share_outvoted(labels, shares) == pytest.approx((reference.predict(None) != labels).mean())


def test_a_point_may_vote_for_itself_as_scikit_learn_s_do(blobs):
    points, labels = blobs
    reference = KNeighborsClassifier(10).fit(points, labels)
    near = nearest(points, 10, with_self=True)
    assert np.array_equal(near[:, 0], np.arange(200))
    assert np.array_equal(near, reference.kneighbors(points, return_distance=False))
    assert np.array_equal(elected(labels, votes(labels, near, 3)), reference.predict(points))


def test_a_vote_for_oneself_makes_labels_look_cleaner(blobs):
    points, labels = blobs
    found = [share_outvoted(labels, votes(labels, nearest(points, 3, each), 3)) for each in (False, True)]
    assert found[0] > 1.3 * found[1]


def test_four_points_on_a_line_by_hand():
    near = nearest([[0.0], [1.0], [3.0], [7.0]], 2)
    assert near.tolist() == [[1, 2], [0, 2], [1, 0], [2, 1]]
    shares = votes([1, 1, 0, 2], near, 3)
    assert shares.tolist() == [[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 1, 0], [0.5, 0.5, 0]]
    assert elected([1, 1, 0, 2], shares).tolist() == [0, 0, 1, 0]
    assert share_outvoted([1, 1, 0, 2], shares) == 1.0
    assert share_outvoted([0, 1, 1, 0], shares) == 0.25


def test_equally_near_ones_come_in_their_order():
    """Steps of 0.1 are equal but for their last digits; so are points far from the origin, in several columns."""
    assert nearest(0.1 * np.arange(50)[:, None], 1)[:, 0].tolist() == [1, *range(49)]
    points = np.tile(np.random.default_rng(1).normal(1e3, 1.0, (1, 37)), (60, 1))
    points[59] += 1.0
    expected = [[i for i in range(60) if i != row][:3] for row in range(59)]
    assert nearest(points, 3)[:59].tolist() == expected
    assert nearest(points, 3)[59].tolist() == [0, 1, 2]
    assert nearest(np.full((4, 2), 5.0), 2).tolist() == [[1, 2], [0, 2], [0, 1], [0, 1]]


def test_blocks_change_nothing(blobs, monkeypatch):
    whole = nearest(blobs[0], 7)
    for cells in (200 * 13, 1):
        monkeypatch.setattr(neighbours, "CELLS", cells)
        assert np.array_equal(nearest(blobs[0], 7), whole)


@pytest.mark.parametrize(("n", "with_self", "width"), [(0, False, 0), (1, False, 0), (1, True, 1), (3, False, 2)])
def test_few_points_have_few_neighbours(n, with_self, width):
    near = nearest(np.zeros((n, 2)), 10, with_self)
    assert near.shape == (n, width)
    labels = np.full(n, 2)
    assert elected(labels, votes(labels, near, 3)).tolist() == [2] * n
    assert share_outvoted(labels, votes(labels, near, 3)) == 0.0


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: nearest([[0.0]], 0), "k of at least 1"),
        (lambda: nearest([0.0, 1.0]), "must have 2 dimensions, not 1"),
        (lambda: nearest([[0.0], [np.nan]]), "NaN or infinity"),
        (lambda: votes([0], nearest(np.zeros((3, 1))), 2), "1 labels for 3 points"),
        (lambda: votes([0, 2], nearest(np.zeros((2, 1))), 2), "from 0 to 2, not 0 to 1"),
        (lambda: votes([-1, 0], nearest(np.zeros((2, 1))), 2), "from -1 to 0"),
    ],
)
def test_what_cannot_be_used_is_refused(call, says):
    with pytest.raises(ValueError, match=says):
        call()


# --- nearly the same, and labelled otherwise
LINE = np.array([[0.0], [0.1], [1.0], [2.0], [3.0], [3.2], [9.0]])
"""Distances to the nearest point: 0.1, 0.1, 0.9, 1, 0.2, 0.2, 5.8, and their median is 0.2."""


@pytest.mark.parametrize(
    ("near", "labels", "expected"),
    [
        (0.6, [0, 1, 0, 0, 0, 1, 0], [1, 0, -1, -1, -1, -1, -1]),  # 0.1 is below 0.12, 0.2 is not
        (0.49, [0, 1, 0, 0, 0, 1, 0], [-1] * 7),  # 0.1 is not below 0.098
        (1.01, [0, 1, 0, 0, 0, 1, 0], [1, 0, -1, -1, 5, 4, -1]),
        (0.6, [0, 0, 1, 0, 0, 1, 0], [-1] * 7),  # the same label twice is no contradiction
    ],
)
def test_twins_by_hand(near, labels, expected):
    assert twins(LINE, labels, near).tolist() == expected


def test_the_nearest_row_of_another_label_is_the_twin_whoever_else_is_nearer():
    points = [[0.0], [0.0], [0.0], [0.01], [5.0], [6.0], [7.0], [8.0], [9.0], [10.0]]
    assert twins(points, [0, 0, 0, 1, 0, 0, 0, 0, 0, 0], 0.3).tolist() == [3, 3, 3, 0, -1, -1, -1, -1, -1, -1]


def test_where_most_rows_are_copies_only_copies_count():
    points = [[0.0], [0.0], [1.0], [1.0], [1.001]]
    assert twins(points, [0, 1, 0, 0, 1], 0.3).tolist() == [1, 0, -1, -1, -1]


def test_twins_block_by_block_and_far_from_the_origin(monkeypatch, blobs):
    points, labels = blobs
    points = np.concatenate([points, points[:40]]) + 1e4
    labels = np.concatenate([labels, (labels[:40] + 1) % 3])
    expected = np.full(240, -1)
    expected[:40], expected[200:] = np.arange(200, 240), np.arange(40)
    assert twins(points, labels, 0.01).tolist() == expected.tolist()
    monkeypatch.setattr(neighbours, "CELLS", 500)
    assert twins(points, labels, 0.01).tolist() == expected.tolist()


def test_too_few_rows_for_twins():
    assert twins(np.zeros((1, 2)), [0]).tolist() == [-1]
    assert twins(np.zeros((0, 2)), []).tolist() == []
    with pytest.raises(ValueError, match="1 labels for 2 points"):
        twins(np.zeros((2, 2)), [0])
