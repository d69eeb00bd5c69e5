"""FedCorr: lengths of its stages, its mathematics by hand, and whose labels it mends in a whole run."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedsieve.base.errors import CompositionError
from fedsieve.core.part import Method, Stage
from fedsieve.core.samplers import Uniform
from fedsieve.core.types import Labels
from fedsieve.estimate.lid import local_dimensions
from fedsieve.methods import build_method
from fedsieve.methods.compose import compose
from fedsieve.methods.fedcorr import CorrectNoisy, OnlyClean
from fedsieve.methods.fedcorr_lid import LidCorrection
from fedsieve.methods.fedcorr_published import PublishedLidCorrection
from fedsieve.parts.mixup import MixUp, mixing_weight
from fedsieve.parts.selection import sure_predictions
from fedsieve.testing import Contract, fake_client, fake_server, tiny_federation

PLAIN = {"model": "mlp", "model.hidden": [6], "augment": "none"}


def plan_of(federation=None, **settings):
    return Contract.of("fedcorr", PLAIN | settings).plan(federation or tiny_federation())


@pytest.mark.parametrize(
    ("settings", "lengths"),
    [
        ({"rounds": 20}, [5 * 4, 10, 5]),
        ({"rounds": 40, "fraction": 0.5}, [5 * 4, 20, 10]),
        ({"rounds": 8}, [2 * 4, 4, 2]),
        ({"rounds": 2}, [2 * 4, 1, 0]),
        ({"rounds": 20, "fedcorr.iterations": 7, "fedcorr.finetune": 3}, [7 * 4, 3, 10]),
        ({"rounds": 20, "fedcorr.iterations": 1, "fedcorr.finetune": 0}, [1 * 4, 0, 19]),
    ],
)
def test_an_iteration_costs_as_many_rounds_as_visit_all_clients(settings, lengths):
    plan = plan_of(**settings)
    assert [(s.name, s.rounds) for s in plan.stages] == list(zip(["pre", "finetune", "train"], lengths, strict=True))


def test_the_papers_thousand_rounds():
    """100 clients, a tenth a round: 5 iterations cost 50 rounds, 500 fine-tune, 450 remain."""
    whole = tiny_federation()
    many = replace(whole, rows=whole.rows * 25, given=whole.given * 25, served=whole.served * 25)
    assert [stage.rounds for stage in plan_of(many, rounds=1000, fraction=0.1).stages] == [500, 500, 450]


def test_another_sampler_has_no_laps():
    method = compose(build_method("fedcorr", {}), sampler=Uniform())
    with pytest.raises(CompositionError, match="counts laps"):
        Contract.of(method, PLAIN).plan(tiny_federation())


def test_a_conversation_can_be_put_after_the_second_stage():
    talk = Method("talk", (Stage("talk", rounds=0),), where=("finetune",))
    names = [stage.name for stage in compose(build_method("fedcorr", {}), talk).stages]
    assert names == ["pre", "finetune", "talk", "train"]


def test_the_mixture_does_not_depend_on_the_unit():
    scores = torch.tensor([1.0, 1.1, 1.05, 3.0, 3.2, 3.1])
    for unit in (1e-3, 1.0, 1e3):
        clean = LidCorrection().clean_posterior(unit * scores, 3) > 0.5
        assert clean.tolist() == [True] * 3 + [False] * 3
    assert (PublishedLidCorrection().clean_posterior(scores, 3) > 0.5).tolist() == [True] * 3 + [False] * 3


@pytest.mark.parametrize("scores", [[1.0], [1.0, 9.0], [2.0] * 8])
def test_few_or_equal_scores_are_all_clean(scores):
    assert (LidCorrection().clean_posterior(torch.tensor(scores), 3) > 0.5).all()


def test_the_guard_leaves_a_single_hump_alone():
    hump = torch.randn(300, generator=torch.Generator().manual_seed(0))
    assert (LidCorrection().clean_posterior(hump, 3) < 0.5).any()
    assert (LidCorrection(guard=True).clean_posterior(hump, 3) > 0.5).all()


def test_confidence_and_relabelling_by_hand():
    logits = torch.log(torch.tensor([[0.6, 0.4], [0.5, 0.5], [0.1, 0.9]]))
    predicted, sure = sure_predictions(logits, 0.5)
    assert sure.tolist() == [True, False, True]
    labels = Labels.of(torch.tensor([1, 1, 1]), 2)
    mended = labels.rename(torch.tensor([0, 2]), predicted[[0, 2]])
    assert mended.target.tolist() == [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]
    assert torch.equal(mended.given, labels.given)
    assert torch.equal(labels.target, Labels.of(labels.given, 2).target), "the old table stays as it is"


@pytest.fixture
def client():
    """Client 0 in the first stage, with a model that knows nothing, and a function that makes it anew."""
    federation = tiny_federation(rows=40)
    plan = plan_of(federation)

    def made(part, noise=0.0):
        return fake_client(part, plan=plan, federation=federation, t=4, brief={"noise": noise})

    return made


def test_mixup_is_the_loss_of_the_mixture(client):
    part = MixUp()
    c = client(part)
    net, batch = c.nets[0], c.batch(torch.arange(6), 0)
    draw = c.rng(part, "mix", 0, 0, 0)
    weight, partner = mixing_weight(1.0, draw), torch.randperm(6, generator=draw)
    x, y = batch.images(), net.target(batch)
    log_p = net.module(weight * x + (1 - weight) * x[partner]).log_softmax(1)
    expected = -((weight * y + (1 - weight) * y[partner]) * log_p).sum(1)
    found = part.loss(c, net, batch)
    assert torch.allclose(found, expected, atol=1e-5)
    net.grad.zero_()
    found.mean().backward()
    assert net.grad.abs().max() > 0
    plain = torch.nn.functional.cross_entropy(net.logits(batch), y, reduction="none")
    assert torch.allclose(MixUp(alpha=0).loss(c, net, batch), plain, atol=1e-6)


def test_the_proximal_term_grows_with_the_noise(client):
    """The gradient of 5 · 0.3 · ‖w − w_t‖² is 3 (w − w_t)."""
    part = LidCorrection()
    for noise, factor in ((0.3, 3.0), (0.0, 0.0)):
        c = client(part, noise)
        net = c.nets[0]
        net.vector.add_(0.1)
        net.grad.zero_()
        part.gradient(c, net, None)
        assert torch.allclose(net.grad, torch.full_like(net.grad, 0.1 * factor), atol=1e-6)


def test_the_published_distance_is_not_squared_and_misses_each_epochs_first_batch(client):
    """The gradient of 5 · 0.3 · ‖w − w_t‖ has the norm 1.5, however far the weights are."""
    part = PublishedLidCorrection()
    c = client(part, 0.3)
    net, norms = c.nets[0], []
    net.vector.add_(0.1)
    for epoch in (0, 0, 0, 1, 1):
        c.epoch = epoch
        net.grad.zero_()
        part.gradient(c, net, None)
        norms.append(float(net.grad.norm()))
    assert norms == pytest.approx([0, 1.5, 1.5, 0, 1.5], rel=1e-4)
    clean = client(part, 0.0)
    clean.nets[0].vector.add_(0.1)
    for _ in range(2):
        clean.nets[0].grad.zero_()
        part.gradient(clean, clean.nets[0], None)
        assert not clean.nets[0].grad.any(), "of a clean client there is no term"


@pytest.mark.parametrize("published", [False, True])
def test_a_client_reports_its_dimension_and_keeps_its_losses(client, published):
    part = PublishedLidCorrection() if published else LidCorrection()
    c = client(part)
    logits = c.outputs(c.nets[0]).logits
    p = logits.softmax(1)
    told = part.finish(c)
    assert told == {"dimension": pytest.approx(local_dimensions(p.numpy(), 20, published).mean())}
    outputs = p.softmax(1) if published else p
    expected = -outputs.gather(1, c.labels.given[:, None])[:, 0].log()
    assert torch.allclose(c.keep(part)["losses"], expected, atol=1e-5)


def answered(c, part, losses, sure):
    """The client's answer where its samples had these losses and the global model is sure, or not, of class 3."""
    c.keep(part)["losses"] = losses
    head = c.nets[0].module.head
    head.weight.data.zero_()
    head.bias.data.copy_(torch.tensor([0.0, 0.0, 0.0, 5.0 if sure else 0.1]))
    return part.answer(c, "noise", {})


def test_the_worst_half_of_the_wrong_ones_is_mended_if_the_model_is_sure(client):
    """Ten of forty samples lose much; the five with the largest losses are relabelled."""
    part = LidCorrection()
    losses = torch.cat([torch.linspace(0.0, 0.2, 30), torch.linspace(4.0, 4.5, 10)])
    c = client(part)
    given = c.labels.given
    assert answered(c, part, losses, sure=True) == {"noise": 0.25}
    assert c.labels.target.argmax(1).tolist() == [*given[:35].tolist(), *[3] * 5]
    assert (c.labels.score < 0.5).tolist() == [False] * 30 + [True] * 10
    assert "labels/target" in c.state, "it lasts"
    unsure = client(part)
    assert answered(unsure, part, losses, sure=False) == {"noise": 0.25}
    assert torch.equal(unsure.labels.target.argmax(1), given)


def test_equal_losses_and_no_losses_are_no_noise(client):
    part = LidCorrection()
    assert answered(client(part), part, torch.ones(40), sure=True) == {"noise": 0.0}
    assert part.answer(client(part), "noise", {}) == {"noise": 0.0}


@pytest.fixture
def server():
    return fake_server(OnlyClean(), plan=plan_of(), stage=1)


@pytest.mark.parametrize(
    ("right", "chosen"),
    [
        ({0: 1.0, 1: 0.9, 2: 0.89, 3: 0.2}, [0, 1]),
        ({0: 0.5, 1: 0.7, 2: 0.7, 3: 0.2}, [1, 2]),
        ({0: 1.0, 3: 0.2}, [0]),
        ({3: 0.2}, [3]),
        ({}, [0, 1, 2, 3]),
    ],
    ids=["clean", "nobody is clean", "some are unknown", "only a noisy one is known", "all are unknown"],
)
def test_who_fine_tunes(server, right, chosen):
    server.by(LidCorrection()).columns.write("right", right)
    assert OnlyClean().eligible(server, [0, 1, 2, 3]) == chosen


def test_every_group_has_somebody_to_fine_tune(server):
    """Clients 2 and 3 are a group of their own, in which nobody is clean: the better one trains its model."""
    server.state.columns["group"] = torch.tensor([0.0, 0.0, 1.0, 1.0], dtype=torch.float64)
    server.by(LidCorrection()).columns.write("right", {0: 1.0, 1: 0.5, 2: 0.6, 3: 0.2})
    assert OnlyClean().eligible(server, [0, 1, 2, 3]) == [0, 2]


@pytest.mark.parametrize(
    ("sizes", "noisy"),
    [((4, 4), [3, 4, 5, 6, 7]), ((12, 12), [11, 23]), ((12, 4), [11, 12, 13, 14, 15])],
    ids=["two small groups", "two large groups", "a large and a small one"],
)
def test_small_groups_are_judged_by_the_mixture_over_all(sizes, noisy):
    """One client of each group stands out from it; the second group has higher dimensions throughout."""
    clients = sum(sizes)
    plan = replace(plan_of(rounds=6), clients=clients)
    group = torch.arange(clients) >= sizes[0]
    part = next(p for p in plan.stages[0].parts if isinstance(p, LidCorrection))
    level = torch.where(group, 8.0, 2.0) + 0.01 * torch.arange(clients)
    level[[sizes[0] - 1, clients - 1]] += 5.0
    columns = {"group": group.tolist(), "dimension": level.tolist(), "visits": [1.0] * clients}
    s = fake_server(part, plan=plan, t=clients - 1, columns=columns)  # the end of an iteration
    assert sorted(next(part.talk(s, "round_end")).to) == noisy


def test_dimensions_are_the_mean_over_visits_and_in_the_published_code_their_sum():
    columns = {"dimension": [6.0, 6.0, np.nan, 4.0], "visits": [2.0, 3.0, np.nan, 1.0]}
    for part, scores in ((LidCorrection(), [3.0, 2.0, 4.0]), (PublishedLidCorrection(), [6.0, 6.0, 4.0])):
        s = fake_server(part, plan=plan_of(), columns=columns | {"right": [1.0, 0.5, np.nan, 0.25]})
        assert part.scores(s) == dict(zip((0, 1, 3), scores, strict=True))
        dimensions, noise = part.show(s)
        assert dimensions.clients == noise.clients == (0, 1, 3)
        assert dimensions.values.tolist() == scores
        assert noise.values.tolist() == [0.0, 0.5, 0.75]
        assert part.show(fake_server(part, plan=plan_of())) == []


def test_the_last_correction_asks_noisy_clients_only(server):
    server.by(LidCorrection()).columns.write("right", {0: 1.0, 1: 0.95, 3: 0.2})
    assert list(CorrectNoisy().talk(server, "round_end")) == []
    (ask,) = CorrectNoisy().talk(server, "end")
    assert sorted(ask.to) == [1, 3]
    assert ask.models


def noisy_federation():
    """Clients 1 and 2 have three labels in four wrong, the others none."""
    whole = tiny_federation(rows=80)
    rng = np.random.default_rng(0)
    kept = [(r[ok], g[ok]) for r, g, ok in zip(whole.rows, whole.given, whole.served, strict=True)]
    given = [
        np.where(rng.random(len(g)) < 0.75, rng.integers(0, 4, len(g)), g) if k in (1, 2) else g
        for k, (_, g) in enumerate(kept)
    ]
    right = tuple(g == true for g, (_, true) in zip(given, kept, strict=True))
    return replace(whole, rows=tuple(r for r, _ in kept), given=tuple(given), served=None), right


def test_noisy_clients_are_found_kept_out_and_mended():
    federation, right = noisy_federation()
    settings = PLAIN | {"rounds": 6, "epochs": 4, "fedcorr.iterations": 2, "fedcorr.finetune": 3, "lr": 0.1}
    with Contract.of("fedcorr", settings).trial(federation) as trial:
        state = trial.run()
        estimated = state.columns["right"].tolist()
        assert estimated[0] == estimated[3] == 1.0
        assert max(estimated[1:3]) < 0.9
        visits = [sorted(what.ups) for what in trial.record.rounds]
        assert [sorted(k for (k,) in visits[lap : lap + 4]) for lap in (0, 4)] == [[0, 1, 2, 3]] * 2
        assert visits[8:11] == [[0, 3]] * 3
        assert visits[11:] == [[0, 1, 2, 3]]
        assert {client for client, q in trial.record.questions if q.topic == "correct"} == {1, 2}
        for k in (1, 2):
            mended = trial.states.load(k, state.versions[k])["labels/target"].argmax(1).numpy()
            kept = mended == federation.given[k]
            assert kept[right[k]].mean() > 0.8
            assert kept[~right[k]].mean() < 0.2


def test_tiny_clients_are_not_judged():
    """Of nine clients one is empty and one holds a single sample."""
    with Contract.of("fedcorr", PLAIN).trial(tiny_federation(degenerate=True)) as trial:
        state = trial.run()
        assert state.columns["right"].isnan().tolist() == [k in (4, 5) for k in range(9)]


def test_a_client_that_missed_its_turn_is_not_taken_for_clean(server):
    part = LidCorrection()
    columns = server.by(part).columns
    columns.write("dimension", {0: 4.0, 1: 2.0, 2: 4.2, 3: 8.0})
    columns.write("visits", {0: 2, 1: 1, 2: 2, 3: 2})
    assert part.scores(server) == pytest.approx({0: 2.0, 1: 2.0, 2: 2.1, 3: 4.0})


def test_schedules_span_all_rounds():
    lr = plan_of(rounds=20, schedule="cosine", lr=0.1).fit.lr
    assert [lr(0), lr(35)] == pytest.approx([0.1, 0.0])
    assert lr(20) > 0.01


def test_a_weigher_joins_every_stage():
    with Contract.of("fedds+fedcorr", PLAIN | {"rounds": 8}).trial() as trial:
        trial.run()
        by_stage = {what.stage: what.weights for what in trial.record.rounds}
    assert list(by_stage["pre"].values()) == [1.0]
    assert len(set(by_stage["train"].values())) > 1


def test_every_stage_mixes():
    """The last one too: its loss is that of mixed rows, at every client."""
    plan = plan_of(rounds=8)
    assert [stage.names() & {"MixUp", "CrossEntropy"} for stage in plan.stages] == [{"MixUp"}] * 3
    losses = []
    for alpha in (0.0, 1.0):
        with Contract.of("fedcorr", PLAIN | {"rounds": 8, "fedcorr.alpha": alpha, "lr": 1e-30}).trial() as trial:
            trial.run()
            losses.append([up.loss for up in trial.record.ups[-4:]])
            assert trial.record.rounds[-1].stage == "train"
    assert all(abs(one - other) > 1e-6 for one, other in zip(*losses, strict=True))
