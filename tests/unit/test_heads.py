"""Heads: where they stand, what is computed of them and when, what becomes of them in a run and its files."""

import json
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import batch_norm

import fedsieve
from fedsieve.base.errors import CompositionError, ConfigError
from fedsieve.core import Method, Part, Projector, Server, Share, SideHead, Stage
from fedsieve.core.net import Batch, Net
from fedsieve.core.server import ServerState
from fedsieve.models import build_model
from fedsieve.models.heads import RowNorm, head_card, head_of, standing_heads
from fedsieve.models.saved import SavedModels
from fedsieve.runs.checkpoint import Checkpoints
from fedsieve.runs.prediction import predict_samples
from fedsieve.testing import Contract, check_method, tiny_federation

MLP = {"model": "mlp", "model.hidden": [8]}
BYOL = {"hidden": 16, "width": 6, "norm": "batch"}
HEADS = (
    SideHead(name="predictor", base="projector", **BYOL),
    SideHead(name="projector", **BYOL),
    SideHead(name="anchor", width=3, layers=1),
)
"""Out of order: the predictor stands on the projector."""


def model_of(*heads, norm="average", name="mlp", shape=(5,), **options):
    torch.manual_seed(0)
    return build_model(name, shape, 4, norm=norm, heads=heads, options=options or {"hidden": [8]})


def widths(head):
    return [(layer.in_features, layer.out_features) for layer in head if isinstance(layer, nn.Linear)]


SIZES = {
    "FedCR, in line": (Projector(hidden=4096, width=2048, norm="batch"), [(8, 4096), (4096, 2048)]),
    "BYOL's projector": (SideHead(name="projector", hidden=4096, width=2048, norm="batch"), [(8, 4096), (4096, 2048)]),
    "FedCon's predictor": (SideHead(name="predictor", times=3, norm="batch"), [(8, 24), (24, 8)]),
    "BYOL's projector, by multiples": (SideHead(name="projector", times=8, widen=4), [(8, 64), (64, 32)]),
    "FedAnchor": (SideHead(name="anchor", hidden=512, width=128), [(8, 512), (512, 128)]),
    "a linear one": (SideHead(name="local_head", width=512, layers=1), [(8, 512)]),
    "MOON": (Projector(), [(8, 8), (8, 256)]),
    "three layers": (SideHead(name="deep", layers=3, hidden=5, width=2), [(8, 5), (5, 5), (5, 2)]),
}


@pytest.mark.parametrize(("head", "sizes"), SIZES.values(), ids=SIZES.keys())
def test_the_sizes_of_the_field(head, sizes):
    model = model_of(head)
    assert widths(getattr(model, head.name)) == sizes
    normed = [layer for layer in getattr(model, head.name) if isinstance(layer, RowNorm)]
    assert len(normed) == (len(sizes) - 1 if head.norm == "batch" else 0)
    assert model.head.in_features == (sizes[-1][1] if head.in_line else 8)
    assert standing_heads(model)[head.name].width == sizes[-1][1]


def test_heads_at_the_side_leave_the_classifier_as_it_is():
    plain, more = model_of(), model_of(*HEADS)
    assert list(dict(more.named_children())) == ["body", "head", "projector", "predictor", "anchor"]
    for name, value in plain.state_dict().items():
        assert torch.equal(value, more.state_dict()[name])
    x = torch.randn(3, 5)
    assert torch.equal(plain(x), more(x))


@pytest.mark.parametrize("norm", ["average", "local", "batch", "group"])
def test_heads_are_normalised_as_the_model_is(norm):
    model = model_of(*HEADS, norm=norm)
    layer = model.projector[1].layer
    assert isinstance(layer, nn.GroupNorm if norm == "group" else nn.BatchNorm2d)
    x = torch.randn(6, 16)
    if norm != "group":
        assert torch.allclose(model.projector[1](x), batch_norm(x, None, None, training=True), atol=1e-6)
    alone = model.projector[1](x[:1])
    assert alone.shape == (1, 16)
    assert bool(torch.isfinite(alone).all())


def test_a_row_alone_is_normalised_as_in_a_test():
    norm = RowNorm(nn.BatchNorm2d(3))
    norm.train()
    norm(torch.randn(9, 3))
    before = norm.layer.running_mean.clone()
    x = torch.randn(1, 3)
    found = norm(x)
    assert norm.layer.training
    assert torch.equal(norm.layer.running_mean, before)
    assert torch.allclose(found, norm.eval()(x))
    assert torch.equal(RowNorm(nn.BatchNorm2d(3, track_running_stats=False))(x), torch.zeros(1, 3))


# Once a batch and view


class Counted:
    def __init__(self, net):
        self.calls = Counter()
        for name in ("body", "head", "projector", "predictor", "anchor"):
            getattr(net.module, name).register_forward_hook(lambda *_, name=name: self.calls.update([name]))


def a_batch():
    x = torch.randn(4, 5)
    return Batch(torch.arange(4), lambda rows, view: x[rows] * (2 if view == "train#2" else 1))


def test_nothing_is_computed_twice_and_nothing_that_nobody_asks_for():
    net, batch = Net(model_of(*HEADS)), a_batch()
    counted = Counted(net)
    first = net.head("predictor", batch)
    assert counted.calls == {"body": 1, "projector": 1, "predictor": 1}
    assert net.head("predictor", batch) is first
    net.head("projector", batch)
    net.features(batch)
    assert counted.calls == {"body": 1, "projector": 1, "predictor": 1}
    net.logits(batch)
    assert counted.calls == {"body": 1, "projector": 1, "predictor": 1, "head": 1}
    net.head("predictor", batch, "train#2")
    assert counted.calls == {"body": 2, "projector": 2, "predictor": 2, "head": 1}
    net.head("projector", a_batch())
    assert counted.calls["body"] == 3


def test_what_a_head_returns_is_the_chain_by_hand():
    net, batch = Net(model_of(*HEADS)), a_batch()
    net.module.eval()
    module, x = net.module, batch.images()
    assert torch.equal(net.head("projector", batch), module.projector(module.body(x)))
    assert torch.equal(net.head("predictor", batch), module.predictor(module.projector(module.body(x))))
    assert torch.equal(net.head("anchor", batch), module.anchor(module.body(x)))


def test_a_head_in_line_is_the_features():
    predictor = SideHead(name="predictor", base="projector", width=3)
    net, batch = Net(model_of(predictor, Projector(width=6))), a_batch()
    assert net.head("projector", batch) is net.features(batch)
    assert net.module.predictor[0].in_features == 6
    assert net.head("predictor", batch).shape == (4, 3)
    with pytest.raises(CompositionError, match=r"the model has no head 'projecter'\. Did you mean 'projector'"):
        net.head("projecter", batch)


def test_what_was_made_without_gradients_is_made_again_where_they_count():
    net, batch = Net(model_of(*HEADS)), a_batch()
    with torch.no_grad():
        assert not net.head("predictor", batch).requires_grad
    assert net.head("predictor", batch).requires_grad
    net.head("predictor", batch).sum().backward()
    assert net.module.projector[0].weight.grad.abs().sum() > 0
    assert net.module.anchor[0].weight.grad.abs().sum() == 0


# In a method


@dataclass(frozen=True, kw_only=True)
class Predict(Part):
    """A predictor that follows its projector; the mean of what another head says goes up."""

    heads = ("projector", "predictor", "anchor")
    up = {"mean": ("anchor",)}

    def term(self, c, net, batch):
        return (net.head("predictor", batch) - net.head("projector", batch, "train#2").detach()).square().mean()

    def finish(self, c):
        return {"mean": c.outputs(c.nets[0], head="anchor").features.mean(0)}


def own(share=None, heads=HEADS):
    return Method("own", (Stage(parts=(Predict(),)),), heads=heads, share=share)


def test_a_method_with_heads_keeps_the_contract():
    check_method(own(), **MLP)


def test_the_server_sees_what_its_models_heads_return():
    with Contract.of(own(), MLP).trial() as trial:
        server = Server(ServerState.fresh(trial.plan), trial.plan, lambda: trial.host)
        samples = trial.host.holding("clean")[0]
        for head, width in (("projector", 6), ("predictor", 6), ("anchor", 3), ("features", 8)):
            out = server.predict(server.models, samples, head=head)
            assert (out.logits.shape, out.features.shape) == ((16, 4), (16, width))
        net = Net(trial.plan.build(0))
        net.module.eval()
        x = samples.view(torch.arange(16))
        assert torch.allclose(out.features, net.module.features(x), atol=1e-6)
        anchors = server.predict(server.models, samples, head="anchor").features
        assert torch.allclose(anchors, net.module.anchor(net.module.features(x)), atol=1e-6)


def test_a_head_can_stay_with_the_clients():
    stays = Share(down=("*", "-anchor"), up=("*", "-anchor"), keep=("anchor",))
    with Contract.of(own(stays), MLP).trial() as trial:
        state = trial.run()
        layout = trial.plan.layout
        (kept,) = layout.slices(("anchor",))
        assert layout.count(("anchor",)) == 8 * 3 + 3
        assert torch.equal(state.models[0][0][kept], trial.plan.initial[0][kept])
        assert trial.states.load(0, state.versions[0])["net/0"].shape == (27,)
        assert {len(up.models[0]) for up in trial.record.ups} == {layout.size - 27}


# In files


@pytest.mark.parametrize("head", [*HEADS, Projector(width=9, norm="batch"), Projector()], ids=lambda head: head.name)
def test_a_head_survives_its_card(head):
    assert head_of(json.loads(json.dumps(head_card(head)))) == head


@pytest.mark.parametrize(
    ("card", "code"),
    [
        ({"kind": "line"}, "FS116"),
        ({}, "FS116"),
        ({"kind": "side"}, "FS002"),
        ({"kind": "side", "name": "A b"}, "FS002"),
        ({"kind": "projector", "hidden": 0}, "FS002"),
        ({"kind": "projector", "layers": 9}, "FS002"),
        ({"kind": "projector", "norm": "layer"}, "FS002"),
        ({"kind": "projector", "name": "other"}, "FS001"),
    ],
    ids=str,
)
def test_a_card_of_a_head_is_checked(card, code):
    with pytest.raises(ConfigError) as caught:
        head_of(card)
    assert caught.value.code == code


@pytest.mark.parametrize("method", ["moon", "own_heads:headed"])
def test_a_run_with_heads_predicts_and_goes_on(tmp_path, tiny_file, method, monkeypatch):
    name = method.partition(":")[2] or method
    settings = {
        "data": str(tiny_file), "clients": 2, "rounds": 3, "epochs": 1, "runtime": "serial", "method": method,
        f"{name}.width": 6, f"{name}.norm": "batch", **MLP,
    }  # fmt: skip
    fedsieve.run(quiet=True, **settings, out=str(tmp_path / "whole"))
    saved = SavedModels.read(tmp_path / "whole" / "model.safetensors")
    assert saved.card["heads"][0] == head_card(Projector(width=6, norm="batch"))
    model = saved.model(0, False)
    assert model.head.in_features == 6
    samples = np.load(tiny_file)["x_test"]
    assert len(predict_samples(tmp_path / "whole", samples)["label"]) == len(samples)

    commit = Checkpoints.commit

    def dies(self, server):
        commit(self, server)
        if server.round == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoints, "commit", dies)
    with pytest.raises(KeyboardInterrupt):
        fedsieve.run(quiet=True, **settings, out=str(tmp_path / "cut"))
    monkeypatch.setattr(Checkpoints, "commit", commit)
    fedsieve.resume(tmp_path / "cut", quiet=True, allow_code=True)
    models = [(tmp_path / where / "model.safetensors").read_bytes() for where in ("whole", "cut")]
    assert models[0] == models[1]


def test_the_settings_of_a_method_reach_its_head():
    plan = Contract.of("moon", {**MLP, "moon.hidden": 5, "moon.width": 7, "moon.layers": 3}).plan(tiny_federation())
    assert widths(plan.build(0).projector) == [(8, 5), (5, 5), (5, 7)]
    assert plan.sizes["projector"] == plan.sizes["d"] == 7
    with pytest.raises(ConfigError, match=r"moon\.layers=9.*\[FS002\]"):
        Contract.of("moon", {"moon.layers": 9})
