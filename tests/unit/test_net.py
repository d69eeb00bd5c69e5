"""Local training on flat vectors does what a plain PyTorch loop does."""

import math
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import log_softmax

from fedsieve.base.errors import RunError
from fedsieve.core.client import split_rows
from fedsieve.core.net import Batch, Net, Out
from fedsieve.core.part import Method, Part, Share, Stage
from fedsieve.core.types import Mail
from fedsieve.models import build_model
from fedsieve.models.base import BodyAndHead
from fedsieve.models.norm import normalises_batches
from fedsieve.parts.terms import Prox
from fedsieve.testing import Contract, Trial, fake_client, fake_server, tiny_federation

MLP = {"model": "mlp", "model.hidden": [8]}
SEEN: list = []


@dataclass(frozen=True, kw_only=True)
class Spy(Part):
    """Writes down the batches that were trained on."""

    def stepped(self, c, net, batch):
        SEEN.append((c.round, c.id, batch.images("train").clone(), net.target(batch), net.weight(batch)))


@dataclass(frozen=True, kw_only=True)
class Measured(Part):
    """The flat gradient of another scalar, which must leave the net's own alone."""

    def gradient(self, c, net, batch):
        before = net.grad.clone()
        other = net.gradient_of(net.logits(batch).sum())
        assert torch.equal(net.grad, before)
        assert not torch.equal(other, before)
        bias = len(net.grad) - 4
        assert torch.allclose(other[bias:], torch.full((4,), float(len(batch))))


@contextmanager
def trained(*parts, method=None, federation=None, **settings):
    """A trial that has run, and the batches of its clients."""
    SEEN.clear()
    own = method or Method("own", (Stage(parts=(*parts, Spy())),))
    with Contract.of(own, {"rounds": 1, **settings}).trial(federation) as trial:
        trial.run()
        yield trial


def plain_loop(plan, client, optimizer, penalty=0.0, clip=0.0):
    """The same batches through per-tensor parameters and an optimiser over all of them."""
    model = plan.build(0).to(memory_format=torch.channels_last).train()
    first = [p.detach().clone() for p in model.parameters()]
    step = optimizer(list(model.parameters()))
    for _, _, x, target, weight in [seen for seen in SEEN if seen[1] == client]:
        each = -(target * log_softmax(model(x), 1)).sum(1)
        loss = (each * weight).sum() / weight.sum()
        if penalty:
            gaps = zip(model.parameters(), first, strict=True)
            loss = loss + penalty / 2 * sum(((p - p0) ** 2).sum() for p, p0 in gaps)
        step.zero_grad()
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        step.step()
    return plan.layout.flat(model.state_dict())


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=1e-2),
    "adam": lambda p: torch.optim.Adam(p, 0.05, weight_decay=1e-2),
    "adamw": lambda p: torch.optim.AdamW(p, 0.05, weight_decay=1e-2),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", ["cnn-lite", "mlp"])
def test_same_bits_as_tensor_by_tensor(model, optimizer):
    settings = {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-2, "epochs": 2, "optimizer": optimizer}
    with trained(model=model, **settings) as trial:
        for up in trial.record.ups[:2]:
            assert len([seen for seen in SEEN if seen[1] == up.client]) == 6
            assert torch.equal(up.models[0], plain_loop(trial.plan, up.client, OPTIMIZERS[optimizer]))


def test_the_mean_training_loss_is_reported():
    with trained(**MLP, batch=100, augment="none") as trial:
        (_, _, x, target, _), up = SEEN[0], trial.record.ups[0]
        expected = torch.nn.functional.cross_entropy(trial.plan.build(0)(x), target).detach()
        assert up.loss == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("turns", ["together", "alternate"])
def test_several_nets_do_not_touch_each_other(turns):
    with (
        Contract.of(Method("own", nets=2, turns=turns), MLP).trial() as pair,
        Contract.of(Method("own"), MLP).trial() as alone,
    ):
        first, second = pair.run().models[0]
        assert torch.equal(first, alone.run().models[0][0])
        assert not torch.equal(second, first)
        assert not torch.equal(*pair.plan.initial), "each net has its own start"


def test_clipping_bounds_the_step():
    with trained(**MLP, clip=0.01, momentum=0.0, batch=100, lr=0.5) as trial:
        way = trial.record.ups[0].models[0] - trial.plan.initial[0]
        assert float(way.norm()) == pytest.approx(0.5 * 0.01, rel=1e-4)
    with trained(**MLP, clip=0.3, momentum=0.0, epochs=3) as trial:
        expected = plain_loop(trial.plan, 0, lambda p: torch.optim.SGD(p, 0.05), clip=0.3)
        assert torch.allclose(trial.record.ups[0].models[0], expected, atol=1e-6)


def test_gradients_below_the_bound_are_left_alone():
    with trained(**MLP, clip=100.0) as bounded, trained(**MLP) as free:
        assert torch.equal(bounded.record.ups[0].models[0], free.record.ups[0].models[0])


def test_bf16_runs_close_to_fp32():
    with trained(precision="bf16") as low, trained() as full:
        a, b = low.record.ups[0].models[0], full.record.ups[0].models[0]
        assert a.dtype == torch.float32
        assert not torch.equal(a, b)
        assert float((a - b).norm() / (b - full.plan.initial[0]).norm()) < 0.2


def test_frozen_sections_do_not_move():
    method = Method("own", share=Share(train=("head",)))
    with trained(method=method, **MLP, weight_decay=0.1) as trial:
        head = trial.plan.layout.slices(("head",))[0]
        moved = trial.record.ups[0].models[0] != trial.plan.initial[0]
        assert bool(moved[head].all())
        assert not bool(moved[: head.start].any())


def test_prox_is_the_gradient_of_its_penalty():
    settings = {**MLP, "epochs": 2, "momentum": 0.0, "lr": 0.05}
    with trained(Prox(mu=3.0), **settings) as trial:
        expected = plain_loop(trial.plan, 1, lambda p: torch.optim.SGD(p, 0.05), penalty=3.0)
        without = plain_loop(trial.plan, 1, lambda p: torch.optim.SGD(p, 0.05))
        found = trial.record.ups[1].models[0]
        assert torch.allclose(found, expected, atol=1e-6)
        assert not torch.allclose(found, without, atol=1e-4)


def test_prox_without_strength_is_fedavg_bit_for_bit():
    with Contract.of("fedprox", {"fedprox.mu": 0}).trial() as one, Contract.of("fedavg", {}).trial() as two:
        assert torch.equal(one.run().models[0][0], two.run().models[0][0])


def test_gradient_of_another_scalar_leaves_the_own_alone():
    with trained(Measured(), **MLP) as trial:
        assert all(not up.skipped for up in trial.record.ups)


def test_augmented_views_are_reproducible_and_differ_between_clients_and_rounds():
    federation = tiny_federation()
    same = replace(federation, rows=(federation.rows[0],) * 4, given=(federation.given[0],) * 4)
    with trained(**MLP, federation=same, augment="strong", rounds=2, batch=100):
        first = {(r, k): x for r, k, x, *_ in SEEN}
    with trained(**MLP, federation=same, augment="strong", rounds=2, batch=100):
        second = {(r, k): x for r, k, x, *_ in SEEN}
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert not torch.equal(first[0, 0].sort(0).values, first[0, 1].sort(0).values)
    assert not torch.equal(first[0, 0].sort(0).values, first[1, 0].sort(0).values)


class Counting:
    """A net over a module that counts its forward passes."""

    def __init__(self):
        self.net = Net(build_model("mlp", (3,), 2, options={"hidden": [4]}))
        self.net.vector.copy_(torch.linspace(0.1, 1.0, len(self.net.vector)))  # no unit is silent
        self.passes = 0
        self.net.module.head.register_forward_hook(self._count)
        self.batch = self.new_batch()

    def new_batch(self):
        return Batch(torch.arange(5), lambda rows, view: torch.full((len(rows), 3), float(len(view))))

    def _count(self, *_):
        self.passes += 1


def test_outputs_are_made_once_for_each_view():
    counting = Counting()
    net, batch = counting.net, counting.batch
    assert net.logits(batch) is net.out(batch).logits
    assert net.features(batch) is net.out(batch).features
    assert counting.passes == 1
    clean, train = net.logits(batch, "clean").detach(), net.logits(batch, "longer view").detach()
    assert not torch.equal(clean, train)
    assert counting.passes == 3
    net.logits(counting.new_batch())
    assert counting.passes == 4, "another batch is another pass"
    net.logits(batch)
    net.forget()
    net.logits(batch)
    assert counting.passes == 6


def test_an_output_without_gradients_is_not_given_to_who_needs_them():
    counting = Counting()
    net, batch = counting.net, counting.batch
    with torch.no_grad():
        assert not net.logits(batch).requires_grad
    assert net.logits(batch).requires_grad
    with torch.no_grad():
        assert net.logits(batch).requires_grad, "one with gradients serves everybody"
    assert counting.passes == 2


def test_loading_starts_anew():
    net = Net(build_model("cnn-lite", (1, 12, 12), 4))
    start = net.vector.clone()
    net.module.train()
    net.module(torch.rand(4, 1, 12, 12, generator=torch.Generator().manual_seed(0)))
    counter = next(b for b in net.module.buffers() if not b.is_floating_point())
    assert int(counter) == 1
    assert not torch.equal(net.vector, start), "running statistics are part of the vector"
    net.load(start)
    assert int(counter) == 0
    assert torch.equal(net.vector, start)
    assert torch.equal(net.received, start)
    assert torch.equal(net.begun, start)


def test_an_exception_in_a_hook_names_the_client():
    class Broken(Part):
        def term(self, c, net, batch):
            raise ZeroDivisionError("by design")

    with (
        pytest.raises(RunError, match="client 0: ZeroDivisionError: by design") as problem,
        trained(Broken(), **MLP),
    ):
        pass
    assert problem.value.code == "FS210"


# Evaluation


def moved(plan):
    """First weights with running statistics that are nobody's batch."""
    vector = plan.initial[0].clone()
    for entry in plan.layout.entries:
        if entry.name.endswith("running_mean"):
            entry.view(vector).fill_(0.3)
        if entry.name.endswith("running_var"):
            entry.view(vector).fill_(2.0)
    return vector


def evaluated(plan, vector, x):
    module = plan.build(0).eval()
    named = plan.layout.named(vector)
    return torch.func.functional_call(module, named, x)


def seen_images(federation, stored):
    pixels = torch.from_numpy(stored).float().permute(0, 3, 1, 2) / 255
    return (pixels - federation.mean[0]) / federation.std[0]


@pytest.mark.parametrize("training", [True, False])
def test_clients_and_server_evaluate_by_running_statistics(tmp_path, training):
    """Whatever mode a net was in, which it keeps; and its statistics stay as they are."""
    federation = tiny_federation()
    plan = Contract.of("fedds", {"model": "cnn-lite"}).plan(federation)
    host, vector = Trial(plan, federation, tmp_path).host, moved(plan)
    c = fake_client(plan.stages[0].parts[0], plan=plan, id=1, models=(vector,))
    net = c.nets[0]
    net.module.train(training)
    mine = evaluated(plan, vector, seen_images(federation, federation.images[federation.rows[1]]))
    assert torch.allclose(c.outputs(net).logits, mine, atol=1e-4)
    probe = torch.randn(1, *plan.sample_shape, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(net.respond(probe), evaluated(plan, vector, probe)[0], atol=1e-4)
    assert net.module.training == training
    assert torch.equal(net.vector, vector)
    theirs = evaluated(plan, vector, seen_images(federation, federation.images[federation.server["unlabelled"].rows]))
    assert torch.allclose(host.assess((vector,), "unlabelled"), theirs, atol=1e-4)


def test_test_images_are_predicted_by_running_statistics(tmp_path):
    federation = tiny_federation()
    plan = Contract.of("fedavg", {"model": "cnn-lite"}).plan(federation)
    host, x = Trial(plan, federation, tmp_path).host, seen_images(federation, federation.test_images)
    mail = Mail(stage=0, round=0, t=0, group=0, version=0, saves=1, retain=())
    rows = torch.arange(len(x))
    for seed in range(5):
        vector = moved(replace(plan, seed=seed))
        expected = evaluated(plan, vector, x).argmax(1).tolist()
        assert host.predict((vector,), "test", rows).tolist() == expected
        assert host.test_client(0, mail, (vector,), rows).tolist() == expected


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_one_evaluation_batch_on_every_device(tmp_path, device):
    """With norm=batch an answer depends on who else is in the batch: 50 rows, the same wherever a model runs."""
    federation = tiny_federation(rows=120)
    plan = Contract.of("fedavg", {"model": "cnn-lite", "norm": "batch"}).plan(federation)
    c = fake_client(plan.stages[0].parts[0], plan=plan, federation=federation)
    if device == "cuda":
        sizes = []
        net = SimpleNamespace(device=torch.device("cuda"), forget=lambda: None, evaluating=nullcontext)
        net.out = lambda batch, *_: sizes.append(len(batch)) or Out(torch.zeros(len(batch)), torch.zeros(len(batch)))
        c.outputs(net)
        assert sizes == [50, 50, 20]
        return
    x = seen_images(federation, federation.images[federation.rows[0]])
    by_hand = torch.cat([evaluated(plan, plan.initial[0], some) for some in torch.split(x, 50)])
    assert torch.allclose(c.outputs(c.nets[0]).logits, by_hand, atol=1e-4)
    assert not torch.allclose(by_hand, evaluated(plan, plan.initial[0], x), atol=1e-2)


# Order, rate and weight


@dataclass(frozen=True, kw_only=True)
class Rows(Part):
    """Writes down the rows of each batch."""

    def stepped(self, c, net, batch):
        SEEN.append((c.round, c.epoch, c.id, batch.rows.tolist()))


def test_every_epoch_and_every_round_has_a_fresh_order():
    SEEN.clear()
    with Contract.of(Method("own", (Stage(parts=(Rows(),)),)), {**MLP, "rounds": 2, "epochs": 3}).trial() as trial:
        trial.run()
    orders = {}
    for round_, epoch, client, rows in SEEN:
        orders.setdefault((round_, epoch, client), []).extend(rows)
    assert len(orders) == 2 * 3 * 4
    assert all(sorted(order) == list(range(24)) for order in orders.values())
    assert len({tuple(order) for order in orders.values()}) == len(orders)


@dataclass(frozen=True, kw_only=True)
class Slope(Part):
    """A loss whose gradient is 1 everywhere, so that a step is the learning rate."""

    def loss(self, c, net, batch):
        return sum(parameter.sum() for parameter in net.module.parameters())


def test_the_learning_rate_goes_by_the_round_of_the_run_not_of_the_stage():
    method = Method("own", (Stage("one", 2, (Slope(),)), Stage("ask", 0), Stage("two", 2, (Slope(),))))
    settings = {**MLP, "rounds": 4, "batch": 100, "momentum": 0.0, "lr": 0.8, "schedule": "cosine"}
    with Contract.of(method, settings).trial() as trial:
        trial.run()
        for (_, down), up in zip(trial.record.downs, trial.record.ups, strict=True):
            rate = 0.4 * (1 + math.cos(math.pi * up.round / 4))
            assert torch.allclose(down.models[0] - up.models[0], torch.full_like(up.models[0], rate), atol=1e-6)


@dataclass(frozen=True, kw_only=True)
class Picky(Part):
    """Client 0 trains on five of its rows."""

    def relabel(self, c, net, labels):
        return labels.only(torch.arange(c.n) < 5) if c.id == 0 else labels


def test_clients_weigh_by_all_their_rows_not_by_those_they_keep():
    with Contract.of(Method("own", (Stage(parts=(Picky(),)),)), {**MLP, "rounds": 1}).trial() as trial:
        trial.run()
        assert [up.n for up in trial.record.ups] == [24] * 4
        assert trial.record.rounds[0].weights == dict.fromkeys(range(4), 0.25)


def test_prox_is_anchored_at_the_received_model():
    """Also where a `start` hook moved the net away from it before training."""

    @dataclass(frozen=True, kw_only=True)
    class Moved(Part):
        def start(self, c):
            c.nets[0].vector.add_(0.5)

    settings = {**MLP, "rounds": 1, "batch": 100, "momentum": 0.0, "lr": 0.1}
    with Contract.of(Method("own", (Stage(parts=(Moved(), Slope(), Prox(mu=2.0))),)), settings).trial() as trial:
        trial.run()
        change = trial.record.ups[0].models[0] - trial.plan.initial[0]
        # 0.5 from the start, then −0.1 · (1 + 2 · 0.5)
        assert torch.allclose(change, torch.full_like(change, 0.3), atol=1e-6)


def test_first_weights_follow_seed_net_and_group():
    plan = Contract.of("fedavg", MLP).plan(tiny_federation())
    other = replace(plan, seed=plan.seed + 1)
    modules = [plan.build(0), other.build(0), plan.build(1), plan.build(0, group=1)]
    vectors = [plan.layout.flat(module.state_dict()) for module in modules]
    assert all(not torch.equal(a, b) for a, b in combinations(vectors, 2))
    assert torch.equal(vectors[0], plan.initial[0])
    assert torch.equal(vectors[1], other.initial[0])
    assert torch.equal(vectors[3], plan.fresh(1)[0])
    assert torch.equal(vectors[0], plan.layout.flat(plan.build(0).state_dict()))


# Batches that a normalisation can work on


def normed(shape=(1, 12, 12), classes=4):
    """A net whose features are normalised over the batch."""
    flat = math.prod(shape)
    body = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(flat, 6), torch.nn.BatchNorm1d(6), torch.nn.ReLU())
    return BodyAndHead(body, 6, classes)


@contextmanager
def trained_normed(*parts, rows, **settings):
    """As `trained`, with a net that normalises over the batch."""
    SEEN.clear()
    method = Method("own", (Stage(parts=(*parts, Spy())),))
    federation = tiny_federation(rows=rows)
    contract = Contract.of(method, {"rounds": 1, **MLP, **settings})
    with contract.trial(federation) as trial, TemporaryDirectory() as folder:
        own = Trial(replace(trial.plan, model=normed), federation, Path(folder))
        own.run()
        yield own


@pytest.mark.parametrize(
    ("rows", "size", "smallest", "sizes"),
    [
        (25, 8, 1, [8, 8, 8, 1]),
        (25, 8, 2, [8, 8, 9]),
        (26, 8, 2, [8, 8, 8, 2]),
        (24, 8, 2, [8, 8, 8]),
        (7, 8, 2, [7]),
        (5, 1, 2, [2, 3]),
        (26, 8, 3, [8, 8, 10]),
    ],
)
def test_a_last_batch_that_is_too_small_joins_the_one_before(rows, size, smallest, sizes):
    found = split_rows(torch.arange(rows), size, smallest)
    assert [len(some) for some in found] == sizes
    assert torch.equal(torch.cat(found), torch.arange(rows))


def test_a_net_that_normalises_over_the_batch_trains_on_any_number_of_rows():
    with trained_normed(rows=25, batch=8) as trial:
        assert trial.plan.smallest_batch == 2
        assert [len(images) for _, client, images, *_ in SEEN if client == 0] == [8, 8, 9]
    with trained_normed(rows=1) as trial:
        assert {up.skipped for up in trial.record.ups} == {"1 to train on, where a batch needs 2 samples"}


@dataclass(frozen=True, kw_only=True)
class Threes(Part):
    """Compares three samples of a batch with each other."""

    smallest_batch = 3


def test_a_part_says_how_small_its_batches_may_be():
    with trained(Threes(), federation=tiny_federation(rows=18), batch=8, **MLP):
        assert [len(images) for _, client, images, *_ in SEEN if client == 0] == [8, 10]


def test_which_nets_normalise_over_the_batch_is_seen_from_them():
    shape = (1, 12, 12)
    assert normalises_batches(normed(), shape)
    assert not normalises_batches(build_model("cnn-lite", shape, 4), shape)
    pooled = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.BatchNorm2d(1))
    assert normalises_batches(pooled, shape)
    grouped = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 12), torch.nn.GroupNorm(1, 2))
    assert not normalises_batches(grouped, shape)
    beside = BodyAndHead(torch.nn.Flatten(), 144, 4)
    beside.predictor = torch.nn.BatchNorm1d(4)
    assert normalises_batches(beside, shape)


@pytest.mark.parametrize("failing", [False, True])
def test_other_weights_are_held_for_a_while(failing):
    """Weights, what was received and begun, and the counters of batches: all as before, also after an error."""
    c = fake_client(Prox(), model="cnn-lite")
    (net,) = c.nets
    net.module.train()
    net.logits(c.batch(torch.arange(6), 0))
    net.forget()
    before = net.vector.clone(), net.received, net.begun, [b.clone() for b in net.module.buffers()]
    other = net.vector + 1.0
    with suppress(RuntimeError), net.holding(other):
        assert torch.equal(net.vector, other)
        if failing:
            raise RuntimeError
    assert torch.equal(net.vector, before[0])
    assert net.received is before[1]
    assert net.begun is before[2]
    assert all(torch.equal(now, then) for now, then in zip(net.module.buffers(), before[3], strict=True))


def test_sections_that_travel_are_put_in_their_places():
    """Both ways: the head stays at the client, the body goes up, and normalisation layers come down alone."""
    share = Share(down=("@norm",), up=("*", "-head"), keep=("head",))
    plan = Contract.of(Method("apart", (Stage(parts=(Prox(),)),), share=share), {"model": "cnn-lite"}).plan(
        tiny_federation()
    )
    s, c = fake_server(Prox(), plan=plan), fake_client(Prox(), plan=plan)
    (net,), moved = c.nets, tuple(model + 1.0 for model in plan.initial)
    down = c.complete(net, s.sections(moved)[0], "down")
    up = c.complete(net, torch.full((plan.sizes["U"],), 7.0), "up")
    for entry in plan.layout.entries:
        before = entry.view(plan.initial[0])
        assert torch.equal(entry.view(down), before + 1.0 if entry.norm else before)
        stays = entry.name.startswith("head.")
        assert torch.equal(entry.view(up), before if stays else torch.full_like(before, 7.0))
