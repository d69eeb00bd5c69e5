"""How labels go wrong, from class likelihoods that no label has a part in: a noise matrix, class priors, a temperature.

The true class c of a row at owner k has the prior pi_k(c), the row the likelihood exp(t l_c), and the given label y the
probability T(c, y). EM estimates T, which all owners share, from C x C sums of posteriors that add up over owners; an
owner's pi_k follows from T and its own rows, and stays with it. The temperature t, because a Gaussian is too sure or,
with means from mostly wrong labels, not sure enough, is the one under which the labels are likeliest.

EM begins with the counts of predicted and given classes, and not with trust in the labels: where most are wrong, it
would keep the trust.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
TEMPERATURES: Array = 0.05 * np.power(1.25, np.arange(27), dtype=np.float64)
"""Tried side by side."""
PRIOR_ROWS = 10.0
"""Rows of the common class frequencies that are added to an owner's own."""
PROFILE = 10
"""Iterations in which an owner fits its class prior to a noise matrix."""
SMALLEST_SHARE = 1e-6
"""Of a class after unmixing, which may make it negative."""
LONGEST = 4.0
"""How far EM's last two steps are extended at most."""


@dataclass(frozen=True)
class Noise:
    """What all owners share of the model, for each temperature."""

    temperature: Array
    """(G,)"""
    matrix: Array
    """(G, C, C): T(c, y), each row a distribution of the given labels."""
    base: Array
    """(G, C): how frequent the true classes are over all."""


@dataclass(frozen=True)
class Posterior:
    true: Array
    """(n, C): of the true class, by the row and its label."""
    unlabelled: Array
    """(n, C): by the row alone."""
    evidence: float
    """Sum over rows of log sum_c softmax(t l)_c pi_k(c) T(c, y)."""

    def evidence_of(self, classes: Integers) -> float:
        """Sum over rows of the log-probability of these classes, by the row alone."""
        return float(np.log(np.maximum(self.unlabelled[np.arange(len(classes)), classes], 1e-300)).sum())


def posterior(likelihood: Array, given: Integers, temperature: float, matrix: Array, base: Array) -> Posterior:
    """Of one owner's rows, with the class prior that its rows speak for under this noise."""
    scaled = temperature * likelihood
    shape = np.exp(scaled - scaled.max(axis=1, keepdims=True, initial=-np.inf))
    shape /= shape.sum(axis=1, keepdims=True)
    labelled = shape * matrix[:, given].T
    prior = base
    for _ in range(PROFILE):
        counts = _shares(labelled * prior).sum(axis=0)
        prior = (counts + PRIOR_ROWS * base) / (len(given) + PRIOR_ROWS)
    joint = labelled * prior
    evidence = float(np.log(np.maximum(joint.sum(axis=1), 1e-300)).sum())
    return Posterior(_shares(joint), _shares(shape * prior), evidence)


def _shares(joint: Array) -> Array:
    total = joint.sum(axis=1, keepdims=True)
    shares: Array = np.divide(joint, total, out=np.full_like(joint, 1 / joint.shape[1]), where=total > 0)
    return shares


@dataclass(frozen=True)
class NoiseSums:
    """What an owner tells under each temperature, or the total."""

    joint: Array
    """(G, C, C): posterior true classes (rows) against given ones."""
    alike: Array
    """(G, C, C): posterior true classes against those that the row alone speaks for."""
    evidence: Array
    """(G,)"""


def noise_sums(likelihood: Array, given: Integers, noise: Noise, believed: Integers | None = None) -> NoiseSums:
    """Of these rows, all of one owner.

    Where a class is `believed` of each row, the evidence is that of these classes given the rows alone. Labels that are
    mostly wrong say little about temperatures: a low one explains them as well as much noise does.
    """
    member = np.eye(likelihood.shape[1])[given]
    found = [
        posterior(likelihood, given, float(t), matrix, base)
        for t, matrix, base in zip(noise.temperature, noise.matrix, noise.base, strict=True)
    ]
    return NoiseSums(
        np.stack([each.true.T @ member for each in found]),
        np.stack([each.true.T @ each.unlabelled for each in found]),
        np.array([each.evidence if believed is None else each.evidence_of(believed) for each in found]),
    )


def predicted_joint(likelihood: Array, given: Integers) -> Array:
    """(C, C): the likeliest class of each row against the given one."""
    classes = likelihood.shape[1]
    joint: Array = np.eye(classes)[likelihood.argmax(axis=1)].T @ np.eye(classes)[given]
    return joint


def confident_joint(probabilities: Array, given: Integers) -> Array:
    """(C, C): likely true classes (rows) against given ones, from probabilities of the given labels, out of sample.

    A row counts for a class whose probability is at least the mean of those that were given that class; for the
    likeliest one where there are several, and not at all where there is none (Northcutt, Jiang and Chuang, 2021).
    Columns are brought to the number of rows that were given the class.
    """
    classes = probabilities.shape[1]
    member = np.eye(classes)[given]
    frequency = member.sum(axis=0)
    usual = (member * probabilities).sum(axis=0) / np.maximum(frequency, 1.0)
    confident = (probabilities >= usual - 1e-6) & (frequency > 0)
    several = confident.sum(axis=1) > 1
    guess = np.where(several, probabilities.argmax(axis=1), confident.argmax(axis=1))
    counted = confident.any(axis=1)
    joint = np.eye(classes)[guess[counted]].T @ member[counted]
    joint[np.diag_indices(classes)] = np.maximum(np.diagonal(joint), 1.0)
    scaled: Array = joint / joint.sum(axis=0) * frequency
    return scaled


def unmixed(probabilities: Array, joint: Array) -> Array:
    """Probabilities of the true classes from those of the given labels, p(y | x) = sum_c p(c | x) T(c, y)."""
    matrix = maximised(joint[None], np.ones(1)).matrix[0]
    return _shares(np.maximum(probabilities @ np.linalg.pinv(matrix), SMALLEST_SHARE))


def begin(joint: Array) -> Noise:
    """The noise that predictions speak for, at every temperature."""
    return maximised(np.broadcast_to(joint, (len(TEMPERATURES), *joint.shape)), TEMPERATURES)


def maximised(joint: Array, temperature: Array) -> Noise:
    """M-step: rows of the joint sums as distributions, with one row spread over the cells of each."""
    classes = joint.shape[-1]
    counts = joint + 1.0 / classes
    total = counts.sum(axis=-1)
    return Noise(temperature, counts / total[..., None], total / total.sum(axis=-1, keepdims=True))


def extended(first: Array, second: Array, third: Array) -> Array:
    """Three noise matrices that EM found one after the other, and where its steps lead (SQUAREM, Varadhan and Roland).

    Each temperature on its own. Entries stay positive and rows distributions.
    """
    step = second - first
    change = third - second - step
    size, turn = (np.sqrt((each**2).sum(axis=(-2, -1), keepdims=True)) for each in (step, change))
    length = np.clip(np.divide(size, turn, out=np.ones_like(size), where=turn > 0), 1.0, LONGEST)
    ahead: Array = first + 2 * length * step + length**2 * change
    ahead = np.maximum(ahead, third / 10)
    ahead /= ahead.sum(axis=-1, keepdims=True)
    return ahead


def entanglement(joint: Array, alike: Array) -> float:
    """0 where labels go wrong however unlike the classes are, 1 where they go wrong just as rows are mistaken.

    The share of wrong labels and of mistaken rows that fall on the same pairs of classes, beyond what labels that go
    wrong evenly would have. Where it is large, likelihood alone cannot tell a wrong label from an uncertain row, and
    splits the difference.
    """
    classes = len(joint)
    if classes < 3:
        return 0.0
    wrong, mistaken = (_off_diagonal(each) for each in (joint, alike))
    common = float(np.minimum(wrong, mistaken).sum()) / classes
    even = float(np.minimum(_off_diagonal(np.ones((classes, classes))), mistaken).sum()) / classes
    return max(0.0, (common - even) / (1 - even)) if even < 1 else 0.0


def _off_diagonal(table: Array) -> Array:
    """Rows without their diagonal, as distributions."""
    return _shares(np.where(np.eye(len(table), dtype=bool), 0.0, table + 1e-12))
