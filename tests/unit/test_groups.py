"""Groups, conversations, and memory by group or by client."""

from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from fedsieve.base.errors import RunError
from fedsieve.core.part import Method, Part, Share, Stage
from fedsieve.core.server import Server, ServerState
from fedsieve.core.types import Ask, Topic
from fedsieve.testing import Contract, tiny_federation

MLP = {"model": "mlp", "model.hidden": [8]}


@contextmanager
def running(*parts, federation=None, method=None, **settings):
    """A trial that has run, with its folder still there, and its last state."""
    own = method or Method("own", (Stage(parts=parts),))
    with Contract.of(own, {**MLP, **settings}).trial(federation) as trial:
        yield trial, trial.run()


def ran(*parts, **settings):
    with running(*parts, **settings) as result:
        return result


@dataclass(frozen=True, kw_only=True)
class Splitting(Part):
    """Gives even and odd clients groups of their own at the end of the first round."""

    init: str = "copy"
    writes = frozenset({"group"})

    def talk(self, s, moment):
        if moment == "round_end" and s.t == 0:
            s.split({k: k % 2 for k in s.clients}, init=self.init)
        return
        yield

    def answer(self, c, topic, question):
        return {}


@dataclass(frozen=True, kw_only=True)
class ByMajority(Part):
    """Asks for class counts before training and joins clients with the same largest class."""

    topics = {"counts": Topic({"scale": ()}, {"counts": ("C",)})}
    writes = frozenset({"group"})
    labels = True

    def talk(self, s, moment):
        if moment == "start":
            answers = yield Ask("counts", {k: {"scale": 2.0} for k in s.clients})
            largest = {k: int(answer["counts"].argmax()) for k, answer in answers.items()}
            names = sorted(set(largest.values()))
            s.split({k: names.index(c) for k, c in largest.items()})

    def answer(self, c, topic, question):
        return {"counts": question["scale"] * torch.bincount(c.labels.given, minlength=c.n_classes).float()}


@dataclass(frozen=True, kw_only=True)
class Tallying(Part):
    """Counts reports, by group and by client."""

    remembers = {"reports": (), "last": ("K", 2)}
    sees = "each"

    def recall(self, s):
        return {"reports": torch.tensor(0.0)}

    def learn(self, s, ups, w):
        s.memory["reports"] = s.memory["reports"] + len(ups)
        for k in ups:
            s.rows("last")[k] = torch.tensor([float(k), float(s.round)])


@dataclass(frozen=True, kw_only=True)
class EachRound(Part):
    """Asks within training, with the model sent along; the client keeps a count of the questions."""

    topics = {"norm": Topic({}, {"norm": (), "asked": ()})}
    keeps = {"asked": ()}
    writes = frozenset({"asked"})

    def talk(self, s, moment):
        if moment == "round":
            answers = yield Ask("norm", {k: {} for k in (1, 3)}, models=True)
            for answer in answers.values():
                assert answer["norm"] == pytest.approx(float(s.models[0].norm()), rel=1e-5)
            s.columns.write("asked", {k: float(answer["asked"]) for k, answer in answers.items()})

    def answer(self, c, topic, question):
        kept = c.keep(self)
        kept["asked"] = kept.get("asked", torch.tensor(0.0)) + 1
        return {"norm": float(c.nets[0].vector.norm()), "asked": float(kept["asked"])}


def majority_federation():
    """Clients 0 and 2 hold mostly class 1, clients 1 and 3 mostly class 3."""
    federation = tiny_federation()
    given = [np.where(np.arange(24) < 20, 1 if k % 2 == 0 else 3, labels) for k, labels in enumerate(federation.given)]
    return type(federation)(**{**vars(federation), "given": tuple(given)})


def test_a_conversation_before_training_clusters_the_clients():
    trial, state = ran(ByMajority(), federation=majority_federation(), rounds=1)
    assert state.columns["group"].tolist() == [0, 1, 0, 1]
    assert len(trial.record.answers) == 4
    models = {up.client: up.models[0] for up in trial.record.ups}
    for group, members in {0: (0, 2), 1: (1, 3)}.items():
        mean = sum(models[k].double() for k in members) / 2
        assert torch.allclose(state.models[group][0].double(), mean, atol=1e-6)
    assert trial.record.rounds[0].weights == pytest.approx(dict.fromkeys(range(4), 0.5))


def test_groups_start_as_copies_and_are_combined_apart():
    trial, state = ran(Splitting(), rounds=2)
    second = {k: down.models[0] for k, down in trial.record.downs[4:]}
    assert all(torch.equal(second[k], second[0]) for k in range(4)), "both groups start from the common model"
    reported = {up.client: up.models[0] for up in trial.record.ups[4:]}
    for group in (0, 1):
        mean = sum(reported[k].double() for k in (group, group + 2)) / 2
        assert torch.allclose(state.models[group][0].double(), mean, atol=1e-6)
    assert not torch.equal(state.models[0][0], state.models[1][0])


def test_groups_may_start_from_fresh_weights_of_their_own():
    trial, _ = ran(Splitting(init="fresh"), rounds=2)
    second = {k: down.models[0] for k, down in trial.record.downs[4:]}
    for group in (0, 1):
        fresh = trial.plan.fresh(group)[0]
        assert all(torch.equal(second[k], fresh) for k in (group, group + 2))
    assert not torch.equal(second[0], second[1])


def test_memory_is_copied_to_each_group_and_rows_stay_with_their_client():
    _, state = ran(Splitting(), Tallying(), rounds=2)
    assert {group: float(state.memory["Tallying", group]["reports"]) for group in (0, 1)} == {0: 6.0, 1: 6.0}
    rows = state.rows["Tallying", "last"]
    assert {k: row.tolist() for k, row in rows.items()} == {k: [float(k), 1.0] for k in range(4)}


def test_members_are_the_clients_of_a_group():
    trial, state = ran(Splitting(), rounds=2)
    server = Server(state, trial.plan, lambda: trial.host)
    assert server.of(0).members() == [0, 2]
    assert server.of(1).members() == [1, 3]


def test_groups_that_lose_all_members_are_gone():
    plan = Contract.of("fedavg", MLP).plan(tiny_federation())
    server = Server(ServerState.fresh(plan), plan, lambda: None)
    server.split({0: 3, 1: 3, 2: 5, 3: 5})
    assert server.state.groups() == [3, 5]
    server.split({0: 5})
    assert server.state.columns["group"].tolist() == [5, 3, 5, 5]


def test_a_conversation_inside_training_carries_model_and_state():
    with running(EachRound(), rounds=3) as (trial, state):
        assert float(trial.states.load(1, state.versions[1])["keep/EachRound/asked"]) == 3
    asked = state.columns["asked"]
    assert asked[[1, 3]].tolist() == [3.0, 3.0]
    assert bool(asked[[0, 2]].isnan().all())
    assert len(trial.record.answers) == 6
    talk = 2 * 2 * 8
    model = 4 * trial.plan.layout.size
    for what in trial.record.rounds:
        assert what.bytes_up == 4 * model + talk
        assert what.bytes_down == (4 + 2) * model
        assert what.bytes_talk == talk + 2 * model


def test_rows_are_checkpointed_one_by_one_and_come_back():
    with running(Tallying(), rounds=3, fraction=0.5) as (trial, state):
        files = sorted(path.name for path in (trial.folder / "rows").iterdir())
        assert all(name.startswith("Tallying.last.") for name in files)
        assert len({name.split(".")[2] for name in files}) == len(state.rows["Tallying", "last"])
        again = type(trial)(trial.plan, trial.federation, trial.folder).run()
        for k, row in state.rows["Tallying", "last"].items():
            assert torch.equal(again.rows["Tallying", "last"][k], row)
        assert again.rows.keys() == state.rows.keys()


# What is not declared


@dataclass(frozen=True, kw_only=True)
class Breaking(Part):
    """Does one thing that it does not declare."""

    what: str
    topics = {"known": Topic({"q": ()}, {"a": ()})}
    down = {"told": ()}
    up = {"said": ()}
    keeps = {"mine": ()}
    remembers = {"kept": ("C",), "number": ()}

    def brief(self, s, client):
        return {"other": 1.0} if self.what == "brief" else {"told": 1.0}

    def finish(self, c):
        if self.what == "keep":
            c.keep(self)["other"] = torch.tensor(1.0)
        return {} if self.what == "finish" else {"said": 1.0}

    def learn(self, s, ups, w):
        if self.what == "memory":
            s.memory["other"] = torch.tensor(1.0)
        if self.what == "rows":
            s.rows("kept")[0] = torch.tensor(1.0)
        if self.what == "rows of a number":
            s.rows("number")[0] = torch.tensor(1.0)
        if self.what == "column":
            s.columns.write("other", {0: 1.0})
        if self.what == "group":
            s.split({0: 1})
        if self.what == "data":
            assert s.clean

    def talk(self, s, moment):
        if moment == "start":
            topic = "unknown" if self.what == "topic" else "known"
            question = {"r": 1.0} if self.what == "question" else {"q": 1.0}
            yield Ask(topic, {0: question})

    def answer(self, c, topic, question):
        return {"b": 1.0} if self.what == "answer" else {"a": 1.0}


UNDECLARED = {
    "brief": r"Breaking.brief returned \['other'\], but the part declares \['told'\]",
    "finish": r"client 0: Breaking.finish returned \[\], but the part declares \['said'\]",
    "keep": r"client 0: Breaking keeps 'other', but declares only \['mine'\]",
    "memory": r"Breaking remembers 'other', but declares only \['kept', 'number'\]",
    "rows": "Breaking uses rows of 'kept', but declares no such memory with axis K",
    "rows of a number": "Breaking uses rows of 'number', but declares no such memory with axis K",
    "column": r"Breaking writes column 'other', but declares only \[\]",
    "group": r"Breaking writes column 'group', but declares only \[\]",
    "data": "Breaking looks at the server's clean data without declaring it",
    "topic": r"Breaking asks about 'unknown', but declares only \['known'\]",
    "question": r"Breaking.talk returned \['r'\], but the part declares \['q'\]",
    "answer": r"client 0: Breaking.answer returned \['b'\], but the part declares \['a'\]",
}


@pytest.mark.parametrize("what", UNDECLARED)
def test_what_is_not_declared_stops_the_run(what):
    with pytest.raises(RunError, match=UNDECLARED[what]) as problem:
        ran(Breaking(what=what), rounds=1)
    assert problem.value.code == "FS206"


def test_the_same_part_keeping_to_its_declarations_runs():
    trial, _ = ran(Breaking(what=""), rounds=1)
    assert len(trial.record.ups) == 4


# One part, several stages


@dataclass(frozen=True, kw_only=True)
class Echo(Part):
    """Asks clients for its own setting."""

    level: int
    topics = {"level": Topic({}, {"level": ()})}
    writes = frozenset({"heard"})

    def talk(self, s, moment):
        if moment == "start":
            answers = yield Ask("level", {0: {}})
            s.columns.write("heard", {s.state.stage: float(answers[0]["level"])})

    def answer(self, c, topic, question):
        return {"level": float(self.level)}


def test_a_client_answers_with_the_settings_of_the_stage():
    stages = tuple(Stage(str(level), rounds=0, parts=(Echo(level=level),)) for level in (7, 8))
    _, state = ran(method=Method("own", stages))
    assert state.columns["heard"].tolist()[:2] == [7.0, 8.0]


def test_nothing_shared_means_nothing_combined():
    method = Method("own", share=Share(down=(), up=(), keep=("*",)), test="clients")
    with running(method=method, rounds=2) as (trial, state):
        own = [trial.states.load(k, state.versions[k])["net/0"] for k in range(4)]
    assert torch.equal(state.models[0][0], trial.plan.initial[0])
    assert len({tuple(vector.tolist()) for vector in own}) == 4


def test_a_snapshot_is_not_changed_by_what_follows():
    state = ServerState({0: (torch.zeros(2),)}, {"group": torch.zeros(3)}, round=4, versions={1: 2})
    state.memory["Part", 0] = {"x": torch.ones(1)}
    state.rows["Part", "y"] = {1: torch.ones(1)}
    kept = state.copy()
    assert kept == state
    state.memory["Part", 0]["x"] = torch.zeros(1)
    state.rows["Part", "y"][2] = torch.zeros(1)
    state.models[1], state.versions[1], state.round = state.models[0], 3, 5
    assert (kept.round, kept.versions, [*kept.models]) == (4, {1: 2}, [0])
    assert (kept.memory["Part", 0]["x"], [*kept.rows["Part", "y"]]) == (1, [1])
    assert kept.models[0] is state.models[0]


@dataclass(frozen=True, kw_only=True)
class Opening(Part):
    """Writes down at the start of a round what is there."""

    def round(self, s):
        ORDER.append(("round", s.round, s.t, s.group, self.name))

    def talk(self, s, moment):
        ORDER.append((moment, s.round))
        return
        yield

    def eligible(self, s, ids):
        ORDER.append(("eligible", s.round))
        return ids

    def answer(self, c, topic, question):
        return {}


@dataclass(frozen=True, kw_only=True)
class Second(Part):
    def round(self, s):
        ORDER.append(("round", s.round, s.t, s.group, self.name))


ORDER: list = []


def test_a_round_begins_before_anybody_is_asked_or_chosen():
    ORDER.clear()
    ran(Splitting(), Opening(), Second(), rounds=2)
    assert ORDER == [
        ("start", 0),
        ("round", 0, 0, 0, "Opening"),
        ("round", 0, 0, 0, "Second"),
        ("round", 0),
        ("eligible", 0),
        ("round_end", 0),
        ("round", 1, 1, 0, "Opening"),
        ("round", 1, 1, 0, "Second"),
        ("round", 1, 1, 1, "Opening"),
        ("round", 1, 1, 1, "Second"),
        ("round", 1),
        ("eligible", 1),
        ("round_end", 1),
        ("end", 2),
    ]
