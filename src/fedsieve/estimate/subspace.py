"""Which data sets are alike, by the subspaces their features span; and labels repaired by the subspaces of classes.

The estimators of FB-NLL; the numbers of its equations stand beside the lines. Owners exchange a few eigenvectors and
never data: each measures the eigenvectors of the others on its own second moment. No label is read before Procedure 2.

Features are (n, d), one row a sample. Two options of the features must be the same on both sides of a comparison:
`center` (one vector that everybody subtracts, such as the mean of the server's features) and `normalise` (rows of
length 1). The paper uses neither; features without negative values share their mean direction, which hides classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Linkage = Literal["average", "complete", "single", "weighted"]
Choice = Literal["gap", "silhouette"]

SMALLEST_RATIO = 1e-12
"""One direction without any response makes a relevance small, not zero: the logarithm needs it."""
UNDECIDED = -1


class Signature(NamedTuple):
    """The leading eigenpairs of a second moment. Only the vectors need to travel."""

    values: Array
    """(q,), descending, all positive."""
    vectors: Array
    """(d, q), columns of length 1."""


class Clustering(NamedTuple):
    labels: Integers
    """(K,), groups 0..G-1 in the order of their smallest members."""
    merges: Array
    """(K-1, 4), the tree as scipy's `linkage` gives it."""


class Repair(NamedTuple):
    labels: Integers
    """(n,), the suggested labels."""
    scores: Array
    """(n,), how well the given label fits: 0 = surely wrong, 1 = surely right; below 0.5 another class fits better."""


def prepare(features: ArrayLike, center: ArrayLike | None = None, normalise: bool = False) -> Array:
    """Float64 rows: `center` is subtracted first, then the lengths are made 1 if asked for (zero rows stay zero)."""
    x = _finite(features, "the features", 2)
    if center is not None:
        middle = _finite(center, "the centre", 1)
        if len(middle) != x.shape[1]:
            raise ValueError(f"the centre has {len(middle)} entries, the features {x.shape[1]}")
        x = x - middle
    if normalise:
        lengths = np.linalg.norm(x, axis=1, keepdims=True)
        x = np.divide(x, lengths, out=np.zeros_like(x), where=lengths > 0)
    return x


def signature(
    features: ArrayLike,
    rank: int | None = None,
    cap: int = 10,
    threshold: float = 1e-2,
    center: ArrayLike | None = None,
    normalise: bool = False,
) -> Signature:
    """Leading eigenpairs of the uncentred second moment X'X / n.

    `rank` pairs; without it those with at least `threshold` of the largest eigenvalue, at most `cap`. Few samples, or
    samples in few directions, give fewer pairs than asked for; features that are all zero give none. Of each vector
    the entry of largest size is positive.
    """
    most = cap if rank is None else rank
    if most < 1:
        raise ValueError(f"a signature needs at least one eigenvector, {most} were asked for")
    if not 0 <= threshold <= 1:
        raise ValueError(f"threshold is a share of the largest eigenvalue, between 0 and 1, not {threshold}")
    x = prepare(features, center, normalise)
    n, d = x.shape
    size = min(n, d)
    if size == 0:
        return Signature(np.zeros(0), np.zeros((d, 0)))
    from scipy.linalg import eigh  # slow to load, and only some methods need it

    few_samples = n < d
    moment = (x @ x.T if few_samples else x.T @ x) / n  # eq. 2; both sides have the same positive eigenvalues
    values, vectors = eigh(moment, subset_by_index=[max(size - most, 0), size - 1])
    values, vectors = values[::-1], vectors[:, ::-1]
    kept = values > max(n, d) * np.finfo(np.float64).eps * values[0]
    if rank is None:
        kept &= values >= threshold * values[0]
    values, vectors = values[kept], vectors[:, kept]
    if few_samples:
        vectors = x.T @ vectors / np.sqrt(n * values)
    peaks = np.abs(vectors).argmax(axis=0)
    return Signature(values.copy(), vectors * np.sign(vectors[peaks, np.arange(len(values))]))


def pad(vectors: Sequence[Array]) -> Array:
    """(count, d, q) of sets of q columns at most, columns of zeros where a set has fewer; q is at least one."""
    wide, most = vectors[0].shape[0], max(1, max(one.shape[1] for one in vectors))
    stacked = np.zeros((len(vectors), wide, most))
    for place, one in zip(stacked, vectors, strict=True):
        place[:, : one.shape[1]] = one
    return stacked


def cross_energies(
    features: ArrayLike,
    vectors: ArrayLike,
    *,
    moment: bool = False,
    center: ArrayLike | None = None,
    normalise: bool = False,
) -> Array:
    """How strongly the second moment of these features answers to another's eigenvectors: ||X'X v / n|| per column.

    With `moment`, `features` is the (d, d) second moment itself. Otherwise no (d, d) matrix is made.
    """
    v = _finite(vectors, "the eigenvectors", 2)
    x = _finite(features, "the moment", 2) if moment else prepare(features, center, normalise)
    if moment and x.shape[0] != x.shape[1]:
        raise ValueError(f"a second moment is square, this one is {x.shape[0]} x {x.shape[1]}")
    if v.shape[0] != x.shape[1]:
        raise ValueError(f"the eigenvectors have {v.shape[0]} entries, the features {x.shape[1]}")
    response = x @ v if moment else x.T @ (x @ v) / max(len(x), 1)
    energies: Array = np.linalg.norm(response, axis=0)  # eq. 3
    return energies


def relevance(own_values: ArrayLike, energies: ArrayLike) -> float:
    """Likeness in [0, 1] of two data sets, seen from one: own eigenvalues against the energies of the other's vectors.

    Over as many directions as both have. Two empty signatures are alike, an empty one is unlike any other.
    """
    own, other = np.asarray(own_values, np.float64).ravel(), np.asarray(energies, np.float64).ravel()
    q = min(len(own), len(other))
    if q == 0:
        return float(len(own) == len(other))
    low, high = np.minimum(own[:q], other[:q]), np.maximum(own[:q], other[:q])
    ratios = np.divide(low, high, out=np.ones(q), where=high > 0)  # eq. 4; no response where none is due is a match
    return float(np.exp(np.log(np.maximum(ratios, SMALLEST_RATIO)).mean()))  # eq. 5


def relevances(
    features: Sequence[ArrayLike], own_values: Sequence[ArrayLike], received: Sequence[ArrayLike] | Array
) -> Array:
    """`relevance` of every received set of eigenvectors (columns) for every own data set (rows).

    The features are prepared as for the signatures. Received sets may have different numbers of columns, or be padded
    with columns of zeros.
    """
    bases = [base[:, base.any(axis=0)] for base in (_finite(r, "the eigenvectors", 2) for r in received)]
    table = np.zeros((len(features), len(bases)))
    if not bases:
        return table
    stacked, ends = np.concatenate(bases, axis=1), np.cumsum([base.shape[1] for base in bases])
    for row, x, values in zip(table, features, own_values, strict=True):
        row[:] = [relevance(values, part) for part in np.split(cross_energies(x, stacked), ends[:-1])]
    return table


def similarity(relevances: ArrayLike) -> Array:
    """The mean of both views of a pair; everybody is alike to itself."""
    r = _shares(relevances, "the relevances")
    if r.shape[0] != r.shape[1]:
        raise ValueError(f"relevances of all pairs make a square table, this one is {r.shape[0]} x {r.shape[1]}")
    symmetric: Array = (r + r.T) / 2  # eq. 6
    np.fill_diagonal(symmetric, 1.0)
    return symmetric


def cluster(
    similarity: ArrayLike,
    groups: int | None = None,
    choose: Choice = "silhouette",
    linkage: Linkage = "average",
) -> Clustering:
    """Groups of alike members by hierarchical agglomeration on 1 - similarity.

    Without `groups` their number is chosen between 2 and K - 1: by the mean silhouette, or by the widest gap between
    the heights of two merges in succession, which tends to find only the coarsest split where groups resemble each
    other unequally. Equal choices fall to fewer groups; members without any difference are one.
    """
    s = _shares(similarity, "the similarities")
    members = len(s)
    if s.shape != (members, members) or not np.allclose(s, s.T, atol=1e-8):
        raise ValueError("similarities make a square symmetric table; `similarity` makes one of relevances")
    if linkage not in get_args(Linkage):
        raise ValueError(f"linkage is one of {', '.join(get_args(Linkage))}, not {linkage!r}")
    if choose not in get_args(Choice):
        raise ValueError(f"choose is one of {', '.join(get_args(Choice))}, not {choose!r}")
    if groups is not None and not 1 <= groups <= members:
        raise ValueError(f"{members} members make 1 to {members} groups, not {groups}")
    if groups is None and members < 3:
        raise ValueError(f"the number of groups of {members} members cannot be chosen: give it")
    from scipy.cluster import hierarchy  # slow to load, and only some methods need it
    from scipy.spatial.distance import squareform

    distance = 1.0 - (s + s.T) / 2
    np.fill_diagonal(distance, 0.0)
    merges = hierarchy.linkage(squareform(distance), linkage) if members > 1 else np.zeros((0, 4))
    if groups is None:
        groups = _chosen_number(merges, distance, choose)
    return Clustering(_cut(merges, members, groups), merges)


def silhouette(distance: Array, labels: Integers) -> float:
    """Mean over members of (b - a) / max(a, b): distance a to the own group, b to the nearest other; alone counts 0."""
    member_of = np.eye(int(labels.max()) + 1)[labels]
    sums, sizes = distance @ member_of, member_of.sum(axis=0)
    mine = member_of.astype(bool)
    own = sums[mine] / np.maximum(sizes[labels] - 1, 1)
    nearest = np.where(mine, np.inf, sums / sizes).min(axis=1)
    widest = np.maximum(own, nearest)
    known = (sizes[labels] > 1) & (widest > 0)
    return float(np.divide(nearest - own, widest, out=np.zeros(len(labels)), where=known).mean())


def by_class(features: ArrayLike, labels: ArrayLike, n_classes: int) -> list[Array]:
    """The rows of each class 0..n_classes-1; a class that does not occur has none, and an empty signature."""
    x, y = _finite(features, "the features", 2), _labels(labels, n_classes)
    if len(x) != len(y):
        raise ValueError(f"{len(x)} samples, but {len(y)} labels")
    return [x[y == c] for c in range(n_classes)]


def class_similarity(server: ArrayLike, local: ArrayLike) -> Array:
    """Local given classes (rows) against the server's clean classes (columns), both views averaged.

    `server` holds the server's view, a row a clean class; `local` the owner's, a row a given class (`relevances`).
    """
    ours, theirs = _shares(server, "the server's relevances"), _shares(local, "the local relevances")
    if ours.T.shape != theirs.shape:
        raise ValueError(f"relevances of {ours.shape} at the server do not belong to {theirs.shape} at the owner")
    mean: Array = (ours.T + theirs) / 2
    return mean


def whole_classes(class_similarity: ArrayLike, threshold: float = 0.85) -> Integers:
    """Phase 1 of Procedure 2: the clean class that a given class is as a whole, or `UNDECIDED`.

    Decided only if exactly one clean class reaches the threshold.
    """
    enough = _shares(class_similarity, "the class similarities") >= threshold
    decided: Integers = np.where(enough.sum(axis=1) == 1, enough.argmax(axis=1), UNDECIDED)
    return decided


def projections(features: ArrayLike, bases: Sequence[ArrayLike] | Array) -> Array:
    """||Q Q'z|| = ||Q'z|| of every sample on every class's subspace, (n, C); the bases have orthonormal columns."""
    x, parts = prepare(features), [_finite(base, "the bases", 2) for base in bases]
    if not parts:
        raise ValueError("there is no class subspace to project on")
    owner = np.repeat(np.arange(len(parts)), [part.shape[1] for part in parts])
    squares = (x @ np.concatenate(parts, axis=1)) ** 2
    return np.sqrt(squares @ np.eye(len(parts))[owner])


def share_named_rightly(features: Sequence[Array], rank: int) -> float:
    """Of each class's samples, the share on whose own class the largest projection falls: each half by the other's
    subspaces of this rank."""
    right = total = 0
    for first in (0, 1):
        bases = [signature(x[first::2], rank).vectors for x in features]
        for label, x in enumerate(features):
            tried = x[1 - first :: 2]
            if len(tried):
                right += int((projections(tried, bases).argmax(axis=1) == label).sum())
                total += len(tried)
    return right / total if total else 0.0


def repair(
    features: ArrayLike,
    given: ArrayLike,
    bases: Sequence[ArrayLike] | Array,
    decided: ArrayLike | None = None,
    among: Sequence[int] | None = None,
    judged: ArrayLike | None = None,
) -> Repair:
    """Procedure 2: what `whole_classes` decided, and where it did not the class with the largest projection.

    `among` limits Phase 2 to some classes, say those of the owner's task; the paper allows all. A given label that no
    class beats stays. The score is the given class's share of the squared projections on it and on its best rival; it
    judges each sample alone, so it also shows wrong labels within a class that Phase 1 left as it is. `judged` are the
    labels that are scored, where another correction has already changed those to begin with.
    """
    energies = projections(features, bases)
    n, classes = energies.shape
    y = _labels(given, classes)
    if len(y) != n:
        raise ValueError(f"{n} samples, but {len(y)} labels")
    whole = np.full(classes, UNDECIDED) if decided is None else np.asarray(decided, np.int64)
    if whole.shape != (classes,) or not ((whole >= UNDECIDED) & (whole < classes)).all():
        raise ValueError(f"Phase 1 decides for each of {classes} given classes one of them, or {UNDECIDED}")
    allowed = np.arange(classes) if among is None else np.unique(_labels(among, classes))
    if not len(allowed):
        raise ValueError("there is no class to choose from: `among` is empty")

    rows = np.arange(n)
    best = allowed[energies[:, allowed].argmax(axis=1)]  # eq. 7
    unbeaten = np.isin(y, allowed) & (energies[rows, y] >= energies[rows, best])
    single = np.where(unbeaten, y, best)
    suggested = np.where(whole[y] == UNDECIDED, single, whole[y])

    y = y if judged is None else _labels(judged, classes)
    own = energies[rows, y] ** 2
    energies[rows, y] = 0.0
    rival = energies.max(axis=1) ** 2
    score = np.divide(own, own + rival, out=np.full(n, 0.5), where=own + rival > 0)
    return Repair(suggested, np.where(suggested == y, score, np.minimum(score, 0.5)))


def _chosen_number(merges: Array, distance: Array, choose: Choice) -> int:
    heights, members = merges[:, 2], len(distance)
    if heights[-1] <= np.finfo(np.float64).eps * members:
        return 1
    candidates = range(2, members)
    if choose == "gap":
        # Undoing the last g - 1 merges leaves g groups: the cut lies between these two heights.
        worth = [heights[members - g] - heights[members - g - 1] for g in candidates]
    else:
        worth = [silhouette(distance, _cut(merges, members, g)) for g in candidates]
    return candidates[int(np.argmax(np.round(worth, 12)))]


def _cut(merges: Array, members: int, groups: int) -> Integers:
    """Exactly so many groups, also where merges are equally high: the first merges are made, the others not."""
    holds = [[member] for member in range(members)]
    left = set(range(members))
    for first, second in merges[: members - groups, :2].astype(int):
        left -= {first, second}
        left.add(len(holds))
        holds.append(holds[first] + holds[second])
    labels = np.empty(members, np.int64)
    for label, group in enumerate(sorted((holds[node] for node in left), key=min)):
        labels[group] = label
    return labels


def _finite(values: ArrayLike, what: str, dimensions: int) -> Array:
    array = np.asarray(values, np.float64)
    if array.ndim != dimensions:
        raise ValueError(f"{what} must have {dimensions} dimensions, not {array.ndim}")
    if not np.isfinite(array).all():
        raise ValueError(f"{what} hold NaN or infinity")
    return array


def _shares(values: ArrayLike, what: str) -> Array:
    array = _finite(values, what, 2)
    if array.size and (array.min() < 0 or array.max() > 1 + 1e-9):
        raise ValueError(f"{what} must lie between 0 and 1")
    return array


def _labels(values: ArrayLike, n_classes: int) -> Integers:
    labels = np.asarray(values)
    if labels.ndim != 1 or not (labels.size == 0 or np.issubdtype(labels.dtype, np.integer)):
        raise ValueError("labels are a list of whole numbers")
    if labels.size and not (labels.min() >= 0 and labels.max() < n_classes):
        raise ValueError(f"labels must lie between 0 and {n_classes - 1}")
    return labels.astype(np.int64)
