"""The mixture in several dimensions, against scikit-learn and by hand."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal
from sklearn.mixture import GaussianMixture as Theirs

from fedsieve.estimate.gmm import GaussianMixture, scattered_start

THEIR_NAMES = {"full": "full", "diagonal": "diag"}


def two_clouds(rng, n=80, d=3):
    """Overlapping clouds with correlated columns."""
    mixing = rng.normal(size=(d, d))
    second = rng.random(n) < 0.4
    return rng.normal(size=(n, d)) @ mixing + 2.5 * second[:, None]


def fitted(x, covariance, shares, **settings):
    """Ours and theirs from one and the same start."""
    ours = GaussianMixture(covariance, **settings).fit(x, shares)
    begun = GaussianMixture(covariance, max_iter=0).fit(x, shares)
    inverse = np.linalg.inv if covariance == "full" else np.reciprocal
    theirs = Theirs(
        shares.shape[1], covariance_type=THEIR_NAMES[covariance], means_init=begun.means_, weights_init=begun.weights_,
        precisions_init=inverse(begun.covariances_), **settings,
    ).fit(x)  # fmt: skip
    return ours, theirs


@pytest.mark.parametrize("covariance", THEIR_NAMES)
@pytest.mark.parametrize("seed", range(5))
def test_the_same_as_scikit_learn_from_the_same_start(covariance, seed):
    rng = np.random.default_rng(seed)
    x = two_clouds(rng)
    ours, theirs = fitted(x, covariance, scattered_start(x, 2, rng), tol=1e-3, max_iter=100)
    assert ours.means_ == pytest.approx(theirs.means_, abs=1e-8)
    assert ours.covariances_ == pytest.approx(theirs.covariances_, abs=1e-8)
    assert ours.weights_ == pytest.approx(theirs.weights_, abs=1e-10)
    assert ours.predict_proba(x) == pytest.approx(theirs.predict_proba(x), abs=1e-8)
    assert ours.bic(x) == pytest.approx(theirs.bic(x))
    assert (ours.n_iter_, ours.converged_) == (theirs.n_iter_, theirs.converged_)


def test_posterior_by_hand():
    x = two_clouds(np.random.default_rng(0))
    mixture = GaussianMixture().fit(x, scattered_start(x, 2, np.random.default_rng(1)))
    densities = [
        w * multivariate_normal.pdf(x[0], m, c)
        for w, m, c in zip(mixture.weights_, mixture.means_, mixture.covariances_, strict=True)
    ]
    assert mixture.predict_proba(x[:1])[0] == pytest.approx(np.array(densities) / sum(densities))


@pytest.mark.parametrize("covariance", THEIR_NAMES)
def test_the_likelihood_never_falls(covariance):
    x = two_clouds(np.random.default_rng(2))
    shares = np.random.default_rng(3).dirichlet([1, 1], len(x))
    bounds = [GaussianMixture(covariance, tol=0, max_iter=n).fit(x, shares).lower_bound_ for n in range(1, 15)]
    assert (np.diff(bounds) > -1e-9).all()


def test_components_keep_the_order_of_the_shares():
    x = np.concatenate([np.zeros((10, 2)), np.ones((20, 2))]) + np.linspace(0, 0.1, 30)[:, None]
    shares = np.eye(2)[[1] * 10 + [0] * 20]
    mixture = GaussianMixture("diagonal").fit(x, shares)
    assert mixture.means_[0, 0] > 0.9
    assert mixture.weights_ == pytest.approx([2 / 3, 1 / 3], abs=1e-6)


@pytest.mark.parametrize("covariance", THEIR_NAMES)
def test_fewer_points_than_dimensions_and_equal_points(covariance):
    for x in (np.random.default_rng(4).normal(size=(5, 20)), np.ones((6, 3))):
        proba = GaussianMixture(covariance).fit(x, scattered_start(x, 2, np.random.default_rng(0))).predict_proba(x)
        assert np.isfinite(proba).all()
        assert proba.sum(axis=1) == pytest.approx(1)


def test_bic_prefers_one_component_for_one_cloud_and_two_for_two():
    rng = np.random.default_rng(5)
    one, two = rng.normal(size=(60, 2)), rng.normal(size=(60, 2)) + 8 * (np.arange(60) < 30)[:, None]
    for x, better in ((one, 1), (two, 2)):
        values = {k: GaussianMixture().fit(x, scattered_start(x, k, rng)).bic(x) for k in (1, 2)}
        assert min(values, key=values.get) == better


def test_a_start_follows_its_generator_and_finds_what_is_far_apart():
    rng = np.random.default_rng(6)
    x = rng.normal(0, 0.1, (40, 3)) + 5 * (np.arange(40) < 12)[:, None]
    starts = [scattered_start(x, 2, np.random.default_rng(seed)) for seed in (0, 0, 1, 2, 3)]
    assert (starts[0] == starts[1]).all()
    for shares in starts:
        assert sorted(shares.sum(axis=0)) == [12, 28]
        assert set(shares[:12].argmax(axis=1)) != set(shares[12:].argmax(axis=1))


@pytest.mark.parametrize(
    ("points", "shares", "message"),
    [
        ([[np.nan, 0.0]], [[1.0]], "NaN"),
        ([0.0, 1.0], [[1.0], [1.0]], "shape"),
        (np.empty((0, 2)), np.empty((0, 1)), "at least one"),
        ([[0.0], [1.0]], [[1.0]], "2 points"),
    ],
)
def test_what_cannot_be_used_is_refused(points, shares, message):
    with pytest.raises(ValueError, match=message):
        GaussianMixture().fit(points, shares)
