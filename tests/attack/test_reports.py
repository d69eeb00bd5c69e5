"""Generated hostile replies against the real loop: no crash, no state out of bounds, no weight above its due.

`FEDSIEVE_REPORTS` sets how many for all methods together (360; `make test-faults` takes 12,000).
"""

import os
import random
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from fedsieve.base.errors import RunError
from fedsieve.core.part import defines
from fedsieve.core.rounds import Loop
from fedsieve.core.server import Event, Server, ServerState
from fedsieve.core.types import Answer, Up
from fedsieve.runtime.serial import SerialRuntime
from fedsieve.testing import Contract, tiny_federation
from fedsieve.testing.trial import Trial

sys.path.insert(0, str(Path(__file__).parent))
from hostile import hostile_answer, hostile_report

REPORTS = int(os.environ.get("FEDSIEVE_REPORTS", "360"))
ATTACKER = 1
MLP = {"model": "mlp", "model.hidden": [8], "batch": 12}
METHODS = {
    "fedavg": {},
    "fedds": {},
    "fedds+co-teaching": {"fedds.votes": "soft"},
    "scaffold": {},
    "fedrn": {"fedrn.warmup": 1},
    "fedrn+fedds": {"fedrn.warmup": 1, "fedrn.similarity": "logits"},
    "focus": {},
    "feddiv": {},
    "fedcorr": {"fedcorr.neighbours": 5},
    "rhfl": {},
    "ifca": {},
    "robust-fl": {},
    "fednoro": {"fednoro.warm": 1},
    "fedelc": {"fedelc.warm": 1},
    "fb-nll": {"fb-nll.trust": 0},
    "fb-nll-minus": {"fb-nll-minus.groups": 2},
    "fb-nll-repair": {"fb-nll-repair.trust": 0},
    "local": {},
}
TALKERS = ("fednoro", "fedelc", "fb-nll", "fb-nll-minus", "fb-nll-repair")
"""Their conversations come once a run: many short runs instead of a few long ones."""
BOUND = 1e8
"""Of anything that the server keeps; a FedCorr dimension summed over visits is the largest."""


class Attacked:
    """A runtime in which one client sends what it likes."""

    def __init__(self, host, rng):
        self._inner, self._rng, self.sent = SerialRuntime(host), rng, 0

    def train(self, messages):
        for k, down in messages:
            yield self.spoiled(self._inner.train, k, down, hostile_report, down.models)

    def query(self, messages):
        for k, question in messages:
            yield self.spoiled(self._inner.query, k, question, hostile_answer)

    def assess(self, messages):
        return self._inner.assess(messages)

    def spoiled(self, work, client, message, change, *more):
        """The attacker lies about the state that it stores, and may then stumble over that itself."""
        if client != ATTACKER:
            return next(work(iter([(client, message)])))
        self.sent += 1
        try:
            return change(next(work(iter([(client, message)]))), *more, self._rng)
        except RunError as problem:
            return Event("FS210", problem.message, client)


class Watchful:
    """Looks at everything the server holds after each round."""

    def __init__(self, trial):
        self.rows = trial.plan.rows
        self.rounds = 0

    def commit(self, s):
        look(s)

    def round_done(self, s, what):
        self.rounds += 1
        look(s)
        stage = s.plan.stages[s.state.stage]
        assert {event.client for event in what.refused} <= {ATTACKER}, what.refused
        assert all(len(event.message) < 1000 and event.message.isprintable() for event in [*what.refused, *what.events])
        weighs = any(defines(part, "weigh") for part in stage.parts)
        for group in {up.group for up in what.ups.values()}:
            members = [k for k, up in what.ups.items() if up.group == group and k in what.weights]
            assert all(0 <= what.weights[k] <= 1 for k in members)
            if ATTACKER in members and not weighs:
                due = [self.rows[k] if stage.base == "size" else 1 for k in members]
                assert what.weights[ATTACKER] <= self.due(members, due) + 1e-9

    @staticmethod
    def due(members, due):
        return due[members.index(ATTACKER)] / sum(due)


def look(s):
    """Every number the server keeps is finite and of a size that means something; unknown ones are NaN in columns."""
    state = s.state
    kept = [net for nets in state.models.values() for net in nets]
    kept += [tensor for memory in state.memory.values() for tensor in memory.values()]
    kept += [row for rows in state.rows.values() for row in rows.values()]
    kept += [column.nan_to_num(nan=0.0) for column in state.columns.values()]
    kept += list(state.norms.values())
    for tensor in kept:
        assert torch.isfinite(tensor).all()
        assert not tensor.numel() or float(tensor.abs().max()) < BOUND
    assert all(0 <= version <= state.messages for version in state.versions.values())


def attack(method, more, seed):
    """One run; returns how many hostile replies it bore."""
    rounds = 2 if method in TALKERS else 12
    contract = Contract.of(method, {**MLP, **more, "rounds": rounds, "seed": seed})
    federation = tiny_federation()
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(contract.plan(federation), federation, Path(folder))
        watch, runtime = Watchful(trial), Attacked(trial.host, random.Random(seed))
        server = Server(ServerState.fresh(trial.plan), trial.plan, lambda: trial.host)
        Loop(runtime, watch, watch).run(server)
    assert watch.rounds == sum(stage.rounds for stage in trial.plan.stages), "the run goes on to its end"
    return runtime.sent


@pytest.mark.parametrize("method", METHODS)
def test_hostile_replies_are_borne(method):
    wanted, sent, seed = REPORTS // len(METHODS), 0, 0
    torch.manual_seed(0)
    while sent < wanted:
        sent += attack(method, METHODS[method], seed)
        seed += 1


def test_all_kinds_are_drawn():
    """The generator reaches models, notes, numbers and what is no reply at all."""
    up = Up(1, 0, 24, 0, (torch.ones(3),), {"Part": {"x": 0.5}}, 0, 0.1)
    drawn = [hostile_report(up, (torch.zeros(3),), random.Random(seed)) for seed in range(400)]
    reports = [each for each in drawn if isinstance(each, Up)]
    assert len(reports) < len(drawn)
    for field in vars(up):
        assert sum(getattr(each, field) is not getattr(up, field) for each in reports) > 3, field
    answers = [hostile_answer(Answer(1, {"x": 0.5}, 3), random.Random(seed)) for seed in range(400)]
    assert len({type(each) for each in answers}) > 2
