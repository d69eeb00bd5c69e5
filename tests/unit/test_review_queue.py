"""Which rows a reader sees in which order, and what the decisions tell of the others."""

import numpy as np
import pytest

from fedsieve.estimate.agreement import share_interval
from fedsieve.review.estimates import estimated
from fedsieve.review.queue import NONE, Judged, queued


def judged(flagged=100, others=400, classes=5, seed=0):
    rng = np.random.default_rng(seed)
    n = flagged + others
    is_flagged = rng.permutation(np.arange(n) < flagged)
    given = rng.integers(0, classes, n)
    suggested = np.where(is_flagged, (given + rng.integers(1, classes, n)) % classes, given)
    score = np.where(is_flagged, rng.uniform(0, 0.5, n), rng.uniform(0.5, 1, n))
    return Judged([f"x[{i}]" for i in range(n)], given, suggested, score, is_flagged, np.full(n, NONE))


def test_everything_comes_once_and_the_suspicious_first():
    rows = judged()
    queue = queued(rows, "key")
    assert sorted(queue.order) == list(range(500))
    assert queue.suspicious == 100 + 30
    front = set(queue.order[:130].tolist())
    assert front == {*np.flatnonzero(rows.flagged).tolist(), *queue.controls.tolist()}


def test_the_most_suspicious_come_first_but_for_probes_and_controls():
    rows = judged()
    queue = queued(rows, "key")
    ranked = [row for row in queue.order[:130] if row not in {*queue.controls.tolist(), *queue.probes.tolist()}]
    assert rows.score[ranked].tolist() == sorted(rows.score[ranked])
    rest = queue.order[130:]
    assert rows.score[rest].tolist() == sorted(rows.score[rest])


def test_controls_and_probes_are_spread_and_come_as_they_were_drawn():
    queue = queued(judged(), "key")
    place = {row: at for at, row in enumerate(queue.order.tolist())}
    for drawn in (queue.controls, queue.probes):
        places = [place[row] for row in drawn.tolist()]
        assert places == sorted(places)
        assert places[0] < 25
        assert places[-1] > 105
    assert not queue.judged.flagged[queue.controls].any()
    assert queue.judged.flagged[queue.probes].all()
    assert (len(queue.controls), len(queue.probes)) == (30, 10)


def test_probes_are_any_flagged_rows():
    """Their scores are those of all flagged rows on average: uniform up to a half, so 0.25 ± 0.01 for 200 of them."""
    rows = judged()
    drawn = [queued(rows, f"key {i}").probes for i in range(20)]
    assert abs(rows.score[np.concatenate(drawn)].mean() - rows.score[rows.flagged].mean()) < 0.04


def test_controls_are_blind():
    """Nothing that is shown of a control tells it from a flagged row at its place."""
    rows = judged()
    queue = queued(rows, "key")
    for row in queue.controls:
        alike = rows.flagged & (rows.given == rows.given[row])
        assert queue.suggested[row] in rows.suggested[alike]
        assert queue.suggested[row] != rows.given[row]
    ranked = [row for row in queue.order[:130] if row not in set(queue.probes.tolist())]
    assert queue.score[ranked].tolist() == sorted(queue.score[ranked])
    flagged = np.flatnonzero(rows.flagged)
    assert (queue.score[flagged] == rows.score[flagged]).all()
    assert (queue.suggested[flagged] == rows.suggested[flagged]).all()


def test_the_same_file_gives_the_same_queue_and_more_controls_keep_the_first():
    rows = judged()
    one, other = queued(rows, "key"), queued(rows, "key")
    assert (one.order == other.order).all()
    assert (queued(rows, "another").order != one.order).any()
    assert (queued(rows, "key", 50).controls[:30] == one.controls).all()
    assert len(queued(rows, "key", 0).controls) == 0


@pytest.mark.parametrize(("flagged", "others"), [(0, 40), (40, 0), (1, 1), (3, 5)])
def test_small_and_one_sided_data(flagged, others):
    queue = queued(judged(flagged, others), "key")
    assert len(queue.order) == flagged + others
    assert len(queue.controls) == min(30, others)
    assert (queue.suggested[queue.controls] != queue.judged.given[queue.controls]).all()
    assert estimated(queue, {}).left.rows == flagged + others


def test_without_suggestions_controls_have_none():
    rows = judged()
    silent = Judged(rows.where, rows.given, np.full(500, NONE), rows.score, rows.flagged, rows.twin)
    assert (queued(silent, "key").suggested == NONE).all()


# What the decisions tell


def decide(queue, rows, wrong):
    return {int(row): bool(wrong[row]) for row in rows}


def test_nothing_is_known_before_anything_is_decided():
    told = estimated(queued(judged(), "key"), {})
    assert (told.flags.of, told.missed.of, told.found) == (0, 0, 0)
    assert (told.flags.low, told.flags.high) == (0, 1)
    assert told.left.expected is None
    assert (told.left.low, told.left.high) == (0, 500)


def test_shares_by_hand():
    """Two of 30 controls wrong, 9 of 10 probes; 100 flagged rows, of which the ten are decided, and 370 others open."""
    queue = queued(judged(), "key")
    wrong = {int(row): i < 2 for i, row in enumerate(queue.controls)}
    wrong |= {int(row): i > 0 for i, row in enumerate(queue.probes)}
    told = estimated(queue, wrong)
    assert (told.missed.wrong, told.missed.of) == (2, 30)
    assert (told.missed.low, told.missed.high) == share_interval(2, 30)
    assert (told.flags.wrong, told.flags.of) == (9, 10)
    assert told.found == 11
    assert told.left.rows == 460
    assert told.left.expected == pytest.approx((0.9 * 100 - 9) + 2 / 30 * 370)
    flags, missed = share_interval(9, 10, 0.975), share_interval(2, 30, 0.975)
    assert told.left.low == pytest.approx(flags.low * 100 - 9 + missed.low * 370)
    assert told.left.high == pytest.approx(min(90, flags.high * 100 - 9) + missed.high * 370)


def test_a_sample_ends_at_the_first_row_that_was_skipped():
    """Or a reader who looks at the easy ones only would make a random sample of them."""
    queue = queued(judged(), "key")
    wrong = {int(row): True for row in queue.controls}
    del wrong[int(queue.controls[4])]
    assert estimated(queue, wrong).missed.of == 4


def test_unsure_counts_neither_way():
    queue = queued(judged(), "key")
    wrong = {int(row): None if i % 2 else True for i, row in enumerate(queue.controls)}
    assert (estimated(queue, wrong).missed.wrong, estimated(queue, wrong).missed.of) == (15, 15)


def test_all_flags_decided_are_all_counted():
    rows = judged()
    queue = queued(rows, "key")
    wrong = {int(row): i < 80 for i, row in enumerate(np.flatnonzero(rows.flagged))}
    told = estimated(queue, wrong)
    assert (told.flags.wrong, told.flags.of) == (80, 100)


def test_the_interval_holds_the_truth_as_often_as_it_says():
    """Of 200 reviews, each stopped somewhere in the suspicious part, 95 % or more state a range that is right."""
    held = 0
    for trial in range(200):
        rng = np.random.default_rng(trial)
        rows = judged(60, 240, seed=trial)
        truth = rng.random(300) < np.where(rows.flagged, 0.7, 0.06)
        queue = queued(rows, f"trial {trial}")
        seen = queue.order[: rng.integers(20, queue.suspicious + 1)]
        told = estimated(queue, decide(queue, seen, truth))
        left = truth.sum() - truth[seen].sum()
        held += told.left.low - 1e-9 <= left <= told.left.high + 1e-9
    assert held >= 190


def test_rows_with_a_twin_that_nobody_flagged_follow_the_flagged_ones():
    rows = judged()
    plain = queued(rows, "key")
    behind = plain.order[[140, 499]]
    rows.twin[behind], rows.twin[plain.order[0]] = 7, 8
    queue = queued(rows, "key")
    assert queue.suspicious == 132
    assert (queue.order[:130] == plain.order[:130]).all(), "controls and flagged rows stay where they are"
    assert queue.order[130:132].tolist() == behind.tolist()
    assert sorted(queue.order) == list(range(500))
