"""FedMatch: votes and agreement by hand, the two summands kept apart, helpers, and what it reduces to."""

import math

import pytest
import torch
import torch.nn.functional as F

from fedsieve.base.errors import CompositionError
from fedsieve.methods.fedmatch import InterClient, SigmaLabels
from fedsieve.methods.fedmatch_loss import disagreement, mean_of_sure, nearest, penalty_slope, voted
from fedsieve.methods.fedmatch_psi import AdditiveWeights, decomposed
from fedsieve.methods.fixmatch import fixmatch_loss
from fedsieve.parts.server_fit import ServerFit
from fedsieve.testing import CHECKS, Contract, fake_client, fake_reports, fake_server, tiny_federation

LOCAL = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.7, 0.1]])
FIRST = torch.tensor([[0.2, 0.7, 0.1], [0.1, 0.8, 0.1]])
SECOND = torch.tensor([[0.1, 0.8, 0.1], [0.5, 0.4, 0.1]])
SIGMA, PSI = torch.tensor([1.0, -2.0]), torch.tensor([0.2, -0.4])
MLP = {"model": "mlp", "model.hidden": [8], "momentum": 0.0, "rounds": 2}
FREE = {f"fedmatch.lambda_{which}": 0.0 for which in ("1", "2")}


def ran(name="fedmatch", federation=None, **settings):
    with Contract.of(name, MLP | settings).trial(federation) as trial:
        return trial.run(), trial


# The formulas


def test_votes_by_hand():
    assert voted([LOCAL, FIRST, SECOND]).tolist() == [1, 1]
    assert voted([LOCAL]).tolist() == [0, 1]
    assert voted([LOCAL, FIRST]).tolist() == [0, 1]  # one vote each: the first class


def test_agreement_by_hand():
    losses = disagreement(LOCAL.log(), [FIRST, SECOND])
    assert float(losses.mean()) == pytest.approx(0.3126707367076321, abs=1e-5)
    assert disagreement(LOCAL.log(), [LOCAL, LOCAL]).abs().max() < 1e-6
    assert disagreement(LOCAL.log(), []).tolist() == [0.0, 0.0]
    sure_of_one = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    assert disagreement(LOCAL.log(), [sure_of_one]).tolist() == pytest.approx([-math.log(0.6), -math.log(0.7)])


def test_the_mean_is_that_of_the_sure():
    losses = torch.tensor([1.0, 2.0, 6.0])
    assert float(mean_of_sure(losses, torch.tensor([True, False, True]))) == 3.5
    assert float(mean_of_sure(losses, torch.zeros(3, dtype=torch.bool))) == 0.0


def test_penalties_by_hand():
    """Σ |ψ| = 0.6 and Σ (σ − ψ)² = 3.2; their slope is that of autograd."""
    psi = PSI.clone().requires_grad_()
    first, second = psi.abs().sum(), (SIGMA - psi).square().sum()
    assert (first.item(), second.item()) == (pytest.approx(0.6), pytest.approx(3.2))
    (0.3 * first + 0.7 * second).backward()
    assert torch.allclose(penalty_slope(PSI, SIGMA, 0.3, 0.7), psi.grad)


def test_the_gradient_of_agreement_is_that_of_finite_differences():
    logits = LOCAL.log().double().requires_grad_()
    helpers = [FIRST.double().requires_grad_(), SECOND.double()]
    assert torch.autograd.gradcheck(lambda z: disagreement(z, [p.detach() for p in helpers]), (logits,))


def test_nearest_are_others():
    spots = {0: torch.tensor([0.0, 1.0]), 1: torch.tensor([0.0, 1.0]), 2: torch.tensor([0.1, 0.9]), 5: torch.ones(2)}
    assert nearest(spots, 0, 2) == [1, 2]
    assert nearest(spots, 1, 1) == [0]
    assert nearest(spots, 5, 9) == [2, 0, 1]
    assert nearest(spots, 3, 2) == []
    assert nearest({4: torch.ones(2)}, 4, 2) == []
    assert nearest(spots, 0, 0) == []


# Two summands


def test_it_begins_with_a_share_of_the_weights():
    part = AdditiveWeights()
    s = fake_server(part)
    whole, chosen = s.plan.initial[0][: s.plan.layout.trainable], decomposed(s.plan.layout)
    assert 0 < int((~chosen).sum()) < len(chosen)
    psi, sigma = s.memory["psi"], s.memory["sigma"]
    assert torch.allclose(psi[chosen], 0.2 * sigma[chosen], atol=1e-7)
    assert torch.allclose(sigma + psi, whole)
    assert not sigma[~chosen].any()


def test_a_step_moves_psi_alone_and_clears_its_smallest_entries():
    part = AdditiveWeights(sparse=0.1)
    s = fake_server(part, model="mlp", **{"model.hidden": [2]})
    size, count = s.plan.layout.size, s.plan.layout.trainable
    s.memory["psi"] = torch.full((count,), 0.5)
    before, after = torch.full((size,), 2.0), torch.full((size,), 3.0)
    after[0] = 1.55
    (model,) = part.step(s, (before,), (after,))
    assert s.memory["sigma"].tolist() == [1.5] * count
    assert s.memory["psi"][:3].tolist() == [0.0, 1.5, 1.5]
    assert model[:3].tolist() == [1.5, 3.0, 3.0]


def test_the_servers_training_leaves_psi_as_it_is_and_clients_leave_sigma():
    """Nobody is sure and nothing penalises: what moves is the server's."""
    state, trial = ran(**FREE, **{"fedmatch.threshold": 1.5, "fedmatch.sparse": 0.0})
    first = AdditiveWeights().recall(fake_server(AdditiveWeights(), plan=trial.plan))["psi"]
    for (_, down), up in zip(trial.record.downs, trial.record.ups, strict=True):
        assert torch.equal(down.models[0], up.models[0])
    briefs = [down.briefs["InterClient"]["psi"] for _, down in trial.record.downs]
    assert all(torch.equal(psi, first) for psi in briefs[:4])  # after the server learnt alone
    assert torch.allclose(briefs[-1], first, atol=1e-7)
    assert not torch.equal(trial.record.downs[0][1].models[0], trial.plan.initial[0])
    assert not torch.equal(trial.record.downs[-1][1].models[0], trial.record.downs[0][1].models[0])
    sigma = [down.models[0] - down.briefs["InterClient"]["psi"] for _, down in trial.record.downs]
    reported = [up.models[0] for up in trial.record.ups]
    assert torch.allclose(reported[0] - briefs[0], sigma[0], atol=1e-7)
    assert state.memory["InterClient", 0].keys() == {"psi", "sigma"}


def test_what_is_held_where_sigma_is():
    """σ of a round is the same before and after its reports are combined."""
    state, trial = ran(rounds=1, **{"fedmatch.threshold": 0.0, "fedmatch.server.epochs": 0})
    _, down = trial.record.downs[0]
    sigma = down.models[0] - down.briefs["InterClient"]["psi"]
    memory = state.memory["InterClient", 0]
    assert torch.equal(memory["sigma"], sigma)
    assert torch.allclose(state.models[0][0] - memory["psi"], sigma, atol=1e-6)
    mean = torch.stack([up.models[0] - sigma for up in trial.record.ups]).mean(0)
    assert torch.allclose(memory["psi"], torch.where(mean.abs() <= 1e-5, 0.0, mean), atol=1e-6)


def test_the_server_trains_no_normalisation_layer():
    plan = Contract.of("fedmatch", {}).plan(tiny_federation())
    (fit,) = (part for part in plan.stages[0].parts if isinstance(part, ServerFit))
    chosen = torch.zeros(plan.layout.trainable, dtype=torch.bool)
    for part in plan.layout.slices(fit.train, trainable_only=True):
        chosen[part] = True
    assert torch.equal(chosen, decomposed(plan.layout))
    assert not chosen.all()


@pytest.mark.parametrize("anchor", ["sigma", "received"])
def test_a_step_follows_loss_and_penalties(anchor):
    """One full-batch step of each client, recomputed with autograd: the strong view learns what the other one says."""
    options = {"threshold": 0.0, "strong": "rotate", "lambda_a": 0.5, "lambda_1": 0.01, "lambda_2": 0.1}
    keys = {f"fedmatch.{key}": value for key, value in options.items()}
    _, trial = ran(rounds=1, epochs=1, batch=1000, lr=0.1, **keys, **{"fedmatch.anchor": anchor})
    for (client, down), up in zip(trial.record.downs, trial.record.ups, strict=True):
        psi = down.briefs["InterClient"]["psi"]
        sigma = down.models[0] - psi
        module = trial.plan.build(0)
        module.load_state_dict(trial.plan.layout.named(down.models[0]))
        c = trial.host.client(client, down.mail, down.models, {})
        batch = c.batch(torch.randperm(24, generator=c.stream("order", 0, 0)), 0)
        guess = module(batch.images("none")).argmax(1)
        (0.5 * F.cross_entropy(module(batch.images("rotate")), guess)).backward()
        slope = torch.cat([parameter.grad.flatten() for parameter in module.parameters()])
        held = sigma if anchor == "sigma" else psi
        slope = slope + 0.01 * psi.sign() + 0.2 * (psi - held)
        assert torch.allclose(down.models[0] - up.models[0], 0.1 * slope, atol=1e-6), client


def test_the_penalty_makes_psi_sparse():
    """The share of entries near zero grows with λ₁."""
    shares = []
    for weight in (0.0, 0.02, 0.2):
        keys = {"fedmatch.lambda_2": 0.0, "fedmatch.lambda_1": weight, "fedmatch.sparse": 1e-3, "fedmatch.psi": 0.01}
        state, _ = ran(lr=0.005, epochs=4, **keys)
        shares.append(float((state.memory["InterClient", 0]["psi"] == 0).float().mean()))
    assert shares[0] < shares[1] < shares[2]


# What it reduces to


def test_without_psi_and_weights_it_is_server_sl():
    nothing = {f"fedmatch.lambda_{which}": 0.0 for which in ("i", "a", "1", "2")}
    alone, _ = ran("server-sl")
    keys = {"fedmatch.psi": 0.0, "fedmatch.lambda_s": 1.0, "fedmatch.server.lr": None}
    mine, trial = ran(**nothing, **keys)
    assert len(trial.record.ups) == 8
    assert torch.equal(mine.models[0][0], alone.models[0][0])


def test_lambda_s_weighs_the_servers_loss():
    c = fake_client(SigmaLabels(), given=[0, 1], says=[[1.0, 0.0], [1.0, 0.0]])
    batch = c.batch(torch.arange(2), 0)
    once, ten = (SigmaLabels(view="none", lambda_s=w).loss(c, c.nets[0], batch).detach() for w in (1.0, 10.0))
    assert torch.allclose(10 * once, ten)


def alone(part, says, brief=None):
    """A client with an echo as its model, whose ψ is zero."""
    c = fake_client(part, given=[0] * len(says), says=says)
    size = c.plan.layout.size
    told = {"psi": torch.zeros(len(c.nets[0].grad)), "helpers": torch.zeros(0, size)} | (brief or {})
    c = fake_client(part, given=[0] * len(says), says=says, brief=told)
    part.start(c)
    return c


SAYS = [[4.0, 0.0, 0.0], [0.1, 0.0, 0.0], [0.0, 0.0, 2.0]]


def test_without_helpers_it_is_fixmatch_but_for_the_divisor():
    """On the view as it is, at its threshold; FixMatch divides by the batch, FedMatch by the sure rows."""
    part = InterClient(strong="none", lambda_a=1.0)
    c = alone(part, SAYS)
    value = part.loss(c, c.nets[0], c.batch(torch.arange(3), 0))
    logits = torch.tensor(SAYS)
    assert value.item() == pytest.approx(float(fixmatch_loss(logits, logits, 0.75).sum()) / 2, rel=1e-5)
    assert c.guesses["used"].tolist() == [True, False, True]


def test_helpers_vote_and_are_agreed_with():
    """A helper's weights are σ + ψ_h: here twice an echo with two classes exchanged, which outvotes nobody."""
    part = InterClient(strong="none", lambda_a=0.5, lambda_i=0.25, threshold=0.0)
    c = alone(part, SAYS)
    vector = c.nets[0].vector.clone()
    swapped = torch.zeros(3, 3)
    swapped[0, 2] = swapped[1, 1] = swapped[2, 0] = 2.0
    other = c.plan.layout.flat({"head.weight": swapped, "head.bias": torch.zeros(3)})
    c = alone(part, SAYS, {"helpers": torch.stack([other - vector, other - vector])})
    value = part.loss(c, c.nets[0], c.batch(torch.arange(3), 0))
    logits = torch.tensor(SAYS)
    p = (logits @ swapped.T).softmax(1)
    guess = voted([logits.softmax(1), p, p])
    assert guess.tolist() != logits.argmax(1).tolist()
    agreed = (p * (p.log() - logits.log_softmax(1))).sum(1).mean()
    expected = 0.25 * agreed + 0.5 * F.cross_entropy(logits, guess)
    assert value.item() == pytest.approx(float(expected), rel=1e-5)
    assert c.guesses["guessed"].tolist() == guess.tolist()
    value.backward()
    assert bool(c.nets[0].grad.any())
    assert not any(bool(helper.grad.any()) for helper in c.scratch(part)["helpers"])


# Helpers at the server


def test_helpers_come_every_so_many_rounds_and_only_to_whom_was_seen():
    _, trial = ran(rounds=4, fraction=0.5, **{"fedmatch.interval": 2, "fedmatch.threshold": 0.0})
    seen, sent = set(), {}
    by_round = {}
    for client, down in trial.record.downs:
        by_round.setdefault(down.mail.t, {})[client] = len(down.briefs["InterClient"]["helpers"])
    for t, clients in sorted(by_round.items()):
        for client, count in clients.items():
            expected = min(2, len(seen - {client})) if t % 2 and client in seen else 0
            assert count == expected, (t, client)
            sent[t] = sent.get(t, 0) + count
        seen |= clients.keys()
    assert sent[0] == sent[2] == 0
    assert sent[3] > 0


def test_what_is_remembered_of_a_client():
    """Its ψ, and what its model makes of the image of noise; equal ones choose each other."""
    part = InterClient(interval=1)
    s = fake_server(part, model="mlp", **{"model.hidden": [2]})
    models = {k: s.plan.initial[0] + shift for k, shift in ((0, 0.5), (1, -0.5), (2, 0.5))}
    reports = {k: next(iter(fake_reports(part, {k: {}}, models=(m,)).values())) for k, m in models.items()}
    part.learn(s, reports, {})
    count = s.plan.layout.trainable
    assert torch.allclose(s.rows("last")[1][:count], models[1][:count] - s.memory["sigma"])
    assert torch.equal(s.rows("embedding")[0], s.rows("embedding")[2])
    assert float(s.rows("embedding")[1].sum()) == pytest.approx(1.0)
    assert torch.equal(part.brief(s, 0)["helpers"][0], s.rows("last")[2])
    assert torch.equal(part.brief(s, 2)["helpers"][0], s.rows("last")[0])
    (shown,) = part.show(s)
    expected = s.rows("last")[1][:count].norm() / s.memory["sigma"].norm()
    assert float(shown.values[1]) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_contract_with_helpers(check):
    check(Contract.of("fedmatch", {"fedmatch.interval": 1, "fedmatch.threshold": 0.3, "fedmatch.pretrain": 2}))


@pytest.mark.parametrize(
    ("method", "code"),
    [
        ("fedmatch+fedrn", "FS115"),
        ("fedmatch+gce", "FS103"),
        ("fedmatch+co-teaching", "FS108"),
        ("fedmatch+semifl", "FS106"),
    ],
)
def test_what_has_no_sense_is_refused(method, code):
    refused(method, code)


@pytest.mark.parametrize(("method", "norm"), [("fedmatch", "local"), ("local+fedmatch", "average")])
def test_the_whole_model_must_travel(method, norm):
    refused(method, "FS114", norm=norm)


def refused(method, code, **settings):
    with pytest.raises(CompositionError) as problem:
        Contract.of(method, settings).plan(tiny_federation())
    assert problem.value.code == code
