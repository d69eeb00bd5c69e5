"""Reports that are finite and in shape, and would still end a run or turn it round."""

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedsieve.runtime.serial import SerialRuntime
from fedsieve.testing import Contract, tiny_federation
from fedsieve.testing.trial import Trial

ATTACKER = 3
LEARNING = {"model": "mlp", "model.hidden": [16], "lr": 0.1, "epochs": 2, "batch": 8, "rounds": 8, "augment": "none"}


def ten_clients():
    """The tiny federation's samples at ten clients of equal size; the test images can be learnt."""
    whole = tiny_federation(rows=60)
    rows, given = np.concatenate(whole.rows), np.concatenate(whole.given)
    return replace(whole, rows=tuple(np.split(rows, 10)), given=tuple(np.split(given, 10)), served=None)


class Poisoned:
    """A runtime in which one client's model is changed, in every round or in one."""

    def __init__(self, host, change, rounds=None):
        self._inner, self._change, self._rounds = SerialRuntime(host), change, rounds

    def train(self, messages):
        for k, down in messages:
            up = next(self._inner.train(iter([(k, down)])))
            hit = k == ATTACKER and (self._rounds is None or up.round in self._rounds)
            yield self._change(up, down.models) if hit else up

    def __getattr__(self, name):
        return getattr(self._inner, name)


def run(change=None, rounds=None, method="fedavg", **settings):
    """Accuracy on the clients' own samples under the final model, and the rounds."""
    federation = ten_clients()
    plan = Contract.of(method, {**LEARNING, **settings}).plan(federation)
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(plan, federation, Path(folder))
        state = trial.run(Poisoned(trial.host, change, rounds) if change else None)
        samples = trial.host._samples(torch.from_numpy(np.concatenate(federation.rows)))
        predicted = trial.host.outputs(state.models[0], samples).logits.argmax(1).numpy()
    assert all(torch.isfinite(net).all() for net in state.models[0])
    return float((predicted == np.concatenate(federation.given)).mean()), trial.record.rounds


def turned_round(up, sent):
    return replace(up, models=tuple(s - 10 * (m - s) for m, s in zip(up.models, sent, strict=True)))


def enormous(up, sent):
    return replace(up, models=tuple(torch.full_like(m, 1e30) for m in up.models))


def heavy(up, sent):
    return replace(up, n=10**12)


def refused(rounds):
    return [(event.code, event.client) for what in rounds for event in what.refused]


@pytest.fixture(scope="module")
def honest():
    return run()[0]


def test_an_update_turned_round_and_ten_times_as_long_does_not_bring_the_accuracy_down(honest):
    accuracy, rounds = run(turned_round)
    assert refused(rounds) == [("FS230", ATTACKER)] * len(rounds)
    assert accuracy > honest - 0.05
    assert run(turned_round, **{"admit.factor": 0})[0] < honest - 0.2, "without the limit it does"


def test_clipped_it_does_less_harm_and_is_said(honest):
    accuracy, rounds = run(turned_round, **{"admit.excess": "clip"})
    assert refused(rounds) == []
    assert [(e.code, e.client) for what in rounds for e in what.events] == [("FS230", ATTACKER)] * len(rounds)
    assert accuracy > run(turned_round, **{"admit.factor": 0})[0]


@pytest.mark.parametrize("method", ["fedavg", "fedds", "fedprox+gce", "co-teaching", "fedcorr"])
@pytest.mark.parametrize("when", [0, 2])
def test_one_enormous_report_does_not_end_a_run(method, when):
    _, rounds = run(enormous, {when, when + 1} | set(range(9, 20)), method=method)
    assert set(refused(rounds)) <= {("FS230", ATTACKER)}
    last = rounds[-1]
    assert len(last.ups) >= 9 or last.stage != "train"


def test_a_size_beyond_the_declared_takes_no_weight():
    _, rounds = run(heavy)
    assert refused(rounds) == [("FS202", ATTACKER)] * len(rounds)
    assert all(max(what.weights.values()) <= 1 / 9 + 1e-9 for what in rounds)


@pytest.mark.parametrize("name", ["median", "trimmed-mean", "krum", "geometric-median"])
def test_robust_combiners_bear_it_without_the_limit(honest, name):
    accuracy, rounds = run(turned_round, combine=name, **{"admit.factor": 0})
    assert refused(rounds) == []
    assert accuracy > honest - 0.15
