"""The audit's mathematics: sums that add up, labels that do not judge themselves, noise, scores and flags."""

from itertools import pairwise

import numpy as np
import pytest
from cleanlab.count import compute_confident_joint
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics import average_precision_score, confusion_matrix

import fedsieve
from fedsieve.estimate.cross_fitting import UNKNOWN, Dealt, Moments, deal, discriminants, moments
from fedsieve.estimate.label_audit import Design, Owner, added, conversation, travelling
from fedsieve.estimate.label_noise import (
    PRIOR_ROWS,
    Noise,
    begin,
    confident_joint,
    entanglement,
    extended,
    maximised,
    noise_sums,
    posterior,
    predicted_joint,
    unmixed,
)
from fedsieve.estimate.label_scores import BINS, FIRST, Rule, budget, doubt_sums, flags, rule, wrong
from fedsieve.estimate.principal_axes import FARTHEST, Spread, axes_of, columns_for, coordinates, signs, spread

CLASSES = 4


def clusters(n, width=6, apart=3.0, seed=0, true=None):
    """Gaussian classes of one covariance, and the true posterior of an even prior."""
    rng = np.random.default_rng(seed)
    means = apart * np.eye(CLASSES, width)
    true = rng.integers(0, CLASSES, n) if true is None else true
    x = means[true] + rng.normal(size=(n, width))
    density = -((x[:, None] - means) ** 2).sum(axis=2) / 2
    shares = np.exp(density - density.max(axis=1, keepdims=True))
    return x.astype(np.float32), true, shares / shares.sum(axis=1, keepdims=True)


def spoilt(true, rate, seed=1):
    rng = np.random.default_rng(seed)
    return np.where(rng.random(len(true)) < rate, (true + rng.integers(1, CLASSES, len(true))) % CLASSES, true)


def calibration_error(score, right, bins=15):
    place = np.minimum((score * bins).astype(int), bins - 1)
    return sum(abs(score[place == b].sum() - right[place == b].sum()) for b in range(bins)) / len(score)


def whole_numbers(n, width, seed=0):
    """Rows whose sums are exact, in whatever order they are added."""
    rng = np.random.default_rng(seed)
    return rng.integers(-8, 9, (n, width)).astype(np.float64), rng.integers(0, CLASSES, n)


# --- principal axes
@pytest.mark.parametrize("columns", [5, 3])
def test_spreads_add_up(columns):
    x, _ = whole_numbers(40, 5)
    cut = [spread(x[a:b] * np.sqrt(5), columns, 7) for a, b in pairwise([0, 3, 3, 25, 40])]
    all_rows = spread(x * np.sqrt(5), columns, 7)
    assert sum(each.count for each in cut) == all_rows.count
    assert sum(each.total for each in cut) == pytest.approx(all_rows.total, rel=1e-12)
    assert sum(each.sketch for each in cut) == pytest.approx(all_rows.sketch, rel=1e-12)


def test_few_features_are_decorrelated_and_have_variance_one():
    x = np.random.default_rng(0).normal(size=(300, 4)) @ np.array(
        [[9, 1, 0, 0], [0, 1, 0, 0], [0, 0, 1e-4, 0], [0, 3, 0, 2]]
    )
    axes = axes_of(spread(x, columns_for(4, 8), 0), 8, 0)
    found = (x - axes.mean) @ axes.basis
    assert found.mean(axis=0) == pytest.approx(np.zeros(4), abs=1e-9)
    assert np.cov(found.T, bias=True) == pytest.approx(np.eye(4), abs=1e-6)


def test_units_of_a_table_do_not_matter():
    x = np.random.default_rng(0).normal(size=(200, 3)) @ np.array([[1, 0.5, 0], [0, 1, 0], [0, 0.3, 1]])
    units = np.array([1e-3, 1.0, 1e4])
    plain, scaled = (axes_of(spread(each, 3, 0), 2, 0) for each in (x, x * units))
    assert np.abs((x * units - scaled.mean) @ scaled.basis) == pytest.approx(np.abs((x - plain.mean) @ plain.basis))


def test_a_sketch_finds_the_axes_of_many_features():
    rng = np.random.default_rng(3)
    turned = np.linalg.qr(rng.normal(size=(60, 8)))[0].T
    x = rng.normal(size=(500, 8)) * (9, 8, 7, 6, 1, 0.5, 0.2, 0.1) @ turned + 2.0
    axes = axes_of(spread(x, columns_for(60, 8), 5), 4, 5)
    values, vectors = np.linalg.eigh(np.cov(x.T, bias=True))
    angles = np.linalg.svd(vectors[:, -4:].T @ np.linalg.qr(axes.basis)[0])[1]
    assert angles.min() > 0.9999
    assert ((x - axes.mean) @ axes.basis).var(axis=0) == pytest.approx(np.ones(4), rel=1e-3)
    assert np.linalg.norm(axes.basis, axis=0) ** -2 == pytest.approx(values[::-1][:4], rel=1e-3)


def test_signs_are_the_same_for_everybody_who_knows_the_key():
    assert (signs(50, 9, 1) == signs(50, 9, 1)).all()
    assert (signs(50, 9, 1) != signs(50, 9, 2)).any()
    assert set(np.unique(signs(50, 9, 1) * np.sqrt(50)).round(9)) == {-1.0, 1.0}
    assert (signs(6, 6, 1) == np.eye(6)).all()


def test_equal_rows_have_one_axis_of_zeros():
    axes = axes_of(spread(np.full((9, 3), 4.0), 3, 0), 3, 0)
    assert axes.basis.shape == (3, 1)
    assert not axes.basis.any()
    assert axes_of(Spread(0.0, np.zeros(3), np.zeros((3, 3))), 3, 0).basis.shape == (3, 1)


@pytest.mark.parametrize("most", [208, 120])
def test_rounding_of_sums_is_no_axis(most):
    """Twenty directions in 208 features that do not begin at zero; sums arrive in single precision."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(96, 20)) @ rng.normal(size=(20, 208)) + 3.0
    columns = columns_for(208, most)
    told = travelling({name: getattr(spread(x, columns, 0), name) for name in ("total", "sketch")})
    axes = axes_of(Spread(96.0, **told), most, 0)
    assert axes.basis.shape[1] == 20
    assert coordinates(x, axes).var(axis=0) == pytest.approx(np.ones(20), abs=0.02)


def test_far_rows_are_cut():
    x = np.concatenate([np.random.default_rng(0).normal(size=(5000, 1)), [[1e4]]])
    axes = axes_of(spread(x[:-1], 1, 0), 1, 0)
    assert np.abs(coordinates(x, axes)).max() == FARTHEST


# --- folds
def test_every_fold_that_is_told_of_has_rows_enough():
    x, y = whole_numbers(150, 9)
    y[:4] = 9
    dealt = deal(x, y, 5, 6, 0)
    assert not dealt.told[y == 9].any()
    assert dealt.told[y != 9].all()
    for label in np.unique(y[y != 9]):
        sizes = np.bincount(dealt.fold[y == label], minlength=5)
        assert sizes[sizes > 0].min() >= 6
        assert (sizes > 0).sum() == min(5, (y == label).sum() // 6)


def test_equal_rows_meet_in_one_fold_wherever_they_stand():
    x, y = whole_numbers(60, 9)
    x[30:], y[30:] = x[:30], y[:30]
    dealt = deal(x, y, 5, 1, 0)
    assert (dealt.fold[:30] == dealt.fold[30:]).all()
    order = np.random.default_rng(0).permutation(60)
    again = deal(x[order], y[order], 5, 1, 0)
    assert (again.fold == dealt.fold[order]).all()
    assert (deal(x, y, 5, 1, 1).fold != dealt.fold).any()


def test_folds_follow_from_what_rows_are_where_features_are_rounded_anew():
    """As on two machines, whose nets answer differently in the last bit."""
    x, y = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32), np.arange(60) % 3
    stored = np.random.default_rng(1).integers(0, 256, (60, 2, 2, 1)).astype(np.uint8)
    question = {"mean": np.zeros(4), "basis": np.eye(4)}
    here, there, by_features = {}, {}, {}
    owner = Owner(y, Design(3), dealt_by=lambda: stored)
    owner.answer("moments", question, here, lambda: x)
    owner.answer("moments", question, there, lambda: np.nextafter(x, np.float32(9)))
    Owner(y, Design(3)).answer("moments", question, by_features, lambda: x)
    assert (here["fold"] == there["fold"]).all()
    assert (here["fold"] == deal(stored, y, 5, 1, 0).fold).all()
    assert (here["fold"] != by_features["fold"]).any()


def test_copies_of_a_row_are_no_more_than_that_row():
    dealt = deal(np.ones((9, 3)), np.zeros(9, int), 5, 2, 0)
    assert not dealt.told.any()


# --- discriminants
def test_moments_add_up_to_those_of_all_rows():
    x, y = whole_numbers(70, 5)
    dealt = deal(x, y, 3, 1, 0)
    cut = [0, 10, 10, 44, 70]
    parts = [moments(x[a:b], y[a:b], Dealt(dealt.fold[a:b], dealt.told[a:b]), 3, CLASSES) for a, b in pairwise(cut)]
    pooled = moments(x, y, dealt, 3, CLASSES)
    for name in ("counts", "sums", "second"):
        assert (sum(getattr(each, name) for each in parts) == getattr(pooled, name)).all()


def test_what_is_not_told_is_in_no_sum():
    x, y = whole_numbers(40, 3)
    told = y != 2
    found = moments(x, y, Dealt(np.zeros(40, int), told), 1, CLASSES)
    assert found.counts[0].tolist() == [(y == 0).sum(), (y == 1).sum(), 0, (y == 3).sum()]
    assert (found.second[0] == x[told].T @ x[told]).all()
    assert (found.sums[0, 1] == x[y == 1].sum(axis=0)).all()


@pytest.mark.parametrize("shrinkage", [0.0, 0.3])
def test_a_discriminant_is_that_of_scikit_learn(shrinkage):
    x, y, _ = clusters(400, width=5)
    x = x.astype(np.float64) @ np.random.default_rng(5).normal(size=(5, 5))
    within = sum(((x[y == c] - x[y == c].mean(axis=0)) ** 2).sum(axis=0) for c in range(CLASSES)) / len(x)
    x = (x / np.sqrt(within)) - 1.0  # where variances are equal, the diagonal is scikit-learn's target too
    whole = moments(x, y, Dealt(np.zeros(len(x), int), np.ones(len(x), bool)), 1, CLASSES)
    found = discriminants(whole, shrinkage)
    theirs = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage or None).fit(x, y)
    assert found.weights[0] == pytest.approx(theirs.coef_, rel=1e-6, abs=1e-6)
    assert found.offsets[0] == pytest.approx(theirs.intercept_ - np.log(theirs.priors_), rel=1e-6, abs=1e-6)


def test_a_fold_is_judged_by_the_others():
    x, y, _ = clusters(120)
    x = x.astype(np.float64)
    fold = np.arange(120) % 3
    told = np.ones(120, bool)
    found = discriminants(moments(x, y, Dealt(fold, told), 3, CLASSES))(x, fold)
    for f in range(3):
        rest = fold != f
        alone = discriminants(moments(x[rest], y[rest], Dealt(np.zeros(rest.sum(), int), told[rest]), 1, CLASSES))
        assert found[~rest] == pytest.approx(alone(x[~rest], np.zeros((~rest).sum(), int)), rel=1e-9, abs=1e-9)
    other = y.copy()
    other[fold == 1] = (y[fold == 1] + 1) % CLASSES
    again = discriminants(moments(x, other, Dealt(fold, told), 3, CLASSES))(x, fold)
    assert again[fold == 1] == pytest.approx(found[fold == 1], rel=1e-9)
    assert np.abs(again[fold == 0] - found[fold == 0]).max() > 0.1


def test_a_class_that_the_other_folds_lack_is_unknown():
    x, y, _ = clusters(40)
    y = np.minimum(y, 2)
    found = discriminants(moments(x.astype(float), y, Dealt(np.arange(40) % 2, np.ones(40, bool)), 2, CLASSES))
    assert (found.offsets[:, 3] == UNKNOWN).all()
    assert (found.offsets[:, :3] > UNKNOWN / 2).all()
    odd = discriminants(Moments(np.ones((2, 3)), np.full((2, 3, 4), 1e8), np.zeros((2, 4, 4))))
    assert np.isfinite(odd.weights.astype(np.float32)).all(), "sums that no rows can have"
    assert np.isfinite(odd.offsets.astype(np.float32)).all()
    empty = discriminants(Moments(np.zeros((2, 3)), np.zeros((2, 3, 4)), np.zeros((2, 4, 4))))
    assert (empty.offsets == UNKNOWN).all()


# --- noise
def test_a_posterior_by_hand():
    likelihood = np.log([[0.8, 0.2], [0.2, 0.8]])
    matrix = np.array([[0.9, 0.1], [0.3, 0.7]])
    found = posterior(likelihood, np.array([0, 0]), 1.0, matrix, np.array([0.5, 0.5]))
    prior = np.array([0.5, 0.5])
    for _ in range(200):
        joint = np.array([[0.8, 0.2], [0.2, 0.8]]) * prior * matrix[:, 0]
        shares = joint / joint.sum(axis=1, keepdims=True)
        prior = (shares.sum(axis=0) + PRIOR_ROWS * 0.5) / (2 + PRIOR_ROWS)
    assert found.true == pytest.approx(shares, abs=1e-6)
    assert found.evidence == pytest.approx(np.log(joint.sum(axis=1)).sum(), abs=1e-6)
    alone = np.array([[0.8, 0.2], [0.2, 0.8]]) * prior
    assert found.unlabelled == pytest.approx(alone / alone.sum(axis=1, keepdims=True), abs=1e-6)


def test_the_temperature_multiplies_log_likelihoods():
    even = np.full((2, 2), 0.5)
    found = posterior(np.log([[0.8, 0.2], [0.2, 0.8]]), np.array([0, 1]), 2.0, even, np.array([0.5, 0.5]))
    assert found.true[0] == pytest.approx([0.64 / 0.68, 0.04 / 0.68])


def test_the_m_step_by_hand():
    found = maximised(np.array([[[7.5, 1.5], [0.5, 3.5]]]), np.array([1.0]))
    assert found.matrix[0] == pytest.approx(np.array([[8 / 10, 2 / 10], [1 / 5, 4 / 5]]))
    assert found.base[0] == pytest.approx([10 / 15, 5 / 15])


def test_the_first_noise_is_that_of_predictions():
    rng = np.random.default_rng(0)
    likelihood, given = rng.normal(size=(50, CLASSES)), rng.integers(0, CLASSES, 50)
    joint = predicted_joint(likelihood, given)
    assert (joint == confusion_matrix(likelihood.argmax(axis=1), given, labels=range(CLASSES))).all()
    assert begin(joint).matrix[3] == pytest.approx((joint + 0.25) / (joint + 0.25).sum(axis=1, keepdims=True))


def test_noise_sums_by_hand():
    rng = np.random.default_rng(0)
    likelihood, given = rng.normal(size=(9, CLASSES)), rng.integers(0, CLASSES, 9)
    noise = begin(predicted_joint(likelihood, given))
    found = noise_sums(likelihood, given, noise)
    each = posterior(likelihood, given, noise.temperature[5], noise.matrix[5], noise.base[5])
    for c in range(CLASSES):
        for y in range(CLASSES):
            assert found.joint[5, c, y] == pytest.approx(each.true[given == y, c].sum())
            assert found.alike[5, c, y] == pytest.approx((each.true[:, c] * each.unlabelled[:, y]).sum())
    assert found.evidence[5] == pytest.approx(each.evidence)


def test_em_climbs_and_finds_the_noise():
    _, true, shares = clusters(6000)
    given = spoilt(true, 0.3)
    likelihood, one = np.log(shares), np.array([1.0])
    noise = maximised(predicted_joint(likelihood, given)[None], one)
    heights = []
    for _ in range(15):
        sums = noise_sums(likelihood, given, noise)
        heights.append(float(sums.evidence[0]))
        noise = maximised(sums.joint, one)
    assert all(after > before - 0.1 for before, after in pairwise(heights))
    assert noise.matrix[0] == pytest.approx(0.6 * np.eye(CLASSES) + 0.1, abs=0.03)


def test_two_steps_of_em_are_extended_to_their_limit():
    limit, way = np.array([[[0.8, 0.2], [0.3, 0.7]]]), np.array([[[0.1, -0.1], [-0.08, 0.08]]])
    first, second, third = (limit + way * 0.5**step for step in range(3))
    assert extended(first, second, third) == pytest.approx(limit)
    assert extended(limit, limit, limit) == pytest.approx(limit)


def test_an_extension_stays_a_noise_matrix():
    first = np.array([[[0.5, 0.5], [0.5, 0.5]]])
    steps = np.array([[[0.2, -0.2], [0.1, -0.1]]]), np.array([[[0.39, -0.39], [0.2, -0.2]]])
    found = extended(first, *(first + step for step in steps))
    assert found.min() > 0
    assert found.sum(axis=-1) == pytest.approx(np.ones((1, 2)))


def test_entanglement_by_hand():
    alike = np.array([[9, 4, 0, 0], [4, 9, 0, 0], [0, 0, 9, 4], [0, 0, 4, 9.0]])
    assert entanglement(alike, alike) == pytest.approx(1.0)
    assert entanglement(np.ones((4, 4)), alike) == pytest.approx(0.0)
    half = np.array([[9, 4, 2, 2], [4, 9, 2, 2], [2, 2, 9, 4], [2, 2, 4, 9.0]])
    # rows of wrong labels (1/2, 1/4, 1/4) against (1, 0, 0): 1/2 in common, an even spread has 1/3
    assert entanglement(half, alike) == pytest.approx((1 / 2 - 1 / 3) / (1 - 1 / 3))
    assert entanglement(np.roll(alike, 2, axis=1), alike) == 0.0
    assert entanglement(np.ones((2, 2)), np.eye(2)) == 0.0


# --- scores
def test_the_rule_makes_the_expected_f1_largest():
    score = np.random.default_rng(0).beta(0.4, 0.3, 300)
    found = rule(doubt_sums(score))
    flagged = flags(score, found)

    def expected(chosen):
        return 2 * (1 - score[chosen]).sum() / (chosen.sum() + (1 - score).sum())

    best = max(expected(score <= value) for value in score)
    assert expected(flagged) == pytest.approx(best, abs=1e-3)
    assert found.threshold == pytest.approx(best / 2, abs=0.02)  # the theorem: flag what is doubted by half of F1
    assert found.precision == pytest.approx((1 - score[flagged]).mean())


@pytest.mark.parametrize("precision", [0.7, 0.9, 0.99])
def test_a_precision_that_is_asked_for_is_expected(precision):
    score = np.random.default_rng(1).beta(0.4, 0.3, 500)
    found = rule(doubt_sums(score), precision)
    flagged = flags(score, found)
    assert found.precision == pytest.approx((1 - score[flagged]).mean())
    assert precision <= found.precision < precision + 0.01
    assert flagged.sum() > 40


def test_where_nothing_is_doubted_nothing_is_flagged():
    for found in (rule(doubt_sums(np.ones(5))), rule(doubt_sums(np.full(5, 0.6)), 0.9), rule(np.zeros((2, BINS)))):
        assert found == Rule(2.0, 1.0)
        assert not flags(np.array([0.0, 0.5, 1.0, np.nan]), found).any()


def test_flags_are_of_the_bins_that_were_counted():
    score = np.array([0.0, 1.0, 0.5, 0.9995, 0.7])
    counts = doubt_sums(score)
    assert counts[0].sum() == 5
    assert counts[1].sum() == pytest.approx((1 - score).sum())
    for place in range(1, BINS):
        assert flags(score, Rule(place / BINS, 1.0)).sum() == counts[0][place:].sum()


def test_the_share_of_wrong_labels_by_hand():
    found = wrong([0.1, 0.9, 0.9, 0.9, np.nan])
    assert found.share == pytest.approx(0.3)
    chance = 2 * np.sqrt(4 * 0.09) / 4
    sharp, blunt = (np.array([9.0**k, 9.0**-k, 9.0**-k, 9.0**-k]) for k in (1.5, 1 / 1.5))
    shares = [float((odds / (1 + odds)).mean()) for odds in (sharp, blunt)]
    assert found.low == pytest.approx(max(0, min(shares) - chance))
    assert found.high == pytest.approx(max(shares) + chance)
    assert (wrong([]).low, wrong([]).high) == (0.0, 1.0)


def test_what_looking_first_would_find():
    score = np.concatenate([np.full(20, 0.1), np.ones(80), [np.nan]])
    assert budget(score).rows == FIRST
    assert budget(score).wrong == pytest.approx(18.0)
    assert budget(score, 10).wrong == pytest.approx(9.0)
    assert budget([0.25]).rows == 1


# --- the whole
@pytest.fixture(scope="module")
def case():
    x, true, _ = clusters(2400, width=8)
    given = spoilt(true, 0.3)
    owners = np.random.default_rng(2).integers(0, 6, 2400)
    return x, true, given, owners, fedsieve.audit(x, given, owners)


def test_wrong_labels_are_found_and_named(case):
    x, true, given, _, found = case
    errors = given != true
    assert average_precision_score(errors, -found.score) > 0.95
    assert (found.flagged & errors).sum() / found.flagged.sum() == pytest.approx(found.precision, abs=0.04)
    assert (found.suggested[found.flagged] != given[found.flagged]).all()
    assert (found.suggested[~found.flagged] == given[~found.flagged]).all()
    assert (found.suggested == true).mean() > 0.9
    assert found.posterior.sum(axis=1) == pytest.approx(np.ones(len(x)), abs=1e-6)
    assert found.posterior[np.arange(len(x)), given] == pytest.approx(found.score)


def test_scores_are_probabilities(case):
    _, true, given, _, found = case
    assert calibration_error(found.score, given == true) < 0.03


def test_owners_are_told_of_their_share(case):
    _, true, given, owners, found = case
    for each in found.owners:
        rows = owners == each.owner
        assert each.rows == rows.sum()
        assert each.flagged == found.flagged[rows].sum()
        assert each.wrong.low <= (given != true)[rows].mean() <= each.wrong.high
        assert each.wrong.high - each.wrong.low < 0.15
        assert each.budget.wrong > 45


def test_owners_class_frequencies_help():
    true = np.repeat(np.arange(CLASSES), 300)
    x, true, _ = clusters(1200, apart=1.5, true=true)
    given = spoilt(true, 0.3)
    owned, pooled = fedsieve.audit(x, given, true // 2), fedsieve.audit(x, given)
    precisions = [average_precision_score(given != true, -each.score) for each in (owned, pooled)]
    assert precisions[0] > precisions[1] + 0.05


def test_it_does_not_matter_who_comes_first(case):
    x, _, given, owners, found = case
    again = fedsieve.audit(x, given, np.array(list("fbdace"))[owners])
    assert again.score == pytest.approx(found.score, abs=1e-5)


def test_where_most_labels_are_wrong():
    x, true, _ = clusters(2400, apart=4.0)
    given = spoilt(true, 0.65)
    found = fedsieve.audit(x, given)
    errors = given != true
    assert (found.flagged & errors).sum() / errors.sum() > 0.9
    assert (found.flagged & errors).sum() / found.flagged.sum() > 0.9


def test_a_precision_can_be_asked_for(case):
    x, true, given, owners, usual = case
    found = fedsieve.audit(x, given, owners, precision=0.99)
    assert 0.99 <= found.precision < 1
    assert 0 < found.flagged.sum() < usual.flagged.sum()
    assert (given != true)[found.flagged].mean() > 0.97
    assert (found.score == usual.score).all()


def test_probabilities_of_a_classifier_will_do():
    _, true, shares = clusters(5000, apart=2.5)
    given = spoilt(true, 0.2)
    seen = shares @ (np.eye(CLASSES) * (0.8 - 0.2 / 3) + 0.2 / 3)  # what a classifier learns of such labels
    found = fedsieve.audit(labels=given, probabilities=seen)
    joint = shares * np.where(np.eye(CLASSES)[given] > 0, 0.8, 0.2 / 3)
    exact = joint[np.arange(5000), given] / joint.sum(axis=1)
    errors = given != true
    ranked = [average_precision_score(errors, -each) for each in (found.score, exact)]
    assert ranked[0] > ranked[1] - 0.02
    assert calibration_error(found.score, ~errors) < 0.05


def test_the_confident_joint_is_that_of_cleanlab():
    _, true, shares = clusters(800, apart=1.5)
    given = spoilt(true, 0.3)
    theirs = compute_confident_joint(given, shares, calibrate=True)
    ours = confident_joint(shares, given).T
    assert ours == pytest.approx(theirs, abs=1.0)  # which is rounded to whole rows


def test_unmixing_takes_the_noise_out():
    joint = 100 * np.array([[0.7, 0.3], [0.1, 0.9]])
    shares = np.array([[0.9, 0.1], [0.2, 0.8]])
    matrix = (joint + 0.5) / (joint + 0.5).sum(axis=1, keepdims=True)
    assert unmixed(shares @ matrix, joint) == pytest.approx(shares)
    assert unmixed(np.array([[0.0, 1.0]]), joint)[0].min() > 0


def test_odd_tables_are_survived():
    x, y, _ = clusters(60)
    one_class = fedsieve.audit(x, np.zeros(60, int))
    assert not one_class.flagged.any()
    single = fedsieve.audit(x[:1], y[:1])
    assert np.isnan(single.score).all()
    assert single.suggested[0] == y[0]
    missing = fedsieve.audit(x, np.where(np.arange(60) < 30, y, -1), n_classes=7)
    assert np.isnan(missing.score[30:]).all()
    assert not np.isnan(missing.score[:30]).any()
    assert not missing.flagged[30:].any()
    assert (missing.suggested[30:] == -1).all()
    constant = fedsieve.audit(np.ones((40, 3)), np.arange(40) % 2)
    assert not np.isnan(constant.score).any() or np.isnan(constant.score).all()
    rare = fedsieve.audit(x, np.where(np.arange(60) == 0, 5, y))
    assert np.isnan(rare.score[0]), "no other fold has a row of its class"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"features": np.ones((3, 2)), "labels": [0, 1]}, "2 labels need a table"),
        ({"features": np.ones((2, 2)), "labels": [0.5, 1]}, "whole numbers"),
        ({"features": np.ones((2, 2)), "labels": [-2, 1]}, "from 0"),
        ({"features": [[np.nan], [1]], "labels": [0, 1]}, "NaN"),
        ({"labels": [0, 1]}, "2 labels need a table"),
        ({"features": np.ones((2, 2)), "probabilities": np.ones((2, 2)), "labels": [0, 1]}, "in their place"),
        ({"features": np.ones((2, 2)), "labels": [0, 1], "owners": [1]}, "owners of shape"),
        ({"features": np.ones((2, 2)), "labels": [0, 3], "n_classes": 2}, "do not fit"),
        ({"features": np.ones((2, 2)), "labels": [0, 1], "folds": 1}, "two folds"),
        ({"features": np.ones((2, 2)), "labels": [0, 1], "near": 1.0}, "near is 1.0"),
        ({"features": np.ones((2, 2)), "labels": [0, 1], "precision": 1.5}, "between 0 and 1"),
        ({"probabilities": [[-1, 2.0], [1, 0]], "labels": [0, 1]}, "at least 0"),
    ],
)
def test_what_is_no_table_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        fedsieve.audit(**arguments)


def test_an_owner_tells_nothing_of_a_class_with_few_rows():
    x, y, _ = clusters(120)
    y[y == 3] = 2
    y[:4] = 3
    design = Design(CLASSES, smallest=5)
    owner, kept = Owner(y, design), {}
    asked = {"mean": np.zeros(6), "basis": np.eye(6)}
    told = owner.answer("moments", asked, kept, lambda: x)
    assert not told["counts"][:, 3].any()
    assert not told["sums"][:, 3].any()
    others = x[4:].astype(np.float32).astype(np.float64)
    assert told["second"].sum(axis=0) == pytest.approx(others.T @ others, rel=1e-6)
    joint = owner.answer("joint", {"weights": np.ones((5, 4, 6)), "offsets": np.zeros((5, 4))}, kept, lambda: x)
    assert not joint["joint"][:, 3].any()
    assert joint["joint"].sum() == 116


def test_an_owner_with_few_rows_tells_nothing():
    x, y, _ = clusters(4)
    owner = Owner(y, Design(CLASSES, smallest=5))
    told = owner.answer("spread", {}, {}, lambda: x)
    assert told["count"] == 0
    assert told["sketch"].shape == (6, 6)
    assert not told["sketch"].any()
    assert not told["total"].any()
    assert Owner(y, Design(CLASSES, smallest=4)).answer("spread", {}, {}, lambda: x)["count"] == 4


def test_the_conversation_has_eleven_turns():
    x, y, _ = clusters(100)
    owner, kept, asked = Owner(y, Design(CLASSES)), {}, []

    def held():
        turns = conversation(Design(CLASSES))
        topic, question = next(turns)
        while True:
            asked.append(topic)
            answer = owner.answer(topic, travelling(question), kept, lambda: x)
            topic, question = turns.send(added([travelling(answer)]))

    with pytest.raises(StopIteration):
        held()
    assert asked == ["spread", "moments", "joint", *["noise"] * 6, "doubts", "verdict"]
    assert set(kept) == {"posterior", "twin"}


def test_a_noise_keeps_its_temperatures():
    assert begin(np.ones((2, 2))).temperature[[0, -1]] == pytest.approx([0.05, 0.05 * 1.25**26])
    assert isinstance(begin(np.ones((2, 2))), Noise)
