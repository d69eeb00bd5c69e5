"""Training at the server, with the parts and the loop that clients use."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from small_parts import Counting
from typer.testing import CliRunner

from fedsieve.base.errors import CompositionError, ConfigError, RunError
from fedsieve.base.options import build, options_of
from fedsieve.cli.app import app
from fedsieve.core.part import Method, Part, Share, Stage
from fedsieve.core.rounds import Loop
from fedsieve.core.samplers import Nobody
from fedsieve.core.server import Server, ServerState
from fedsieve.core.types import Reads
from fedsieve.parts.losses import CrossEntropy, GeneralisedCrossEntropy, generalised_cross_entropy
from fedsieve.parts.server_fit import ServerFit
from fedsieve.runs.checkpoint import Checkpoints
from fedsieve.runtime.serial import SerialRuntime
from fedsieve.settings.planning import config_of
from fedsieve.testing import Contract, Interruption, tiny_federation

MLP = {"model": "mlp", "model.hidden": [8], "augment": "none", "momentum": 0.0, "lr": 0.1}
GCE = ServerFit(parts=(GeneralisedCrossEntropy(q=0.7),), batch=1000)


def ran(*parts, federation=None, settings=MLP, **stage):
    with Contract.of(Method("own", (Stage(parts=parts, **stage),)), settings).trial(federation) as trial:
        state = trial.run()
    return trial, state


def by_hand(plan, federation, kind, steps, lr=0.1):
    """Full-batch gradient steps on the server's own samples."""
    held = federation.server[kind]
    pixels = torch.from_numpy(federation.images[held.rows]).float().permute(0, 3, 1, 2) / 255
    x = (pixels - federation.mean[0]) / federation.std[0]
    target = torch.nn.functional.one_hot(torch.from_numpy(held.labels), 4).float()
    model = plan.build(0)
    for _ in range(steps):
        model.zero_grad()
        generalised_cross_entropy(model(x), target, 0.7).mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= lr * parameter.grad
    return plan.layout.flat(model.state_dict())


@pytest.mark.parametrize("kind", ["clean", "noisy"])
def test_the_server_trains_on_its_own_labels(kind):
    federation = tiny_federation()
    trial, state = ran(replace(GCE, on=kind), sampler=Nobody())
    assert torch.allclose(state.models[0][0], by_hand(trial.plan, federation, kind, 2), atol=1e-5)
    assert state.server_epochs == {0: 2}


def test_its_own_learning_rate_and_epochs():
    trial, state = ran(replace(GCE, lr=0.02, epochs=3), sampler=Nobody(), settings=MLP | {"rounds": 1})
    expected = by_hand(trial.plan, tiny_federation(), "clean", 3, lr=0.02)
    assert torch.allclose(state.models[0][0], expected, atol=1e-5)


def test_no_epochs_change_nothing():
    trial, state = ran(replace(GCE, epochs=0), sampler=Nobody())
    assert torch.equal(state.models[0][0], trial.plan.initial[0])


def test_idle_clients_and_no_clients_give_the_same_bits():
    settings = MLP | {"model": "cnn-lite", "batch": 5, "momentum": 0.9, "augment": "weak", "rounds": 3}
    del settings["model.hidden"]
    fit = ServerFit(parts=(GeneralisedCrossEntropy(),), epochs=2)
    _, absent = ran(fit, sampler=Nobody(), settings=settings)
    trial, idle = ran(fit, epochs=0, settings=settings)
    assert len(trial.record.ups) == 12
    assert torch.equal(absent.models[0][0], idle.models[0][0])


def test_the_stream_follows_the_servers_epochs_not_the_rounds():
    settings = MLP | {"batch": 5, "augment": "flip"}
    fit = ServerFit(parts=(CrossEntropy(),))
    _, plain = ran(fit, sampler=Nobody(), settings=settings)
    late = Method(
        "own",
        (Stage("wait", rounds=3, sampler=Nobody()), Stage("fit", rounds=2, parts=(fit,), sampler=Nobody())),
    )
    with Contract.of(late, settings).trial() as trial:
        assert torch.equal(trial.run().models[0][0], plain.models[0][0])


def test_it_trains_what_the_clients_reports_were_combined_to():
    trial, state = ran(GCE, settings=MLP | {"rounds": 1, "batch": 1000})
    combined = sum(up.models[0].double() for up in trial.record.ups) / 4
    plan = replace(trial.plan, model=lambda: started_at(trial.plan, combined.float()))
    assert torch.allclose(state.models[0][0], by_hand(plan, tiny_federation(), "clean", 1), atol=1e-5)


def started_at(plan, vector):
    model = plan.build(0)
    model.load_state_dict(plan.layout.named(vector))
    return model


def test_data_that_is_not_there_is_refused_before_the_run():
    bare = replace(tiny_federation(), server={})
    for kind in ("clean", "noisy"):
        with pytest.raises(CompositionError, match=f"ServerFit reads {kind} server data.*Set server.{kind}") as problem:
            ran(replace(GCE, on=kind), federation=bare)
        assert problem.value.code == "FS112"


@dataclass(frozen=True, kw_only=True)
class Peeking(Part):
    """Declares one kind of data and looks at another."""

    at: str
    reads = Reads.UNLABELLED

    def learn(self, s, ups, w):
        held = getattr(s, self.at)
        samples = getattr(held, "samples", held)
        assert len(samples) == 16
        assert s.predict(s.models, samples).logits.shape == (16, 4)


def test_only_declared_data_can_be_read():
    ran(Peeking(at="unlabelled"), settings=MLP | {"rounds": 1})
    for kind in ("clean", "noisy", "public"):
        with pytest.raises(RunError, match=f"Peeking looks at the server's {kind} data") as problem:
            ran(Peeking(at=kind), settings=MLP | {"rounds": 1})
        assert problem.value.code == "FS206"


@dataclass(frozen=True, kw_only=True)
class Unlabelled(Part):
    """The labels of a set without labels are nobody's."""

    reads = Reads.UNLABELLED | Reads.CLEAN

    def learn(self, s, ups, w):
        assert s.clean.labels is not None
        assert not hasattr(s.unlabelled, "labels")


def test_unlabelled_data_come_without_labels():
    ran(Unlabelled(), settings=MLP | {"rounds": 1})


# What the server's own parts keep


def test_the_servers_own_state_is_kept_between_rounds():
    fit = ServerFit(parts=(CrossEntropy(), Counting()))
    with Contract.of(Method("own", (Stage(parts=(fit,), sampler=Nobody()),)), MLP).trial() as trial:
        state = trial.run()
        assert int(trial.states.load(-1, state.versions[-1])["keep/Counting/times"]) == 2


class Crash:
    """Watches until a round, and ends the run there."""

    def __init__(self, after):
        self._after = after

    def round_done(self, s, what):
        if s.round == self._after:
            raise Interruption


def test_versions_of_the_servers_state_that_a_checkpoint_names_stay():
    fit = ServerFit(parts=(CrossEntropy(), Counting()))
    method = Method("own", (Stage(parts=(fit,), sampler=Nobody()),))
    with Contract.of(method, MLP | {"rounds": 6}).trial() as trial:
        store = Checkpoints(trial.folder, trial.states, every=3)
        server = Server(ServerState.fresh(trial.plan), trial.plan, lambda: trial.host, store.retained)
        with pytest.raises(Interruption):
            Loop(SerialRuntime(trial.host), store, Crash(after=5)).run(server)
        assert Checkpoints(trial.folder, trial.states).load(lambda _: None).round == 3


@dataclass(frozen=True, kw_only=True)
class Halves(Part):
    """Two groups of models from the start."""

    writes = frozenset({"group"})

    def talk(self, s, moment):
        if moment == "start":
            s.split({k: k % 2 for k in s.clients})
        return
        yield

    def answer(self, c, topic, question):
        return {}


def test_what_the_server_keeps_is_of_one_group():
    fit = ServerFit(parts=(CrossEntropy(), Counting()))
    method = Method("own", (Stage(parts=(Halves(), fit), sampler=Nobody()),))
    with Contract.of(method, MLP | {"rounds": 3}).trial() as trial:
        state = trial.run()
        assert int(trial.states.load(-1, state.versions[-1])["keep/Counting/times"]) == 3


@dataclass(frozen=True, kw_only=True)
class Told(Part):
    """Wants to be briefed, which nobody does at the server."""

    down = {"x": ()}

    def brief(self, s, client):
        return {"x": 1.0}


@dataclass(frozen=True, kw_only=True)
class Headed(Part):
    heads = ("projector",)


@pytest.mark.parametrize("part", [Told(), Headed()], ids=lambda part: part.name)
def test_parts_that_cannot_work_at_the_server_are_refused(part):
    fit = ServerFit(parts=(CrossEntropy(), part))
    with pytest.raises(CompositionError, match=part.name):
        Contract.of(Method("own", (Stage(parts=(fit,)),)), MLP).plan(tiny_federation())


@dataclass(frozen=True, kw_only=True)
class DropAll(Part):
    def relabel(self, c, net, labels):
        return labels.only(torch.zeros(len(labels), dtype=torch.bool))


def test_a_server_with_nothing_left_to_train_on_skips():
    fit = ServerFit(parts=(CrossEntropy(), DropAll()))
    trial, state = ran(fit, sampler=Nobody())
    assert torch.equal(state.models[0][0], trial.plan.initial[0])


def test_an_interruption_changes_nothing():
    settings = MLP | {"batch": 5, "rounds": 3}
    method = Method("own", (Stage(parts=(replace(GCE, batch=5),)),))
    with Contract.of(method, settings).trial() as whole, Contract.of(method, settings).trial() as cut:
        expected = whole.run()
        with pytest.raises(Interruption):
            cut.run(fail_after=6)
        found = type(cut)(cut.plan, cut.federation, cut.folder).run()
        assert torch.equal(found.models[0][0], expected.models[0][0])


# The server's own moment


@dataclass(frozen=True, kw_only=True)
class Moments(Part):
    """Writes down when it trains, as a client half sees it."""

    def start(self, c):
        SEEN.append((c.stage, c.round, c.t, c.rounds, c.clock(self)))


SEEN: list = []


def test_a_part_at_the_server_sees_the_stage_it_is_in():
    SEEN.clear()
    fit = ServerFit(parts=(CrossEntropy(), Moments()), epochs=3)
    stages = (Stage("short", rounds=2, parts=(fit,), sampler=Nobody()), Stage("long", rounds=5, sampler=Nobody()))
    with Contract.of(Method("own", stages), MLP).trial() as trial:
        trial.run()
    assert SEEN == [(0, 0, 0, 2, (0, 2)), (0, 1, 1, 2, (1, 2))]


def test_groups_of_models_trained_at_the_server_resume():
    fit = ServerFit(parts=(CrossEntropy(), Counting()))
    method = Method("own", (Stage(parts=(Halves(), fit)),))
    settings = MLP | {"rounds": 3}
    with Contract.of(method, settings).trial() as whole, Contract.of(method, settings).trial() as cut:
        expected = whole.run()
        with pytest.raises(Interruption):
            cut.run(fail_after=9)
        found = type(cut)(cut.plan, cut.federation, cut.folder).run()
        assert {-1, -2} < found.versions.keys()
        assert all(torch.equal(found.models[g][0], expected.models[g][0]) for g in (0, 1))


# Its sections, its data, its moment


@dataclass(frozen=True, kw_only=True)
class Gradients(Part):
    """Writes down which sections have gradients before training."""

    def start(self, c):
        named = c.nets[0].module.named_parameters()
        SEEN.append((c.id, {name.partition(".")[0] for name, parameter in named if parameter.requires_grad}))


def changed(plan, before, after):
    """The sections in which two vectors differ."""
    moved = (before != after).nonzero().flatten().tolist()
    return {
        entry.name.partition(".")[0] for entry in plan.layout.entries for i in moved if entry.start <= i < entry.stop
    }


def test_the_server_trains_sections_of_its_own():
    SEEN.clear()
    fit = ServerFit(parts=(CrossEntropy(), Gradients()), train=("head",))
    method = Method("own", (Stage(parts=(Gradients(), fit)),), share=Share(train=("body",)))
    with Contract.of(method, MLP | {"rounds": 2}).trial() as trial:
        state = trial.run()
    for (_, down), up in zip(trial.record.downs, trial.record.ups, strict=True):
        assert changed(trial.plan, down.models[0], up.models[0]) == {"body"}
    assert changed(trial.plan, trial.plan.initial[0], state.models[0][0]) == {"body", "head"}
    assert {client: sections for client, sections in SEEN if client < 0} == {-1: {"head"}}
    assert all(sections == {"body"} for client, sections in SEEN if client >= 0)


def test_sections_that_are_not_there_are_refused():
    for train, said in ((("neck",), "no section 'neck'"), ((), "ServerFit.train chooses nothing")):
        with pytest.raises(CompositionError, match=said) as problem:
            ran(replace(GCE, train=train))
        assert problem.value.code == "FS116"


@dataclass(frozen=True, kw_only=True)
class Small(Part):
    """Wants small logits, whatever the labels."""

    def loss(self, c, net, batch):
        assert bool((net.labels.given == -1).all())
        return net.logits(batch).square().mean()


@pytest.mark.parametrize("kind", ["unlabelled", "public"])
def test_the_server_trains_on_data_without_labels(kind):
    federation = tiny_federation()
    fit = ServerFit(parts=(Small(),), on=kind, batch=1000)
    trial, state = ran(fit, sampler=Nobody(), settings=MLP | {"rounds": 1})
    model = trial.plan.build(0)
    pixels = torch.from_numpy(federation.images[federation.server[kind].rows]).float().permute(0, 3, 1, 2) / 255
    model((pixels - federation.mean[0]) / federation.std[0]).square().mean().backward()
    stepped = {name: p.detach() - 0.1 * p.grad for name, p in model.named_parameters()}
    assert torch.allclose(state.models[0][0], trial.plan.layout.flat(stepped), atol=1e-5)
    with pytest.raises(CompositionError, match=f"CrossEntropy reads labels; the server's {kind} data") as problem:
        ran(ServerFit(parts=(CrossEntropy(),), on=kind))
    assert problem.value.code == "FS115"


def test_at_the_start_of_a_round_it_trains_what_clients_then_receive():
    trial, _ = ran(replace(GCE, when="round"), settings=MLP | {"rounds": 1, "batch": 1000})
    expected = by_hand(trial.plan, tiny_federation(), "clean", 1)
    assert all(torch.allclose(down.models[0], expected, atol=1e-5) for _, down in trial.record.downs)


def test_a_stage_without_clients_is_a_pretraining():
    first = Stage("pretrain", rounds=2, parts=(GCE,), sampler=Nobody())
    with Contract.of(Method("own", (first, Stage("train", rounds=1))), MLP).trial() as trial:
        trial.run()
    expected = by_hand(trial.plan, tiny_federation(), "clean", 2)
    assert all(torch.allclose(down.models[0], expected, atol=1e-5) for _, down in trial.record.downs)


# Its options as those of a method


def taught(loss: GeneralisedCrossEntropy, server: ServerFit = ServerFit(epochs=2)) -> Method:
    """FedAvg whose server trains by a loss with an option."""
    return Method("taught", (Stage(parts=(replace(server, parts=(loss,)),)),))


def test_a_method_has_the_options_of_its_server():
    found = options_of(taught)
    assert list(found) == ["q", "server.on", "server.epochs", "server.lr", "server.batch"]
    assert (found["server.epochs"].default, found["server.lr"].default) == (2, None)
    assert found["server.epochs"].doc == "Passes over the server's data in each round."
    made = build(taught, {"q": 0.5, "server.lr": 0.3}, "taught")
    assert made.stages[0].parts == (ServerFit(parts=(GeneralisedCrossEntropy(q=0.5),), epochs=2, lr=0.3),)


@pytest.mark.parametrize(
    ("key", "value", "code", "said"),
    [
        ("server.epochs", -1, "FS002", r"taught\.server\.epochs=-1: "),
        ("server.epoch", 1, "FS001", r"unknown key 'taught\.server\.epoch'.*server\.epochs"),
        ("server.parts", (), "FS001", r"unknown key 'taught\.server\.parts'"),
        ("epochs", 1, "FS001", r"unknown key 'taught\.epochs'"),
    ],
)
def test_errors_name_the_full_key(key, value, code, said):
    with pytest.raises(ConfigError, match=said) as problem:
        build(taught, {key: value}, "taught")
    assert problem.value.code == code


def test_nested_keys_in_files_lists_and_runs(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    name = "test_server_fit:taught"
    given = {"method": name, "taught": {"server": {"epochs": 3}}, "taught.q": 0.6, **MLP, "rounds": 1}
    config = config_of(given, allow_code=True)
    assert config.flat()["taught.server.epochs"] == 3
    assert config.flat()["taught.server.on"] == "clean"
    assert config_of(config.flat(), allow_code=True) == config
    with Contract(config_of(given | {"clients": 4}, allow_code=True), None).trial() as trial:
        assert trial.run().server_epochs == {0: 3}
    listed = CliRunner().invoke(app, ["methods", name]).output
    assert "taught.server.epochs (2)  Passes over the server's data in each round." in listed
