"""The evaluator alone sees the truth; what leaves a client is said beforehand."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from fedsieve.base.errors import DataError
from fedsieve.core.combiners import Median
from fedsieve.core.part import Method, Part, Share, Stage
from fedsieve.core.samplers import Nobody
from fedsieve.core.server import Server, ServerState
from fedsieve.core.types import Ask, Topic
from fedsieve.data.truth import GroundTruth
from fedsieve.evaluate.disclosure import REPORTED, disclosure, messages, secure_aggregation
from fedsieve.evaluate.evaluator import MOST_SHOWN, Evaluator, Judged, _together
from fedsieve.evaluate.labels import judged_labels
from fedsieve.methods import METHODS
from fedsieve.settings.planning import reads_truth
from fedsieve.testing import Contract, Trap, tiny_federation

MLP = {"model": "mlp", "model.hidden": [8]}
TEST = np.array([0, 0, 1, 1, 2, 2, 3, 3])


class Told:
    """A tester that predicts what it is told, by client or by the first number of the model."""

    def __init__(self, **predictions):
        self.predictions = {name: torch.tensor(values, dtype=torch.int32) for name, values in predictions.items()}
        self.asked = []

    def predict(self, models, which, rows):
        self.asked.append((which, rows.tolist()))
        return self.predictions[which if which == "validation" else f"model{int(models[0][0])}"][rows]

    def test(self, messages):
        for client, _, _, rows in messages:
            self.asked.append((client, rows.tolist()))
            yield self.predictions[f"client{client}"][rows]


def evaluator(tester, *, labels, method=None, models=None, tasks=None, groups=None, validation=(), settings=MLP):
    federation = replace(tiny_federation(), test_images=np.zeros((8, 12, 12, 1), np.uint8), tasks=tasks)
    if len(validation):
        federation = replace(federation, validation=np.arange(2))
    plan = Contract.of(method or Method("own"), settings).plan(federation)
    state = ServerState.fresh(plan)
    state.models = {g: (torch.full((3,), float(g)),) for g in models or (0,)}
    if groups:
        state.columns["group"] = torch.tensor(groups, dtype=torch.float64)
    truth = GroundTruth(None if labels is None else tuple(map(np.array, labels)), TEST, np.array(validation, int))
    judge = Evaluator(federation, truth, states=None)
    judge.tester = tester
    return judge, Server(state, plan, lambda: None)


EVERY = list(range(len(TEST)))
PERFECT, HALF = TEST.tolist(), [0, 1, 1, 0, 2, 3, 3, 2]
LABELS = ([0, 0, 0, 1], [2, 3], [1], [])


def test_one_model_for_all():
    guess = [0, 0, 1, 0, 2, 0, 3, 0]  # recalls 1, 1/2, 1/2, 1/2
    judge, server = evaluator(Told(model0=guess), labels=LABELS)
    scores = judge.scores(server)
    assert scores["test_accuracy"] == pytest.approx(5 / 8)
    assert scores["balanced_accuracy"] == pytest.approx(2.5 / 4)
    assert scores["client_accuracy"] == [pytest.approx(0.875), 0.5, 0.5, None]  # on the client's own mix of classes
    assert scores["client_accuracy_min"] == 0.5
    assert scores["client_accuracy_mean"] == pytest.approx(1.875 / 3)
    assert scores["client_accuracy_std"] == pytest.approx(np.std([0.875, 0.5, 0.5]))


def test_groups_count_by_their_clients():
    tester = Told(model0=PERFECT, model1=HALF)
    judge, server = evaluator(tester, labels=LABELS, models=(0, 1), groups=[0, 1, 1, 1])
    scores = judge.scores(server)
    assert scores["test_accuracy"] == pytest.approx((1 + 3 * 0.5) / 4)
    assert scores["client_accuracy"] == [1.0, 0.5, 0.5, None]
    assert tester.asked == [("test", EVERY)] * 2


def test_groups_with_the_very_same_models_are_tested_once():
    tester = Told(model0=PERFECT)
    judge, server = evaluator(tester, labels=LABELS, models=(0, 1), groups=[0, 1, 1, 1])
    server.state.models[1] = server.state.models[0]
    assert judge.scores(server)["test_accuracy"] == 1.0
    assert tester.asked == [("test", EVERY)]


def test_the_mean_of_the_groups_models():
    judge, server = evaluator(
        Told(model2=HALF), labels=LABELS, models=(1, 3), groups=[1, 1, 3, 3], method=Method("own", test="mean")
    )
    assert judge.scores(server)["test_accuracy"] == 0.5


def test_tasks_are_tested_on_their_classes():
    guess = [0, 0, 1, 1, 0, 0, 0, 0]
    tasks = ((0, 1), (2, 3), (1, 2), (0, 3))
    judge, server = evaluator(Told(model0=guess), labels=LABELS, tasks=tasks)
    assert judge.scores(server)["test_accuracy"] == pytest.approx((1 + 0 + 0.5 + 0.5) / 4)


def test_a_model_is_tried_only_on_the_tasks_it_serves():
    tasks, guess = ((0, 1), (2, 3), (1, 2), (0, 1)), [0, 0, 1, 0, 2, 2, 0, 3]
    tester = Told(model0=guess, model1=guess)
    judge, server = evaluator(tester, labels=LABELS, tasks=tasks, models=(0, 1), groups=[0, 1, 1, 0])
    assert judge.scores(server)["test_accuracy"] == pytest.approx((3 + 3 + 3 + 3) / 16)
    assert tester.asked == [("test", [0, 1, 2, 3]), ("test", [2, 3, 4, 5, 6, 7])]


def test_clients_try_their_own_model_only_on_their_task():
    own = Method("own", share=Share(down=(), up=(), keep=("*",)), test="clients")
    tester = Told(client0=PERFECT, client1=HALF, client2=HALF, client3=PERFECT)
    judge, server = evaluator(tester, labels=LABELS, method=own, tasks=((0, 1), (2, 3), (1,), (3,)))
    assert judge.scores(server)["test_accuracy"] == 0.75
    assert tester.asked == [(0, [0, 1, 2, 3]), (1, [4, 5, 6, 7]), (2, [2, 3]), (3, [6, 7])]


def test_each_client_by_its_own_model():
    own = Method("own", share=Share(down=(), up=(), keep=("*",)), test="clients")
    tester = Told(client0=PERFECT, client1=HALF, client2=HALF, client3=PERFECT)
    judge, server = evaluator(tester, labels=LABELS, method=own)
    scores = judge.scores(server)
    assert scores["test_accuracy"] == 0.75
    assert scores["client_accuracy"] == [1.0, 0.5, 0.5, None]


def test_several_nets_are_tested_like_the_first():
    tester = Told(model0=PERFECT, model5=HALF)
    judge, server = evaluator(tester, labels=LABELS, method=Method("own", nets=2), tasks=((0, 1), (2, 3), (1,), (3,)))
    server.state.models = {0: (torch.zeros(3), torch.full((3,), 5.0))}
    scores = judge.scores(server)
    assert scores["test_accuracy_nets"] == [1.0, 0.5]
    assert scores["test_accuracy"] == scores["test_accuracy_ensemble"] == 1.0


@dataclass(frozen=True, kw_only=True)
class Grouping(Part):
    writes = frozenset({"group"})


def test_groups_are_held_against_tasks():
    tasks, groups = ((0, 1), (2, 3), (0, 1), (2, 3)), Method("own", (Stage(parts=(Grouping(),)),))

    def agreement(columns, method=groups, tasks=tasks):
        judge, server = evaluator(Told(), labels=None, method=method, tasks=tasks, groups=columns)
        return judge.clustering(server)

    assert agreement([7, 3, 7, 3]) == 1.0
    assert agreement([0, 0, 1, 1]) == pytest.approx(-0.5)
    assert agreement([0, 0, 0, 0]) == 0.0
    assert agreement([0, 1, 0, 1], tasks=None) is None, "there are no tasks"
    assert agreement([0, 0, 0, 0], method=Method("own")) is None, "nobody makes groups"


def test_validation_and_missing_truth():
    judge, server = evaluator(Told(model0=HALF, validation=[1, 2]), labels=None, validation=(1, 3))
    scores = judge.scores(server)
    assert scores["validation_accuracy"] == 0.5
    assert scores["client_accuracy"] == [None] * 4
    assert scores["client_accuracy_mean"] is None
    with pytest.raises(DataError, match="which labels are right") as problem:
        judge.masks()
    assert problem.value.code == "FS307"
    assert judge.client_noise(server, [0, 1]) == {"client_noise_auc": None, "client_noise_rank": None}


def test_validation_with_groups_of_any_number():
    tester = Told(model1=PERFECT, model2=PERFECT, validation=[1, 3])
    judge, server = evaluator(tester, labels=LABELS, models=(1, 2), groups=[1, 1, 2, 2], validation=(1, 3))
    assert judge.scores(server)["validation_accuracy"] == 1.0


# The truth is the evaluator's


def test_masks_tell_right_labels():
    federation = tiny_federation()
    truth = GroundTruth(tuple((given + (np.arange(24) % 3 == 0)) % 4 for given in federation.given), TEST, TEST[:0])
    masks = Evaluator(federation, truth, states=None).masks()
    assert all((mask == (np.arange(24) % 3 != 0)).all() for mask in masks)


def test_truth_survives_its_file(tmp_path):
    labels = (np.array([1, 2]), np.array([], np.int64), np.array([3]))
    truth = GroundTruth(labels, TEST, TEST[:2], np.array([0.1, 0, 0]))
    truth.save(tmp_path / "truth.npz")
    found = GroundTruth.load(tmp_path / "truth.npz")
    assert [labels.tolist() for labels in found.labels] == [[1, 2], [], [3]]
    assert np.array_equal(found.test, TEST)
    assert np.array_equal(found.nominal, truth.nominal)
    GroundTruth(None, TEST, TEST[:0]).save(tmp_path / "none.npz")
    assert GroundTruth.load(tmp_path / "none.npz").labels is None


def test_only_the_oracle_is_served():
    assert [name for name in METHODS if reads_truth(Contract.of(name, {}).plan(tiny_federation()).method)] == ["oracle"]
    with Contract.of("oracle", MLP | {"rounds": 1, "batch": 100}).trial() as trial:
        trial.run()
        right = trial.federation.served
        for up in trial.record.ups:
            audit = trial.states.load(up.client, up.version)
            assert np.array_equal(audit["judged/kept"].numpy(), right[up.client])
            assert np.array_equal(audit["judged/score"].numpy(), right[up.client].astype(np.float32))
            assert up.n == 24, "weighed by the size of the whole set"


def test_the_trap_closes():
    for touch in (lambda trap: trap[0], lambda trap: trap.labels, lambda trap: len(trap), lambda trap: list(trap)):
        with pytest.raises((AssertionError, TypeError)):
            touch(Trap())
    with Contract.of("oracle", MLP).trial() as trial:
        trial.host.federation = trial.federation.serving(Trap())
        with pytest.raises(Exception, match="the ground truth was touched"):
            trial.run()


def test_selections_are_those_of_the_clients_last_tables():
    with Contract.of("oracle", MLP | {"rounds": 1}).trial() as trial:
        trial.run()
        given = trial.federation.given
        true = tuple(np.where(right, g, (g + 1) % 4) for g, right in zip(given, trial.federation.served, strict=True))
        judge = Evaluator(trial.federation, GroundTruth(true, TEST, TEST[:0]), trial.states)
        found = judge.selections({up.client: up.version for up in trial.record.ups})
        assert found == dict.fromkeys(range(4), Judged(label_precision=1.0, label_recall=1.0))


def test_rows_without_a_label_are_neither_kept_nor_repaired():
    """Given, kept, suggested and true: of the four labels two are kept, one of them rightly; one of two is repaired."""
    given, true = np.array([0, 1, 2, 3, -1, -1]), np.array([0, 0, 3, 3, 1, 2])
    federation = replace(tiny_federation(), given=(given, given, np.full(6, -1), given[:0]))
    audits = {
        "judged/kept": torch.tensor([1, 1, 0, 0, 0, 0]).bool(),
        "judged/suggested": torch.tensor([0, 1, 3, 3, 1, 0]),
    }

    class States:
        def load(self, client, version):
            return audits if version else {}

    judge = Evaluator(federation, GroundTruth((true, true, true, true[:0]), TEST, TEST[:0]), States())
    assert judge.selections({0: 1, 1: 0, 2: 1}) == {0: Judged(0.5, 0.5, 1.0, 0.5), 2: Judged()}
    scored = audits | {"judged/score": torch.zeros(6)}
    assert [label.row for label in judged_labels(federation, 0, scored, "x")] == [0, 1, 2, 3]
    assert judged_labels(federation, 2, scored, "x") == []


@dataclass(frozen=True, kw_only=True)
class Scoring(Part):
    writes, verdict = frozenset({"good"}), "good"


def test_clients_without_labels_have_no_noise_to_be_found():
    judge, server = evaluator(Told(), labels=[[0, 0], [1, 1], [2, 2], [3, 3]], method=single_part(Scoring()))
    given = (np.array([0, 0]), np.array([0, 1]), np.array([0, 0]), np.array([-1, -1]))
    judge._federation = replace(judge._federation, given=given)
    server.by(Scoring()).columns.write("good", {0: 1.0, 1: 0.5, 2: 0.0, 3: 1.0})
    assert judge.client_noise(server, [0, 1, 2, 3]) == {"client_noise_auc": 1.0, "client_noise_rank": pytest.approx(1)}


def single_part(part):
    return Method("own", (Stage(parts=(part,)),))


def test_a_client_whose_labels_are_all_wrong_is_told_so():
    with Contract.of("oracle", MLP | {"rounds": 1}).trial(tiny_federation(degenerate=True)) as trial:
        state = trial.run()
        assert not trial.states.load(7, state.versions[7])["judged/kept"].any()


@dataclass(frozen=True, kw_only=True)
class Correcting(Part):
    """Changes labels for good, before training."""

    labels = True

    def start(self, c):
        if c.round == 0:
            c.rewrite(c.labels.towards(c.labels.target.roll(1, dims=1)))


def test_a_lasting_correction_is_told():
    with Contract.of(Method("own", (Stage(parts=(Correcting(),)),)), MLP | {"rounds": 1}).trial() as trial:
        state = trial.run()
        audit = trial.states.load(0, state.versions[0])
        assert torch.equal(audit["labels/target"].argmax(1), torch.from_numpy((trial.federation.given[0] + 1) % 4))
        assert torch.equal(audit["judged/suggested"], audit["labels/target"].argmax(1))


# What leaves a client


@dataclass(frozen=True, kw_only=True)
class Telling(Part):
    width: int = 3
    down = {"hint": ("width", "C")}
    up = {"rows": ("n",), "level": ()}
    topics = {"ask": Topic({"q": ("G", 2)}, {"a": ("d",)})}
    sees = "each"

    def brief(self, s, client):
        return {"hint": torch.zeros(self.width, 4)}

    def finish(self, c):
        return {"rows": torch.zeros(c.n), "level": 1.0}

    def talk(self, s, moment):
        yield Ask("ask", {})

    def answer(self, c, topic, question):
        return {}


def test_everything_that_travels_is_listed_with_its_bytes():
    plan = Contract.of(Method("own", (Stage(parts=(Telling(width=5),)),)), MLP).plan(tiny_federation())
    rows = {(r["part"], r["direction"], r["name"]): (r["shape"], r["bytes"]) for r in disclosure(plan)}
    size = 4 * plan.layout.size
    assert rows == {
        ("model", "down", "weights"): ("N x M", size),
        ("model", "up", "weights"): ("N x U", size),
        ("report", "up", "number of samples"): ("scalar", 8),
        ("report", "up", "training loss"): ("scalar", 8),
        ("report", "up", "why it skipped, if it did"): ("scalar", 8),
        ("Telling", "down", "hint"): ("width x C", 4 * 5 * 4),
        ("Telling", "up", "rows"): ("n", None),
        ("Telling", "up", "level"): ("scalar", 8),
        ("Telling (ask)", "down", "q"): ("G x 2", None),
        ("Telling (ask)", "up", "a"): ("d", 4 * 8),
    }
    assert messages(plan) == "1 (+ Telling)"
    assert not secure_aggregation(plan)


def test_what_does_not_travel_is_not_listed():
    plan = Contract.of("local", MLP).plan(tiny_federation())
    assert {(r["part"], r["name"]) for r in disclosure(plan)} == {("report", name) for name in REPORTED}
    assert messages(plan) == "1"


def test_nothing_travels_where_the_server_is_alone():
    plan = Contract.of(Method("own", (Stage(sampler=Nobody()),)), MLP).plan(tiny_federation())
    assert disclosure(plan) == []


def test_sums_are_enough_for_some():
    def secure(method):
        return secure_aggregation(Contract.of(method, MLP).plan(tiny_federation()))

    assert all(secure(name) for name in ("local", "fedavg", "fedprox", "scaffold", "moon", "gce"))
    assert not secure(Method("own", (Stage(combine=Median()),)))


def test_of_too_many_classes_no_confusion_is_kept():
    assert _together([np.eye(MOST_SHOWN, dtype=int)]) is not None
    assert _together([np.eye(MOST_SHOWN + 1, dtype=int)]) is None
