"""Checkpoints: damage of any kind is noticed, the one before is used, and nothing that is needed is deleted."""

from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch

from fedsieve.base.errors import RunError
from fedsieve.base.files import Damaged, read_json, read_tensors, write_json, write_tensors
from fedsieve.core.client_states import ClientStates
from fedsieve.core.part import Method, Part, Stage
from fedsieve.core.rounds import Loop
from fedsieve.core.server import Server, ServerState
from fedsieve.core.types import Ask, Topic
from fedsieve.runs.checkpoint import Checkpoints
from fedsieve.runtime.serial import SerialRuntime
from fedsieve.testing import Contract, Interruption, Record, Trial, tiny_federation

MLP = {"model": "mlp", "model.hidden": [4], "batch": 100}


@dataclass(frozen=True, kw_only=True)
class Everything(Part):
    """Keeps something in every place there is: columns, memory, rows, and the clients' own state."""

    keeps = {"seen": (2,)}
    remembers = {"sum": (3,), "last": ("K", 2)}
    writes = frozenset({"level"})

    def recall(self, s):
        return {"sum": torch.zeros(3)}

    def finish(self, c):
        c.keep(self)["seen"] = torch.tensor([c.id, c.round])
        return {}

    def learn(self, s, ups, w):
        s.memory["sum"] = s.memory["sum"] + 1
        for k in ups:
            s.rows("last")[k] = torch.tensor([k, s.round])
        s.columns.write("level", {k: s.round + k / 10 for k in ups})


METHOD = Method("own", (Stage(parts=(Everything(),)),))


class Stopping(Record):
    """A watch that ends the run after some rounds."""

    def __init__(self, after):
        super().__init__()
        self.after = after

    def round_done(self, s, what):
        super().round_done(s, what)
        if s.round == self.after:
            raise Interruption


def run_until(trial, after, every=1):
    store = Checkpoints(trial.folder, trial.states, every)
    server = Server(ServerState.fresh(trial.plan), trial.plan, lambda: trial.host, store.retained)
    with pytest.raises(Interruption):
        Loop(SerialRuntime(trial.host), store, Stopping(after)).run(server)
    return store


@contextmanager
def stopped(rounds=3, method=METHOD, every=1):
    """A run that was cut off in the round after `rounds`."""
    with Contract.of(method, {**MLP, "rounds": rounds + 4}).trial() as trial:
        run_until(trial, rounds + 1, every)
        yield trial


def loaded(trial):
    """The state found, and what was said about damage."""
    said = []
    return Checkpoints(trial.folder, trial.states).load(said.append), said


def newest(trial, kind):
    """A file that only the newest checkpoint needs."""
    if kind == "client state":
        state, _ = loaded(trial)
        return trial.states.path(2, state.versions[2])
    pattern = {"manifest": "*.json", "tensors": "*.safetensors", "rows": "rows/*.2.*.safetensors"}[kind]
    return max(trial.folder.glob(pattern))


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[int(place * (len(content) - 1))] ^= 1
    path.write_bytes(bytes(content))


DAMAGE = {
    "first byte": lambda path: flip(path, 0),
    "early byte": lambda path: flip(path, 0.1),
    "middle byte": lambda path: flip(path, 0.5),
    "late byte": lambda path: flip(path, 0.9),
    "last byte": lambda path: flip(path, 1),
    "cut in half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "last byte cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "byte added": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "emptied": lambda path: path.write_bytes(b""),
    "gone": lambda path: path.unlink(),
}
KINDS = ("manifest", "tensors", "rows", "client state")


def test_a_whole_checkpoint_holds_everything():
    with stopped() as trial:
        state, said = loaded(trial)
        assert (state.round, state.t, state.stage, state.started, said) == (3, 3, 0, True, [])
        assert state.memory["Everything", 0]["sum"].tolist() == [3.0] * 3
        assert {k: row.tolist() for k, row in state.rows["Everything", "last"].items()} == {k: [k, 2] for k in range(4)}
        assert state.columns["level"].tolist() == pytest.approx([2.0, 2.1, 2.2, 2.3])
        for k in range(4):
            assert trial.states.load(k, state.versions[k])["keep/Everything/seen"].tolist() == [k, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_any_damage_makes_the_one_before_be_used(kind):
    with stopped() as trial:
        path = newest(trial, kind)
        whole = path.read_bytes()
        for name, damage in DAMAGE.items():
            damage(path)
            state, said = loaded(trial)
            if kind == "manifest" and name == "gone":
                assert said == []
            else:
                assert len(said) == 1, name
                assert "is damaged and passed over" in said[0]
                assert path.name in said[0]
            assert state.round == 2, name
            assert state.rows["Everything", "last"][1].tolist() == [1, 1]
            path.write_bytes(whole)
        assert loaded(trial)[0].round == 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_resumed_from_the_one_before_ends_the_same(kind):
    with Contract.of(METHOD, {**MLP, "rounds": 5}).trial() as whole:
        expected = whole.run()
    with Contract.of(METHOD, {**MLP, "rounds": 5}).trial() as trial:
        run_until(trial, 4)
        flip(newest(trial, kind), 0.5)
        found = Trial(trial.plan, trial.federation, trial.folder).run()
    assert torch.equal(found.models[0][0], expected.models[0][0])
    assert found.versions == expected.versions
    assert all(
        torch.equal(found.rows["Everything", "last"][k], expected.rows["Everything", "last"][k]) for k in range(4)
    )


def test_if_no_checkpoint_is_whole_that_is_said():
    with stopped() as trial:
        for path in trial.folder.glob("*.json"):
            flip(path, 0.5)
        with pytest.raises(RunError, match=r"no checkpoint is whole\. Start the run anew") as problem:
            loaded(trial)
        assert problem.value.code == "FS212"


def test_another_format_is_not_taken_for_damage():
    with stopped() as trial:
        for path in trial.folder.glob("*.json"):
            write_json(path, read_json(path) | {"format": 0})
        with pytest.raises(RunError, match=r"written by another version of fedsieve \(format 0, not") as problem:
            loaded(trial)
        assert problem.value.code == "FS212"


@pytest.mark.parametrize(
    ("kind", "reason"), [("rows", "holds no row"), ("tensors", "its tensors have the unknown name 'other'")]
)
def test_whole_files_that_hold_something_else_are_passed_over(kind, reason):
    with stopped() as trial:
        write_tensors(newest(trial, kind), {"other": torch.ones(2)})
        state, (said,) = loaded(trial)
        assert reason in said
        assert state.round == 2


def test_a_run_that_never_saved_has_no_state(tmp_path):
    assert Checkpoints(tmp_path, ClientStates(tmp_path / "clients")).load(print) is None


def test_a_client_state_that_is_missing_is_named(tmp_path):
    states = ClientStates(tmp_path)
    states.save(3, 5, {"x": torch.ones(2)}, set())
    assert states.load(3, 0) == {}
    with pytest.raises(RunError, match=r"client 3: version 4 .* is missing; there are versions \[5\]. Restore") as gone:
        states.load(3, 4)
    assert gone.value.code == "FS205"
    flip(states.path(3, 5), 1)
    with pytest.raises(RunError, match="does not match its checksum"):
        states.load(3, 5)


def test_versions_that_somebody_may_ask_for_are_kept(tmp_path):
    states = ClientStates(tmp_path)
    for version in (1, 2, 3):
        states.save(0, version, {"x": torch.tensor(version)}, {1, version - 1})
    assert states.versions(0) == [1, 2, 3]
    states.save(0, 4, {"x": torch.tensor(4)}, {3})
    assert states.versions(0) == [3, 4]
    assert states.save(0, 5, {}, {3, 4}) == 0, "an empty state is no file"


class Audited(Checkpoints):
    """Whenever a client may delete or the server has saved, every kept checkpoint must still be whole."""

    def commit(self, s):
        super().commit(s)
        self.audit()

    def audit(self):
        for path in self.folder.glob("[0-9]*.json"):
            state, _ = Checkpoints(self.folder, self._states)._read(path)
            assert state.models


class AuditedRuntime(SerialRuntime):
    def __init__(self, host, store):
        super().__init__(host)
        self._store = store

    def train(self, messages):
        for up in super().train(messages):
            self._store.audit()
            yield up


@pytest.mark.parametrize("every", [1, 3])
def test_what_a_checkpoint_names_is_never_deleted(every):
    with Contract.of(METHOD, {**MLP, "rounds": 7, "fraction": 0.5}).trial() as trial:
        store = Audited(trial.folder, trial.states, every)
        server = Server(ServerState.fresh(trial.plan), trial.plan, lambda: trial.host, store.retained)
        Loop(AuditedRuntime(trial.host, store), store, Record()).run(server)
        assert len(list(trial.folder.glob("[0-9]*.json"))) == 2
        assert len(list(trial.folder.glob("[0-9]*.safetensors"))) == 2
        assert not list(trial.folder.rglob("*.tmp"))
        for k in range(4):
            assert len(trial.states.versions(k)) <= 3


def test_only_changed_rows_are_written():
    with Contract.of(METHOD, {**MLP, "rounds": 3, "fraction": 0.25}).trial() as trial:
        trial.run()
        reports = [up.client for up in trial.record.ups]
        numbers = {path.name.split(".")[2]: int(path.name.split(".")[3]) for path in (trial.folder / "rows").iterdir()}
        assert len(numbers) == len(set(reports))
        last = {str(k): 2 + max(i for i, r in enumerate(reports) if r == k) for k in reports}  # the opening is number 1
        assert {k: max(n for kk, n in numbers.items() if kk == k) for k in numbers} == last


def test_saving_every_few_rounds_and_what_is_left_when_asked():
    with Contract.of(METHOD, {**MLP, "rounds": 9}).trial() as trial:
        store = run_until(trial, 6, every=3)
        assert loaded(trial)[0].round == 3
        store.flush()
        assert loaded(trial)[0].round == 5, "the last round that was whole"
        store.flush()
        assert len(list(trial.folder.glob("[0-9]*.json"))) == 2


@dataclass(frozen=True, kw_only=True)
class Chatty(Part):
    """Keeps something in each message, two a round."""

    topics = {"x": Topic({}, {})}
    keeps = {"count": ()}

    def talk(self, s, moment):
        if moment == "round":
            yield Ask("x", {k: {} for k in s.clients})

    def answer(self, c, topic, question):
        return self.finish(c)

    def finish(self, c):
        c.keep(self)["count"] = c.keep(self).get("count", torch.tensor(0)) + 1
        return {}


def test_what_is_left_to_save_is_still_there_after_a_conversation():
    with Contract.of(Method("own", (Stage(parts=(Chatty(),)),)), {**MLP, "rounds": 9}).trial() as trial:
        run_until(trial, 6, every=3).flush()
        assert loaded(trial)[0].round == 5


def test_a_flush_after_a_damaged_load_keeps_the_numbers_apart():
    with stopped() as trial:
        flip(newest(trial, "tensors"), 0.5)
        store = Checkpoints(trial.folder, trial.states)
        state = store.load(lambda _: None)
        assert state.round == 2
        for k in range(4):
            assert store.retained(k) == (state.versions[k],)


def test_states_with_groups_and_several_nets_come_back(tmp_path):
    states = ClientStates(tmp_path / "clients")
    plan = Contract.of(Method("own", nets=2), MLP).plan(tiny_federation())
    server = Server(ServerState.fresh(plan), plan, lambda: None)
    server.split({0: 1, 1: 1, 2: 4, 3: 4}, init="fresh")
    store = Checkpoints(tmp_path, states)
    store.commit(server)
    found = Checkpoints(tmp_path, states).load(print)
    assert sorted(found.models) == [1, 4]
    for group, nets in server.state.models.items():
        assert len(nets) == 2
        assert all(torch.equal(a, b) for a, b in zip(nets, found.models[group], strict=True))


def test_damaged_names_the_file(tmp_path):
    with pytest.raises(Damaged, match=r"nothing\.safetensors is missing"):
        read_tensors(tmp_path / "nothing.safetensors")
