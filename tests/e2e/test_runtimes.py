"""The same bytes wherever and in whatever order clients run."""

import numpy as np
import pytest
import torch

from fedsieve.base.errors import FedSieveError, RunError
from fedsieve.core.server import Server
from fedsieve.evaluate.serving import own_model
from fedsieve.methods import METHODS
from fedsieve.runtime.crew import Crew
from fedsieve.runtime.pool import PoolRuntime
from fedsieve.runtime.serial import SerialRuntime
from fedsieve.testing import Contract, Trial, tiny_federation


@pytest.fixture(scope="module")
def crews():
    """One, two and three workers, started once: a pool can be prepared again for another experiment."""
    made = {count: Crew(count) for count in (1, 2, 3)}
    yield made
    for crew in made.values():
        crew.close()


def pooled(contract, crew, federation, folder):
    plan = contract.plan(federation)
    config = contract.config.flat() | {"clients": federation.clients}
    trial = Trial(plan, federation, folder)
    return trial, PoolRuntime(crew, config, federation, trial.states.folder)


@pytest.mark.parametrize("method", [*METHODS, "scaffold+moon+gce", "odd_methods:participating"])
def test_serial_and_pool_agree(method, crews, tmp_path):
    contract, federation = Contract.of(method, {}), tiny_federation()
    serial = Trial(contract.plan(federation), federation, tmp_path / "serial")
    expected = serial.run()
    for count, crew in crews.items():
        trial, runtime = pooled(contract, crew, federation, tmp_path / str(count))
        state = trial.run(runtime)
        for group, nets in expected.models.items():
            assert all(torch.equal(a, b) for a, b in zip(nets, state.models[group], strict=True)), count
        for client, version in expected.versions.items():
            mine, theirs = serial.states.load(client, version), trial.states.load(client, state.versions[client])
            assert mine.keys() == theirs.keys()
            assert all(torch.equal(mine[name].nan_to_num(-1), theirs[name].nan_to_num(-1)) for name in mine)


def test_order_of_completion_does_not_matter(crews, tmp_path):
    contract, federation = Contract.of("scaffold+odd_methods:dawdle", {"dawdle.seconds": 0.05}), tiny_federation()
    expected = Trial(contract.plan(federation), federation, tmp_path / "serial").run()
    finished = []
    trial, runtime = pooled(contract, crews[3], federation, tmp_path / "pool")
    received = PoolRuntime._open

    def noted(self, worker, reply):
        up = received(self, worker, reply)
        finished.append(up.client)
        return up

    PoolRuntime._open = noted
    try:
        state = trial.run(runtime)
    finally:
        PoolRuntime._open = received
    assert finished != sorted(finished), "nothing was out of order, so this test shows nothing"
    assert [up.client for up in trial.record.ups] == [0, 1, 2, 3] * 2
    assert torch.equal(expected.models[0][0], state.models[0][0])


def test_predictions_agree(crews, tmp_path):
    contract, federation = Contract.of("fedavg", {}), tiny_federation()
    trial, runtime = pooled(contract, crews[2], federation, tmp_path)
    models = trial.plan.initial
    rows = torch.arange(len(federation.test_images))
    predicted = runtime.predict(models, "test", rows)
    assert np.array_equal(predicted, trial.host.predict(models, "test", rows))
    odd = rows[1::2].flip(0)
    assert np.array_equal(runtime.predict(models, "test", odd), predicted[odd])


def test_inspections_agree(crews, tmp_path):
    contract, federation = Contract.of("local", {}), tiny_federation()
    trial, runtime = pooled(contract, crews[2], federation, tmp_path)
    state, serial = trial.run(runtime), SerialRuntime(trial.host)
    rows = torch.from_numpy(np.concatenate(federation.rows))
    mine, theirs = (one.inspect(trial.plan.initial, "training", rows) for one in (serial, runtime))
    assert torch.equal(mine.logits, theirs.logits)
    assert torch.equal(mine.features, theirs.features)
    server = Server(state, trial.plan, lambda: trial.host)
    asked = [(k, *own_model(server, k, state.models), torch.from_numpy(federation.rows[k])) for k in range(4)]
    for here, there in zip(serial.inspect_own(iter(asked)), runtime.inspect_own(iter(asked)), strict=True):
        assert torch.equal(here.logits, there.logits)
        assert torch.equal(here.features, there.features)
    assert not torch.equal(here.logits, mine.logits[-24:]), "a client's own net has trained"
    tests = [(k, mail, models, torch.arange(9)) for k, mail, models, _ in asked]
    for here, there in zip(serial.test(iter(tests)), runtime.test(iter(tests)), strict=True):
        assert torch.equal(here, there)


def test_a_killed_worker_is_replaced(crews, tmp_path):
    settings = {"die.once": str(tmp_path / "died")}
    contract, federation = Contract.of("odd_methods:die", settings), tiny_federation()
    trial, runtime = pooled(contract, crews[2], federation, tmp_path / "pool")
    state = trial.run(runtime)
    assert (tmp_path / "died").exists()
    expected = Trial(Contract.of("fedavg", {}).plan(federation), federation, tmp_path / "serial").run()
    assert torch.equal(expected.models[0][0], state.models[0][0])


def test_a_task_that_always_kills_ends_the_run(tmp_path):
    contract, federation = Contract.of("odd_methods:die", {}), tiny_federation()
    crew = Crew(2)
    try:
        trial, runtime = pooled(contract, crew, federation, tmp_path)
        with pytest.raises(RunError, match=r"client 1 .*FS213"):
            trial.run(runtime)
    finally:
        crew.close()


FAILED = r"client 2: ValueError: this client's disk is full \(.*odd_methods\.py, line \d+, in start\) \[FS210\]"


def test_a_failing_client_is_named(crews, tmp_path):
    contract, federation = Contract.of("odd_methods:fail", {}), tiny_federation()
    trial, _ = pooled(contract, crews[1], federation, tmp_path / "serial")
    with pytest.raises(FedSieveError, match=FAILED):
        trial.run()
    crew = Crew(1)
    try:
        trial, runtime = pooled(contract, crew, federation, tmp_path / "pool")
        with pytest.raises(FedSieveError, match=FAILED):
            trial.run(runtime)
    finally:
        crew.close()
