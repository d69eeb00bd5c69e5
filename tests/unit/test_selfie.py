"""SELFIE: votes, uncertainty, the clean rows, and the union it trains on."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedsieve.methods.selfie import Refurbish, clean_rows, uncertainty, vote_shares
from fedsieve.testing import Contract, fake_client, tiny_federation

PLAIN = {"model": "mlp", "model.hidden": [6], "augment": "none", "batch": 1000, "momentum": 0.0, "lr": 0.1}


def logits_of(trial, vector, client):
    """A model's outputs on a client's images, by an independent path."""
    return logits_with(trial, trial.plan.layout.named(vector), client)


def logits_with(trial, named, client):
    federation = trial.federation
    pixels = torch.from_numpy(federation.images[federation.rows[client]]).float().permute(0, 3, 1, 2) / 255
    x = (pixels - federation.mean[0]) / federation.std[0]
    return torch.func.functional_call(trial.plan.build(0), named, x)


def test_votes_by_hand():
    history = torch.tensor([[0, 2], [0, 1], [1, 2], [0, 2]], dtype=torch.int16)
    assert vote_shares(history, 3).tolist() == [[0.75, 0.25, 0.0], [0.0, 0.25, 0.75]]


def test_uncertainty_by_hand():
    shares = torch.tensor([[1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3], [0.75, 0.25, 0.0]])
    third = (0.75 * math.log(4 / 3) + 0.25 * math.log(4)) / math.log(3)
    assert uncertainty(shares).tolist() == pytest.approx([0, 1, third], abs=1e-6)


def test_one_vote_in_fifteen_is_too_uncertain_for_the_default_threshold():
    for classes, expected in ((10, 0.1064), (100, 0.0532)):
        shares = torch.zeros(1, classes)
        shares[0, :2] = torch.tensor([14 / 15, 1 / 15])
        assert uncertainty(shares).item() == pytest.approx(expected, abs=1e-4)
        assert uncertainty(shares).item() > Refurbish().threshold


@pytest.mark.parametrize(
    ("rows", "forget", "count"), [(50, 0.2, 40), (7, 0.2, 6), (1, 0.2, 1), (10, 0.7, 3), (4, 0.0, 4), (10, 0.9, 1)]
)
def test_clean_rows(rows, forget, count):
    assert clean_rows(rows, forget) == count


def client_of(given, history, t=5):
    """A client of which this was predicted, in round t of ten."""
    keep = {} if history is None else {"history": torch.tensor(history, dtype=torch.int16)}
    return fake_client(Refurbish(), given, torch.zeros(len(given), 3).tolist(), keep=keep, t=t, rounds=10)


def relabelled(part, client):
    return part.relabel(client, client.nets[0], client.labels)


def test_agreed_predictions_refurbish_and_others_keep_the_given_label():
    client = client_of(given=[0, 0, 2], history=[[1, 1, 2], [1, 0, 2], [1, 1, 2]])
    labels = relabelled(Refurbish(history=3), client)
    assert labels.target.argmax(1).tolist() == [1, 0, 2]
    assert client.scratch(Refurbish())["refurbished"].tolist() == [True, False, True]
    assert labels.score.tolist() == pytest.approx([0, 1 / 3, 1])


def test_a_looser_threshold_takes_the_majority():
    client = client_of(given=[0], history=[[1], [0], [1]])
    assert relabelled(Refurbish(history=3, threshold=0.6), client).target.argmax(1).tolist() == [1]


@pytest.mark.parametrize("history", [None, [[1, 1, 1]], [[1, 1, 1], [1, 1, 1]]])
def test_a_queue_that_is_not_full_never_refurbishes(history):
    client = client_of(given=[0, 1, 2], history=history)
    assert torch.equal(relabelled(Refurbish(history=3), client).target, client.labels.target)
    assert not client.scratch(Refurbish())["refurbished"].any()


def test_the_warm_up_refurbishes_nothing_and_chooses_all():
    client = client_of(given=[0, 1, 2], history=[[1, 1, 1]] * 3, t=1)
    assert torch.equal(relabelled(Refurbish(history=3), client).target, client.labels.target)
    assert client.scratch(Refurbish())["chosen"].all()


def test_a_label_comes_back_when_the_predictions_part_again():
    client, part = client_of(given=[0], history=[[1], [1]]), Refurbish(history=2)
    table = relabelled(part, client)
    assert table.target.argmax(1).tolist() == [1]
    client.keep(part)["history"] = torch.tensor([[1], [2]], dtype=torch.int16)
    assert part.relabel(client, client.nets[0], table).target.argmax(1).tolist() == [0]


def test_it_trains_on_the_union_and_the_refurbished_label_wins():
    federation = tiny_federation()
    settings = PLAIN | {"rounds": 2, "selfie.warmup": 1, "selfie.history": 1, "selfie.forget_rate": 0.5}
    with Contract.of("selfie", settings).trial(federation) as trial:
        trial.run()
        for client in range(4):
            ups = [up for up in trial.record.ups if up.client == client]
            given = torch.from_numpy(federation.given[client])
            received = next(down.models[0] for who, down in trial.record.downs[4:] if who == client)
            mode = logits_of(trial, ups[0].models[0], client).argmax(1)
            assert ups[0].loss == pytest.approx(
                F.cross_entropy(logits_of(trial, trial.plan.initial[0], client), given).item(), rel=1e-4
            )
            # One prediction is unanimous, so that every row is refurbished.
            loss = F.cross_entropy(logits_of(trial, received, client), mode)
            assert ups[1].loss == pytest.approx(loss.item(), rel=1e-4)
            audit = trial.states.load(client, ups[1].version)
            assert torch.equal(audit["judged/suggested"], mode)
            assert torch.equal(audit["judged/kept"], mode == given)


def test_without_a_full_queue_it_trains_on_the_clean_rows_alone():
    federation = tiny_federation()
    with Contract.of("selfie", PLAIN | {"rounds": 1, "selfie.warmup": 0}).trial(federation) as trial:
        trial.run()
        for up in trial.record.ups:
            given = torch.from_numpy(federation.given[up.client])
            named = {n: t.requires_grad_() for n, t in trial.plan.layout.named(trial.plan.initial[0].clone()).items()}
            logits = logits_with(trial, named, up.client)
            losses, rows = F.cross_entropy(logits, given, reduction="none").sort()
            slopes = torch.autograd.grad(losses[:20].mean(), list(named.values()))  # ⌈0.8 · 24⌉ = 20
            expected = trial.plan.initial[0] - 0.1 * torch.cat([slope.flatten() for slope in slopes])
            assert torch.allclose(up.models[0], expected, atol=1e-6)
            audit = trial.states.load(up.client, up.version)
            assert sorted(np.flatnonzero(audit["judged/kept"])) == sorted(rows[:20].tolist())


def test_predictions_are_kept_one_an_epoch():
    settings = PLAIN | {"rounds": 2, "epochs": 2, "selfie.history": 3}
    with Contract.of("selfie", settings).trial() as trial:
        trial.run()
        first, second = (trial.states.load(0, up.version)["keep/Refurbish/history"] for up in trial.record.ups[::4])
        assert (first.shape, second.shape) == ((2, 24), (3, 24))
        assert torch.equal(second[0], first[1])
        last = logits_of(trial, trial.record.ups[4].models[0], 0).argmax(1)
        assert torch.equal(second[2].long(), last)


def test_odd_clients_are_survived_after_the_warm_up():
    settings = {"rounds": 3, "selfie.warmup": 0, "selfie.history": 2}
    with Contract.of("selfie", settings).trial(tiny_federation(degenerate=True)) as trial:
        assert torch.isfinite(trial.run().models[0][0]).all()
        assert {up.client for up in trial.record.ups if up.models is None} == {4}


def test_small_losses_are_those_of_given_labels():
    """Two predictions of each row: where they agree the row is refurbished, of all rows half count as clean."""
    federation = tiny_federation()
    options = {"rounds": 2, "epochs": 2, "lr": 1.0}
    options |= {"selfie.warmup": 1, "selfie.history": 2, "selfie.forget_rate": 0.5}
    differs = False
    with Contract.of("selfie", PLAIN | options).trial(federation) as trial:
        part = next(p for p in trial.plan.stages[0].parts if isinstance(p, Refurbish))
        trial.run()
        for client in range(4):
            up = next(up for up in trial.record.ups if up.client == client)
            received = next(down.models[0] for who, down in trial.record.downs[4:] if who == client)
            given = torch.from_numpy(federation.given[client])
            history = trial.states.load(client, up.version)["keep/Refurbish/history"].long()
            sure = history[0] == history[1]
            target = torch.where(sure, history[1], given)
            losses = {
                name: F.cross_entropy(logits_of(trial, received, client), label, reduction="none")
                for name, label in (("given", given), ("target", target))
            }
            chosen = {name: sure.clone() for name in losses}
            for name, each in losses.items():
                chosen[name][each.argsort()[:12]] = True
            differs |= not torch.equal(chosen["given"], chosen["target"])

            keep = {"history": history.to(torch.int16)}
            c = fake_client(part, plan=trial.plan, id=client, t=1, models=(received,), keep=keep)
            c.nets[0].labels = part.relabel(c, c.nets[0], c.labels)
            found = part.loss(c, c.nets[0], c.batch(torch.arange(24), 0))
            assert found.item() == pytest.approx(losses["target"][chosen["given"]].mean().item(), rel=1e-4)
    assert differs, "the ranking matters somewhere"
