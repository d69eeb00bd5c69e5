"""The audit as a conversation: the same verdict as on one table, what travels, what becomes of the labels."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fedsieve
from fedsieve.base.errors import CompositionError, ConfigError
from fedsieve.cli.audit import told
from fedsieve.core.part import Method, Part, Stage
from fedsieve.core.types import Ask, Labels, Topic
from fedsieve.data.federation import Federation
from fedsieve.estimate.label_audit import Verdict
from fedsieve.evaluate.disclosure import secure_aggregation
from fedsieve.evaluate.labels import judged_labels
from fedsieve.evaluate.schema import LABEL_COLUMNS
from fedsieve.flower.vetting import vet
from fedsieve.methods import build_method
from fedsieve.methods.audit import audit
from fedsieve.methods.compose import compose
from fedsieve.parts.label_audit import LabelAudit
from fedsieve.report.progress import Progress
from fedsieve.runs.findings import findings
from fedsieve.runtime.serial import SerialRuntime
from fedsieve.settings.auditing import for_auditing
from fedsieve.start import audit as start_audit
from fedsieve.testing import Contract, fake_client, fake_server

SETTINGS = {"model": "mlp", "model.hidden": [6], "epochs": 1, "rounds": 1, "augment": "none"}
CLASSES, WIDTH, OWNERS = 4, 6, 5


def federation(rows=80, wrong=0.3, seed=0, unlabelled=0):
    """A table of Gaussian classes; the last owner lacks a class."""
    rng = np.random.default_rng(seed)
    true = [rng.integers(0, CLASSES - (k == OWNERS - 1), rows) for k in range(OWNERS)]
    given = [np.where(rng.random(rows) < wrong, (t + rng.integers(1, CLASSES, rows)) % CLASSES, t) for t in true]
    for labels in given:
        labels[:unlabelled] = -1
    means = 3.5 * np.eye(CLASSES, WIDTH)
    images = (means[np.concatenate(true)] + rng.normal(size=(OWNERS * rows, WIDTH))).astype(np.float32)
    return (
        Federation(
            images=images,
            test_images=images[:20],
            rows=tuple(np.arange(k * rows, (k + 1) * rows) for k in range(OWNERS)),
            given=tuple(given),
            server={},
            validation=np.empty(0, np.int64),
            class_names=tuple("abcd"),
            mean=(0.0,) * WIDTH,
            std=(1.0,) * WIDTH,
        ),
        true,
    )


def run(method, data, runtime=None, **settings):
    with Contract.of(method, SETTINGS | settings).trial(data) as trial:
        state = trial.run(runtime(trial.host) if runtime else None)
        kept = [trial.states.load(k, state.versions.get(k, 0)) for k in range(data.clients)]
        return state, kept, trial.record


def on_one_table(data, **options):
    return fedsieve.audit(
        data.images[np.concatenate(data.rows)],
        np.concatenate(data.given),
        np.repeat(np.arange(data.clients), [len(each) for each in data.given]),
        n_classes=CLASSES,
        **{"smallest": 5} | options,
    )


@pytest.mark.parametrize("options", [{}, {"precision": 0.98}, {"dims": 3, "folds": 3, "smallest": 2}])
def test_the_verdict_is_that_of_one_table_bit_for_bit(options):
    data, _ = federation(unlabelled=3)
    _, kept, _ = run("audit", data, **{f"audit.{name}": value for name, value in options.items()})
    found = on_one_table(data, **options)
    score = np.concatenate([each["judged/score"].numpy() for each in kept])
    assert np.array_equal(score, found.score.astype(np.float32), equal_nan=True)
    judged = np.concatenate(data.given) >= 0
    assert (np.concatenate([each["judged/suggested"].numpy() for each in kept]) == found.suggested)[judged].all()
    flagged = np.concatenate([~each["judged/kept"].numpy() for each in kept])
    assert (flagged == found.flagged)[judged].all()
    assert 0 < found.flagged.sum() < len(flagged) / 2


def with_copies(data, rows=(3, 7, 20), shift=0.0):
    """The first of each owner's rows again at its end, labelled otherwise."""
    start = len(data.images)
    copies = [data.images[mine[list(rows)]] + shift for mine in data.rows]
    added = np.arange(start, start + OWNERS * len(rows)).reshape(OWNERS, len(rows))
    given = tuple(np.append(labels, (labels[list(rows)] + 1) % CLASSES) for labels in data.given)
    mine = tuple(np.append(old, new) for old, new in zip(data.rows, added, strict=True))
    return replace(data, images=np.concatenate([data.images, *copies]).astype(np.float32), rows=mine, given=given)


@pytest.mark.parametrize(("shift", "near"), [(0.0, 0.0), (0.001, 0.3)])
def test_copies_that_are_labelled_otherwise_are_found(shift, near):
    """With each owner apart, and none across owners: their rows never meet."""
    data = with_copies(federation()[0], shift=shift)
    _, kept, _ = run("audit", data, **{"audit.near": near})
    expected = np.full(83, -1)
    expected[[3, 7, 20]], expected[80:] = [80, 81, 82], [3, 7, 20]
    assert all(each["judged/twin"].tolist() == expected.tolist() for each in kept)
    found = on_one_table(data, near=near)
    assert found.twin.tolist() == [k * 83 + t if t >= 0 else -1 for k in range(OWNERS) for t in expected.tolist()]
    assert [each.twins for each in found.owners] == [6] * OWNERS
    rows = judged_labels(data, 1, kept[1], "audit")
    where = data.places(1)
    told = {one.where: one.twin for one in rows if one.twin}
    assert told == {where[a]: where[b] for a, b in enumerate(expected) if b >= 0}


def test_a_small_difference_counts_by_columns_of_one_variance():
    """A column with a large unit does not drown the others, and one without any spread says nothing."""
    data = with_copies(federation()[0])
    data.images[:, 0] *= 1e4
    data.images[:, 5] = 7.0
    data.images[-3:, 1] += 5.0  # of the last owner: no copies any more
    _, kept, _ = run("audit", data, **{"audit.near": 0.2})
    assert [int((each["judged/twin"] >= 0).sum()) for each in kept] == [6, 6, 6, 6, 0]


def test_rows_without_a_label_have_no_twin():
    data = with_copies(federation(unlabelled=5)[0], rows=(3, 7, 20))
    _, kept, _ = run("audit", data)
    assert all(each["judged/twin"][[3, 80]].tolist() == [-1, -1] for each in kept), "row 3 has no label, its copy has 0"
    assert all(each["judged/twin"][7] == 81 for each in kept)


def test_the_key_is_the_seed():
    data, _ = federation()
    _, kept, _ = run("audit", data, seed=3)
    score = np.concatenate([each["judged/score"].numpy() for each in kept])
    assert np.array_equal(score, on_one_table(data, key=3).score.astype(np.float32))
    assert not np.array_equal(score, on_one_table(data).score.astype(np.float32))


def test_wrong_labels_are_flagged_and_mended():
    data, true = federation(rows=120)
    _, kept, _ = run("audit", data)
    for k, each in enumerate(kept):
        errors = data.given[k] != true[k]
        rows = judged_labels(data, k, each, "audit")
        flagged = np.array([one.flagged for one in sorted(rows, key=lambda one: one.row)])
        assert (flagged & errors).sum() > 0.85 * errors.sum()
        assert (each["judged/suggested"].numpy() == true[k]).mean() > 0.93 > (~errors).mean()


def test_owners_are_asked_eleven_times_and_only_sums_are_told():
    data, _ = federation()
    _, _, record = run("audit", data)
    topics = [question.topic for k, question in record.questions if k == 0]
    assert topics == ["spread", "moments", "joint", *["noise"] * 6, "doubts", "verdict"]
    assert len(record.answers) == 11 * OWNERS
    shapes = {name: tuple(value.shape) for answer in record.answers for name, value in answer.payload.items()}
    assert shapes["sums"] == (5, CLASSES, WIDTH)
    assert 80 not in {axis for shape in shapes.values() for axis in shape}, "nothing has a row for each sample"
    assert all(question.models is None for _, question in record.questions)


def test_it_works_where_the_server_sees_sums_only():
    data, _ = federation()
    run("audit", data, secure_aggregation=True)
    assert secure_aggregation(Contract.of("audit+fedprox+gce", SETTINGS).plan(data))
    with pytest.raises(CompositionError):
        run("fb-nll-minus", data, secure_aggregation=True)


def test_nothing_is_told_of_a_class_with_few_rows():
    data, _ = federation()
    rare = np.where(np.arange(80) < 4, 3, np.minimum(data.given[0], 2))
    rare[4:8] = 0
    _, kept, record = run("audit", replace(data, given=(rare, *data.given[1:])))
    told = [answer.payload for answer in record.answers if answer.client == 0]
    assert not told[1]["counts"][:, 3].any()
    assert not told[1]["sums"][:, 3].any()
    assert not told[2]["joint"][:, 3].any()
    assert told[9]["histogram"][0].sum() == 76
    assert not torch.isnan(kept[0]["judged/score"]).any(), "they are judged all the same"


def test_nothing_is_kept_but_the_labels():
    data, _ = federation()
    _, kept, _ = run("audit", data)
    assert not [name for each in kept for name in each if name.startswith("keep/")]


class Lossy(SerialRuntime):
    """Client 2 is not there for the third turn."""

    asked = 0

    def query(self, messages):
        from fedsieve.core.server import Event

        self.asked += 1
        for k, answer in enumerate(super().query(messages)):
            yield Event("FS208", "gone", 2) if self.asked == 3 and k == 2 else answer


def test_who_misses_a_turn_is_left_out_and_the_others_go_on():
    data, _ = federation()
    _, kept, record = run("audit", data, Lossy)
    assert sum(k == 2 for k, _ in record.questions) == 3
    assert "judged/score" not in kept[2] or torch.isnan(kept[2]["judged/score"]).all()
    assert not torch.isnan(kept[1]["judged/score"]).any()


def test_a_client_without_samples_does_not_stop_the_others():
    data, _ = federation()
    empty = replace(data, rows=(*data.rows[:4], data.rows[4][:0]), given=(*data.given[:4], data.given[4][:0]))
    _, kept, _ = run("audit", empty)
    assert not torch.isnan(kept[0]["judged/score"]).any()


# --- what becomes of the labels
POSTERIOR = np.array([[0.1, 0.6, 0.3], [0.9, 0.1, 0.0], [0.45, 0.4, 0.15], [0.2, 0.7, 0.1], [0, 0, 0]], np.float32)
GIVEN = [0, 0, 0, 0, 2]
VERDICT = Verdict(
    np.array([0.1, 0.9, 0.45, 0.2, np.nan]), np.array([True, False, True, False, False]), np.array([1, 0, 1, 0, 2])
)


def mended(**options):
    part = LabelAudit(**options)
    c = fake_client(part, given=GIVEN, says=np.zeros((5, 3)))
    part.mend(c, POSTERIOR, VERDICT)
    return c.labels


def test_targets_are_the_posterior_where_it_agrees_with_the_verdict():
    labels = mended(target="soft", weight="even")
    expected = [[0.1, 0.6, 0.3], [0.9, 0.1, 0.0], [0, 1, 0], [1, 0, 0], [0, 0, 1]]
    assert labels.target.numpy() == pytest.approx(np.array(expected))
    assert labels.score.numpy() == pytest.approx(VERDICT.score, nan_ok=True)
    assert labels.weight.tolist() == [1.0] * 5
    assert (labels.target.argmax(1) != labels.given).tolist() == VERDICT.flagged.tolist()


def test_targets_are_the_suggested_classes():
    labels = mended(target="hard", weight="sure")
    assert labels.target.argmax(1).tolist() == [1, 0, 1, 0, 2]
    assert labels.target.max(1).values.tolist() == [1.0] * 5
    assert labels.weight.numpy() == pytest.approx([0.6, 0.9, 0.45, 0.7, 1.0])


def test_flagged_rows_are_not_trained_on():
    labels = mended(target="drop")
    assert labels.training_rows().tolist() == [1, 3, 4]
    assert labels.target.argmax(1).tolist() == [1, 0, 1, 0, 2]


def test_it_starts_from_labels_as_they_stand_and_scores_the_given_ones():
    data, true = federation()

    @dataclass(frozen=True, kw_only=True)
    class Mended(Part):
        topics = {"mend": Topic({}, {})}
        writes = frozenset({"labels"})

        def talk(self, s, moment):
            if moment == "start":
                yield Ask("mend", {k: {} for k in s.clients})

        def answer(self, c, topic, question):
            c.rewrite(Labels.of(torch.from_numpy(true[c.id]), CLASSES).replace(given=c.labels.given))
            return {}

    method = compose(Method("mended", (Stage("mend", 0, (Mended(),)),)), audit(LabelAudit()))
    _, kept, _ = run(method, data)
    right = on_one_table(replace(data, given=tuple(true)))
    standing = np.concatenate([each["judged/score"].numpy() for each in kept])
    same = np.concatenate(data.given) == np.concatenate(true)
    assert (standing[same] == right.score.astype(np.float32)[same]).all()
    assert (
        standing[~same] == right.posterior[np.arange(400), np.concatenate(data.given)].astype(np.float32)[~same]
    ).all()


# --- stages and settings
@pytest.mark.parametrize(
    ("method", "options", "stages"),
    [
        ("audit", {}, [("audit", 0), ("train", None)]),
        ("audit+fedrn", {}, [("audit", 0), ("train", None)]),
        ("audit+fedprox+gce", {}, [("audit", 0), ("train", None)]),
        ("audit", {"features": "model", "rounds": 3}, [("before", 3), ("audit", 0), ("train", None)]),
        ("audit+gce", {"features": "model"}, [("before", 5), ("audit", 0), ("train", None)]),
    ],
)
def test_where_it_is_inserted(method, options, stages):
    built = build_method(method, {"audit": options})
    assert [(stage.name, stage.rounds) for stage in built.stages] == stages
    parts = [{part.name for part in stage.parts} for stage in built.stages]
    assert parts[[name for name, _ in stages].index("audit")] == {"LabelAudit"}


def test_features_of_the_model_itself():
    data, true = federation()
    _, kept, record = run("audit", data, **{"audit.features": "model", "audit.rounds": 4, "epochs": 4})
    asked = [(question.topic, question.models is not None) for k, question in record.questions if k == 0]
    assert asked[:3] == [("spread", True), ("moments", True), ("joint", False)]
    suggested = np.concatenate([each["judged/suggested"].numpy() for each in kept])
    assert (suggested == np.concatenate(true)).mean() > (
        np.concatenate(data.given) == np.concatenate(true)
    ).mean() + 0.1


def test_a_node_takes_the_name_of_the_model_itself():
    assert vet({"method": "audit", "audit.features": "model"}, {}).of("audit")["features"] == "model"


def test_an_audit_has_defaults_of_its_own():
    usual = {"method": "audit", "rounds": 0, "model": "mlp", "model.hidden": []}
    assert for_auditing({"seed": 1}) == usual | {"seed": 1}
    for training in ({"rounds": 2}, {"audit": {"features": "model"}}, {"model": "cnn4"}):
        assert "model.hidden" not in for_auditing(training)
    assert for_auditing({"method": "audit+fedavg", "rounds": 2})["rounds"] == 2
    with pytest.raises(ConfigError, match="no audit"):
        start_audit({"method": "fedavg"}, Progress())


def test_findings_are_read_from_the_folder(tmp_path):
    assert findings(tmp_path) == []
    rows = ["3,a.png,x,y,0.1,true,audit,b.png", "3,b.png,x,x,0.9,false,audit,", "4,c.png,y,y,1,false,audit,"]
    (tmp_path / "labels.csv").write_text("\n".join([",".join(LABEL_COLUMNS), *rows]))
    first, second = findings(tmp_path)
    assert (first.owner, first.rows, first.flagged, first.budget.rows) == ("3", 2, 1, 2)
    assert (first.twins, second.twins) == (1, 0)
    assert first.wrong.share == pytest.approx(0.5)
    assert first.budget.wrong == pytest.approx(1.0)
    assert second.plain()["wrong"]["share"] == 0.0
    (tmp_path / "labels.csv").write_text("owner,score\n1,high\n")
    with pytest.raises(fedsieve.DataError, match="FS311"):
        findings(tmp_path)


def test_where_nobody_answers_nothing_is_judged():
    part = LabelAudit()
    turns = part.talk(fake_server(part), "start")
    assert next(turns).topic == "spread"
    with pytest.raises(StopIteration):
        turns.send({})


def test_nothing_found_is_said():
    assert told(Path("run"), []) == "no label could be judged: no class has rows enough. Run run"
