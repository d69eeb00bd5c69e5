"""How far a report may move the model: medians by hand, few reports, the past, clipping, and honest odd clients."""

from dataclasses import dataclass, replace

import pytest
import torch

from fedsieve.core import limits
from fedsieve.core.combiners import Unweighted
from fedsieve.core.limits import PAST, Limits
from fedsieve.core.part import Hooks, Method, Part, Share, Stage
from fedsieve.core.sent import Sent
from fedsieve.core.types import Up
from fedsieve.methods import METHODS
from fedsieve.testing import Contract, tiny_federation

PLAIN = {"rounds": 1, "model": "mlp", "model.hidden": [8]}


@dataclass(frozen=True, kw_only=True)
class Steps(Part):
    """Sends a vector whose length is compared."""

    up = {"step": Sent((4,), paced=True)}
    sees = "sum"

    def finish(self, c):
        return {"step": torch.ones(4)}


def planned(parts=(), model=PLAIN, **settings):
    plan = Contract.of(Method("own", (Stage(parts=parts),)), {**model, **settings}).plan(tiny_federation())
    return plan, Hooks(parts)


def moved(plan, client, length, base=None, note=None, statistics=0.0):
    """A report whose weights are so far from what was sent, and its running statistics so far."""
    vector = plan.initial[0].clone() if base is None else base.clone()
    vector[0] += length
    if statistics:
        vector[plan.up_trainable] += statistics
    notes = {} if note is None else {"Steps": {"step": torch.tensor([note, 0.0, 0.0, 0.0])}}
    return Up(client, 0, 24, 0, (vector,), notes, 0, 0.1)


def judged(plan, h, ups, past=None):
    gate = Limits(plan, h, {0: plan.initial}, past or {})
    passed = [each for up in ups for each in gate.add(up)]
    return gate, [*passed, *gate.close()]


def refused(plan, h, lengths, past=None):
    _, passed = judged(plan, h, [moved(plan, k, length) for k, length in enumerate(lengths)], past)
    return [each.up.client for each in passed if each.excess]


def test_beyond_the_factor_times_the_median_is_too_long():
    plan, h = planned()
    assert plan.factor == 7
    assert refused(plan, h, [1, 1, 1, 6.9]) == []
    assert refused(plan, h, [1, 1, 1, 7.1]) == [3]
    assert refused(plan, h, [1, 2, 3, -30]) == [3], "of four the lower of the middle two"
    assert refused(plan, h, [1, 1, 1, 1e30]) == [3]
    assert refused(plan, h, [1e30, 1e30, 1, 1]) == [0, 1]


def test_another_factor_and_none():
    plan, h = planned(**{"admit.factor": 2})
    assert refused(plan, h, [1, 1, 1, 2.1]) == [3]
    plan, h = planned(**{"admit.factor": 0})
    assert refused(plan, h, [1, 1, 1, 1e30]) == []


def test_under_secure_aggregation_single_reports_cannot_be_compared():
    assert planned(secure_aggregation=True)[0].factor == 0


def test_the_past_counts_where_it_was_livelier():
    plan, h = planned()
    past = {"weights.0": torch.tensor([5.0, 6.0, 100.0], dtype=torch.float64)}
    assert refused(plan, h, [1, 1, 1, 41], past) == []
    assert refused(plan, h, [1, 1, 1, 43], past) == [3]
    assert refused(plan, h, [10, 10, 10, 69], past) == [], "a stage in which all go further"


def test_small_changes_are_never_long():
    plan, h = planned()
    size = float(plan.initial[0].norm())
    least = 1e-4 * size
    assert refused(plan, h, [least, least, least, 0.13 * size]) == []
    assert refused(plan, h, [least, least, least, 0.15 * size]) == [3]


def test_clients_that_learnt_nothing_are_no_measure_for_one_that_did():
    plan, h = planned()
    size = float(plan.initial[0].norm())
    assert refused(plan, h, [0, 0, 0, 6.9 * size]) == []
    assert refused(plan, h, [0, 0, 0, 0, 0.1 * size, 6.9 * size]) == [], "of two, neither is a measure for the other"
    movers = [0.1 * size, 0.1 * size, 0.1 * size]
    assert refused(plan, h, [0, 0, 0, 0, 0, *movers, 0.69 * size]) == []
    assert refused(plan, h, [0, 0, 0, 0, 0, *movers, 0.71 * size]) == [8], "three that moved are a measure"


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_attackers_among_still_clients_are_measured_by_the_model(count):
    """As long as they are not most of the round, however many of those that moved they are."""
    plan, h = planned()
    size = float(plan.initial[0].norm())
    for length in (7.1 * size, 1e30):
        assert refused(plan, h, [0] * 5 + [length] * count) == list(range(5, 5 + count))


def test_the_server_may_go_far_beside_clients_that_learn_next_to_nothing():
    plan, h = planned()
    size = float(plan.initial[0].norm())
    for client, length, excess in ((-1, 6.9, False), (-1, 7.1, True), (4, 6.9, True)):
        ups = [*(moved(plan, k, 1e-4 * size) for k in range(4)), moved(plan, client, length * size)]
        _, passed = judged(plan, h, ups)
        assert [bool(each.excess) for each in passed] == [False] * 4 + [excess]


def test_who_moves_alone_is_no_measure_for_rounds_to_come():
    plan, h = planned()
    size = float(plan.initial[0].norm())
    past = {}
    for _ in range(3):
        gate, passed = judged(plan, h, [moved(plan, k, length) for k, length in enumerate([0, 0, 0, 6.9 * size])], past)
        assert not any(each.excess for each in passed)
        past = gate.medians()
    assert past["weights.0"].tolist() == [0, 0, 0]
    assert refused(plan, h, [0, 0, 0, 7.1 * size], past) == [3]


@pytest.mark.parametrize("count", [1, 2])
def test_a_round_of_few_has_what_was_sent_for_a_measure(count):
    plan, h = planned()
    size = float(plan.initial[0].norm())
    quiet = {"weights.0": torch.tensor([0.01], dtype=torch.float64)}
    for past in ({}, quiet):
        assert refused(plan, h, [6.9 * size] * count, past) == []
        assert refused(plan, h, [7.1 * size] * count, past) == list(range(count))


def test_a_model_of_zeros_can_be_left():
    plan, h = planned()
    zeros = (torch.zeros_like(plan.initial[0]),)
    gate = Limits(plan, h, {0: zeros}, {})
    up = moved(plan, 0, 1.0, base=zeros[0])
    assert [each.excess for each in [*gate.add(up), *gate.close()]] == [""]


def test_statistics_are_measured_apart_and_may_go_further():
    plan, h = planned(model={"rounds": 1})
    for length, wrong in ((13.9, []), (14.1, [3])):
        ups = [moved(plan, k, 1.0, statistics=1.0) for k in range(3)] + [moved(plan, 3, 1.0, statistics=length)]
        _, passed = judged(plan, h, ups)
        assert [each.up.client for each in passed if each.excess] == wrong
    assert "long in statistics.0, 14 is the most" in passed[-1].excess


def test_notes_that_are_paced_are_measured_too():
    plan, h = planned((Steps(),))
    ups = [moved(plan, k, 1.0, note=1.0) for k in range(3)] + [moved(plan, 3, 1.0, note=7.5)]
    _, passed = judged(plan, h, ups)
    assert [each.excess for each in passed] == ["", "", "", "its update is 7.5 long in Steps.step, 7 is the most"]


def test_the_medians_of_admitted_reports_are_remembered():
    plan, h = planned()
    past = {}
    for number in range(PAST + 3):
        ups = [moved(plan, k, length) for k, length in enumerate([number + 1, number + 2, number + 3, 1e9])]
        gate, _ = judged(plan, h, ups, past)
        past = gate.medians()
    assert past["weights.0"].tolist() == pytest.approx([float(n + 2) for n in range(3, PAST + 3)], rel=1e-5)
    quiet, _ = judged(plan, h, [Up(0, 0, 24, 0, None, {}, 0, 0.0)], past)
    assert quiet.medians() == past


def test_reports_leave_in_the_order_in_which_they_came_and_few_are_held(monkeypatch):
    monkeypatch.setattr(limits, "HELD", 4)
    plan, h = planned()
    gate = Limits(plan, h, {0: plan.initial}, {})
    left = []
    for k in range(8):
        up = moved(plan, k, 1.0)
        up = replace(up, models=None) if k == 1 else up
        left.append([each.up.client for each in gate.add(up)])
    assert left == [[], [], [], [], [0, 1, 2, 3, 4], [5], [6], [7]]
    monkeypatch.setattr(limits, "HELD_BYTES", 0)
    gate = Limits(plan, h, {0: plan.initial}, {})
    assert [len(list(gate.add(moved(plan, k, 1.0)))) for k in range(4)] == [0, 0, 3, 1], "three at least"


def test_clipping_keeps_the_direction():
    plan, h = planned((Steps(),), **{"admit.excess": "clip"})
    ups = [moved(plan, k, 1.0, note=1.0) for k in range(3)] + [moved(plan, 3, -1e6, note=100.0)]
    gate, passed = judged(plan, h, ups)
    up = gate.clip(passed[3].up)
    assert float(up.models[0][0] - plan.initial[0][0]) == pytest.approx(-7, rel=1e-4)
    assert torch.equal(up.models[0][1:], plan.initial[0][1:])
    assert up.notes["Steps"]["step"].tolist() == [7, 0, 0, 0]


def test_the_combined_model_is_held_to_the_same_limit():
    plan, h = planned()
    gate, _ = judged(plan, h, [moved(plan, k, 1.0) for k in range(4)])
    assert gate.too_far(0, moved(plan, 0, 7.0).models) == ""
    assert gate.too_far(0, moved(plan, 0, 7.1).models).startswith("lies 7.1 from the old one in weights.0")
    assert gate.too_far(0, moved(plan, 0, float("nan")).models) == "holds NaN or infinity"


def test_who_takes_more_steps_may_go_further():
    """Batches of 8: three clients of one step, one of nine."""
    plan, h = planned()
    for length, wrong in ((20.9, []), (21.1, [3])):
        ups = [replace(moved(plan, k, 1.0), n=8) for k in range(3)] + [replace(moved(plan, 3, length), n=72)]
        _, passed = judged(plan, h, ups)
        assert [each.up.client for each in passed if each.excess] == wrong


@dataclass(frozen=True, kw_only=True)
class Wild(Unweighted):
    """A combiner that goes wrong."""

    value: str

    def combine(self, reported):
        return tuple(torch.full_like(net, float(self.value)) for net in reported[0])


@pytest.mark.parametrize(("value", "factor"), [("nan", 0), ("1e30", 7)])
def test_a_combined_model_beyond_the_limit_does_not_replace_the_old(value, factor):
    method = Method("own", (Stage(combine=Wild(value=value)),))
    with Contract.of(method, {**PLAIN, "admit.factor": factor}).trial() as trial:
        state = trial.run()
        assert torch.equal(state.models[0][0], trial.plan.initial[0])
        (event,) = trial.record.rounds[0].events
        assert event.code == "FS231"
        assert "the old one stays" in event.message


# Honest runs


def all_refused(method, federation=None, **settings):
    with Contract.of(method, settings).trial(federation) as trial:
        trial.run()
        return [event for what in trial.record.rounds for event in what.refused]


@pytest.mark.parametrize("method", METHODS)
def test_honest_clients_are_never_refused(method):
    """Empty, tiny, one-sided, wrong and constant clients; one at a time; Adam."""
    assert all_refused(method, tiny_federation(degenerate=True), rounds=3) == []
    assert all_refused(method, tiny_federation(degenerate=True), rounds=3, fraction=0.1) == []
    if method != "scaffold":
        assert all_refused(method, optimizer="adam") == []


def test_a_method_that_shares_nothing_or_a_part_of_the_model():
    assert all_refused("local", rounds=2) == []
    assert all_refused("fedavg", rounds=2, norm="local") == []
    assert all_refused(Method("own", share=Share(up=("head",))), rounds=2) == []
