import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from crowdkit.aggregation import DawidSkene as CrowdKit
from scipy.stats import spearmanr

from fedsieve.estimate import dawid_skene
from fedsieve.estimate.dawid_skene import DawidSkene

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "estimators.md").read_text(encoding="utf-8")
THREE_ITEMS = [[0, 0, 1], [1, 1, 1], [0, 1, 1]]


def diagonal_confusions(rng, annotators, classes, low=0.5, high=0.95):
    """Rows with their largest entry on the diagonal, the rest spread at random."""
    confusions = rng.dirichlet(np.ones(classes), (annotators, classes))
    right = rng.uniform(low, high, (annotators, classes, 1))
    return (1 - right) * confusions + right * np.eye(classes)


def draw(rng, confusions, items, missing=0.0, prior=None):
    annotators, classes, _ = confusions.shape
    truth = rng.choice(classes, items, p=prior)
    steps = confusions.cumsum(axis=2)[:, truth].transpose(1, 0, 2)
    votes = (rng.random((items, annotators, 1)) > steps[..., :-1]).sum(axis=2)
    return np.where(rng.random((items, annotators)) < missing, -1, votes), truth


def planted(seed, items=400, annotators=5, classes=4, missing=0.0):
    rng = np.random.default_rng(seed)
    return draw(rng, diagonal_confusions(rng, annotators, classes), items, missing)[0]


def plain_em(votes, classes, iterations, smoothing, with_prior=True):
    """Item by item in probabilities, as the paper writes it; the slow but obvious way."""
    items, annotators = votes.shape
    posterior = np.array([[np.sum(row == c) for c in range(classes)] for row in votes], float)
    posterior[posterior.sum(axis=1) == 0] = 1
    posterior /= posterior.sum(axis=1, keepdims=True)
    for step in range(iterations + 1):
        confusion = np.full((annotators, classes, classes), smoothing)
        for i in range(items):
            for j in range(annotators):
                if votes[i, j] >= 0:
                    confusion[j, :, votes[i, j]] += posterior[i]
        confusion /= confusion.sum(axis=2, keepdims=True)
        prior = posterior.mean(axis=0)
        if step == iterations:
            return posterior, confusion, prior
        for i in range(items):
            posterior[i] = prior if with_prior else 1
            for j in range(annotators):
                if votes[i, j] >= 0:
                    posterior[i] *= confusion[j, :, votes[i, j]]
            posterior[i] /= posterior[i].sum()
    raise AssertionError


def test_the_first_m_step_by_hand():
    model = DawidSkene(2, max_iter=0, smoothing=0).fit(THREE_ITEMS)
    assert model.posterior_ == pytest.approx(np.array([[2 / 3, 1 / 3], [0, 1], [1 / 3, 2 / 3]]))
    assert model.prior_ == pytest.approx([1 / 3, 2 / 3])
    assert model.confusion_[0] == pytest.approx(np.array([[1, 0], [1 / 2, 1 / 2]]))
    assert model.confusion_[1] == pytest.approx(np.array([[2 / 3, 1 / 3], [1 / 6, 5 / 6]]))
    assert model.confusion_[2] == pytest.approx(np.array([[0, 1], [0, 1]]))
    assert model.reliability_ == pytest.approx([3 / 4, 3 / 4, 1 / 2])
    assert (model.n_iter_, model.converged_, model.log_likelihood_.tolist()) == (0, False, [])


def test_the_first_e_step_by_hand():
    model = DawidSkene(2, max_iter=1, smoothing=0).fit(THREE_ITEMS)
    assert model.posterior_ == pytest.approx(np.array([[4 / 5, 1 / 5], [0, 1], [2 / 7, 5 / 7]]))
    assert model.labels_.tolist() == [0, 1, 1]
    assert model.log_likelihood_ == pytest.approx([np.log(5 / 18) + np.log(5 / 18) + np.log(7 / 18)])
    assert model.prior_ == pytest.approx([38 / 105, 67 / 105])
    assert model.confusion_[1] == pytest.approx(np.array([[14 / 19, 5 / 19], [7 / 67, 60 / 67]]))


def test_smoothing_is_a_count_in_each_cell():
    model = DawidSkene(2, max_iter=0, smoothing=1).fit(THREE_ITEMS)
    assert model.confusion_[2] == pytest.approx(np.array([[1 / 3, 2 / 3], [1 / 4, 3 / 4]]))


def test_without_a_prior_the_classes_weigh_the_same():
    model = DawidSkene(2, max_iter=1, smoothing=0, prior=False).fit(THREE_ITEMS)
    assert model.posterior_ == pytest.approx(np.array([[8 / 9, 1 / 9], [0, 1], [4 / 9, 5 / 9]]))


def test_a_soft_vote_is_shared_out_and_its_log_likelihood_is_the_expectation():
    votes = [[[0.75, 0.25]], [[0, 1]]]
    start = DawidSkene(2, max_iter=0, smoothing=0).fit(votes)
    assert start.confusion_[0] == pytest.approx(np.array([[0.75, 0.25], [0.1875 / 1.25, 1.0625 / 1.25]]))
    joint = np.array([0.375 * 0.75**0.75 * 0.25**0.25, 0.625 * 0.15**0.75 * 0.85**0.25])
    assert DawidSkene(2, max_iter=1, smoothing=0).fit(votes).posterior_[0] == pytest.approx(joint / joint.sum())


@pytest.mark.parametrize("prior", [True, False])
@pytest.mark.parametrize("missing", [0.0, 0.4])
def test_counting_equal_rows_once_changes_nothing(missing, prior):
    votes = planted(1, items=300, annotators=3, classes=3, missing=missing)
    assert len(np.unique(votes, axis=0)) < 100
    model = DawidSkene(3, max_iter=12, tol=0, smoothing=0.01, prior=prior).fit(votes)
    posterior, confusion, frequency = plain_em(votes, 3, 12, 0.01, prior)
    assert model.posterior_ == pytest.approx(posterior)
    assert model.confusion_ == pytest.approx(confusion)
    assert model.prior_ == pytest.approx(frequency)


def test_rows_of_more_annotators_than_fit_in_one_code():
    rest = np.random.default_rng(2).integers(0, 7, 58)
    votes = np.array([[one, two, *rest] for one in range(7) for two in range(7)] * 2)  # only the first two tell
    model = DawidSkene(7, max_iter=3, tol=0).fit(votes)
    posterior, confusion, _ = plain_em(votes, 7, 3, 0.01)
    assert model.posterior_ == pytest.approx(posterior)
    assert model.confusion_ == pytest.approx(confusion)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # crowd-kit's use of pandas
@pytest.mark.parametrize("iterations", [1, 6, 25])
@pytest.mark.parametrize("missing", [0.0, 0.25])
def test_equals_crowd_kit_after_as_many_iterations(missing, iterations):
    votes = planted(3, items=2000, annotators=6, classes=5, missing=missing)
    votes = votes[(votes >= 0).any(axis=1)]
    item, annotator = np.nonzero(votes >= 0)
    table = pd.DataFrame({"task": item, "worker": annotator, "label": votes[item, annotator]})
    # Its bound counts the prior once a vote and may fall: with tol=0 it would stop.
    theirs = CrowdKit(n_iter=iterations, tol=-np.inf).fit(table)
    ours = DawidSkene(5, max_iter=iterations, tol=0, smoothing=0).fit(votes)
    assert len(theirs.loss_history_) == ours.n_iter_ == iterations
    assert np.mean(ours.labels_ == theirs.labels_.sort_index().to_numpy()) >= 0.999
    cells = pd.MultiIndex.from_product([range(6), range(5)])
    errors = theirs.errors_.reindex(index=cells, columns=range(5), fill_value=0).to_numpy().reshape(6, 5, 5)
    assert ours.confusion_ == pytest.approx(errors.transpose(0, 2, 1), abs=1e-3)
    assert ours.prior_ == pytest.approx(theirs.priors_.reindex(range(5)).to_numpy(), abs=1e-3)


def test_known_confusions_are_recovered():
    rng = np.random.default_rng(4)
    confusions = diagonal_confusions(rng, 8, 4)
    prior = np.array([0.4, 0.3, 0.2, 0.1])
    votes, truth = draw(rng, confusions, 8000, prior=prior)
    model = DawidSkene(4).fit(votes)
    assert model.converged_
    assert model.n_iter_ == len(model.log_likelihood_) < 500
    assert model.confusion_ == pytest.approx(confusions, abs=0.05)
    assert model.prior_ == pytest.approx(prior, abs=0.02)
    assert model.reliability_ == pytest.approx(np.diagonal(confusions, axis1=1, axis2=2).mean(axis=1), abs=0.02)
    assert np.mean(model.labels_ == truth) > 0.95
    assert model.off_diagonal_rows_ == 0


@pytest.mark.parametrize("prior", [True, False])
@pytest.mark.parametrize("missing", [0.0, 0.5])
def test_the_likelihood_never_falls(missing, prior):
    for seed in range(6):
        noise = np.random.default_rng(seed).integers(-1 if missing else 0, 4, (200, 5))
        for votes in (planted(seed, missing=missing), noise):
            model = DawidSkene(4, max_iter=60, tol=0, smoothing=0, prior=prior).fit(votes)
            assert model.n_iter_ == 60
            assert (np.diff(model.log_likelihood_) >= -1e-9).all()


def test_the_likelihood_of_soft_votes_never_falls():
    for seed in range(6):
        rng = np.random.default_rng(seed)
        shares = rng.dirichlet(np.full(4, 0.3), (200, 5))
        shares[rng.random((200, 5)) < 0.2] = 0
        model = DawidSkene(4, max_iter=60, tol=0, smoothing=0).fit(shares)
        assert (np.diff(model.log_likelihood_) >= -1e-9).all()


def test_the_order_of_items_does_not_matter():
    votes = planted(5, missing=0.2)
    order = np.random.default_rng(0).permutation(len(votes))
    one, two = DawidSkene(4).fit(votes), DawidSkene(4).fit(votes[order])
    assert one.confusion_.tolist() == two.confusion_.tolist()
    assert one.posterior_[order].tolist() == two.posterior_.tolist()


def test_the_order_of_annotators_does_not_matter():
    votes = planted(6, missing=0.2)
    order = [3, 0, 4, 2, 1]
    one, two = DawidSkene(4).fit(votes), DawidSkene(4).fit(votes[:, order])
    assert one.confusion_[order] == pytest.approx(two.confusion_, abs=1e-9)
    assert one.reliability_[order] == pytest.approx(two.reliability_, abs=1e-9)
    assert one.posterior_ == pytest.approx(two.posterior_, abs=1e-9)


@pytest.mark.parametrize("kind", [np.float32, np.int64, np.bool_])
def test_certain_soft_votes_equal_votes(kind):
    votes = planted(7, missing=0.3)
    hard = DawidSkene(4).fit(votes)
    soft = DawidSkene(4).fit((votes[..., None] == np.arange(4)).astype(kind))
    assert hard.confusion_.tolist() == soft.confusion_.tolist()
    assert hard.posterior_.tolist() == soft.posterior_.tolist()
    assert hard.log_likelihood_.tolist() == soft.log_likelihood_.tolist()


def test_votes_of_a_small_unsigned_type():
    votes = planted(7)
    assert DawidSkene(4).fit(votes.astype(np.uint8)).confusion_.tolist() == DawidSkene(4).fit(votes).confusion_.tolist()


def test_nearly_certain_soft_votes_nearly_equal_votes():
    votes = planted(8, missing=0.3)
    shares = (votes[..., None] == np.arange(4)) * (1 - 4e-9) + (votes[..., None] >= 0) * 1e-9
    hard, soft = (DawidSkene(4, max_iter=10, tol=0).fit(v) for v in (votes, shares))
    assert soft.confusion_ == pytest.approx(hard.confusion_, abs=1e-6)
    assert soft.posterior_ == pytest.approx(hard.posterior_, abs=1e-6)
    assert soft.log_likelihood_ == pytest.approx(hard.log_likelihood_, rel=1e-6)


def test_realign_undoes_a_permutation_of_the_hidden_classes(monkeypatch):
    votes = planted(9, items=1500)
    expected = DawidSkene(4).fit(votes)
    shares, permutation = dawid_skene._vote_shares, [2, 0, 3, 1]
    monkeypatch.setattr(dawid_skene, "_vote_shares", lambda *given: shares(*given)[:, permutation])
    switched, realigned = DawidSkene(4).fit(votes), DawidSkene(4, realign=True).fit(votes)
    assert switched.realigned_.tolist() == [0, 1, 2, 3]
    assert (expected.switched_, switched.switched_, realigned.switched_) == (0, 4, 4)
    assert switched.off_diagonal_rows_ == 20  # every row of every annotator
    assert switched.confusion_ == pytest.approx(expected.confusion_[:, permutation], abs=1e-9)
    assert [permutation[hidden] for hidden in realigned.realigned_] == [0, 1, 2, 3]
    assert realigned.off_diagonal_rows_ == 0
    assert realigned.confusion_ == pytest.approx(expected.confusion_, abs=1e-9)
    assert realigned.prior_ == pytest.approx(expected.prior_, abs=1e-9)
    assert realigned.posterior_ == pytest.approx(expected.posterior_, abs=1e-9)
    assert realigned.labels_.tolist() == expected.labels_.tolist()
    assert realigned.reliability_ == pytest.approx(expected.reliability_, abs=1e-9)


def test_realign_leaves_what_is_in_place():
    votes = np.where(planted(10) == 3, 0, planted(10))  # nobody votes 3: its rows agree with any name
    plain, realigned = DawidSkene(4).fit(votes), DawidSkene(4, realign=True).fit(votes)
    assert realigned.realigned_.tolist() == [0, 1, 2, 3]
    assert realigned.confusion_.tolist() == plain.confusion_.tolist()


@pytest.mark.parametrize("prior", [True, False])
@pytest.mark.parametrize("smoothing", [0.0, 0.01])
def test_a_class_nobody_votes_for(smoothing, prior):
    votes = planted(11)
    model = DawidSkene(6, smoothing=smoothing, prior=prior).fit(votes)
    assert (model.posterior_[:, 4:] == 0).all()
    assert (model.prior_[4:] == 0).all()
    assert model.confusion_[:, 4:] == pytest.approx(np.full((5, 2, 6), 1 / 6))
    assert model.confusion_.sum(axis=2) == pytest.approx(1)
    diagonal = np.diagonal(model.confusion_, axis1=1, axis2=2)
    assert model.reliability_ == pytest.approx(diagonal[:, :4].mean(axis=1)), "without 1/6 for classes 4 and 5"
    if not smoothing:
        without = DawidSkene(4, smoothing=0, prior=prior).fit(votes)
        assert model.posterior_[:, :4] == pytest.approx(without.posterior_)
        assert model.reliability_ == pytest.approx(without.reliability_)


def test_a_class_that_has_no_share_of_any_soft_vote():
    shares = np.random.default_rng(16).dirichlet(np.ones(3), (50, 4))
    padded = np.concatenate([shares, np.zeros((50, 4, 1))], axis=2)
    wide, narrow = DawidSkene(4, smoothing=0).fit(padded), DawidSkene(3, smoothing=0).fit(shares)
    assert wide.posterior_[:, :3] == pytest.approx(narrow.posterior_)
    assert wide.log_likelihood_ == pytest.approx(narrow.log_likelihood_)


def test_an_item_without_votes_has_the_frequencies_of_the_classes():
    votes = np.vstack([planted(12), np.full((3, 5), -1)])
    assert DawidSkene(4, max_iter=0).fit(votes).posterior_[-1] == pytest.approx(0.25)
    model = DawidSkene(4, tol=1e-12).fit(votes)
    assert model.posterior_[-1] == pytest.approx(model.prior_)


@pytest.mark.parametrize("smoothing", [0.0, 0.01])
def test_an_annotator_without_votes_changes_nothing(smoothing):
    votes = planted(13)
    silent = np.column_stack([votes, np.full(len(votes), -1)])
    model, without = (DawidSkene(4, smoothing=smoothing).fit(v) for v in (silent, votes))
    assert model.posterior_ == pytest.approx(without.posterior_)
    assert model.confusion_[5] == pytest.approx(0.25)


def test_no_votes_at_all():
    model = DawidSkene(3, smoothing=0).fit(np.full((4, 2), -1))
    assert model.posterior_ == pytest.approx(1 / 3)
    assert model.confusion_ == pytest.approx(1 / 3)
    assert model.off_diagonal_rows_ == 0
    assert model.reliability_ == pytest.approx([1 / 3, 1 / 3])


def test_one_class():
    model = DawidSkene(1, smoothing=0, realign=True).fit([[0, 0], [0, -1]])
    assert model.confusion_.tolist() == [[[1]], [[1]]]
    assert model.posterior_.tolist() == [[1], [1]]
    assert model.log_likelihood_.tolist() == [0]
    assert model.converged_


def test_hundreds_of_annotators_do_not_underflow():
    rng = np.random.default_rng(14)
    votes, truth = draw(rng, diagonal_confusions(rng, 800, 10, 0.05, 0.15), 60)
    model = DawidSkene(10, smoothing=0, max_iter=20, tol=0).fit(votes)
    assert np.isfinite(model.posterior_).all()
    assert model.posterior_.sum(axis=1) == pytest.approx(1)
    assert model.log_likelihood_[-1] < -708 * 60  # no product of probabilities could hold one item's
    assert np.mean(model.labels_ == truth) > 0.9


@pytest.mark.parametrize("seed", [9, 15])
def test_tolerance_ends_the_iterations(seed):
    votes = planted(seed)
    model = DawidSkene(4, tol=1e-4).fit(votes)
    last, before = (DawidSkene(4, max_iter=n, tol=0).fit(votes).posterior_ for n in (model.n_iter_, model.n_iter_ - 1))
    earlier = DawidSkene(4, max_iter=model.n_iter_ - 2, tol=0).fit(votes).posterior_
    assert model.converged_
    assert np.abs(last - before).max() < 1e-4 <= np.abs(before - earlier).max()
    short = DawidSkene(4, max_iter=2).fit(votes)
    assert (short.n_iter_, short.converged_) == (2, False)


def test_no_tolerance_runs_all_iterations_even_where_nothing_changes():
    model = DawidSkene(2, max_iter=7, tol=0, smoothing=0).fit([[0, 0], [1, 1]])
    assert model.posterior_.tolist() == [[1, 0], [0, 1]]
    assert (model.n_iter_, len(model.log_likelihood_), model.converged_) == (7, 7, False)


@pytest.mark.parametrize(
    ("votes", "message"),
    [
        ([[0, 1], [2, 3]], "annotator 1 on item 1 is 3; it must be from 0 to 2"),
        ([[0, 1], [-2, 0]], "annotator 0 on item 1 is -2"),
        (np.array([[0, 255]], np.uint8), "annotator 1 on item 0 is 255"),
        ([0, 1, 2], "1-D array of int64"),
        ([[0.0, 1.0]], "2-D array of float64; they must be integers"),
        (np.zeros((0, 3), int), "no items"),
        (np.zeros((3, 0), int), "no annotators"),
        (np.zeros((0, 3, 3)), "no items"),
        (np.zeros((3, 0, 3)), "no annotators"),
        (np.zeros((2, 2, 4)), "4 probabilities each; there are 3 classes"),
        ([[[1, 0, 0], [0.5, np.nan, 0.5]]], "annotator 1 on item 0 is no distribution"),
        ([[[1, 0, 0]], [[0.5, -0.5, 1]]], "annotator 0 on item 1 is no distribution"),
        ([[[0.5, 0.2, 0.2]]], "annotator 0 on item 0 is no distribution"),
    ],
)
def test_bad_votes_are_refused(votes, message):
    with pytest.raises(ValueError, match=message):
        DawidSkene(3).fit(votes)


@pytest.mark.parametrize("options", [{"n_classes": 0}, {"smoothing": -0.1}, {"smoothing": np.nan}])
def test_bad_options_are_refused(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} is"):
        DawidSkene(**({"n_classes": 3} | options))


@pytest.mark.parametrize("snippet", re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
def test_the_page_prints_what_it_says(snippet, capsys):
    exec(snippet, {})
    said = re.findall(r"^print.*  # (.*)$", snippet, re.MULTILINE)
    assert said
    assert capsys.readouterr().out.splitlines() == said


# Annotators that lack classes


def lacking(seed, classes=10, items=2000, annotators=10, known=0.4):
    """Each annotator votes for some classes only; the others it calls one of these. Also its mean accuracy by class."""
    rng = np.random.default_rng(seed)
    true = rng.integers(0, classes, items)
    votes, accuracy = [], []
    for number in range(annotators):
        mine = rng.choice(classes, max(1, int(known * classes)), replace=False)
        sharp = 1.0 - 0.08 * number
        right = np.isin(true, mine) & (rng.random(items) < sharp)
        votes.append(np.where(right, true, rng.choice(mine, items)))
        accuracy.append(np.mean([(votes[-1][true == c] == c).mean() for c in range(classes)]))
    return np.stack(votes, 1), np.array(accuracy)


@pytest.mark.parametrize("seed", range(3))
def test_reliability_ranks_annotators_that_lack_classes(seed):
    """EM is slow there, but ends by its tolerance or its cap; a pseudo-count of 1 a cell would spoil the ranks."""
    votes, accuracy = lacking(seed)
    gentle, heavy = (DawidSkene(10, smoothing=smoothing, realign=True).fit(votes) for smoothing in (0.01, 1.0))
    assert gentle.n_iter_ <= 500
    assert gentle.converged_ or gentle.n_iter_ == 500
    assert spearmanr(gentle.reliability_, accuracy).statistic > 0.75
    assert np.abs(gentle.reliability_ - accuracy).mean() <= np.abs(heavy.reliability_ - accuracy).mean() + 0.02


def test_switched_classes_are_counted_and_renamed():
    """Two classes whose votes most annotators exchange: the hidden names go by the votes' sum, and nothing is lost."""
    votes, _ = lacking(5)
    plain, renamed = DawidSkene(10).fit(votes), DawidSkene(10, realign=True).fit(votes)
    assert plain.switched_ == renamed.switched_ == int((renamed.realigned_ != np.arange(10)).sum())
    assert np.trace(renamed.confusion_.sum(axis=0)) >= np.trace(plain.confusion_.sum(axis=0)) - 1e-9


def test_errors_that_annotators_share_raise_reliabilities_but_keep_their_order():
    rng = np.random.default_rng(8)
    true = rng.integers(0, 5, 3000)
    common = np.where(rng.random(3000) < 0.15, (true + 1) % 5, true)  # what all take it for
    rates = np.array([0.05, 0.2, 0.4, 0.6])
    votes = np.stack([np.where(rng.random(3000) < rate, rng.integers(0, 5, 3000), common) for rate in rates], 1)
    accuracy = (votes == true[:, None]).mean(axis=0)
    found = DawidSkene(5).fit(votes).reliability_
    assert (np.diff(found) < 0).all()
    assert (found[:3] > accuracy[:3]).all()
