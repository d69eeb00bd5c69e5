import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score, silhouette_score

from fedsieve.estimate.subspace import (
    UNDECIDED,
    by_class,
    class_similarity,
    cluster,
    cross_energies,
    prepare,
    projections,
    relevance,
    relevances,
    repair,
    signature,
    silhouette,
    similarity,
    whole_classes,
)

CLASSES, RANK, WIDTH = 4, 3, 24


def rotation(rng, d):
    return np.linalg.qr(rng.normal(size=(d, d)))[0]


def planted_bases(rng, count=CLASSES, rank=RANK, d=WIDTH):
    """Orthogonal subspaces, so that the right answer is known."""
    return rotation(rng, d)[:, : count * rank].reshape(d, count, rank).transpose(1, 0, 2)


def samples(rng, base, n, noise=0.02):
    """Directions of unlike strength: eigenvectors are then well defined."""
    strengths = np.linspace(2, 1, base.shape[1])
    return (rng.normal(size=(n, base.shape[1])) * strengths) @ base.T + noise * rng.normal(size=(n, len(base)))


def mutual(data, **options):
    signatures = [signature(x, **options) for x in data]
    return relevances(data, [s.values for s in signatures], [s.vectors for s in signatures])


def dissimilar(within, across, sizes):
    owner = np.repeat(np.arange(len(sizes)), sizes)
    table = np.where(owner[:, None] == owner, within, across).astype(float)
    np.fill_diagonal(table, 1.0)
    return table, owner


class TestSignature:
    def test_two_dimensions_by_hand(self):
        # X'X / 2 = [[5, 4], [4, 5]] has eigenvalues 9 and 1 with vectors (1, 1) and (1, -1), over root 2.
        values, vectors = signature([[3.0, 3.0], [1.0, -1.0]])
        assert values == pytest.approx([9, 1])
        assert np.abs(vectors) == pytest.approx(np.full((2, 2), 0.5**0.5))
        assert vectors[0, 0] == pytest.approx(vectors[1, 0])
        assert vectors[0, 1] == pytest.approx(-vectors[1, 1])

    @pytest.mark.parametrize(("n", "d"), [(30, 8), (8, 30), (12, 12)])
    def test_agrees_with_the_singular_values(self, n, d):
        x = np.random.default_rng(0).normal(size=(n, d))
        values, vectors = signature(x, rank=5)
        _, singular, right = np.linalg.svd(x, full_matrices=False)
        assert values == pytest.approx(singular[:5] ** 2 / n)
        assert np.abs(np.sum(vectors * right[:5].T, axis=0)) == pytest.approx(np.ones(5))
        assert vectors.T @ vectors == pytest.approx(np.eye(5), abs=1e-10)

    def test_the_side_of_the_samples_equals_the_side_of_the_features(self):
        x = np.random.default_rng(1).normal(size=(9, 10))
        few = signature(x, rank=6)
        # Each sample twice: the same moment, now with more samples than features.
        many = signature(np.repeat(x, 2, axis=0), rank=6)
        assert few.values == pytest.approx(many.values)
        assert few.vectors == pytest.approx(many.vectors, abs=1e-9)

    def test_the_largest_entry_is_positive(self):
        x = np.random.default_rng(2).normal(size=(7, 20))
        for features in (x, -x):
            vectors = signature(features, rank=5).vectors
            assert (vectors[np.abs(vectors).argmax(axis=0), np.arange(5)] > 0).all()

    def test_adaptive_rank(self):
        lengths = np.array([10.0, 3.0, 1.01, 0.5])  # eigenvalues 100, 9, 1.02 and 0.25, all over 4
        x = np.diag(lengths)
        assert len(signature(x).values) == 3
        assert len(signature(x, threshold=0.05).values) == 2
        assert len(signature(x, threshold=0).values) == 4
        assert len(signature(x, cap=1).values) == 1
        assert len(signature(x, rank=4).values) == 4
        assert signature(x).values == pytest.approx(lengths[:3] ** 2 / 4)

    def test_the_cap_is_ten(self):
        assert len(signature(np.random.default_rng(3).normal(size=(200, 40))).values) == 10

    @pytest.mark.parametrize(("n", "expected"), [(0, 0), (1, 1), (3, 3), (40, 5)])
    def test_few_samples_limit_the_rank(self, n, expected):
        values, vectors = signature(np.random.default_rng(4).normal(size=(n, 12)), rank=5)
        assert values.shape == (expected,)
        assert vectors.shape == (12, expected)

    def test_copies_of_one_sample_have_one_direction(self):
        values, vectors = signature(np.tile([0.0, -3.0, 4.0], (5, 1)), rank=3)
        assert values == pytest.approx([25])
        assert vectors[:, 0] == pytest.approx([0, -0.6, 0.8])

    def test_zero_features_have_no_direction(self):
        assert signature(np.zeros((5, 3))).vectors.shape == (3, 0)

    def test_centre_and_normalise(self):
        x = np.random.default_rng(5).normal(size=(20, 6)) + 4
        middle = x.mean(axis=0)
        shifted = x - middle
        unit = shifted / np.linalg.norm(shifted, axis=1, keepdims=True)
        assert signature(x, center=middle).values == pytest.approx(signature(shifted).values)
        assert signature(x, center=middle, normalise=True).values == pytest.approx(signature(unit).values)
        assert prepare([[0.0, 0.0], [3.0, 4.0]], normalise=True).tolist() == [[0, 0], [0.6, 0.8]]

    @pytest.mark.parametrize(
        ("features", "options", "message"),
        [
            ([1.0, 2.0], {}, "2 dimensions"),
            ([[np.inf]], {}, "NaN or infinity"),
            ([[1.0]], {"rank": 0}, "at least one"),
            ([[1.0]], {"cap": 0}, "at least one"),
            ([[1.0]], {"threshold": 2}, "between 0 and 1"),
            ([[1.0, 2.0]], {"center": [1.0]}, "centre has 1"),
        ],
    )
    def test_refuses(self, features, options, message):
        with pytest.raises(ValueError, match=message):
            signature(features, **options)


class TestRelevance:
    def test_energies_by_hand(self):
        x = np.array([[3.0, 3.0], [1.0, -1.0]])  # moment [[5, 4], [4, 5]]
        assert cross_energies(x, np.eye(2)) == pytest.approx([41**0.5, 41**0.5])
        assert cross_energies([[5.0, 4.0], [4.0, 5.0]], np.eye(2), moment=True) == pytest.approx([41**0.5, 41**0.5])

    def test_an_own_eigenvector_returns_its_eigenvalue(self):
        x = np.random.default_rng(0).normal(size=(15, 30))
        values, vectors = signature(x, rank=6)
        assert cross_energies(x, vectors) == pytest.approx(values)
        assert cross_energies(x.T @ x / 15, vectors, moment=True) == pytest.approx(values)

    def test_options_of_the_features(self):
        x = np.random.default_rng(1).normal(size=(15, 6)) + 2
        options = {"center": np.full(6, 1.5), "normalise": True}
        values, vectors = signature(x, rank=3, **options)
        assert cross_energies(x, vectors, **options) == pytest.approx(values)

    def test_relevance_by_hand(self):
        # Ratios 1/2, 1 and 2/9: the third root of 1/9. The fourth direction is known to one side only.
        assert relevance([8, 4, 2, 1], [4, 4, 9]) == pytest.approx((1 / 9) ** (1 / 3))

    def test_zeros(self):
        assert relevance([2, 0], [2, 0]) == 1
        assert relevance([2, 1], [2, 0]) == pytest.approx(1e-6)
        assert relevance([], []) == 1
        assert relevance([1], []) == relevance([], [1]) == 0

    def test_identical_data_are_fully_relevant(self):
        x = np.random.default_rng(2).normal(size=(40, 12))
        assert mutual([x, x.copy()]) == pytest.approx(np.ones((2, 2)))

    def test_every_table_entry_is_one_relevance(self):
        rng = np.random.default_rng(3)
        data = [rng.normal(size=(n, 12)) * rng.random(12) for n in (40, 7, 3)]
        signatures = [signature(x) for x in data]
        expected = [[relevance(a.values, cross_energies(x, b.vectors)) for b in signatures]
                    for x, a in zip(data, signatures, strict=True)]  # fmt: skip
        assert mutual(data) == pytest.approx(np.array(expected))
        padded = np.zeros((3, 12, 12))
        for place, s in zip(padded, signatures, strict=True):
            place[:, : s.vectors.shape[1]] = s.vectors
        assert relevances(data, [s.values for s in signatures], padded) == pytest.approx(np.array(expected))
        assert relevances(data, [s.values for s in signatures], []).shape == (3, 0), "nobody sent anything"

    @pytest.mark.parametrize("seed", range(5))
    def test_lies_between_zero_and_one(self, seed):
        rng = np.random.default_rng(seed)
        data = [rng.normal(size=(rng.integers(1, 30), 10)) * 10.0 ** rng.integers(-6, 6) for _ in range(5)]
        table = mutual([*data, np.zeros((4, 10)), np.zeros((0, 10))])
        assert ((table >= 0) & (table <= 1)).all()

    def test_rotation_order_and_common_scale_do_not_matter(self):
        rng = np.random.default_rng(4)
        data = [rng.normal(size=(n, 9)) * np.linspace(3, 0.5, 9)[rng.permutation(9)] for n in (30, 25, 6)]
        plain = mutual(data)
        turn = rotation(rng, 9)
        assert plain[0, 1] < 0.9
        assert mutual([x @ turn for x in data]) == pytest.approx(plain)
        assert mutual([x[rng.permutation(len(x))] for x in data]) == pytest.approx(plain)
        assert mutual([x * 1e-5 for x in data]) == pytest.approx(plain)

    def test_similarity_by_hand(self):
        assert similarity([[0.3, 0.2], [0.6, 0.3]]) == pytest.approx(np.array([[1, 0.4], [0.4, 1]]))

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda: cross_energies(np.ones((2, 3)), np.ones((2, 1))), "2 entries"),
            (lambda: cross_energies(np.ones((2, 3)), np.ones((3, 1)), moment=True), "square"),
            (lambda: similarity(np.ones((2, 3))), "square"),
            (lambda: similarity([[1.0, 2.0], [0.0, 1.0]]), "between 0 and 1"),
        ],
    )
    def test_refuses(self, call, message):
        with pytest.raises(ValueError, match=message):
            call()


class TestCluster:
    def test_the_example_of_the_paper(self):
        table = np.array(
            [
                [1, 0.97, 0.31, 0.31, 0.32],
                [0.97, 1, 0.31, 0.32, 0.32],
                [0.31, 0.31, 1, 0.97, 0.98],
                [0.31, 0.32, 0.97, 1, 0.98],
                [0.32, 0.32, 0.98, 0.98, 1],
            ]
        )
        for options in ({"groups": 2}, {"choose": "gap"}, {"choose": "silhouette"}):
            labels, merges = cluster(table, **options)
            assert labels.tolist() == [0, 0, 1, 1, 1]
            # 1 - 0.98, then 1 - mean(0.97, 0.98) and 1 - 0.97, at last the mean of the six distances across.
            assert merges[:, 2] == pytest.approx([0.02, 0.025, 0.03, 1 - (4 * 0.32 + 2 * 0.31 - 0.01) / 6])

    @pytest.mark.parametrize("tasks", [2, 3, 5])
    @pytest.mark.parametrize("choose", ["gap", "silhouette"])
    def test_planted_subspaces_are_found(self, tasks, choose):
        rng = np.random.default_rng(tasks)
        bases = planted_bases(rng, tasks, rank=4)
        planted = rng.permutation(np.repeat(np.arange(tasks), 4))
        likeness = similarity(mutual([samples(rng, bases[task], 120) for task in planted]))
        assert adjusted_rand_score(planted, cluster(likeness, choose=choose).labels) == 1
        assert adjusted_rand_score(planted, cluster(likeness, groups=tasks).labels) == 1

    def test_groups_are_numbered_by_their_smallest_members(self):
        table, _ = dissimilar(0.9, 0.1, [2, 2, 2])
        order = np.array([4, 2, 0, 5, 3, 1])
        assert cluster(table[np.ix_(order, order)], groups=3).labels.tolist() == [0, 1, 2, 0, 1, 2]

    @pytest.mark.parametrize("groups", range(1, 7))
    def test_as_many_groups_as_asked_for_even_among_equals(self, groups):
        table, _ = dissimilar(0.5, 0.5, [6])
        assert set(cluster(table, groups=groups).labels) == set(range(groups))

    @pytest.mark.parametrize("linkage", ["single", "complete", "average", "weighted"])
    def test_linkages(self, linkage):
        table, owner = dissimilar(0.8, 0.2, [3, 1, 4])
        assert cluster(table, linkage=linkage).labels.tolist() == owner.tolist()

    def test_the_linkage_matters(self):
        # A chain: each member is close to the next only.
        place = np.array([0.0, 0.1, 0.2, 0.3, 0.55, 0.6])
        table = 1 - np.abs(place[:, None] - place)
        assert cluster(table, 2, linkage="single").labels.tolist() == [0, 0, 0, 0, 1, 1]
        assert cluster(1 - np.abs(np.subtract.outer(place[:4], place[:4])), 2, linkage="complete").labels.tolist() == [
            0, 0, 1, 1,
        ]  # fmt: skip

    def test_the_widest_gap_sees_the_coarsest_split(self):
        # Three groups within 0.9, two of them akin at 0.6, the third at 0.1: merges at 0.1, 0.4 and 0.9.
        table, owner = dissimilar(0.9, 0.1, [3, 3, 3])
        table[:3, 3:6] = table[3:6, :3] = 0.6
        assert cluster(table, choose="gap").labels.tolist() == [0] * 6 + [1] * 3
        assert cluster(table, choose="silhouette").labels.tolist() == owner.tolist()

    @pytest.mark.parametrize("choose", ["gap", "silhouette"])
    def test_members_without_difference_are_one_group(self, choose):
        assert cluster(np.ones((4, 4)), choose=choose).labels.tolist() == [0, 0, 0, 0]

    def test_one_member(self):
        labels, merges = cluster([[1.0]], groups=1)
        assert labels.tolist() == [0]
        assert merges.shape == (0, 4)

    @pytest.mark.parametrize("seed", range(5))
    def test_silhouette_agrees_with_scikit_learn(self, seed):
        rng = np.random.default_rng(seed)
        points = rng.normal(size=(12, 2))
        distance = np.linalg.norm(points[:, None] - points, axis=2)
        labels = np.r_[0, 1, 2, rng.integers(0, 4, 8), 3]
        assert silhouette(distance, labels) == pytest.approx(silhouette_score(distance, labels, metric="precomputed"))

    @pytest.mark.parametrize(
        ("table", "options", "message"),
        [
            (np.ones((2, 3)), {}, "square symmetric"),
            ([[1.0, 0.2], [0.4, 1.0]], {"groups": 1}, "square symmetric"),
            (np.eye(3), {"groups": 4}, "1 to 3 groups, not 4"),
            (np.eye(3), {"groups": 0}, "1 to 3 groups, not 0"),
            (np.eye(2), {}, "cannot be chosen"),
            (np.eye(3), {"choose": "elbow"}, "gap, silhouette"),
            (np.eye(3), {"linkage": "ward"}, "average, complete"),
            (np.eye(3) * 3, {}, "between 0 and 1"),
        ],
    )
    def test_refuses(self, table, options, message):
        with pytest.raises(ValueError, match=message):
            cluster(table, **options)


class TestRepair:
    @pytest.fixture
    def world(self):
        """Clean server data of four classes, its signatures, and clean local data with their true labels."""
        rng = np.random.default_rng(7)
        bases = planted_bases(rng)
        clean = [samples(rng, base, 200) for base in bases]
        local = np.concatenate([samples(rng, base, 150) for base in bases])
        return clean, [signature(x, rank=RANK) for x in clean], local, np.repeat(np.arange(CLASSES), 150)

    def procedure(self, world, given):
        clean, references, local, _ = world
        groups = by_class(local, given, CLASSES)
        own = [signature(x, rank=RANK) for x in groups]
        vectors = [s.vectors for s in references]
        server = relevances(clean, [s.values for s in references], [s.vectors for s in own])
        owner = relevances(groups, [s.values for s in own], vectors)
        decided = whole_classes(class_similarity(server, owner))
        return decided, repair(local, given, vectors, decided)

    def test_clean_labels_are_left_alone(self, world):
        true = world[3]
        decided, (labels, scores) = self.procedure(world, true)
        assert decided.tolist() == [0, 1, 2, 3]
        assert labels.tolist() == true.tolist()
        assert scores.min() > 0.5

    def test_a_class_under_a_wrong_name_gets_its_own_back(self, world):
        true = world[3]
        given = np.array([0, 1, 3, 2])[true]
        decided, (labels, scores) = self.procedure(world, given)
        assert decided.tolist() == [0, 1, 3, 2]
        assert labels.tolist() == true.tolist()
        assert scores[given != true].max() < 0.5 < scores[given == true].min()

    def test_a_mixed_class_is_repaired_sample_by_sample(self, world):
        true = world[3]
        given = true.copy()
        given[150:250] = 0  # two thirds of class 1 are called 0
        decided, (labels, scores) = self.procedure(world, given)
        assert decided.tolist() == [UNDECIDED, 1, 2, 3]
        assert labels.tolist() == true.tolist()
        assert scores[150:250].max() < 0.5
        assert np.delete(scores, np.s_[150:250]).min() > 0.5

    def test_accuracy_among_overlapping_classes_is_the_one_expected(self):
        # Two lines at an angle of 60 degrees; a point at angle t is nearer to the line at 0 iff |t| < 30 degrees.
        lines = [np.array([[1.0], [0.0]]), np.array([[0.5], [3**0.5 / 2]])]
        angles = np.deg2rad(np.arange(-29.5, 60, 1))  # 60 on the side of the first line, 30 on that of the second
        points = np.column_stack([np.cos(angles), np.sin(angles)])
        labels, scores = repair(points, np.ones(90, np.int64), lines)
        assert labels.tolist() == [0] * 60 + [1] * 30
        own, rival = np.cos(angles - np.pi / 3) ** 2, np.cos(angles) ** 2
        assert scores == pytest.approx(own / (own + rival))

    def test_phase_one_needs_exactly_one_class(self):
        table = [[0.9, 0.2, 0.1], [0.9, 0.86, 0.1], [0.3, 0.2, 0.84], [0.1, 0.85, 0.1]]
        assert whole_classes(table).tolist() == [0, UNDECIDED, UNDECIDED, 1]
        assert whole_classes(table, threshold=0.8).tolist() == [0, UNDECIDED, 2, 1]

    def test_both_views_are_averaged(self):
        server, local = np.array([[0.8, 0.2], [0.4, 0.6], [0.0, 1.0]]), np.array([[0.6, 0.0, 0.2], [0.0, 0.8, 0.4]])
        assert class_similarity(server, local) == pytest.approx(np.array([[0.7, 0.2, 0.1], [0.1, 0.7, 0.7]]))

    def test_projection_is_that_of_the_projector(self):
        rng = np.random.default_rng(8)
        bases = [rotation(rng, 7)[:, :q] for q in (1, 3, 2)]
        z = rng.normal(size=(11, 7))
        expected = [[np.linalg.norm(q @ q.T @ row) for q in bases] for row in z]
        assert projections(z, bases) == pytest.approx(np.array(expected))

    def test_classes_that_do_not_occur(self, world):
        _, references, local, true = world
        assert [len(x) for x in by_class(local[:150], true[:150], CLASSES)] == [150, 0, 0, 0]
        vectors = [references[0].vectors, np.zeros((WIDTH, 0)), *(s.vectors for s in references[2:])]
        assert set(repair(local, true, vectors).labels) == {0, 1, 2, 3} - {1}

    def test_zero_features_keep_their_labels(self):
        labels, scores = repair(np.zeros((2, 2)), [1, 0], np.eye(2)[:, :, None])
        assert labels.tolist() == [1, 0]
        assert scores.tolist() == [0.5, 0.5]

    def test_only_classes_of_the_task(self):
        axes = np.eye(3)[:, :, None]
        z = [[3.0, 2.0, 1.0], [1.0, 2.0, 3.0]]
        assert repair(z, [1, 1], axes).labels.tolist() == [0, 2]
        labels, scores = repair(z, [1, 2], axes, among=[0, 1])
        assert labels.tolist() == [0, 1]
        assert scores == pytest.approx([4 / 13, 0.5])  # a label that is changed never scores above one half

    def test_a_class_left_as_it_is_still_shows_its_wrong_labels(self):
        axes = np.eye(2)[:, :, None]
        labels, scores = repair([[3.0, 1.0], [1.0, 3.0]], [0, 0], axes, decided=[0, 1])
        assert labels.tolist() == [0, 0]
        assert scores == pytest.approx([0.9, 0.1])

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda: projections([[1.0]], []), "no class subspace"),
            (lambda: by_class([[1.0]], [0, 1], 2), "1 samples, but 2 labels"),
            (lambda: by_class([[1.0]], [2], 2), "between 0 and 1"),
            (lambda: by_class([[1.0]], [0.5], 2), "whole numbers"),
            (lambda: repair([[1.0]], [0, 0], [[[1.0]]]), "1 samples, but 2 labels"),
            (lambda: repair([[1.0]], [0], [[[1.0]]], decided=[1]), "Phase 1"),
            (lambda: repair([[1.0]], [0], [[[1.0]]], among=[]), "`among` is empty"),
            (lambda: class_similarity(np.ones((2, 3)), np.ones((2, 3))), "do not belong"),
            (lambda: whole_classes([[2.0]]), "between 0 and 1"),
        ],
    )
    def test_refuses(self, call, message):
        with pytest.raises(ValueError, match=message):
            call()


def test_the_square_of_the_features_is_never_made_for_few_samples():
    """It would need 320 GB here."""
    x = np.random.default_rng(9).normal(size=(4, 200_000))
    values, vectors = signature(x, rank=3)
    assert cross_energies(x, vectors) == pytest.approx(values)
