"""Right labels with the one who adds up: what they count for, and what they say of temperatures."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss

import fedsieve
from fedsieve.base.errors import RunError
from fedsieve.core import Reads, Told
from fedsieve.estimate.cross_fitting import UNKNOWN, Dealt, deal, discriminants, moments
from fedsieve.estimate.label_audit import Design, conversation, judging
from fedsieve.estimate.label_noise import TEMPERATURES, entanglement
from fedsieve.estimate.principal_axes import Axes, Spread, columns_for, spread
from fedsieve.estimate.verified import FEWEST, WEIGHTS, Verified, evidence_of
from fedsieve.methods.oracle import OnlyTrueLabels
from fedsieve.methods.sieve import SecondAudit
from fedsieve.parts.label_audit import LabelAudit
from fedsieve.testing import fake_client, fake_server, tiny_federation

CLASSES, WIDTH = 4, 6
DESIGN = Design(CLASSES)
PLAIN = Axes(np.zeros(WIDTH), np.eye(WIDTH))
ENOUGH = FEWEST * CLASSES


def blobs(n, apart=2.0, seed=0):
    rng = np.random.default_rng(seed)
    true = rng.integers(0, CLASSES, n)
    return (apart * np.eye(CLASSES, WIDTH)[true] + rng.normal(size=(n, WIDTH))).astype(np.float32), true


def evenly_spoilt(true, rate, seed=1):
    rng = np.random.default_rng(seed)
    return np.where(rng.random(len(true)) < rate, (true + rng.integers(1, CLASSES, len(true))) % CLASSES, true)


def sums_of(x, labels, key=0):
    return moments(x.astype(np.float64), labels, deal(x, labels, 5, 1, key), 5, CLASSES)


# --- sums
def test_rows_that_count_twice_are_rows_that_are_there_twice():
    (x, y), (more, right) = blobs(200), blobs(60, seed=1)
    rows, labels = np.concatenate([x, more, more]).astype(np.float64), np.concatenate([y, right, right])
    fold = np.concatenate([deal(x, y, 5, 1, 0).fold, *[deal(more, right, 5, 1, 0).fold] * 2])
    twice = moments(rows, labels, Dealt(fold, np.ones(len(fold), bool)), 5, CLASSES)
    added = sums_of(x, y).plus(sums_of(more, right), 2.0)
    for name in ("counts", "sums", "second"):
        assert getattr(added, name) == pytest.approx(getattr(twice, name), rel=1e-5, abs=1e-4)


def test_spreads_are_of_all_rows():
    x, more = blobs(50)[0].astype(np.float64), blobs(20, seed=1)[0].astype(np.float64)
    both, whole = spread(x, WIDTH, 0).plus(spread(more, WIDTH, 0)), spread(np.concatenate([x, more]), WIDTH, 0)
    assert both.count == whole.count == 70
    assert both.total == pytest.approx(whole.total)
    assert both.sketch == pytest.approx(whole.sketch)


def test_their_spread_is_that_of_an_owner():
    x, y = blobs(30)
    told = Verified(x, y).spread(DESIGN)
    assert isinstance(told, Spread)
    assert told.sketch == pytest.approx(spread(x.astype(np.float64), columns_for(WIDTH, 256), 0).sketch)


# --- evidence
def test_evidence_by_hand():
    likelihood = np.log(np.array([[0.5, 0.25], [0.1, 0.4]]))
    prior = np.array([1 + 1, 1 + 1]) / 4
    assert prior.tolist() == [0.5, 0.5]
    found = evidence_of(likelihood, np.array([0, 1]))
    for place in (0, 13, 26):
        t = TEMPERATURES[place]
        by_hand = np.log(0.5**t / (0.5**t + 0.25**t)) + np.log(0.4**t / (0.1**t + 0.4**t))
        assert found[place] == pytest.approx(by_hand)


def test_evidence_is_the_log_loss_of_scikit_learn_with_the_labels_own_frequencies():
    rng = np.random.default_rng(0)
    likelihood, labels = rng.normal(size=(40, CLASSES)), rng.integers(0, 2, 40)
    labels[0] = 3
    prior = np.bincount(labels, minlength=CLASSES) + 1.0
    for place, t in ((4, TEMPERATURES[4]), (15, TEMPERATURES[15])):
        shares = np.exp(t * likelihood) * prior
        wanted = -log_loss(labels, shares / shares.sum(axis=1, keepdims=True), normalize=False, labels=range(CLASSES))
        assert evidence_of(likelihood, labels)[place] == pytest.approx(wanted)


def test_rows_of_a_class_that_nobody_knows_say_nothing():
    likelihood = np.array([[0.0, 1.0, UNKNOWN], [0.0, -1.0, UNKNOWN]])
    labels = np.array([1, 2])
    frequency = np.array([1, 2, 2]) / 5
    found = evidence_of(likelihood, labels)
    shares = frequency[:2] * np.exp(TEMPERATURES[5] * np.array([0.0, 1.0]))
    assert found[5] == pytest.approx(np.log(shares[1] / shares.sum()))
    assert np.isfinite(found).all()


# --- what is learnt
def test_few_rows_count_as_an_owners_do():
    (x, y), (more, right) = blobs(200), blobs(ENOUGH - 1, seed=1)
    found, evidence = Verified(more, right).learnt(sums_of(x, y), PLAIN, DESIGN)
    wanted = discriminants(sums_of(x, y).plus(sums_of(more, right)))
    assert evidence is None
    assert found.weights == pytest.approx(wanted.weights, rel=1e-5, abs=1e-6)


def tried(told, more, right):
    """For each weight the discriminants and, by scikit-learn's log loss, how likely they make the right labels."""
    fold = deal(more, right, 5, 1, 0).fold
    prior = np.bincount(right, minlength=CLASSES) + 1.0
    found = [discriminants(told.plus(sums_of(more, right), weight)) for weight in WEIGHTS]
    losses = []
    for each in found:
        shares = [np.exp(t * each(more.astype(np.float64), fold)) * prior for t in TEMPERATURES]
        losses.append([log_loss(right, s / s.sum(axis=1, keepdims=True), labels=range(CLASSES)) for s in shares])
    return found, np.array(losses)


@pytest.mark.parametrize(("rate", "apart", "counts"), [(0.75, 2.0, 16.0), (0.0, 1.0, None)])
def test_they_count_for_what_makes_right_labels_likeliest(rate, apart, counts):
    (x, true), (more, right) = blobs(1000, apart), blobs(200, apart, seed=1)
    told = sums_of(x, evenly_spoilt(true, rate))
    found, losses = tried(told, more, right)
    best, temperature = np.unravel_index(losses.argmin(), losses.shape)
    assert counts is None or WEIGHTS[best] == counts, "labels by chance tell nothing"
    learnt = Verified(more, right).learnt(told, PLAIN, DESIGN)
    assert learnt.found.weights == pytest.approx(found[best].weights, rel=1e-4, abs=1e-5)
    assert learnt.evidence.argmax() == temperature


def test_no_verified_label_has_a_part_in_the_judgement_of_its_row():
    (x, y), (more, right) = blobs(200), blobs(ENOUGH - 1, seed=1)
    told, names = sums_of(x, y), np.arange(len(more), dtype=np.float32)[:, None]
    one = Verified(more, right, names).learnt(told, PLAIN, DESIGN).found
    moved = more.copy()
    first = deal(names, right, 5, 1, 0).fold == 2
    moved[first] += 1.0
    two = Verified(moved, right, names).learnt(told, PLAIN, DESIGN).found
    same = [np.allclose(a, b) for a, b in zip(one.weights, two.weights, strict=True)]
    assert same == [False, False, True, False, False]


# --- the audit with them
def test_axes_are_those_of_all_rows():
    x, (more, right) = blobs(50)[0], blobs(30, seed=1)
    turns = conversation(DESIGN, Verified(more, right))
    next(turns)
    own = spread(x.astype(np.float64), WIDTH, 0)
    _, question = turns.send({"count": np.array(own.count), "total": own.total, "sketch": own.sketch})
    assert question["mean"] == pytest.approx(np.concatenate([x, more]).mean(axis=0), rel=1e-5, abs=1e-6)


def test_they_teach_where_labels_are_chance():
    (x, true), (more, right) = blobs(1200, 3.0), blobs(80, 3.0, seed=1)
    given = evenly_spoilt(true, 0.75)
    without, found = fedsieve.audit(x, given), fedsieve.audit(x, given, verified=(more, right))
    assert (without.posterior.argmax(axis=1) == true).mean() < 0.6
    assert (found.posterior.argmax(axis=1) == true).mean() > 0.85
    assert len(found.score) == len(x), "they are not judged themselves"


def test_where_labels_are_good_they_do_no_harm():
    (x, true), (more, right) = blobs(1200), blobs(80, seed=1)
    given = evenly_spoilt(true, 0.2)
    named = [
        (fedsieve.audit(x, given, verified=rows).posterior.argmax(axis=1) == true).mean()
        for rows in (None, (more, right))
    ]
    assert named[1] > named[0] - 0.01


def test_right_labels_decide_on_the_temperature_and_nothing_is_sharpened():
    classes, grid = 3, len(TEMPERATURES)
    joint = np.array([[60.0, 20, 1], [20, 60, 1], [1, 1, 60]])
    alike = np.broadcast_to(joint, (grid, classes, classes))
    assert entanglement(joint, joint) > 0.25, "one step of the grid or more"

    def chosen(evidence):
        turns = judging(joint, Design(classes), evidence)
        topic, question = next(turns)
        while topic == "noise":
            told = {"joint": alike, "alike": alike, "evidence": -np.abs(np.arange(grid) - 5.0)}
            topic, question = turns.send(told)
        return float(question["temperature"])

    assert chosen(None) > TEMPERATURES[5]
    assert chosen(-np.abs(np.arange(grid) - 11.0)) == TEMPERATURES[11]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ((np.ones((2, 3)), [0, 1]), "3 features, the others 2"),
        ((np.ones((2, 2)), [0, 2]), "between 0 and 1"),
        ((np.ones((2, 2)), [0, -1]), "between 0 and 1"),
        ((np.ones((1, 2)), [0, 1]), "2 labels need a table"),
        ((np.full((2, 2), np.nan), [0, 1]), "NaN"),
    ],
)
def test_what_cannot_teach_is_refused(rows, words):
    with pytest.raises(ValueError, match=words):
        fedsieve.audit(np.ones((2, 2)), [0, 1], verified=rows)


def test_probabilities_learn_nothing():
    with pytest.raises(ValueError, match="verified rows need features"):
        fedsieve.audit(probabilities=np.full((2, 2), 0.5), labels=[0, 1], verified=(np.ones((2, 2)), [0, 1]))


# --- the server
def test_the_server_sees_its_samples_as_clients_see_theirs():
    federation = tiny_federation()
    rows = federation.server["clean"].rows
    labels = federation.server["clean"].labels
    elsewhere = replace(federation, rows=(rows, *federation.rows[1:]), given=(labels, *federation.given[1:]))
    for part in (LabelAudit(features="pixels"), LabelAudit(features="model"), SecondAudit(features="pixels")):
        found = part.rightly_labelled(fake_server(part, federation=federation))
        client = fake_client(part, federation=elsewhere)
        assert found.features == pytest.approx(part.samples(client), abs=1e-5)
        assert found.labels.tolist() == client.labels.given.tolist()
        dealt_by = part.dealt_by(client)
        assert (found.dealt_by is None) == (dealt_by is None)
        assert dealt_by is None or np.array_equal(found.dealt_by, dealt_by())


def test_without_right_labels_there_is_nothing_to_learn_from():
    part = LabelAudit(features="pixels")
    bare = replace(tiny_federation(), server={"public": tiny_federation().server["public"]})
    s = fake_server(part, federation=bare)
    assert not s.has(Reads.CLEAN)
    assert s.has(Reads.PUBLIC)
    assert part.rightly_labelled(s) is None
    assert LabelAudit(features="pixels", verified=False).rightly_labelled(fake_server(part)) is None


def test_who_does_not_say_so_beforehand_sees_none():
    s = fake_server(part := LabelAudit(features="pixels"))
    assert s.by(part).clean.labels.dtype == torch.int64
    with pytest.raises(RunError, match="clean data without declaring it"):
        _ = s.by(OnlyTrueLabels()).clean
    with pytest.raises(RunError, match="noisy data without declaring it"):
        _ = s.by(part).noisy


@pytest.mark.parametrize("width", [144, 100])
def test_who_sees_samples_otherwise_is_named_and_the_audit_goes_on(width):
    s = fake_server(part := LabelAudit(features="pixels"))
    turns = part.talk(s.by(part), "start")
    asked = next(turns)
    total = torch.arange(width, dtype=torch.float32)
    spread = {"count": torch.tensor(20.0), "total": total, "sketch": torch.eye(width)}
    asked = turns.send({k: Told(spread) for k in asked.to})
    assert asked.topic == "moments"
    assert asked.to[0]["mean"].shape == (width,)
    told = [(each.code, "100 features, the server its own by 144" in each.message) for each in s.events]
    assert told == ([] if width == 144 else [("FS233", True)])


@pytest.mark.parametrize("method", ["audit", "sieve"])
def test_right_labels_at_the_server_mend_more(tmp_path, method):
    settings = {
        "method": method, "clients": 6, "rounds": 2, "epochs": 1, "noise": "symmetric", "noise.rate": 0.75,
        "model": "mlp", "server.clean": 300, "runtime": "serial", "eval_every": 2, "quiet": True,
    }  # fmt: skip
    without = fedsieve.run(out=str(tmp_path / "without"), **settings, **{f"{method}.verified": False})
    found = fedsieve.run(out=str(tmp_path / "with"), **settings)
    assert found.rows[-1]["repair_precision"] > without.rows[-1]["repair_precision"]
    sent = [each.rows[-1]["bytes_talk"] for each in (without, found)]
    assert sent[0] == sent[1], "clients are asked the same"
