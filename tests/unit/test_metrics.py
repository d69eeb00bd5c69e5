"""Metrics against scikit-learn."""

import warnings

import numpy as np
import pytest
import scipy.stats
from sklearn import metrics as sk

from fedsieve.evaluate.metrics import (
    accuracy,
    adjusted_rand_index,
    balanced_accuracy,
    confusion,
    macro_f1,
    rank_correlation,
    ranking_auc,
    recalls,
    repair,
    selection,
)


def cases():
    rng = np.random.default_rng(0)
    for classes, absent in ((2, None), (5, None), (5, 3), (10, 0)):
        true, guess = rng.integers(0, classes, (2, 60))
        guess = np.where(rng.random(60) < 0.5, true, guess)
        if absent is not None:
            true = np.where(true == absent, (absent + 1) % classes, true)
        yield true, guess, classes


@pytest.mark.parametrize(("true", "guess", "classes"), list(cases()))
def test_as_scikit_learn_has_them(true, guess, classes):
    counts = confusion(true, guess, classes)
    assert np.array_equal(counts, sk.confusion_matrix(true, guess, labels=range(classes)))
    assert accuracy(counts) == pytest.approx(sk.accuracy_score(true, guess))
    assert macro_f1(counts) == pytest.approx(sk.f1_score(true, guess, average="macro"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn tells of classes that only the predictions have
        assert balanced_accuracy(counts) == pytest.approx(sk.balanced_accuracy_score(true, guess))


def test_a_class_that_is_neither_there_nor_predicted_does_not_count():
    counts = confusion(np.array([0, 0, 1]), np.array([0, 1, 1]), 9)
    assert macro_f1(counts) == pytest.approx(2 / 3)
    assert balanced_accuracy(counts) == pytest.approx(0.75)
    assert np.isnan(recalls(counts)[2:]).all()


def test_nothing_to_measure():
    counts = confusion(np.empty(0, int), np.empty(0, int), 3)
    assert (accuracy(counts), macro_f1(counts), balanced_accuracy(counts)) == (0.0, 0.0, 0.0)


def test_selection_is_precision_and_recall_of_right_labels():
    rng = np.random.default_rng(1)
    kept, correct = rng.random((2, 50)) < 0.6
    expected = sk.precision_score(correct, kept), sk.recall_score(correct, kept)
    assert selection(kept, correct) == pytest.approx(expected)
    nothing = np.zeros(3, bool)
    assert selection(nothing, ~nothing) == (None, 0.0)
    assert selection(~nothing, nothing) == (0.0, None)


def test_ranking_auc_is_the_area_under_the_curve():
    rng = np.random.default_rng(2)
    noise = rng.random(21)
    for reliability in (rng.random(21), -noise, noise, rng.integers(0, 3, 21).astype(float)):
        expected = sk.roc_auc_score(noise > np.median(noise), -reliability)
        assert ranking_auc(reliability, noise) == pytest.approx(expected)
    assert ranking_auc(-noise, noise) == 1.0
    assert ranking_auc(np.zeros(21), noise) == 0.5


def test_repair_by_hand():
    true = np.array([0, 1, 2, 3, 0, 1])
    given = np.array([0, 1, 0, 0, 1, 1])  # three are wrong
    suggested = np.array([0, 2, 2, 3, 1, 1])  # two of them put right, one right label spoilt
    assert repair(given, suggested, true) == (pytest.approx(2 / 3), pytest.approx(2 / 3))
    assert repair(given, given, true) == (None, 0.0)
    assert repair(true, true, true) == (None, None)
    assert repair(true, given, true) == (0.0, None)


def test_rank_correlation_is_spearmans():
    rng = np.random.default_rng(3)
    noise = rng.random(15)
    for reliability in (rng.random(15), rng.integers(0, 3, 15).astype(float), 1 - noise**3):
        expected = scipy.stats.spearmanr(reliability, 1 - noise).statistic
        assert rank_correlation(reliability, noise) == pytest.approx(expected)
    assert rank_correlation(1 - noise**3, noise) == pytest.approx(1)
    assert rank_correlation(np.array([0.5, np.nan, 0.1]), np.array([0.1, 0.2, 0.9])) == pytest.approx(1)
    assert rank_correlation(np.ones(15), noise) is None, "nothing to put in order"


def test_clients_that_nobody_judged_are_left_out():
    reliability = np.array([0.9, np.nan, 0.1, 0.5])
    noise = np.array([0.0, 0.9, 0.8, 0.1])
    assert ranking_auc(reliability, noise) == ranking_auc(reliability[[0, 2, 3]], noise[[0, 2, 3]]) == 1.0
    assert ranking_auc(np.full(4, np.nan), noise) is None
    assert ranking_auc(reliability, np.zeros(4)) is None, "all equally noisy"


@pytest.mark.parametrize("groups", [(2, 2), (3, 5), (1, 4), (12, 12), (1, 1)])
def test_agreement_of_groupings_as_scikit_learn_has_it(groups):
    rng = np.random.default_rng(1)
    for size in (2, 7, 40):
        one, two = (rng.integers(0, count, size) for count in groups)
        for other in (two, one, (one + 1) % 3, np.arange(size)):
            found = adjusted_rand_index(one.astype(float), other)
            assert found == pytest.approx(sk.adjusted_rand_score(one, other))


def test_agreement_of_groupings_by_hand():
    tasks = np.array([0, 0, 1, 1])
    assert adjusted_rand_index(np.array([5, 5, 2, 2]), tasks) == 1.0, "names do not matter"
    assert adjusted_rand_index(np.array([0, 0, 0, 0]), tasks) == 0.0, "one group says nothing"
    assert adjusted_rand_index(np.array([0, 1, 0, 1]), tasks) == pytest.approx(-0.5)  # (0 − 2/3) / (2 − 2/3)
    assert adjusted_rand_index(np.array([3]), np.array([1])) == 1.0
