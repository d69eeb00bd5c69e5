"""RHFL: confidence and alignment by hand; what travels in place of models."""

from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F

from fedsieve.base.errors import CompositionError
from fedsieve.core.part import Method, Part, Share, Stage
from fedsieve.methods.rhfl import AlignLogits
from fedsieve.methods.rhfl_confidence import confidence, gain
from fedsieve.parts.losses import SymmetricCrossEntropy, symmetric_cross_entropy
from fedsieve.testing import Contract, fake_reports, fake_server, tiny_federation

MLP = {"model": "mlp", "model.hidden": [8], "augment": "none"}
STEP = MLP | {"batch": 1000, "momentum": 0.0, "lr": 0.1}


def numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


def inputs(federation, rows):
    pixels = torch.from_numpy(federation.images[rows]).float().permute(0, 3, 1, 2) / 255
    return (pixels - federation.mean[0]) / federation.std[0]


def outputs(plan, vector, x):
    """Logits by an independent path."""
    return torch.func.functional_call(plan.build(0), plan.layout.named(vector), x)


def own_net(trial, client, version):
    return trial.states.load(client, version)["net/0"]


def only_aligning(method):
    """The same with no training after the first round."""
    return replace(method, stages=(method.stages[0], replace(method.stages[1], epochs=0)))


# Confidence


def test_a_loss_of_nothing_gains_no_more_than_can_be_told():
    gains = gain(torch.tensor([1e6, 2.0]), torch.tensor([0.0, 1.0]), "absolute")
    assert gains.tolist() == [1e6, 1.0]


def test_a_gain_is_the_drop_of_the_loss_over_the_loss():
    before, now = numbers(1.0, 2.0, 1.0), numbers(0.8, 2.5, torch.nan)
    assert gain(before, now, "absolute")[:2].tolist() == pytest.approx([0.25, -0.2])
    assert gain(before, now, "relative")[:2].tolist() == pytest.approx([0.25, -0.1])
    assert gain(before, now, "absolute")[2].isnan()
    assert gain(numbers(1.0), numbers(0.0), "relative").isfinite().all()


def test_confidence_by_hand():
    weights = confidence(numbers(0.3, 0.1, torch.nan), 0.5, guard=True)
    by_hand = torch.softmax(1 / 2 + 0.5 * numbers(0.75, 0.25, 0.0), 0)  # 1 / (N − 1) cancels
    assert torch.allclose(weights, by_hand)
    assert confidence(numbers(0.3, 0.1), 0.0, guard=True).tolist() == [0.5, 0.5]


def test_without_the_guard_confidence_falls_to_whoever_gained():
    gains = gain(numbers(1.0, 1.0, 1.0, 1.0), numbers(0.9, 1.05, 1.1, 0.95), "absolute")
    assert (gains / gains.sum()).tolist() == pytest.approx([4.4, -1.9, -3.6, 2.1], abs=0.06)
    assert confidence(gains, 0.5, guard=False).tolist() == pytest.approx([0.73, 0.03, 0.01, 0.23], abs=0.006)
    guarded = confidence(gains, 0.5, guard=True)
    assert float(guarded.max()) < 0.35
    assert guarded[1] == guarded[2], "losses that rose are no gain, and no more than that"


def test_when_all_losses_rise_the_guard_keeps_the_order_from_turning():
    worse = numbers(-0.1, -0.3)
    assert confidence(worse, 0.5, guard=False).argmax() == 1, "the ratio makes the worst the most trusted"
    assert confidence(worse, 0.5, guard=True).tolist() == [0.5, 0.5]
    assert confidence(numbers(0.0, 0.0), 0.5, guard=False).tolist() == [0.5, 0.5]
    assert confidence(numbers(1e-3, 1e-3 - 1e-9), 0.5, guard=True).tolist() == pytest.approx([0.5, 0.5], abs=1e-6)


@pytest.fixture
def server():
    plan = Contract.of("rhfl", MLP).plan(tiny_federation())
    return fake_server(plan.part(0, "AlignLogits"), plan=plan)


def told(server, **losses):
    """Reports of some clients with these losses; their logits are full of their number."""
    clients = {int(name[1:]): loss for name, loss in losses.items()}
    notes = {k: {"logits": torch.full((16, 4), float(k)), "loss": loss} for k, loss in clients.items()}
    server.part.learn(server, fake_reports(server.part, notes), {})


def test_before_any_gain_all_are_trusted_alike(server):
    assert server.part.brief(server, 0)["logits"].shape == (0, 16, 4)
    told(server, k2=1.0, k0=1.0, k1=1.0)
    brief = server.part.brief(server, 1)
    assert brief["trust"].tolist() == [0.5, 0.0, 0.5], "1 / (N − 1), and nobody follows itself"
    assert brief["logits"][:, 0, 0].tolist() == [0.0, 1.0, 2.0]
    assert server.part.brief(server, 0)["logits"] is brief["logits"], "one tensor for all"
    assert server.part.brief(server, 3)["trust"].tolist() == [0.5, 0.5, 0.5]


def test_who_does_not_report_keeps_its_word_and_its_gain(server):
    told(server, k0=1.0, k1=1.0, k2=1.0)
    told(server, k0=0.5, k1=0.8)
    told(server, k1=0.8)
    assert server.columns["gain"][:3].nan_to_num(-1).tolist() == pytest.approx([1.0, 0.0, -1])
    by_hand = torch.softmax(0.5 * numbers(1.0, 0.0, 0.0), 0)
    assert server.columns["confidence"][:3].tolist() == pytest.approx(by_hand.tolist())
    assert server.part.brief(server, 3)["logits"][:, 0, 0].tolist() == [0.0, 1.0, 2.0]


def test_a_round_without_reports_teaches_nothing(server):
    told(server)
    assert "confidence" not in server.columns


@dataclass(frozen=True, kw_only=True)
class Halves(Part):
    """Even and odd clients apart."""

    writes = frozenset({"group"})

    def talk(self, s, moment):
        if moment == "end":
            s.split({k: k % 2 for k in s.clients})
        return
        yield

    def answer(self, c, topic, question):
        return {}


@pytest.mark.parametrize("before", [True, False])
def test_groups_align_among_themselves(before):
    parts = (SymmetricCrossEntropy(), AlignLogits())
    halves = Stage("halves", rounds=0, parts=(Halves(),))
    alone, together = Stage("local", rounds=1, parts=parts), Stage(parts=parts)
    stages = (halves, alone, together) if before else (alone, halves, together)
    method = Method("own", stages, share=Share(down=(), up=(), keep=("*",)), test="clients")
    with Contract.of(method, MLP | {"rounds": 3}).trial() as trial:
        state = trial.run()
        for client, down in trial.record.downs[8:]:
            trust = down.briefs["AlignLogits"]["trust"]
            assert int((trust > 0).sum()) == 1, f"client {client} follows its one companion"
        assert state.memory["AlignLogits", 0]["whose"].tolist() == [0, 2]
        assert state.memory["AlignLogits", 1]["whose"].tolist() == [1, 3]


# Alignment


def test_one_step_of_alignment():
    with Contract.of("rhfl", STEP).trial(edit=only_aligning) as trial:
        trial.run()
        plan, federation = trial.plan, trial.federation
        first, second = trial.record.ups[:4], trial.record.ups[4:]
        public = inputs(federation, federation.server["public"].rows)
        nets = [own_net(trial, up.client, up.version) for up in first]
        for up, net in zip(first, nets, strict=True):
            logits = up.notes["AlignLogits"]["logits"]
            assert torch.allclose(logits, outputs(plan, net, public), atol=1e-5)
        for client, up in enumerate(second):
            vector = nets[client].clone().requires_grad_()
            mine = outputs(plan, vector, public).log_softmax(1)
            peers = [outputs(plan, nets[j], public).softmax(1).detach() for j in range(4) if j != client]
            loss = sum(F.kl_div(mine, peer, reduction="batchmean") / 3 for peer in peers)  # W_j = 1 / (N − 1)
            (slope,) = torch.autograd.grad(loss, vector)
            assert float(slope.norm()) > 1e-4
            assert torch.allclose(own_net(trial, client, up.version), nets[client] - 0.1 * slope, atol=1e-6)


def test_alignment_draws_the_clients_together():
    def distance(method, **settings):
        with Contract.of(method, MLP | {"rounds": 6, "lr": 0.1, **settings}).trial() as trial:
            trial.run()
            public = inputs(trial.federation, trial.federation.server["public"].rows)
            last = [own_net(trial, up.client, up.version) for up in trial.record.ups[-4:]]
            said = torch.stack([outputs(trial.plan, net, public).softmax(1) for net in last])
            return float((said - said.mean(0)).abs().sum(2).mean())

    assert distance("rhfl") < 0.8 * distance("local+symce")


@pytest.mark.parametrize(("optimizer", "same"), [("sgd", True), ("adam", False)])
def test_a_fresh_optimiser_forgets_its_moments(optimizer, same):
    def nets(fresh):
        settings = MLP | {"batch": 4, "momentum": 0.0, "optimizer": optimizer, "rhfl.fresh": fresh, "lr": 0.01}
        with Contract.of("rhfl", settings).trial(edit=only_aligning) as trial:
            state = trial.run()
            return torch.stack([own_net(trial, k, v) for k, v in state.versions.items()])

    assert torch.equal(nets(True), nets(False)) == same


def test_alignment_trains_the_statistics_too_and_leaves_no_trace_of_evaluation():
    with Contract.of("rhfl", {}).trial(edit=only_aligning) as trial:
        trial.run()
        trainable = trial.plan.layout.trainable
        one, two = (own_net(trial, 0, up.version) for up in (trial.record.ups[0], trial.record.ups[4]))
        assert not torch.equal(one[:trainable], two[:trainable])
        assert not torch.equal(one[trainable:], two[trainable:])


# What travels


def test_the_loss_told_is_the_symmetric_one_on_the_clients_labels():
    settings = MLP | {"rhfl.alpha": 0.3, "rhfl.beta": 0.7, "augment": "flip"}
    with Contract.of("rhfl", settings).trial() as trial:
        trial.run()
        federation = trial.federation
        for up in trial.record.ups:
            given = torch.from_numpy(federation.given[up.client])
            net = own_net(trial, up.client, up.version)
            logits = outputs(trial.plan, net, inputs(federation, federation.rows[up.client]))
            loss = symmetric_cross_entropy(logits, F.one_hot(given, 4).float(), 0.3, 0.7, 1e-4).mean()
            assert up.notes["AlignLogits"]["loss"] == pytest.approx(float(loss), rel=1e-4)


def test_no_model_travels_and_each_client_keeps_its_own():
    with Contract.of("rhfl", MLP | {"rhfl.pretrain": 3, "rounds": 3}).trial() as trial:
        state = trial.run()
        assert all(not len(model) for _, down in trial.record.downs for model in down.models)
        assert all(not len(model) for up in trial.record.ups for model in up.models)
        assert len({tuple(own_net(trial, k, v).tolist()) for k, v in state.versions.items()}) == 4
        assert [down.epochs for _, down in trial.record.downs] == [3] * 4 + [1] * 8
        assert [what.stage for what in trial.record.rounds] == ["local", "train", "train"]


def test_all_begin_together_even_where_few_are_sampled():
    with Contract.of("rhfl", MLP | {"fraction": 0.25, "rounds": 2}).trial() as trial:
        trial.run()
        assert [len(what.ups) for what in trial.record.rounds] == [4, 1]
        assert trial.record.downs[-1][1].briefs["AlignLogits"]["trust"].count_nonzero() == 3


def test_a_client_without_samples_says_nothing():
    with Contract.of("rhfl", MLP).trial(tiny_federation(degenerate=True)) as trial:
        state = trial.run()
        assert state.memory["AlignLogits", 0]["whose"].tolist() == [0, 1, 2, 3, 5, 6, 7, 8]
        assert state.columns["confidence"].isnan().tolist() == [k == 4 for k in range(9)]


def test_public_images_are_needed():
    federation = tiny_federation()
    without = replace(federation, server={k: v for k, v in federation.server.items() if k != "public"})
    with pytest.raises(CompositionError, match=r"reads public server data.*Set server.public") as problem:
        Contract.of("rhfl", {}).plan(without)
    assert problem.value.code == "FS112"
