"""Co-teaching: who is kept, how many, and what each of the two nets learns from."""

import pytest
import torch
import torch.nn.functional as F

from fedsieve.base.errors import CompositionError, ConfigError
from fedsieve.core.part import Method, Stage
from fedsieve.methods.co_teaching import CoTeaching
from fedsieve.parts.selection import mean_of, rows_kept, smallest
from fedsieve.testing import Contract, tiny_federation

PLAIN = {"model": "mlp", "model.hidden": [6], "augment": "none", "batch": 1000, "momentum": 0.0, "lr": 0.1}


def images(federation, client):
    pixels = torch.from_numpy(federation.images[federation.rows[client]]).float().permute(0, 3, 1, 2) / 255
    return (pixels - federation.mean[0]) / federation.std[0]


def test_the_smallest_losses_and_of_equal_ones_the_first():
    losses = torch.tensor([0.3, 0.1, 0.3, 0.9, 0.3])
    assert smallest(losses, 3).tolist() == [True, True, True, False, False]
    assert smallest(losses, 1).tolist() == [False, True, False, False, False]
    assert smallest(losses, 9).all()


@pytest.mark.parametrize(
    ("rows", "forget", "kept"), [(50, 0.2, 40), (7, 0.2, 5), (3, 0.0, 3), (1, 0.2, 1), (2, 0.9, 1), (10, 0.9, 1)]
)
def test_rows_kept(rows, forget, kept):
    assert rows_kept(rows, forget) == kept


def test_the_mean_is_over_the_chosen_rows_and_only_they_have_a_gradient():
    losses = torch.tensor([1.0, 2.0, 4.0], requires_grad=True)
    mean = mean_of(torch.tensor([True, False, True]), losses, torch.tensor([1.0, 1.0, 3.0]))
    assert mean.item() == pytest.approx(13 / 4)
    mean.backward()
    assert losses.grad.tolist() == [0.25, 0.0, 0.75]


def test_the_forget_rate_rises_over_the_warm_up():
    assert [CoTeaching(warmup=4).forget(t, 20) for t in (0, 1, 2, 4, 19)] == pytest.approx([0, 0.05, 0.1, 0.2, 0.2])
    assert CoTeaching().forget(2, 20) == pytest.approx(0.1), "a fifth of 20 rounds is 4"
    assert CoTeaching(warmup=0, forget_rate=0.3).forget(0, 20) == 0.3
    assert CoTeaching(warmup=40).forget(10, 20) == pytest.approx(0.05), "a ramp longer than the run is not shortened"


def test_each_net_learns_from_what_its_peer_finds_easy():
    federation = tiny_federation()
    settings = PLAIN | {"rounds": 1, "co-teaching.warmup": 0, "co-teaching.forget_rate": 0.5}
    with Contract.of("co-teaching", settings).trial(federation) as trial:
        state = trial.run()
        for up in trial.record.ups:
            x, given = images(federation, up.client), torch.from_numpy(federation.given[up.client])
            nets = [trial.plan.build(index) for index in range(2)]
            losses = [F.cross_entropy(net(x), given, reduction="none") for net in nets]
            easy = [set(loss.sort().indices[:12].tolist()) for loss in losses]
            assert easy[0] != easy[1], "or this test would show nothing"
            for index, net in enumerate(nets):
                mine = losses[index][sorted(easy[1 - index])].mean()
                slopes = torch.autograd.grad(mine, list(net.parameters()), retain_graph=True)
                expected = trial.plan.initial[index] - 0.1 * torch.cat([slope.flatten() for slope in slopes])
                assert torch.allclose(up.models[index], expected, atol=1e-6)
            votes = [sum(row in chosen for chosen in easy) / 2 for row in range(24)]
            audit = trial.states.load(up.client, state.versions[up.client])
            assert audit["judged/score"].tolist() == votes
            assert audit["judged/kept"].tolist() == [vote > 0.5 for vote in votes]


def test_the_score_counts_both_nets_and_every_epoch():
    with Contract.of("co-teaching", PLAIN | {"rounds": 2, "epochs": 2, "co-teaching.warmup": 1}).trial() as trial:
        trial.run()
        first, second = (trial.states.load(0, up.version) for up in trial.record.ups[::4])
        assert first["judged/kept"].all(), "nothing is forgotten in the first round"
        assert (first["judged/score"] == 1).all()
        score = second["judged/score"]
        assert float(score.sum()) == pytest.approx(19), "⌊0.8 · 24⌋ rows in each of four choices"
        assert torch.equal(second["judged/kept"], score > 0.5)


def test_forgetting_nothing_is_two_times_fedavg():
    settings = PLAIN | {"rounds": 2, "batch": 8}
    twins = Method("own", nets=2, turns="together")
    one, two = Contract.of("co-teaching", settings | {"co-teaching.forget_rate": 0.0}), Contract.of(twins, settings)
    with one.trial() as taught, two.trial() as plain:
        for mine, theirs in zip(taught.run().models[0], plain.run().models[0], strict=True):
            assert torch.allclose(mine, theirs, atol=1e-6)


def test_it_needs_two_models_and_a_rate_below_one():
    with pytest.raises(CompositionError, match="CoTeaching works on 2 models per client"):
        Contract.of(Method("own", (Stage(parts=(CoTeaching(),)),)), {}).plan(tiny_federation())
    with pytest.raises(ConfigError, match="forget_rate"):
        CoTeaching(forget_rate=1.0)
