"""Who votes how well, when nobody knows the truth: the model of Dawid and Skene (1979), fitted by EM.

Each item has a hidden true class, and each annotator a confusion matrix that says how it votes on items of that class.
Where many annotators vote on the same items, both can be estimated from the votes alone. Equation numbers are those of
FedDS (Dong et al., 2026), in which the annotators are clients and the items are samples without labels.

Items with equal votes are counted once, and the sums over items are products with a sparse table of the votes, so that
an iteration costs votes x classes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_array

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
MISSING = -1
LOG_OF_ZERO = -1e30
"""Not minus infinity, which times a share of 0 would be NaN; far below what any number of votes can sum to."""
SUM_TOLERANCE = 1e-3
"""How far the probabilities of a soft vote may be from a sum of 1; half precision needs about this much."""


@dataclass
class DawidSkene:
    """Confusion matrices of annotators and the true classes of items, from votes."""

    n_classes: int
    max_iter: int = 500
    """Iterations at most; 0 leaves the shares of the votes and the confusions that follow from them."""
    tol: float = 1e-5
    """EM ends when no posterior changes by as much; 0 runs exactly `max_iter` iterations."""
    smoothing: float = 0.01
    """Added to the count of each cell of a confusion matrix; more than 1 / n_classes drowns rare classes."""
    realign: bool = False
    """Rename the hidden classes after EM so that the confusions agree best with the votes' names."""
    prior: bool = True
    """Weigh the classes by their estimated frequency; False treats all classes that occur as equally frequent."""

    confusion_: Array = field(init=False)
    """[annotator, true, voted]; each row sums to 1. A row without votes is uniform."""
    prior_: Array = field(init=False)
    """Estimated frequency of each class."""
    posterior_: Array = field(init=False)
    """[item, class]."""
    labels_: Integers = field(init=False)
    """The most probable class of each item."""
    reliability_: Array = field(init=False)
    """Each annotator's mean accuracy over the classes that anybody votes for."""
    off_diagonal_rows_: int = field(init=False, default=0)
    """Rows of all confusion matrices with a larger entry than the diagonal one: the annotator never votes for the
    class, or the class is switched with another."""
    switched_: int = field(init=False, default=0)
    """Classes whose hidden name agrees better with another's votes; renamed if `realign` is set."""
    realigned_: Integers = field(init=False)
    """Which hidden class became each class; 0, 1, 2, ... if none was renamed."""
    log_likelihood_: Array = field(init=False)
    """Before each iteration's update of the confusions; without smoothing it never falls."""
    n_iter_: int = field(init=False, default=0)
    converged_: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        if self.n_classes < 1:
            raise ValueError(f"n_classes is {self.n_classes}; it must be at least 1")
        if not 0 <= self.smoothing < np.inf:
            raise ValueError(f"smoothing is {self.smoothing}; it must be at least 0 and finite")

    def fit(self, votes: ArrayLike) -> DawidSkene:
        """`votes` is (items, annotators) of integers, -1 for none, or (items, annotators, classes) of probabilities.

        A vote of probabilities is counted in shares and has the expectation of its log-likelihood; all zeros mean none.
        """
        ballot = _ballot(np.asarray(votes), self.n_classes)
        posterior = _vote_shares(ballot, self.n_classes)
        confusion, prior = self._maximise(posterior, ballot)
        log_likelihood: list[float] = []
        self.converged_ = False
        while len(log_likelihood) < self.max_iter and not self.converged_:
            before = posterior
            posterior, evidence = self._expect(confusion, prior, ballot)
            log_likelihood.append(float(ballot.times @ evidence))  # Eq. 14
            confusion, prior = self._maximise(posterior, ballot)
            before -= posterior
            self.converged_ = max(float(before.max()), -float(before.min())) < self.tol
        self.n_iter_, self.log_likelihood_ = len(log_likelihood), np.array(log_likelihood)

        by_true_class = confusion.transpose(0, 2, 1)
        names = _best_names(by_true_class.sum(axis=0))
        self.switched_ = int((names != np.arange(self.n_classes)).sum())
        self.realigned_ = names if self.realign else np.arange(self.n_classes)
        self.confusion_ = np.ascontiguousarray(by_true_class[:, self.realigned_])
        self.prior_ = prior[self.realigned_]
        self.posterior_ = posterior[:, self.realigned_][ballot.of_item]
        self.labels_ = self.posterior_.argmax(axis=1)
        diagonal = np.diagonal(self.confusion_, axis1=1, axis2=2)
        self.reliability_ = diagonal[:, _voted(ballot, self.n_classes)].mean(axis=1)  # Eq. 7
        self.off_diagonal_rows_ = int((diagonal < self.confusion_.max(axis=2)).sum())
        return self

    def _maximise(self, posterior: Array, ballot: _Ballot) -> tuple[Array, Array]:
        """M-step: confusions as [annotator, voted, true], so that the votes select whole rows, and the prior."""
        weighted = posterior * ballot.times[:, None]
        counts: Array = (ballot.table.T @ weighted).reshape(-1, self.n_classes, self.n_classes)
        counts += self.smoothing
        totals = counts.sum(axis=1, keepdims=True)
        empty = totals <= 0
        counts += empty
        counts /= totals + self.n_classes * empty  # Eq. 10
        return counts, weighted.sum(axis=0) / ballot.times.sum()  # Eq. 11

    def _expect(self, confusion: Array, prior: Array, ballot: _Ballot) -> tuple[Array, Array]:
        """E-step: posteriors, and each row's log-likelihood (Eq. 12)."""
        joint: Array = ballot.table @ _log(confusion).reshape(-1, self.n_classes)
        # Without a prior, a class that nobody votes for stays out all the same.
        joint += _log(prior if self.prior else (prior > 0) / np.count_nonzero(prior))  # the numerator of Eq. 9
        top = joint.max(axis=1, keepdims=True)
        joint -= top
        posterior = np.exp(joint, out=joint)
        total = posterior.sum(axis=1, keepdims=True)
        posterior /= total  # Eq. 9
        return posterior, (top + np.log(total)).ravel()


@dataclass(frozen=True)
class _Ballot:
    """The votes as a table: a row per different item, a column per annotator and voted class."""

    table: Any
    """A scipy sparse array, or an array where most shares are not 0."""
    times: Array
    """How many items have the votes of each row."""
    of_item: Integers
    """The row of each item."""


def _ballot(votes: NDArray[Any], n_classes: int) -> _Ballot:
    if votes.ndim == 3:
        return _soft_ballot(votes, n_classes)
    if votes.ndim != 2 or not np.issubdtype(votes.dtype, np.integer):
        raise ValueError(
            f"the votes are a {votes.ndim}-D array of {votes.dtype}; they must be integers (items, annotators)"
            " or probabilities (items, annotators, classes)"
        )
    _check_size(votes)
    wrong = (votes < MISSING) | (votes >= n_classes)
    if wrong.any():
        item, annotator = np.argwhere(wrong)[0]
        raise ValueError(
            f"the vote of annotator {annotator} on item {item} is {votes[item, annotator]};"
            f" it must be from 0 to {n_classes - 1}, or {MISSING} for none"
        )
    return _hard_ballot(votes.astype(np.int64), n_classes)


def _hard_ballot(votes: Integers, n_classes: int) -> _Ballot:
    first, of_item, times = _different_rows(votes, n_classes)
    votes = votes[first]
    annotators = votes.shape[1]
    there = votes != MISSING
    columns = (np.arange(annotators) * n_classes + votes)[there]
    ends = np.concatenate([[0], np.cumsum(there.sum(axis=1))])
    table = csr_array((np.ones(len(columns)), columns, ends), shape=(len(votes), annotators * n_classes))
    return _Ballot(table, times.astype(np.float64), of_item)


def _soft_ballot(shares: NDArray[Any], n_classes: int) -> _Ballot:
    if shares.shape[2] != n_classes:
        raise ValueError(f"the votes have {shares.shape[2]} probabilities each; there are {n_classes} classes")
    _check_size(shares)
    shares = shares.astype(np.float64)
    sums = shares.sum(axis=2)
    # Written so that NaN fails too.
    right = ((np.abs(sums - 1) <= SUM_TOLERANCE) | (sums == 0)) & (shares >= 0).all(axis=2)
    if not right.all():
        item, annotator = np.argwhere(~right)[0]
        raise ValueError(
            f"the vote of annotator {annotator} on item {item} is no distribution; its probabilities must be finite,"
            " not negative and sum to 1, or all be 0 for none"
        )
    if ((shares == 0) | (shares == 1)).all():
        return _hard_ballot(np.where(sums == 0, MISSING, shares.argmax(axis=2)), n_classes)
    return _Ballot(shares.reshape(len(shares), -1), np.ones(len(shares)), np.arange(len(shares)))


def _check_size(votes: NDArray[Any]) -> None:
    for size, what in zip(votes.shape, ("items", "annotators"), strict=False):
        if not size:
            raise ValueError(f"the votes have no {what}; their shape is {votes.shape}")


def _different_rows(votes: Integers, n_classes: int) -> tuple[Integers, Integers, Integers]:
    """An item of each different row of votes, the row of each item, and how many items each row has."""
    codes, limit = np.zeros(len(votes), np.int64), 1
    for column in votes.T:
        if limit > np.iinfo(np.int64).max // (n_classes + 1):
            codes = np.unique(codes, return_inverse=True)[1]
            limit = len(votes)
        codes = codes * (n_classes + 1) + (column - MISSING)
        limit *= n_classes + 1
    _, first, of_item, times = np.unique(codes, return_index=True, return_inverse=True, return_counts=True)
    return first, of_item, times


def _log(probabilities: Array) -> Array:
    with np.errstate(divide="ignore"):
        return np.maximum(np.log(probabilities), LOG_OF_ZERO)


def _vote_shares(ballot: _Ballot, n_classes: int) -> Array:
    """Where EM begins: each class has its share of the item's votes; without votes, all classes have the same."""
    annotators = ballot.table.shape[1] // n_classes
    votes: Array = ballot.table @ np.tile(np.eye(n_classes), (annotators, 1))
    total = votes.sum(axis=1, keepdims=True)
    votes += total == 0
    return votes / np.where(total == 0, n_classes, total)


def _voted(ballot: _Ballot, n_classes: int) -> NDArray[np.bool_]:
    """Classes that anybody votes for; the row of another would add 1 / C to every reliability. All if nobody votes."""
    voted: NDArray[np.bool_] = np.asarray(ballot.table.sum(axis=0)).reshape(-1, n_classes).sum(axis=0) > 0
    return voted if voted.any() else ~voted


def _best_names(agreement: Array) -> Integers:
    """Which row to put in each place so that the diagonal of [hidden class, voted class] is largest (Hungarian)."""
    hidden_classes: Integers = linear_sum_assignment(agreement.T, maximize=True)[1]
    return hidden_classes
