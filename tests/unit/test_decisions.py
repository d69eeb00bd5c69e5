"""decisions.jsonl: the chain, what a kill leaves, replaying, undo, several readers."""

import json
import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.metrics import cohen_kappa_score

from fedsieve.base.errors import DataError
from fedsieve.data.decisions import FIRST, Decision, Judged, digest, read_decisions
from fedsieve.estimate.agreement import cohens_kappa, share_interval
from fedsieve.review.log import Entry, Log
from fedsieve.review.readers import agreements

JUDGED = Judged(labels="a" * 64, model=None)


def log(folder, reader="ann"):
    return Log(folder / "decisions.jsonl", reader, JUDGED)


def entry(where, action="take", after="dog", owner="north"):
    return Entry((owner, where), "cat", {"keep": "cat", "take": after, "other": after}.get(action), action)


@pytest.fixture
def written(tmp_path):
    pen = log(tmp_path)
    pen.write([entry("1.png"), entry("2.png", "keep"), entry("3.png", "exclude"), entry("4.png", "unsure")])
    return pen.file


def test_lines_follow_each_other_and_say_all(written):
    lines = written.read_bytes().splitlines()
    first = json.loads(lines[0])
    assert first == {
        "sample": {"owner": "north", "where": "1.png"},
        "before": "cat",
        "after": "dog",
        "action": "take",
        "who": "ann",
        "when": first["when"],
        "judged": {"labels": "a" * 64, "model": None},
        "previous": FIRST,
    }
    assert first["when"].endswith("Z")
    assert [json.loads(line)["previous"] for line in lines[1:]] == [digest(line) for line in lines[:-1]]
    assert written.stat().st_mode & 0o777 == 0o600


def test_what_stands_after_a_replay(written):
    standing = read_decisions(written).standing()
    assert [(where, one.decision.action) for (_, where), one in standing.items()] == [
        ("1.png", "take"),
        ("2.png", "keep"),
        ("3.png", "exclude"),
        ("4.png", "unsure"),
    ]
    assert [one.decision.wrong for one in standing.values()] == [True, False, True, None]


def test_an_undo_is_a_line_and_brings_back_what_was_before(tmp_path):
    pen = log(tmp_path)
    pen.write([entry("1.png")])
    pen.write([entry("1.png", "keep")])
    pen.write([entry("1.png", "undo")])
    found = read_decisions(pen.file)
    assert [e.action for e in found.entries] == ["take", "keep", "undo"]
    assert found.standing()["north", "1.png"].decision.action == "take"
    assert found.standing()["north", "1.png"].line == 1
    pen.write([entry("1.png", "undo")])
    assert read_decisions(pen.file).standing() == pen.standing() == {}


def test_an_undo_takes_back_ones_own_decision_only(tmp_path):
    ann, bob = log(tmp_path), log(tmp_path, "bob")
    bob.write([entry("1.png", "take")])
    ann.write([entry("1.png", "keep")])
    bob.write([entry("1.png", "undo")])
    assert read_decisions(ann.file).standing()["north", "1.png"].decision.who == "ann"
    assert bob.standing() == {}


def test_the_latest_reader_counts_unless_one_is_named(tmp_path):
    ann, bob = log(tmp_path), log(tmp_path, "bob")
    bob.write([entry("1.png", "take")])
    ann.write([entry("1.png", "keep")])
    found = read_decisions(ann.file)
    assert found.standing()["north", "1.png"].decision.who == "ann"
    assert found.standing("bob")["north", "1.png"].decision.action == "take"


def _write_many(folder, reader):
    pen = log(folder, reader)
    for number in range(25):
        pen.write([entry(f"{number}.png")])


def test_two_processes_write_one_chain(tmp_path):
    context = multiprocessing.get_context("fork")
    both = [context.Process(target=_write_many, args=(tmp_path, name)) for name in ("ann", "bob")]
    for process in both:
        process.start()
    for process in both:
        process.join()
    found = read_decisions(tmp_path / "decisions.jsonl")
    assert len(found.entries) == 50
    assert {len(mine) for mine in found.by_reader().values()} == {25}


@pytest.mark.parametrize("cut", [1, 2, 40, 150])
def test_a_torn_last_line_is_noticed_and_set_aside(written, cut):
    whole = written.read_bytes()
    torn = whole[whole.rindex(b"\n", 0, -1) + 1 : -cut]
    written.write_bytes(whole[:-cut])
    read = read_decisions(written)
    assert len(read.entries) == 3
    assert read.torn == torn
    assert "torn" in read.notes[0]
    assert written.read_bytes() == whole[:-cut]  # who reads changes nothing
    pen = log(written.parent)
    assert "torn" in pen.notes[0]
    assert (written.parent / "decisions.jsonl.torn").read_bytes() == torn + b"\n"
    pen.write([entry("5.png")])
    again = read_decisions(written)
    assert [e.sample.where for e in again.entries] == ["1.png", "2.png", "3.png", "5.png"]
    assert not again.torn


def test_a_file_that_somebody_replaced_is_read_anew(written):
    pen = log(written.parent)
    lines = written.read_bytes().splitlines(keepends=True)
    written.write_bytes(b"".join(lines[:2]))
    pen.write([entry("5.png")])
    assert [e.sample.where for e in read_decisions(written).entries] == ["1.png", "2.png", "5.png"]


def test_a_decision_is_on_the_disk_before_anybody_hears_of_it(tmp_path, monkeypatch):
    """The line, and for the first one the folder that has the file."""
    synced = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(str(Path(f"/proc/self/fd/{fd}").readlink())))
    pen = log(tmp_path)
    assert not pen.file.exists()  # who only looks leaves nothing
    pen.write([entry("1.png")])
    pen.write([entry("2.png")])
    assert synced == [str(pen.file), str(tmp_path), str(pen.file)]


def test_a_disk_that_refuses_leaves_no_half_line(written, monkeypatch):
    pen = log(written.parent)
    before = written.read_bytes()

    def full(fd, content):
        os.write(fd, content[:20])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedsieve.review.log._write_all", full)
    with pytest.raises(OSError, match="No space"):
        pen.write([entry("5.png")])
    assert written.read_bytes() == before
    monkeypatch.undo()
    pen.write([entry("5.png")])
    assert len(read_decisions(written).entries) == 5


def changed(line, **fields):
    return json.dumps(json.loads(line) | fields).encode()


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (lambda lines: [lines[0].replace(b"dog", b"cow"), *lines[1:]], 2),
        (lambda lines: lines[1:], 1),
        (lambda lines: [lines[0], *lines[2:]], 2),
        (lambda lines: [lines[1], lines[0], *lines[2:]], 1),
        (lambda lines: [*lines[:2], b"", *lines[2:]], 3),
        (lambda lines: [b"{}", *lines[1:]], 1),
        (lambda lines: [b"[" * 100_000, *lines[1:]], 1),
        (lambda lines: [changed(lines[0], action="format c:"), *lines[1:]], 1),
        (lambda lines: [changed(lines[0], after=None), *lines[1:]], 1),
        (lambda lines: [changed(lines[0], after="cat"), *lines[1:]], 1),
        (lambda lines: [changed(lines[0], before="x" * 5000), *lines[1:]], 1),
        (lambda lines: [changed(lines[0], when="yesterday"), *lines[1:]], 1),
        (lambda lines: [changed(lines[0], extra=1), *lines[1:]], 1),
        (lambda lines: [*lines, changed(lines[0], action="undo", after=None, who="bob", previous=digest(lines[3]))], 5),
    ],
)
def test_damage_is_named_with_its_line(written, damage, line):
    written.write_bytes(b"\n".join(damage(written.read_bytes().splitlines())) + b"\n")
    with pytest.raises(DataError, match=rf"decisions.jsonl, line {line}: ") as caught:
        read_decisions(written)
    assert caught.value.code == "FS330"


def test_a_review_does_not_go_on_behind_a_broken_chain(written):
    written.write_bytes(written.read_bytes().replace(b"1.png", b"9.png"))
    with pytest.raises(DataError, match="FS330"):
        log(written.parent)


def test_no_such_file(tmp_path):
    with pytest.raises(DataError, match="FS301"):
        read_decisions(tmp_path / "decisions.jsonl")


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "else").write_text("")
    (tmp_path / "decisions.jsonl").symlink_to(tmp_path / "else")
    with pytest.raises(OSError, match="symbolic"):
        log(tmp_path)


def test_what_is_read_is_what_was_written(written):
    for line in written.read_bytes().splitlines():
        assert Decision.model_validate_json(line).line() == line


# Agreement and shares


def test_kappa_by_hand():
    """Of 50 rows both say yes to 20 and no to 15: p_o = .7, p_e = .5 · .6 + .5 · .4 = .5, κ = .4."""
    first = ["yes"] * 25 + ["no"] * 25
    second = ["yes"] * 20 + ["no"] * 5 + ["yes"] * 10 + ["no"] * 15
    assert cohens_kappa(first, second) == pytest.approx(0.4)


def test_kappa_as_scikit_learn():
    rng = np.random.default_rng(0)
    for classes in (2, 5):
        first = rng.integers(0, classes, 80).tolist()
        second = np.where(rng.random(80) < 0.6, first, rng.integers(0, classes, 80)).tolist()
        assert cohens_kappa(first, second) == pytest.approx(cohen_kappa_score(first, second))


def test_kappa_at_its_edges():
    assert cohens_kappa([], []) is None
    assert cohens_kappa(["a", "a"], ["a", "a"]) == 1
    assert cohens_kappa(["a", "b"], ["b", "a"]) == -1
    with pytest.raises(ValueError):
        cohens_kappa(["a"], [])


def test_readers_agree_on_classes_not_on_keys(tmp_path):
    """Taking the suggestion and choosing that class by its number is the same decision."""
    ann, bob = log(tmp_path), log(tmp_path, "bob")
    ann.write([entry("1.png", "take"), entry("2.png", "keep"), entry("3.png", "unsure"), entry("4.png", "keep")])
    bob.write([entry("1.png", "other"), entry("2.png", "take"), entry("3.png", "exclude"), entry("5.png", "keep")])
    (pair,) = agreements(read_decisions(ann.file).by_reader())
    assert (pair.first, pair.second, pair.rows, pair.differ) == ("ann", "bob", 3, 2)
    verdicts = ["dog", "cat", "unsure"], ["dog", "dog", "exclude"]
    assert pair.kappa == pytest.approx(cohen_kappa_score(*verdicts))


@pytest.mark.parametrize(("found", "of"), [(0, 30), (1, 30), (15, 30), (30, 30), (3, 1000), (0, 1), (1, 1)])
@pytest.mark.parametrize("level", [0.95, 0.975, 0.5])
def test_shares_as_scipy(found, of, level):
    theirs = binomtest(found, of).proportion_ci(level, method="exact")
    assert share_interval(found, of, level) == pytest.approx((theirs.low, theirs.high))


def test_no_rows_tell_nothing():
    assert share_interval(0, 0) == (0, 1)
    with pytest.raises(ValueError):
        share_interval(2, 1)
