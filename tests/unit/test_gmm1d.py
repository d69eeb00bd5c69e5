import numpy as np
import pytest
from scipy.stats import norm
from sklearn.mixture import GaussianMixture

from fedsieve.estimate.gmm1d import BINS, GaussianMixture1D


def bimodal(rng, n):
    share = rng.uniform(0.2, 0.8)
    low, high = rng.uniform(0, 0.2), rng.uniform(0.5, 1.0)
    first = rng.random(n) < share
    return np.where(first, rng.normal(low, rng.uniform(0.03, 0.1), n), rng.normal(high, rng.uniform(0.05, 0.15), n))


def test_decisions_agree_with_scikit_learn():
    agreements = []
    for seed in range(200):
        x = bimodal(np.random.default_rng(seed), 600)
        ours = GaussianMixture1D(tol=1e-6, max_iter=1000, reg_covar=5e-4).fit(x)
        theirs = GaussianMixture(2, tol=1e-6, max_iter=1000, reg_covar=5e-4, random_state=0).fit(x[:, None])
        lower = int(theirs.means_.ravel().argmin())
        clean = theirs.predict_proba(x[:, None])[:, lower] > 0.5
        agreements.append(np.mean((ours.predict_proba(x)[:, 0] > 0.5) == clean))
    assert np.mean(agreements) >= 0.995


def test_bins_change_nothing_that_matters():
    x = bimodal(np.random.default_rng(1), 20_000)
    assert len(x) > BINS
    ours = GaussianMixture1D().fit(x)
    theirs = GaussianMixture(2, tol=1e-6, max_iter=1000, reg_covar=5e-4, random_state=0).fit(x[:, None])
    order = theirs.means_.ravel().argsort()
    assert ours.means_ == pytest.approx(theirs.means_.ravel()[order], abs=1e-3)
    assert ours.weights_ == pytest.approx(theirs.weights_[order], abs=1e-3)
    assert ours.variances_ == pytest.approx(theirs.covariances_.ravel()[order], rel=2e-2)


def test_posterior_by_hand():
    mixture = GaussianMixture1D().fit(bimodal(np.random.default_rng(2), 500))
    x = 0.35
    parts = mixture.weights_ * norm.pdf(x, mixture.means_, np.sqrt(mixture.variances_))
    assert mixture.predict_proba([x])[0] == pytest.approx(parts / parts.sum())


def test_the_first_column_is_the_smaller_mean():
    x = np.concatenate([np.full(30, 5.0), np.full(60, -3.0)]) + np.linspace(0, 0.1, 90)
    mixture = GaussianMixture1D().fit(x)
    assert mixture.means_[0] < mixture.means_[1]
    assert (mixture.predict_proba(x)[30:, 0] > 0.99).all()
    assert (mixture.predict_proba(x)[:30, 0] < 0.01).all()
    assert mixture.predict_proba(x).sum(axis=1) == pytest.approx(1)


def test_the_order_of_the_values_does_not_matter():
    x = bimodal(np.random.default_rng(3), 400)
    one, two = GaussianMixture1D().fit(x), GaussianMixture1D().fit(x[::-1])
    assert one.means_.tolist() == two.means_.tolist()
    assert one.variances_.tolist() == two.variances_.tolist()


def test_the_likelihood_never_falls():
    x = bimodal(np.random.default_rng(4), 300)
    bounds = [GaussianMixture1D(max_iter=n, tol=0, reg_covar=0).fit(x).lower_bound_ for n in range(1, 30)]
    assert (np.diff(bounds) > -1e-12).all()


@pytest.mark.parametrize("values", [[], [1.0], [0.2] * 50, np.linspace(0, 1, 9), np.full(100, 3.0) + 1e-9])
def test_what_cannot_be_split_is_all_in_the_first(values):
    mixture = GaussianMixture1D().fit(values)
    assert not mixture.split_
    assert (mixture.predict_proba(values)[:, 0] == 1).all()


def test_separation_tells_one_hump_from_two():
    rng = np.random.default_rng(5)
    assert GaussianMixture1D().fit(rng.normal(0, 1, 2000)).separation() < 2
    assert GaussianMixture1D().fit(np.r_[rng.normal(0, 1, 1000), rng.normal(8, 1, 1000)]).separation() > 5


def test_values_that_are_not_finite_are_refused():
    with pytest.raises(ValueError, match="NaN"):
        GaussianMixture1D().fit([0.1] * 20 + [np.nan])


def test_a_known_mixture_is_put_in_order():
    known = GaussianMixture1D.of([0.8, 0.1], [0.04, 0.01], [0.3, 0.7])
    assert known.means_.tolist() == [0.1, 0.8]
    assert known.variances_.tolist() == [0.01, 0.04]
    parts = np.array([0.7, 0.3]) * norm.pdf(0.4, [0.1, 0.8], [0.1, 0.2])
    assert known.predict_proba([0.4])[0] == pytest.approx(parts / parts.sum())


def test_em_goes_on_from_another_mixture():
    """One step by hand, and in the end the same mixture as from the best cut."""
    x = bimodal(np.random.default_rng(6), 300)
    start = GaussianMixture1D.of([0.2, 0.9], [0.02, 0.05], [0.4, 0.6])
    one = GaussianMixture1D(max_iter=1).fit(x, start)
    share = start.predict_proba(x)
    means = share.T @ x / share.sum(0)
    assert one.means_ == pytest.approx(means)
    assert one.weights_ == pytest.approx(share.mean(0))
    expected = [np.average((x - mean) ** 2, weights=column) for mean, column in zip(means, share.T, strict=True)]
    assert one.variances_ == pytest.approx(np.array(expected) + 5e-4)
    assert GaussianMixture1D(tol=1e-12).fit(x, start).means_ == pytest.approx(
        GaussianMixture1D(tol=1e-12).fit(x).means_
    )
    assert start.means_.tolist() == [0.2, 0.9], "the start stays as it was"


def test_a_start_far_from_the_values_does_no_harm():
    x = np.linspace(0, 1, 50)
    mixture = GaussianMixture1D().fit(x, GaussianMixture1D.of([-50.0, 900.0], [1e-3, 1e-3], [0.5, 0.5]))
    assert np.isfinite([mixture.means_, mixture.variances_, mixture.weights_]).all()
    assert np.isfinite(mixture.predict_proba(x)).all()
