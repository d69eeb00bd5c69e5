"""What published protocols get wrong: results that leak from the test set, and deviations that leave chance out."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import fedsieve
from fedsieve.estimate.gmm1d import GaussianMixture1D
from fedsieve.testing import Contract, tiny_federation

RUN = {"clients": 4, "rounds": 3, "epochs": 1, "batch": 10, "runtime": "serial", "quiet": True, "model": "mlp"}


def other_test_set(file, path):
    """The same training data; the test images are others, and all their labels are one."""
    with np.load(file) as stored:
        arrays = dict(stored)
    arrays["x_test"], arrays["y_test"] = 255 - arrays["x_test"], np.full_like(arrays["y_test"], 2)
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize("method", ["fedavg", "fedrn", "clipfl", "fedcorr"])
def test_the_test_set_decides_nothing(method, tiny_file, tmp_path):
    """No checkpoint is picked and no client monitored by it: with another test set the same model comes out."""
    files = tiny_file, other_test_set(tiny_file, tmp_path / "other.npz")
    models, accuracies = [], []
    for number, file in enumerate(files):
        out = tmp_path / str(number)
        result = fedsieve.run(
            data=str(file), method=method, out=str(out), noise="symmetric", **RUN | {"server.clean": 20}
        )
        models.append((out / "model.safetensors").read_bytes())
        accuracies.append([row["test_accuracy"] for row in result["rows"]])
    assert models[0] == models[1]
    assert accuracies[0] != accuracies[1]


def test_the_model_that_is_saved_is_the_last_one_not_the_best(tiny_file, tmp_path):
    """Learning makes it worse on these test labels, which are made up: saved is what the last row was tested with."""
    out = tmp_path / "run"
    settings = RUN | {"rounds": 6, "lr": 0.02}
    result = fedsieve.run(data=str(tiny_file), method="fedavg", out=str(out), **settings)
    accuracies = [row["test_accuracy"] for row in result["rows"]]
    assert max(accuracies) > accuracies[-1], "there is a better one on the way"
    with np.load(tiny_file) as stored:
        images, labels = stored["x_test"], stored["y_test"]
    found = np.array([row["label"] for row in fedsieve.predict(out, images)["rows"]])
    assert float((found == labels).mean()) == pytest.approx(accuracies[-1])
    summary = json.loads((out / "summary.json").read_text())
    assert summary["test_accuracy_best"] == pytest.approx(max(accuracies)), "named so, and nothing but a number"


def test_a_seed_draws_split_noise_and_first_weights_alike(tiny_file):
    """So that a deviation over seeds holds all of it; within a seed every method has the same."""
    settings = {"data": str(tiny_file), "clients": 4, "partition": "dirichlet", "noise": "symmetric", "noise.rate": 0.4}
    federations = [fedsieve.federation(seed=seed, **settings)[0] for seed in (0, 1, 0)]
    for one, other, same in ((0, 1, False), (0, 2, True)):
        a, b = federations[one], federations[other]
        assert all(np.array_equal(x, y) for x, y in zip(a.rows, b.rows, strict=True)) == same
        assert all(np.array_equal(x, y) for x, y in zip(a.given, b.given, strict=True)) == same
    plans = [Contract.of("fedavg", {"seed": seed}).plan(tiny_federation()) for seed in (0, 1, 0)]
    assert torch.equal(plans[0].initial[0], plans[2].initial[0])
    assert not torch.equal(plans[0].initial[0], plans[1].initial[0])


def test_the_noise_of_a_seed_does_not_follow_from_its_split_alone(tiny_file):
    """Where everybody has the same rows under all seeds, the flips still differ."""
    settings = {"data": str(tiny_file), "clients": 1, "noise": "symmetric", "noise.rate": 0.4}
    one, two = (fedsieve.federation(seed=seed, **settings)[0] for seed in (0, 1))
    by_row = [dict(zip(each.rows[0].tolist(), each.given[0].tolist(), strict=True)) for each in (one, two)]
    assert by_row[0] != by_row[1]


@pytest.mark.parametrize("method", ["fedavg", "fedrn", "fedcorr"])
def test_local_training_draws_by_the_seed_too(method):
    """Same federation and same first weights, another seed: the order of batches alone moves the result."""
    federation, states = tiny_federation(), []
    for seed in (0, 1):
        with Contract.of(method, {"model": "mlp", "seed": seed}).trial(federation) as trial:
            start = replace(trial.plan, seed=0).initial
            trial.plan.__dict__["initial"] = start
            states.append(trial.run().models[0][0])
    assert not torch.equal(*states)


@pytest.mark.parametrize("shift", [-3.0, 0.0, 7.0])
def test_components_are_in_order_whatever_the_start(shift):
    """Also where a mixture starts with its components the other way round."""
    x = np.concatenate([np.random.default_rng(0).normal(shift, 0.1, 50), np.linspace(shift + 2, shift + 3, 30)])
    turned = GaussianMixture1D.of([shift + 2.5, shift], [0.1, 0.1], [0.4, 0.6])
    turned.means_, turned.variances_ = turned.means_[::-1].copy(), turned.variances_[::-1].copy()
    for mixture in (GaussianMixture1D().fit(x), GaussianMixture1D().fit(x, start=turned)):
        assert mixture.means_[0] < mixture.means_[1]
        assert (mixture.predict_proba(x)[:50, 0] > 0.9).all()


def test_tiny_and_constant_clients_are_not_split():
    for x in (np.arange(9.0), np.full(100, 0.3), np.zeros(0)):
        mixture = GaussianMixture1D().fit(x)
        assert not mixture.split_
        assert (mixture.predict_proba(x)[:, 0] == 1).all()
