"""Samplers: what the loop asks of them, the server as a participant, and groups that are dealt anew each round."""

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from small_parts import Counting, Halves
from torch.nn.functional import cross_entropy

import fedsieve
from fedsieve.base.errors import CompositionError
from fedsieve.core.part import Method, Part, Sampler, Stage
from fedsieve.core.rounds import Faults, Loop
from fedsieve.core.samplers import Grouped, Nobody, Sweep, Uniform, WithServer
from fedsieve.core.server import Server, ServerState
from fedsieve.evaluate.disclosure import disclosure
from fedsieve.methods.compose import complete, compose
from fedsieve.parts.losses import CrossEntropy
from fedsieve.parts.server_fit import ServerFit
from fedsieve.parts.terms import Prox
from fedsieve.runs.checkpoint import Checkpoints
from fedsieve.runtime.serial import SerialRuntime
from fedsieve.testing import Contract, Interruption, check_method, tiny_federation

MLP = {"model": "mlp", "model.hidden": [8], "augment": "none", "momentum": 0.0, "lr": 0.1, "batch": 1000}
SEEN: list = []


def own(*parts, sampler, **stage):
    return Method("own", (Stage(parts=parts, sampler=sampler, **stage),))


def ran(*parts, sampler, federation=None, settings=MLP, rounds=2, **stage):
    SEEN.clear()
    method = own(*parts, sampler=sampler, **stage)
    with Contract.of(method, settings | {"rounds": rounds}).trial(federation) as trial:
        return trial, trial.run()


# What the loop and the checks ask


@dataclass(frozen=True, kw_only=True)
class Pairs(Sampler):
    """Two neighbours at a time."""

    def turns(self, clients):
        return clients // 2

    def __call__(self, s, ids):
        first = 2 * (s.t % self.turns(len(ids)))
        return ids[first : first + 2]


@dataclass(frozen=True, kw_only=True)
class Resting(Sampler):
    """Clients never train."""

    def __call__(self, s, ids):
        return []

    def trains(self):
        return False


def test_own_samplers_go_round_and_rest():
    laps = Method("own", (Stage("laps", laps=(3, 3), sampler=Pairs()), Stage()))
    done = complete(compose(laps), rounds=9, fraction=1.0, clients=4, local_norm=False)
    assert [stage.rounds for stage in done.stages] == [3 * 2, 9 - 3]
    frame = Method("f", (Stage("rest", rounds=1, sampler=Resting()), Stage("train")))
    joined = compose(frame, Method("p", (Stage(parts=(Prox(),)),)))
    assert [stage.parts for stage in joined.stages] == [(), (Prox(),)]
    unlabelled = replace(tiny_federation(), given=tuple(given * 0 - 1 for given in tiny_federation().given))
    plan = Contract.of(own(sampler=Resting()), MLP).plan(unlabelled)
    assert not disclosure(plan)


@pytest.mark.parametrize("sampler", [Uniform(), Nobody(), None])
def test_laps_need_turns(sampler):
    laps = Method("own", (Stage("laps", laps=(3, 3), sampler=sampler), Stage()))
    with pytest.raises(CompositionError, match="which only a sampler with turns has, such as Sweep") as problem:
        complete(compose(laps), rounds=9, fraction=1.0, clients=4, local_norm=False)
    assert problem.value.code == "FS101"


def test_a_sampler_around_another_answers_for_it():
    around = WithServer(sampler=Grouped(groups=3, sampler=Sweep(size=2)))
    assert (around.trains(), around.turns(5), around.group_count(), around.holding()) == (True, 3, 3, "clean")
    assert not WithServer(sampler=Nobody()).trains()
    open_one = Grouped(sampler=WithServer(on="noisy"))
    assert (open_one.trains(), open_one.turns(5), open_one.group_count(), open_one.holding()) == (
        True,
        None,
        2,
        "noisy",
    )
    everyday = Uniform(fraction=0.3)
    assert open_one.filled(everyday) == Grouped(sampler=WithServer(on="noisy", sampler=everyday))
    assert around.filled(everyday) == around


def test_replicas_begin_with_their_group_or_with_the_mean_of_all():
    plan = Contract.of("fedavg", MLP).plan(tiny_federation())
    s = Server(ServerState.fresh(plan), plan, lambda: None).of(1)
    s.state.models = {0: (torch.zeros(3),), 1: (torch.tensor([1.0, 2.0, 4.0]),)}
    for sampler in (Uniform(), WithServer(), Grouped(), Grouped(sampler=WithServer())):
        assert sampler.replica(s)[0].tolist() == [1.0, 2.0, 4.0]
    for sampler in (WithServer(begin="mean"), Grouped(sampler=WithServer(begin="mean"))):
        assert sampler.replica(s)[0].tolist() == [0.5, 1.0, 2.0]


# The server takes part


def trained_by_hand(plan, federation, kind, start):
    """One full-batch step on the server's own samples."""
    held = federation.server[kind]
    pixels = torch.from_numpy(federation.images[held.rows]).float().permute(0, 3, 1, 2) / 255
    model = plan.build(0)
    model.load_state_dict(plan.layout.named(start))
    x = (pixels - federation.mean[0]) / federation.std[0]
    cross_entropy(model(x), torch.from_numpy(held.labels)).backward()
    return plan.layout.flat({name: p.detach() - 0.1 * p.grad for name, p in model.named_parameters()})


@pytest.mark.parametrize("kind", ["clean", "noisy"])
@pytest.mark.parametrize(("base", "server", "client"), [("size", 16 / 112, 24 / 112), ("equal", 1 / 5, 1 / 5)])
def test_the_servers_model_enters_the_mean(kind, base, server, client):
    trial, state = ran(sampler=WithServer(on=kind), base=base, rounds=1)
    assert [up.client for up in trial.record.ups] == [0, 1, 2, 3], "the server's report does not travel"
    own_model = trained_by_hand(trial.plan, trial.federation, kind, trial.plan.initial[0])
    mean = server * own_model + client * sum(up.models[0] for up in trial.record.ups)
    assert torch.allclose(state.models[0][0], mean, atol=1e-5)
    (what,) = trial.record.rounds
    assert what.weights == pytest.approx({-1: server, 0: client, 1: client, 2: client, 3: client})
    assert (what.ups[-1].n, what.ups[-1].loss) == (16, pytest.approx(what.ups[-1].loss))


def test_bytes_are_those_of_clients_alone():
    (with_server,), (without,) = (
        ran(sampler=sampler, rounds=1)[0].record.rounds for sampler in (WithServer(), Uniform())
    )
    assert (with_server.bytes_down, with_server.bytes_up) == (without.bytes_down, without.bytes_up)


def test_it_resumes_and_keeps_the_contract():
    check_method(own(sampler=WithServer(sampler=Grouped()), base="equal"), **MLP)
    check_method(own(CrossEntropy(), sampler=WithServer(sampler=Uniform(fraction=0.5))), **MLP | {"batch": 5})


@dataclass(frozen=True, kw_only=True)
class Telling(Part):
    """Briefs, notes, keeps and weighs, for the server as for clients."""

    down = {"who": ()}
    up = {"heard": ()}
    keeps = {"times": ()}

    def brief(self, s, client):
        return {"who": float(client)}

    def finish(self, c):
        kept = c.keep(self)
        kept["times"] = kept.get("times", torch.tensor(0)) + 1
        SEEN.append((c.id, c.group, int(kept["times"]), c.n, bool((c.labels.given >= 0).all())))
        return {"heard": float(c.brief(self)["who"])}

    def weigh(self, s, ups, w):
        assert {k: up.notes[self.name]["heard"] for k, up in ups.items()} == {k: float(k) for k in ups}
        return {k: 0.5 if k < 0 else 0.5 / (len(ups) - 1) for k in ups}


def test_parts_treat_it_as_one_who_takes_part():
    trial, _ = ran(Telling(), sampler=WithServer())
    assert [one for one in SEEN if one[0] < 0] == [(-1, 0, 1, 16, True), (-1, 0, 2, 16, True)]
    assert all(what.weights[-1] == pytest.approx(0.5) for what in trial.record.rounds)


def test_there_is_one_of_it_in_each_group():
    trial, state = ran(Halves(), Telling(), sampler=WithServer(), rounds=3)
    assert sorted(one[:3] for one in SEEN if one[0] < 0) == [(-2, 1, 2), (-2, 1, 3), (-1, 0, 1), (-1, 0, 2), (-1, 0, 3)]
    last = trial.record.rounds[2]
    for group in (0, 1):
        members = {k for k, up in last.ups.items() if up.group == group}
        assert members == {-1 - group, group, group + 2}
        assert sum(last.weights[k] for k in members) == pytest.approx(1)
    assert not torch.equal(state.models[0][0], state.models[1][0])


@dataclass(frozen=True, kw_only=True)
class Astray(Part):
    """The server's own model goes astray in the first round."""

    how: str

    def finish(self, c):
        if c.id < 0 and c.round == 0:
            if self.how == "infinite":
                c.nets[0].vector.fill_(torch.inf)
            elif self.how == "far":
                c.nets[0].vector.mul_(1e6)
            else:
                c.skip("by design")
        return {}


@pytest.mark.parametrize(("how", "code"), [("infinite", "FS203"), ("far", "FS230"), ("skips", None)])
def test_its_report_is_admitted_and_limited_like_any(how, code):
    trial, state = ran(Astray(how=how), sampler=WithServer())
    first, second = trial.record.rounds
    assert [(event.client, event.code) for event in first.refused] == ([(-1, code)] if code else [])
    assert first.weights.keys() == {0, 1, 2, 3}
    assert second.weights.keys() == {-1, 0, 1, 2, 3}
    assert bool(torch.isfinite(state.models[0][0]).all())


def test_neither_dropouts_nor_stragglers_touch_it():
    method = own(sampler=WithServer())
    with Contract.of(method, MLP | {"rounds": 4, "epochs": 3}).trial() as trial:
        store = Checkpoints(trial.folder, trial.states)
        server = Server(ServerState.fresh(trial.plan), trial.plan, lambda: trial.host, store.retained)
        Loop(SerialRuntime(trial.host), store, trial.record, Faults(dropout=0.9, stragglers=0.9)).run(server)
    assert all(-1 in what.ups and -1 not in what.dropped for what in trial.record.rounds)
    assert any(3 in what.dropped for what in trial.record.rounds)


@dataclass(frozen=True, kw_only=True)
class Judging(Part):
    """Writes a column for everybody who reported."""

    writes = frozenset({"trust"})
    verdict = "trust"

    def learn(self, s, ups, w):
        s.columns.write("trust", {k: k / 10 for k in sorted(ups, reverse=True)})


def test_it_has_no_row_in_the_client_table():
    _, state = ran(Judging(), sampler=WithServer())
    assert state.columns["trust"].tolist() == pytest.approx([0.0, 0.1, 0.2, 0.3])


@dataclass(frozen=True, kw_only=True)
class Consulting(Judging):
    """Tells clients what the table says of them."""

    down = {"trust": ()}

    def brief(self, s, client):
        return {"trust": float(s.columns["trust"][client]) if "trust" in s.columns else 0.5}


@pytest.mark.parametrize(
    ("code", "build", "said"),
    [
        ("FS112", lambda: (replace(tiny_federation(), server={}), own(sampler=WithServer())), "WithServer reads clean"),
        ("FS118", lambda: (None, own(Consulting(), sampler=WithServer())), r"Consulting tells .* columns \['trust'\]"),
        (
            "FS105",
            lambda: (None, own(Halves(), sampler=Grouped())),
            "Grouped and Halves both write client column 'group'",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_the_run(code, build, said):
    federation, method = build()
    with pytest.raises(CompositionError, match=said) as problem:
        Contract.of(method, MLP).plan(federation or tiny_federation())
    assert problem.value.code == code


def test_what_the_server_keeps_follows_a_split():
    fit = ServerFit(parts=(CrossEntropy(), Counting()))
    method = own(Halves(), fit, sampler=Uniform())
    with Contract.of(method, MLP | {"rounds": 3}).trial() as trial:
        state = trial.run()
        for id in (-1, -2):
            assert int(trial.states.load(id, state.versions[id])["keep/Counting/times"]) == 3


def test_the_record_shows_it_as_the_server(tmp_path):
    small = {"model": "mlp", "model.hidden": [4], "clients": 3, "epochs": 1, "runtime": "serial", "server.clean": 60}
    out = tmp_path / "run"
    method = {"method": "odd_methods:participating+fedds", "server.unlabelled": 40, "rounds": 2}
    summary = fedsieve.run(out=str(out), quiet=True, **small, **method)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [[(one["group"], one["status"], one["n"]) for one in row["server"]] for row in rows] == [
        [(1, "reported", 60), (0, "reported", 60)]
    ] * 2
    assert all(0 < one["weight"] < 1 and one["loss"] > 0 for row in rows for one in row["server"])
    assert [row["reports"] for row in rows] == [3, 3]
    told = [json.loads(line) for line in (out / "clients.jsonl").read_text().splitlines()]
    assert [row["client"] for row in told] == [0, 1, 2] * 2
    assert summary["rounds"] == 2
    with np.load(out / "exhibits.npz") as shown:
        assert shown["0/clients"].tolist() == [0, 1, 2]
        assert len(shown["1"]) == 3
    assert "mean weight of the server" in (out / "report.html").read_text()


# Groups that are dealt anew


def test_groups_are_dealt_anew_each_round():
    trial, state = ran(sampler=Grouped(groups=2), rounds=6)
    deals = []
    for what in trial.record.rounds:
        groups = {k: up.group for k, up in what.ups.items()}
        assert sorted(groups) == [0, 1, 2, 3]
        assert sorted(groups.values()) == [0, 0, 1, 1]
        deals.append(tuple(groups.values()))
    assert len(set(deals)) > 1
    assert state.groups() == [0, 1]


def test_sizes_differ_by_one_at_most_and_cover_the_chosen():
    federation = tiny_federation(degenerate=True)
    trial, _ = ran(sampler=Grouped(groups=3, sampler=Uniform(fraction=0.8)), federation=federation)
    for what in trial.record.rounds:
        sizes = [sum(up.group == g for up in what.ups.values()) for g in range(3)]
        assert sum(sizes) == 7
        assert max(sizes) - min(sizes) == 1


def test_groups_are_combined_apart_and_inherited():
    trial, state = ran(sampler=Grouped(groups=2), rounds=2)
    models = {0: trial.plan.initial[0], 1: trial.plan.initial[0]}
    for t, what in enumerate(trial.record.rounds):
        downs = {k: down for k, down in trial.record.downs if down.mail.round == t}
        ups = {up.client: up for up in trial.record.ups if up.round == t}
        for k, up in what.ups.items():
            assert torch.equal(downs[k].models[0], models[up.group]), "a client starts from the model of its slot"
        for g in models:
            mine = [up.models[0] for k, up in ups.items() if what.ups[k].group == g]
            assert len(mine) == 2
            models[g] = torch.stack(mine).double().mean(0).float()
    assert all(torch.allclose(state.models[g][0], models[g], atol=1e-6) for g in models)


def test_one_group_is_no_grouping():
    _, plain = ran(sampler=Uniform())
    _, grouped = ran(sampler=Grouped(groups=1))
    assert torch.equal(plain.models[0][0], grouped.models[0][0])


@dataclass(frozen=True, kw_only=True)
class Set(Part):
    """A client's training sets all weights to three times its number from one on, the server's to 0 and 6 by group."""

    def finish(self, c):
        c.nets[0].vector.fill_(6.0 * c.group if c.id < 0 else 3.0 * (c.id + 1))
        return {}


@dataclass(frozen=True, kw_only=True)
class GroupAverage(Part):
    """The server's replicas start from the mean of all groups; clients from their own."""

    down = {"mean": ("<=V",)}

    def brief(self, s, client):
        mean = torch.stack([nets[0] for nets in s.state.models.values()]).mean(0)
        return {"mean": mean if client < 0 else mean[:0]}

    def start(self, c):
        if len(c.brief(self)["mean"]):
            c.nets[0].vector.copy_(c.brief(self)["mean"])
        SEEN.append((c.round, c.id, c.group, float(c.nets[0].vector[0])))


@dataclass(frozen=True, kw_only=True)
class Dealt(Grouped):
    """The first two clients, then the others."""

    def __call__(self, s, ids):
        chosen = super().__call__(s, ids)
        s.columns.write("group", {k: float(k > 1) for k in chosen})
        return chosen


def test_grouping_as_in_ssfl():
    """Replicas 0 and 6, clients 3, 6 and 9, 12, 15: means 3 and 10.5, replicas go on from 6.75."""
    federation = tiny_federation()
    rows, given = ((*each, each[0]) for each in (federation.rows, federation.given))
    five = replace(federation, rows=rows, given=given, served=None)
    sampler = WithServer(sampler=Dealt(sampler=Uniform()))
    settings = MLP | {"admit.factor": 0.0}
    _, state = ran(GroupAverage(), Set(), sampler=sampler, base="equal", federation=five, settings=settings)
    second = {(client, group): value for t, client, group, value in SEEN if t == 1}
    assert second == {(-1, 0): 6.75, (-2, 1): 6.75, (0, 0): 3, (1, 0): 3, (2, 1): 10.5, (3, 1): 10.5, (4, 1): 10.5}
    assert [float(state.models[g][0][0]) for g in (0, 1)] == [3, 10.5]


def test_dealt_groups_resume():
    method = own(sampler=WithServer(sampler=Grouped()))
    settings = MLP | {"rounds": 3}
    with Contract.of(method, settings).trial() as whole, Contract.of(method, settings).trial() as cut:
        expected = whole.run()
        with pytest.raises(Interruption):
            cut.run(fail_after=9)
        found = type(cut)(cut.plan, cut.federation, cut.folder).run()
        assert all(torch.equal(found.models[g][0], expected.models[g][0]) for g in (0, 1))
        assert torch.equal(found.columns["group"], expected.columns["group"])
