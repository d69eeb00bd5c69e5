"""MOON's contrast, by hand."""

import math

import pytest
import torch
import torch.nn.functional as F

from fedsieve.core.part import Method
from fedsieve.methods.moon import contrast
from fedsieve.models.heads import Projector
from fedsieve.testing import Contract, tiny_federation

PLAIN = {"model": "mlp", "model.hidden": [6], "augment": "none", "batch": 1000}


def test_contrast_by_hand():
    z, towards, away = torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 1.0]]), torch.tensor([[0.0, 3.0]])
    near, far = math.exp(math.sqrt(0.5) / 0.5), math.exp(0.0)
    assert contrast(z, towards, away, 0.5).item() == pytest.approx(-math.log(near / (near + far)), rel=1e-5)
    assert contrast(z, z, z, 0.1).item() == pytest.approx(math.log(2))


def test_contrast_stays_finite_at_a_small_temperature():
    z = torch.tensor([[1.0, 0.0]], requires_grad=True)
    value = contrast(z, -z.detach(), z.detach(), 1e-3)
    assert value.item() == pytest.approx(2000)
    value.backward()
    assert bool(torch.isfinite(z.grad).all())


def test_the_first_participation_has_no_term():
    projected = Method("own", heads=(Projector(),))
    with Contract.of("moon", {"rounds": 1}).trial() as one, Contract.of(projected, {"rounds": 1}).trial() as two:
        assert torch.equal(one.run().models[0][0], two.run().models[0][0])


def test_the_model_has_the_projector():
    model = Contract.of("moon", {}).plan(tiny_federation()).build(0)
    widths = [layer.out_features for layer in model.projector if isinstance(layer, torch.nn.Linear)]
    assert widths == [model.projector[0].in_features, 256]
    assert model.head.in_features == 256


def test_the_previous_model_and_its_round_are_kept():
    with Contract.of("moon", {"rounds": 2}).trial() as trial:
        state = trial.run()
        for up in trial.record.ups[-4:]:
            mine = trial.states.load(up.client, state.versions[up.client])
            assert torch.equal(mine["keep/ModelContrast/0/previous"], up.models[0])
            assert int(mine["keep/ModelContrast/0/stamp"]) == 1


def test_the_second_round_adds_the_term():
    federation = tiny_federation()
    settings = PLAIN | {"rounds": 2, "moon.mu": 2.0, "moon.tau": 0.3}
    with Contract.of("moon", settings).trial(federation) as trial:
        trial.run()
        for client in range(4):
            previous, second = trial.record.ups[client], trial.record.ups[4 + client]
            received = trial.record.downs[4 + client][1].models[0]
            pixels = torch.from_numpy(federation.images[federation.rows[client]]).float().permute(0, 3, 1, 2) / 255
            x = (pixels - federation.mean[0]) / federation.std[0]
            model = trial.plan.build(0)
            model.load_state_dict(trial.plan.layout.named(previous.models[0]))
            z_previous = model.features(x).detach()
            model.load_state_dict(trial.plan.layout.named(received))
            z = model.features(x).detach()
            term = -torch.log(1 / (1 + ((F.cosine_similarity(z, z_previous) - 1) / 0.3).exp())).mean()
            loss = F.cross_entropy(model.head(z), torch.from_numpy(federation.given[client])) + 2.0 * term
            assert second.loss == pytest.approx(loss.item(), rel=1e-4)
