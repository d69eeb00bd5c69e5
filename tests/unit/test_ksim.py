"""Local K-similarity, by hand and against scikit-learn."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.neighbors import NearestNeighbors

from fedsieve.methods.ksim_similarity import k_similarity
from fedsieve.parts.frozen import nearest_rows
from fedsieve.testing import Contract, tiny_federation

PLAIN = {"model": "mlp", "model.hidden": [6], "augment": "none", "rounds": 1, "epochs": 1, "batch": 1000}


def test_nearest_rows_by_hand():
    """Distances are those of directions: the second row points where the first does, however long it is."""
    reference = torch.tensor([[1.0, 0.0], [9.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    assert nearest_rows(reference, 1).tolist() == [[1], [0], [3], [2]]
    assert nearest_rows(reference, 2).tolist() == [[1, 3], [0, 3], [3, 1], [2, 1]]


def test_nearest_rows_are_scikit_learns():
    reference = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    unit = F.normalize(reference, dim=1).numpy()
    found = NearestNeighbors(n_neighbors=5, metric="euclidean").fit(unit).kneighbors(return_distance=False)
    assert np.array_equal(nearest_rows(reference, 5).numpy(), found)


def test_k_is_cut_to_the_batch():
    reference = torch.eye(3)
    assert nearest_rows(reference, 4).shape == (3, 2)
    assert all(row not in near for row, near in enumerate(nearest_rows(reference, 4).tolist()))


def test_equal_rows_have_neighbours_in_order():
    assert nearest_rows(torch.ones(4, 2), 2).tolist() == [[1, 2], [0, 2], [0, 1], [0, 1]]


@pytest.mark.parametrize("with_self", [False, True])
def test_the_term_by_hand(with_self):
    """Eq. 2 of three rows in the plane: the sum over neighbours stands inside the logarithm."""
    z = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    near = torch.tensor([[1, 2], [0, 2], [1, 0]])[:, :1]
    a, b = math.exp(0.0 / 0.5), math.exp(-1.0 / 0.5)
    own = math.exp(1.0 / 0.5) if with_self else 0.0
    expected = [-math.log(a / (a + b + own)), -math.log(a / (a + a + own)), -math.log(a / (a + b + own))]
    assert k_similarity(z, near, 0.5, with_self=with_self).tolist() == pytest.approx(expected, rel=1e-5)
    both = torch.tensor([[1, 2], [0, 2], [1, 0]])
    assert k_similarity(z, both, 0.5).tolist() == pytest.approx([0.0, 0.0, 0.0], abs=1e-6)


def test_two_neighbours_are_summed_before_the_logarithm():
    z = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-1.0, 0.0]])
    near = torch.tensor([[1, 2]] * 4)
    near_sum, rest = math.exp(0.6) + math.exp(0.0), math.exp(-1.0)
    assert float(k_similarity(z, near, 1.0)[0]) == pytest.approx(-math.log(near_sum / (near_sum + rest)), rel=1e-5)


def test_it_stays_finite_at_a_small_temperature():
    z = F.normalize(torch.randn(6, 3, generator=torch.Generator().manual_seed(1)), dim=1).requires_grad_()
    value = k_similarity(z, nearest_rows(z.detach(), 2), 1e-3).sum()
    value.backward()
    assert math.isfinite(value.item())
    assert bool(torch.isfinite(z.grad).all())


@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize("with_self", [True, False])
def test_its_gradient_is_that_of_finite_differences(unit, with_self):
    z = torch.randn(5, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64, requires_grad=True)
    near = nearest_rows(z.detach(), 2)
    assert torch.autograd.gradcheck(lambda x: k_similarity(x, near, 0.3, with_self=with_self, unit=unit), (z,))


def test_features_are_brought_to_length_one_as_torch_does():
    """A row of zeros too: it stays zeros, and no gradient is lost or infinite."""
    z = torch.randn(6, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    z[2] = 0.0
    near = nearest_rows(z, 2)
    ours, torchs = (z.clone().requires_grad_() for _ in range(2))
    value = k_similarity(ours, near, 0.3)
    expected = k_similarity(F.normalize(torchs, dim=1), near, 0.3, unit=False)
    assert torch.allclose(value, expected)
    value[3:].sum().backward()
    expected[3:].sum().backward()
    rest = [0, 1, 3, 4, 5]
    assert torch.allclose(ours.grad[rest], torchs.grad[rest])
    assert bool(torch.isfinite(ours.grad).all())


def one_step(settings):
    """The update of one full-batch step of each client, as its report brings it."""
    with Contract.of("ksim", PLAIN | {"momentum": 0.0, "lr": 1.0, **settings}).trial(tiny_federation()) as trial:
        trial.run()
        sent = trial.plan.initial[0]
        return trial, [sent - up.models[0] for up in trial.record.ups]


@pytest.mark.parametrize("options", [{}, {"normalise": False, "temperature": 2.0}, {"with_self": True, "k": 2}])
def test_a_step_follows_cross_entropy_and_the_weighted_term(options):
    """Eq. 3 and 4, recomputed with autograd on the same batch."""
    settings = {f"ksim.{key}": value for key, value in ({"features": "pixels", "weight": 0.7} | options).items()}
    trial, steps = one_step(settings)
    federation = trial.federation
    for client, step in enumerate(steps):
        module = trial.plan.build(0)
        images = torch.from_numpy(federation.images[federation.rows[client]])
        x = ((images.float() / 255 - torch.tensor(federation.mean)) / torch.tensor(federation.std)).permute(0, 3, 1, 2)
        z = module.features(x)
        near = nearest_rows(images.float().flatten(1), options.get("k", 4))
        v = F.normalize(z, dim=1) if options.get("normalise", True) else z
        products = (v @ v.T / options.get("temperature", 0.3)).exp()
        if not options.get("with_self", False):
            products = products * (1 - torch.eye(len(v)))
        term = -(products.gather(1, near).sum(1) / products.sum(1)).log().mean()
        given = torch.from_numpy(federation.given[client])
        (F.cross_entropy(module.head(z), given) + 0.7 * term).backward()
        slope = torch.cat([p.grad.flatten() for p in module.parameters()])
        assert torch.allclose(step[: len(slope)], slope, atol=1e-5), client


def test_without_weight_it_is_fedavg():
    with Contract.of("ksim", {"ksim.weight": 0.0}).trial() as one, Contract.of("fedavg", {}).trial() as two:
        assert torch.equal(one.run().models[0][0], two.run().models[0][0])


def test_a_client_with_one_row_has_no_term():
    single = PLAIN | {"batch": 1}
    with Contract.of("ksim", single).trial() as one, Contract.of("fedavg", single).trial() as two:
        assert torch.equal(one.run().models[0][0], two.run().models[0][0])


@pytest.mark.parametrize("method", ["ksim+fedrn", "ksim+fedds", "ksim+scaffold+gce", "ksim+moon", "ksim+dividemix"])
def test_it_composes(method):
    with Contract.of(method, {"rounds": 2}).trial() as trial:
        state = trial.run()
        assert bool(torch.isfinite(state.models[0][0]).all())
        assert "KSimilarity" in {part.name for stage in trial.plan.stages for part in stage.parts}


def test_the_encoder_may_see_what_the_net_sees():
    """Without augmentation both references are the same; with it, neighbours are those of the images as turned."""
    plain = {"rounds": 1, "ksim.features": "pixels", "augment": "none"}
    runs = {}
    for augment in ("none", "weak"):
        for reference in ("stored", "augmented"):
            settings = plain | {"augment": augment, "ksim.reference": reference}
            with Contract.of("ksim", settings).trial() as trial:
                runs[augment, reference] = trial.run().models[0][0]
    assert torch.equal(runs["none", "stored"], runs["none", "augmented"])
    assert not torch.equal(runs["weak", "stored"], runs["weak", "augmented"])
