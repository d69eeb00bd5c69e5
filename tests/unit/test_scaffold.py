"""SCAFFOLD's control variates, by hand."""

from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F

from fedsieve.base.errors import ConfigError
from fedsieve.core.part import Method, Part, Stage
from fedsieve.methods.scaffold import ControlVariates, count_of_gradients
from fedsieve.testing import Contract, tiny_federation

PLAIN = {"model": "mlp", "model.hidden": [6], "augment": "none", "batch": 1000, "momentum": 0.0, "lr": 0.1}


def two_clients():
    """Two of them, of unlike size."""
    whole = tiny_federation()
    return replace(
        whole,
        rows=(whole.rows[0], whole.rows[1][:12]),
        given=(whole.given[0], whole.given[1][:12]),
        served=whole.served[:2],
    )


def gradient(plan, federation, client, vector):
    """Of the mean cross entropy over the client's whole set, by an independent path."""
    named = {n: t.requires_grad_() for n, t in plan.layout.named(vector.clone()).items()}
    pixels = torch.from_numpy(federation.images[federation.rows[client]]).float().permute(0, 3, 1, 2) / 255
    x = (pixels - federation.mean[0]) / federation.std[0]
    logits = torch.func.functional_call(plan.build(0), named, x)
    loss = F.cross_entropy(logits, torch.from_numpy(federation.given[client]))
    gradients = torch.autograd.grad(loss, list(named.values()))
    return torch.cat([g.flatten() for g in gradients])


def kept(trial, state, client):
    return trial.states.load(client, state.versions[client])["keep/ControlVariates/c"][0]


@pytest.mark.parametrize("weighted", [False, True])
def test_two_clients_two_rounds_of_one_step(weighted):
    federation, lr = two_clients(), 0.1
    settings = PLAIN | {"rounds": 2, "scaffold.weighted": weighted}
    with Contract.of("scaffold", settings).trial(federation) as trial:
        state = trial.run()
        share = (24 / 36, 12 / 36)
        mine = share if weighted else (0.5, 0.5)

        def mean(values, weights):
            return sum(a * v for a, v in zip(weights, values, strict=True))

        w0 = trial.plan.initial[0]
        g0 = [gradient(trial.plan, federation, k, w0) for k in (0, 1)]
        c = mean(g0, mine)  # c_k = g_k, since both variates start at zero
        w1 = mean([w0 - lr * g for g in g0], share)
        g1 = [gradient(trial.plan, federation, k, w1) for k in (0, 1)]
        ends = [w1 - lr * (g1[k] - g0[k] + c) for k in (0, 1)]
        for k in (0, 1):
            assert torch.allclose(trial.record.ups[2 + k].models[0], ends[k], atol=1e-5)
            assert torch.allclose(kept(trial, state, k), g1[k], atol=1e-4)  # c_k − c + (w1 − y)/η = g1
        assert torch.allclose(state.models[0][0], mean(ends, share), atol=1e-5)
        final = c + mean([g1[k] - g0[k] for k in (0, 1)], mine)
        assert torch.allclose(state.memory["ControlVariates", 0]["c"][0], final, atol=1e-4)


@dataclass(frozen=True, kw_only=True)
class Slope(Part):
    """A loss whose gradient is 1 everywhere."""

    def loss(self, c, net, batch):
        return sum(parameter.sum() for parameter in net.module.parameters())


@pytest.mark.parametrize(("momentum", "epochs"), [(0.0, 2), (0.5, 1), (0.9, 1), (0.9, 20)])
def test_the_estimate_is_the_gradient_with_momentum_too(momentum, epochs):
    """After three steps as well as after sixty."""
    method = Method("own", (Stage(parts=(ControlVariates(), Slope())),))
    settings = PLAIN | {"batch": 8, "epochs": epochs, "rounds": 1, "momentum": momentum}
    with Contract.of(method, settings).trial() as trial:
        state = trial.run()
        assert float((kept(trial, state, 0) - 1).abs().max()) < 1e-3


def test_how_often_gradients_count():
    """Of three the first moves the model in three steps, by 1 + 0.5 + 0.25, the second by 1 + 0.5, the last by 1."""
    assert count_of_gradients(3, 0.5) == pytest.approx(1.75 + 1.5 + 1)
    assert count_of_gradients(7, 0.0) == 7
    assert count_of_gradients(40, 0.9) / 400 == pytest.approx(0.778, abs=1e-3)


def test_clients_that_do_not_take_part_dilute_the_mean():
    with Contract.of("scaffold", PLAIN | {"rounds": 1, "fraction": 0.5}).trial() as trial:
        state = trial.run()
        changes = [up.notes["ControlVariates"]["dc"] for up in trial.record.ups]
        assert len(changes) == 2
        assert torch.allclose(state.memory["ControlVariates", 0]["c"], sum(changes) / 4, atol=1e-6)


def test_running_statistics_have_no_variates():
    with Contract.of("scaffold", {"rounds": 1}).trial() as trial:
        state = trial.run()
        layout = trial.plan.layout
        assert layout.size > layout.trainable
        assert state.memory["ControlVariates", 0]["c"].shape == (1, layout.trainable)


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_only_sgd_measures_gradients(optimizer):
    with pytest.raises(ConfigError, match=f"optimizer={optimizer}.*Take optimizer=sgd"):
        Contract.of("scaffold", {"optimizer": optimizer}).plan(tiny_federation())


@pytest.mark.parametrize(
    ("method", "norm", "section"), [("scaffold", "local", "@norm"), ("fedln-akd+scaffold", "average", "mimic")]
)
def test_what_stays_with_a_client_has_no_control_variate(method, norm, section):
    """It is not averaged, so there is no drift to correct, and nothing of it may travel."""
    with Contract.of(method, {"norm": norm, "rounds": 2}).trial() as trial:
        trial.run()
        layout = trial.plan.layout
        kept = layout.slices((section,), trainable_only=True)
        for up in trial.record.ups:
            change = up.notes["ControlVariates"]["dc"][0]
            assert not any(bool(change[part].any()) for part in kept)
            assert all(bool(change[part].any()) for part in layout.slices(("head",)))
