"""The default method: a second audit with the model's help, on labels as they were given."""

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score
from torch.nn.functional import one_hot

import fedsieve
from fedsieve.estimate.cross_fitting import Dealt, Moments, discriminants, moments
from fedsieve.estimate.label_audit import Design, Owner, Verdict, added, conversation, travelling
from fedsieve.estimate.label_noise import Noise, noise_sums, posterior
from fedsieve.methods import build_method
from fedsieve.methods.sieve import FirstAudit, SecondAudit, unit_rows, untouched
from fedsieve.parts.label_audit import LabelAudit
from fedsieve.settings.planning import config_of, plan_of
from fedsieve.testing import fake_client, tiny_federation

CLASSES = 4


def blobs(n=800, apart=3.0, seed=0):
    rng = np.random.default_rng(seed)
    true = rng.integers(0, CLASSES, n)
    return (apart * np.eye(CLASSES, 6)[true] + rng.normal(size=(n, 6))).astype(np.float32), true


def spoilt(true, rate, seed=1):
    rng = np.random.default_rng(seed)
    return np.where(rng.random(len(true)) < rate, (true + rng.integers(1, CLASSES, len(true))) % CLASSES, true)


def held(x, owners):
    """The whole conversation with owners of equal shares of the rows; their posteriors, one below the other."""
    parts = np.array_split(np.arange(len(x)), len(owners))
    turns, kept = conversation(owners[0].design), [{} for _ in owners]
    topic, question = next(turns)
    while True:
        told = travelling(question)
        answers = [
            travelling(owner.answer(topic, told, own, lambda rows=rows: x[rows]))
            for owner, own, rows in zip(owners, kept, parts, strict=True)
        ]
        try:
            topic, question = turns.send(added(answers))
        except StopIteration:
            return np.concatenate([own["posterior"] for own in kept])


def owners_of(given, believed, count=4, smallest=1):
    parts = np.array_split(np.arange(len(given)), count)
    design = Design(CLASSES, smallest=smallest)
    return [Owner(given[rows], design, None if believed is None else believed[rows]) for rows in parts]


# --- classes that are believed
def test_class_means_are_those_of_the_classes_believed():
    x, true = blobs()
    wrong = (true + 1) % CLASSES
    kept, as_true = {}, {}
    question = {"mean": np.zeros(6), "basis": np.eye(6)}
    told = owners_of(wrong, true, 1)[0].answer("moments", question, kept, lambda: x)
    expected = owners_of(true, None, 1)[0].answer("moments", question, as_true, lambda: x)
    assert all(np.array_equal(told[name], expected[name]) for name in expected)
    assert np.array_equal(kept["fold"], as_true["fold"])


def test_a_class_believed_of_few_rows_is_not_told_of():
    x, true = blobs(200)
    believed = true.copy()
    believed[true == 3] = 2
    believed[np.flatnonzero(true == 3)[:4]] = 3
    kept: dict = {}
    owner = owners_of(true, believed, 1, smallest=5)[0]
    told = owner.answer("moments", {"mean": np.zeros(6), "basis": np.eye(6)}, kept, lambda: x)
    assert told["counts"][:, 3].sum() == 0
    assert kept["told"].all()  # of the labels given, each has rows enough


def test_the_evidence_is_that_of_the_classes_believed():
    likelihood, given, believed = np.array([[1.0, 0.0], [0.0, 2.0]]), np.array([1, 1]), np.array([0, 1])
    noise = Noise(np.array([0.5]), np.array([[[0.7, 0.3], [0.4, 0.6]]]), np.array([[0.5, 0.5]]))
    shares = posterior(likelihood, given, 0.5, noise.matrix[0], noise.base[0]).unlabelled
    expected = np.log(shares[0, 0]) + np.log(shares[1, 1])
    assert noise_sums(likelihood, given, noise, believed).evidence == pytest.approx([expected])
    assert noise_sums(likelihood, given, noise).evidence != pytest.approx([expected])


def test_with_mostly_wrong_labels_better_beliefs_find_more_of_them():
    """Four classes, 70 % of the labels wrong, which is worse than chance would be."""
    x, true = blobs(1600, apart=2.5)
    given = spoilt(true, 0.7)
    first = held(x, owners_of(given, None))
    second = held(x, owners_of(given, first.argmax(axis=1)))
    rows = np.arange(len(given))
    right = [(found.argmax(axis=1) == true).mean() for found in (first, second)]
    ranked = [average_precision_score(given != true, -found[rows, given]) for found in (first, second)]
    assert right[1] > right[0] + 0.02
    assert ranked[1] > ranked[0]


def test_no_belief_has_a_part_in_the_discriminant_that_judges_its_own_row():
    x, true = blobs(300)
    owner, kept = owners_of(spoilt(true, 0.3), true, 1)[0], {}
    told = owner.answer("moments", {"mean": np.zeros(6), "basis": np.eye(6)}, kept, lambda: x)
    found = discriminants(Moments(told["counts"], told["sums"], told["second"]))
    others = kept["fold"] != 0
    one_fold = Dealt(np.zeros(others.sum(), np.int64), np.ones(others.sum(), bool))
    alone = discriminants(moments(x[others].astype(np.float64), true[others], one_fold, 1, CLASSES))
    assert np.allclose(found.weights[0], alone.weights[0])


# --- the second audit at a client
def mended_client(part):
    """A client whose first row was taken out before any audit, and whose labels the first audit renamed one and all."""
    c = fake_client(part)
    first = torch.arange(c.n) == 0
    c.rewrite(c.labels.only(~first))
    before = c.labels
    classes = (c.labels.given + 1) % c.n_classes
    posterior = 0.7 * one_hot(classes, c.n_classes).numpy() + 0.3 / c.n_classes
    everything = np.ones(c.n, bool)
    verdict = Verdict(np.full(c.n, 0.1), everything, classes.numpy())
    FirstAudit(features="pixels").mend(c, posterior.astype(np.float32), verdict)
    return c, before, classes


def test_the_second_audit_finds_the_table_that_the_first_one_found():
    c, before, classes = mended_client(SecondAudit(features="pixels"))
    assert torch.equal(c.labels.target.argmax(1), classes)
    assert float(c.labels.weight.max()) < 1
    found = untouched(c)
    assert torch.equal(found.target, before.target)
    assert torch.equal(found.weight, before.weight)
    assert torch.equal(found.role, before.role)


def test_what_the_first_audit_made_of_labels_is_replaced():
    part = SecondAudit(features="pixels")
    c, before, _ = mended_client(part)
    posterior = one_hot(before.given, c.n_classes).float().numpy()
    part.mend(c, posterior, Verdict(np.ones(c.n), np.zeros(c.n, bool), before.given.numpy()))
    assert torch.equal(c.labels.target, before.target)
    assert torch.equal(c.labels.weight, before.weight)
    assert not c.keep(FirstAudit())


def test_where_there_was_no_first_audit_the_table_is_what_it_is():
    c = fake_client(SecondAudit(features="model"))
    assert torch.equal(untouched(c).target, c.labels.target)


def test_rows_of_length_one():
    assert unit_rows(np.array([[3.0, 4.0], [0.0, 0.0]])).tolist() == [[0.6, 0.8], [0.0, 0.0]]


def test_it_judges_labels_as_they_were_and_believes_the_mended_ones():
    part = SecondAudit(features="pixels")
    c, before, classes = mended_client(part)
    owner = part.owner(c)
    assert owner.given.tolist() == before.given.tolist()
    assert owner.believed.tolist() == classes.tolist()


@pytest.mark.parametrize("part", [SecondAudit(features="pixels"), LabelAudit(features="model")])
def test_rows_are_dealt_as_they_are_stored_where_a_model_sees_them(part):
    c = fake_client(part)
    assert np.array_equal(part.owner(c).dealt_by(), c.samples.stored().numpy())
    assert LabelAudit(features="pixels").owner(c).dealt_by is None


def test_it_sees_samples_by_the_model_and_by_the_frozen_map():
    c = fake_client(part := SecondAudit(features="pixels"))
    both, alone = part.samples(c), SecondAudit(features="model").samples(c)
    width = alone.shape[1]
    assert np.array_equal(both[:, :width], alone)
    assert both.shape[1] == width + c.samples.stored()[0].numel()
    assert np.linalg.norm(both, axis=1) == pytest.approx(np.full(c.n, np.sqrt(2)), rel=1e-5)


# --- the method
def stages(**options):
    return build_method("sieve", {"sieve": options}).stages


def test_the_options_of_the_first_audit_are_those_of_the_second():
    first, _, second, _ = stages(features="pixels", precision=0.9)
    assert second.parts[0].features == first.parts[0].features == "pixels"
    assert second.parts[0].precision == first.parts[0].precision == 0.9


def test_without_frozen_features_a_loss_that_bears_noise_warms_up():
    assert [stage.name for stage in stages()] == ["audit", "warm", "refresh", "train"]
    alone = stages(features="model")
    assert [stage.name for stage in alone] == ["warm", "refresh", "train"]
    assert "GeneralisedCrossEntropy" in alone[0].names()
    assert "GeneralisedCrossEntropy" not in alone[2].names()


def test_a_third_of_the_rounds_is_before_the_second_audit():
    plan = plan_of(config_of({"method": "sieve", "rounds": 20, "model": "mlp"}), tiny_federation())
    assert [stage.rounds for stage in plan.stages] == [0, 6, 0, 14]


def test_it_mends_labels_that_are_mostly_wrong(tmp_path):
    settings = {
        "clients": 6, "rounds": 4, "epochs": 1, "lr": 0.1, "noise": "symmetric", "noise.rate": 0.6, "runtime": "serial",
        "eval_every": 4,
    }  # fmt: skip
    once = fedsieve.run(method="audit", out=str(tmp_path / "once"), quiet=True, **settings)
    twice = fedsieve.run(method="sieve", out=str(tmp_path / "twice"), quiet=True, **settings)
    assert twice.rows[-1]["repair_precision"] > once.rows[-1]["repair_precision"]
    assert twice.test_accuracy > 0.6
