"""Numbers that change with the round."""

import math

import pytest

from fedsieve.core.schedules import Const, Cosine, Exponential, Ramp, Steps, learning_rate
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
