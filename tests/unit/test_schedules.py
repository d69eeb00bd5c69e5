"""Numbers that change with the round."""

import json
import math
from dataclasses import replace

import pytest

import fedsieve
from fedsieve.core.part import Method, Stage
from fedsieve.core.samplers import Nobody
from fedsieve.core.schedules import Const, Cosine, Exponential, Paused, Ramp, Steps, learning_rate
from fedsieve.report.folder import read_run
from fedsieve.settings.planning import rounds_of
from fedsieve.testing import Contract, tiny_federation


def values(schedule, rounds):
    return [schedule(t) for t in rounds]


def test_by_hand():
    assert values(Const(0.3), (0, 7)) == [0.3, 0.3]
    assert values(Ramp(1.0, 3.0, 4), (0, 1, 4, 9)) == [1.0, 1.5, 3.0, 3.0]
    assert values(Ramp(1.0, 3.0, 0), (0, 1)) == [3.0, 3.0]
    assert values(Cosine(2.0, 4), (0, 2, 4, 8)) == pytest.approx([2.0, 1.0, 0.0, 0.0])
    assert Cosine(2.0, 4)(1) == pytest.approx(1 + math.sqrt(0.5))
    assert values(Exponential(1.0, 0.9), (0, 1, 3)) == pytest.approx([1.0, 0.9, 0.729])
    assert values(Steps(1.0, 8), (0, 3, 4, 5, 6, 7)) == pytest.approx([1.0, 1.0, 0.1, 0.1, 0.01, 0.01])


def test_by_name():
    assert learning_rate("none", 0.1, 10, 0.5)(9) == 0.1
    assert learning_rate("cosine", 0.1, 10, 0.5)(5) == pytest.approx(0.05)
    assert learning_rate("exponential", 0.1, 10, 0.5)(2) == pytest.approx(0.025)
    assert learning_rate("steps", 0.1, 10, 0.5)(5) == pytest.approx(0.01)


def test_the_learning_rate_of_a_run_follows_its_schedule():
    settings = {"model": "mlp", "model.hidden": [], "augment": "none", "batch": 100, "momentum": 0.0, "lr": 0.1}
    schedule = {"schedule": "exponential", "schedule.decay": 0.5, "rounds": 2}
    with Contract.of("fedavg", settings | schedule).trial() as fast, Contract.of("fedavg", settings).trial() as slow:
        fast.run()
        slow.run()
        ways = [
            [up.models[0] - down.models[0] for (_, down), up in zip(t.record.downs, t.record.ups, strict=True)]
            for t in (fast, slow)
        ]
    assert float((ways[0][0] - ways[1][0]).norm()) == 0, "the first round is the same"
    assert float(ways[0][4].norm() / ways[1][4].norm()) == pytest.approx(0.5, rel=1e-3)
    assert Contract.of("fedavg", schedule).plan(tiny_federation()).fit.lr(1) == pytest.approx(0.025)


def test_a_schedule_stands_still_in_rounds_that_come_on_top():
    line = Ramp(0.0, 1.0, 10)
    paused = Paused(line, ((3, False), (4, True), (2, False), (6, True), (2, False)))
    assert [paused(t) for t in range(17)] == [line(t) for t in (0, 0, 0, 0, 1, 2, 3, 4, 4, 4, 5, 6, 7, 8, 9, 9, 9)]
    assert Paused(line, ((3, False),))(2) == 0.0


def test_a_pretraining_leaves_the_rounds_and_the_schedule_alone():
    first = Stage("pretrain", rounds=3, sampler=Nobody(), extra=True)
    settings = {"rounds": 4, "schedule": "cosine", "lr": 0.2}
    plain = Contract.of(Method("own", (Stage(),)), settings).plan(tiny_federation())
    plan = Contract.of(Method("own", (first, Stage())), settings).plan(tiny_federation())
    assert [stage.rounds for stage in plan.stages] == [3, 4]
    assert rounds_of(plan.method) == 7
    assert [plan.fit.lr(t) for t in range(7)] == [plain.fit.lr(t) for t in (0, 0, 0, 0, 1, 2, 3)]
    out_of_them = Contract.of(Method("own", (replace(first, extra=False), Stage())), settings).plan(tiny_federation())
    assert [stage.rounds for stage in out_of_them.stages] == [3, 1]


def test_the_record_tells_extra_rounds_apart(tmp_path):
    small = {"model": "mlp", "model.hidden": [4], "clients": 2, "epochs": 1, "runtime": "serial", "server.clean": 50}
    out = tmp_path / "run"
    summary = fedsieve.run(method="odd_methods:pretrained", rounds=2, out=str(out), quiet=True, **small)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [(row["round"], row["stage"], row["extra"]) for row in rows] == [
        (1, "pretrain", True),
        (2, "pretrain", True),
        (3, "pretrain", True),
        (4, "train", False),
        (5, "train", False),
    ]
    accuracies = [row["test_accuracy"] for row in rows]
    assert summary["rounds"] == 5
    assert summary["test_accuracy_last10"] == pytest.approx(sum(accuracies[3:]) / 2)
    assert summary["test_accuracy_best"] == max(accuracies[3:])
    (out / "summary.json").unlink()
    assert read_run(out).numbers["test_accuracy_last10"] == pytest.approx(sum(accuracies[3:]) / 2)
