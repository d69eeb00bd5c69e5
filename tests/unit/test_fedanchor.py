"""FedAnchor: the label contrast, guesses by anchors, and who trains what."""

import math

import pytest
import torch
import torch.nn.functional as F

from fedsieve.base.errors import CompositionError
from fedsieve.methods.fedanchor import label_contrast, mean_cosines, prototypes
from fedsieve.testing import Contract, tiny_federation

ANCHORS = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
CLASSES = torch.tensor([0, 0, 1, 1])
OTHERS = torch.tensor([[0.8, 0.3], [0.2, 0.7]])
MLP = {"model": "mlp", "model.hidden": [8], "momentum": 0.0, "rounds": 2, "fedanchor.anchor.width": 5}
READINGS = ("class", "sample")


def ran(method="fedanchor", edit=None, federation=None, **settings):
    with Contract.of(method, MLP | settings).trial(federation, edit=edit) as trial:
        return trial.run(), trial


def draws(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# The formulas


@pytest.mark.parametrize(("per", "expected"), [("class", 0.6935335848947157), ("sample", 0.0003863858022256458)])
def test_the_contrast_by_hand(per, expected):
    assert label_contrast(ANCHORS, CLASSES, 0.1, per).item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("per", READINGS)
def test_the_contrast_pair_by_pair(per):
    """Three classes, one of them with a single row: it stands in denominators, and has no loss of its own."""
    z, labels, tau = draws(6, 4), [0, 1, 0, 2, 1, 0], 0.3
    unit = (z / z.norm(dim=1, keepdim=True)).tolist()
    e = {
        (i, j): math.exp(sum(a * b for a, b in zip(unit[i], unit[j], strict=True)) / tau)
        for i in range(6)
        for j in range(6)
        if i != j
    }
    if per == "class":
        inside = [sum(v for (i, j), v in e.items() if labels[i] == labels[j] == c) for c in (0, 1)]
        losses = [-math.log(mine / sum(e.values())) for mine in inside]
    else:
        losses = [
            -math.log(
                sum(v for (i, j), v in e.items() if i == k and labels[j] == labels[k])
                / sum(v for (i, _), v in e.items() if i == k)
            )
            for k in (0, 1, 2, 4, 5)
        ]
    found = label_contrast(z, torch.tensor(labels), tau, per)
    assert found.item() == pytest.approx(sum(losses) / len(losses), rel=1e-5)


@pytest.mark.parametrize(("per", "least"), [("class", math.log(2)), ("sample", 0.0)])
def test_its_least_value(per, least):
    """Two classes at opposite ends: a class has half of all pairs, a sample none but its own."""
    z = torch.tensor([[1.0], [1.0], [-1.0], [-1.0]])
    assert label_contrast(z, CLASSES, 0.1, per).item() == pytest.approx(least, abs=1e-6)


@pytest.mark.parametrize("per", READINGS)
def test_pairs_of_a_class_are_drawn_together_and_others_apart(per):
    def at(first, second):
        angles = torch.tensor([0.0, first, second, second + 0.4])
        return label_contrast(torch.stack([angles.cos(), angles.sin()], 1), CLASSES, 0.5, per).item()

    assert at(0.5 - 1e-2, 1.5) < at(0.5, 1.5) < at(0.5 + 1e-2, 1.5)
    assert at(0.5, 1.5 + 1e-2) < at(0.5, 1.5) < at(0.5, 1.5 - 1e-2)


@pytest.mark.parametrize("per", READINGS)
def test_its_slope_is_that_of_finite_differences(per):
    z, labels = draws(5, 3), torch.tensor([0, 1, 0, 1, 2])
    z.requires_grad_()
    label_contrast(z, labels, 0.5, per).backward()
    for row in range(5):
        for column in range(3):
            step = torch.zeros(5, 3)
            step[row, column] = 1e-2
            above, below = (label_contrast(z.detach() + s * step, labels, 0.5, per).item() for s in (1, -1))
            assert z.grad[row, column].item() == pytest.approx((above - below) / 2e-2, abs=2e-3)


@pytest.mark.parametrize("per", READINGS)
@pytest.mark.parametrize("rows", [1, 3])
def test_without_a_pair_it_is_zero_and_so_is_its_slope(per, rows):
    z = draws(rows, 4).requires_grad_()
    value = label_contrast(z, torch.arange(rows), 0.1, per)
    value.backward()
    assert value.item() == 0.0
    assert not z.grad.any()


def test_similarities_by_hand():
    found = mean_cosines(OTHERS, prototypes(ANCHORS, CLASSES, 2))
    expected = [[0.9528533074752514, 0.40174978951653606], [0.3269722726906301, 0.9737524165494582]]
    assert found.flatten().tolist() == pytest.approx([v for row in expected for v in row], abs=1e-5)
    assert found.argmax(1).tolist() == [0, 1]


def test_prototypes_say_what_all_anchors_say():
    """The mean of cosines with a class's anchors is the product with the mean of their directions."""
    anchors, labels, others = draws(30, 6), torch.arange(30) % 4, draws(50, 6, seed=1)
    every = F.cosine_similarity(others[:, None], anchors[None], dim=2)
    expected = torch.stack([every[:, labels == c].mean(1) for c in range(4)], 1)
    found = mean_cosines(others, prototypes(anchors, labels, 4))
    assert torch.allclose(found, expected, atol=1e-6)
    assert torch.equal(found.argmax(1), expected.argmax(1))


def test_other_numbers_for_classes_and_other_lengths_change_nothing():
    anchors, labels, others = draws(30, 6), torch.arange(30) % 4, draws(50, 6, seed=1)
    plain = mean_cosines(others, prototypes(anchors, labels, 4))
    renamed = torch.tensor([2, 0, 3, 1])
    other = mean_cosines(others, prototypes(anchors, renamed[labels], 4))
    assert torch.equal(renamed[plain.argmax(1)], other.argmax(1))
    lengths = draws(30, 1, seed=2).exp()
    scaled = mean_cosines(7 * others, prototypes(lengths * anchors, labels, 4))
    assert torch.allclose(plain, scaled, atol=1e-6)


def test_one_anchor_a_class_is_the_nearest_one():
    anchors, others = draws(4, 6), draws(50, 6, seed=1)
    found = mean_cosines(others, prototypes(anchors, torch.arange(4), 4)).argmax(1)
    distances = torch.cdist(F.normalize(others), F.normalize(anchors))
    assert torch.equal(found, distances.argmin(1))


def test_a_class_without_anchors_is_never_guessed():
    found = mean_cosines(-OTHERS, prototypes(ANCHORS, CLASSES, 3))
    assert found[:, 2].tolist() == [-math.inf] * 2
    assert set(found.argmax(1).tolist()) <= {0, 1}


# The round


def module_of(trial, vector):
    module = trial.plan.build(0)
    module.load_state_dict(trial.plan.layout.named(vector), strict=False)
    return module.eval()


def seen(trial, vector, images):
    module = module_of(trial, vector)
    with torch.no_grad():
        return module.anchor(module.features(images))


@pytest.mark.parametrize("on", ["noisy", "clean"])
def test_clients_are_told_the_anchors_of_the_servers_set(on):
    """As the model they receive sees them, with the labels that the server has of them."""
    federation = tiny_federation()
    _, trial = ran(federation=federation, **{"fedanchor.server.on": on})
    held = federation.server[on]
    pixels = torch.from_numpy(federation.images[held.rows]).float().permute(0, 3, 1, 2) / 255
    images = (pixels - federation.mean[0]) / federation.std[0]
    for _, down in trial.record.downs:
        latents = F.normalize(seen(trial, down.models[0], images))
        labels = torch.from_numpy(held.labels)
        expected = torch.stack([latents[labels == c].mean(0) for c in range(4)]).nan_to_num()
        assert torch.allclose(down.briefs["GuessByAnchors"]["prototypes"], expected, atol=1e-4)


@pytest.mark.parametrize(("threshold", "tau"), [(0.0, 0.1), (0.257, 0.4)])
def test_a_step_is_recomputed_with_autograd(threshold, tau):
    """One full-batch step of each client: the weak view is guessed on, and the strong views of sure rows learn."""
    options = {"fedanchor.weak": "none", "fedanchor.strong": "rotate", "fedanchor.pretrain": 2}
    settings = {"batch": 1000, "lr": 1.0, "rounds": 1, "epochs": 1, "weight_decay": 0.0}
    _, trial = ran(**settings, **options, **{"fedanchor.threshold": threshold, "fedanchor.tau": tau})
    used = []
    for (client, down), up in zip(trial.record.downs, trial.record.ups, strict=True):
        c = trial.host.client(client, down.mail, down.models, {})
        clean = c.batch(torch.arange(24), 0).images("clean")
        means = down.briefs["GuessByAnchors"]["prototypes"]
        alike = F.normalize(seen(trial, down.models[0], clean)) @ means.T
        guess, sure = alike.argmax(1), (alike / tau).softmax(1).amax(1) >= threshold
        rows = torch.arange(24)[sure]
        used.append(len(rows))
        batch = c.batch(rows[torch.randperm(len(rows), generator=c.stream("order", 0, 0))], 0)
        module = module_of(trial, down.models[0]).train()
        F.cross_entropy(module(batch.images("rotate")), guess[batch.rows]).backward()
        slope = torch.cat([p.grad.flatten() for name, p in module.named_parameters() if "anchor" not in name])
        assert all(p.grad is None for p in module.anchor.parameters())
        sent = torch.cat([down.models[0][part] for part in trial.plan.up_slices])
        assert torch.allclose((sent - up.models[0])[: len(slope)], slope, atol=1e-5), client
    assert used == [24] * 4 if threshold == 0 else min(used) < 24


def test_the_server_minimises_both_losses():
    """One full-batch step before the first round, against autograd."""
    settings = {"batch": 1000, "lr": 1.0, "rounds": 1, "fedanchor.pretrain": 1, "fedanchor.view": "none"}
    federation = tiny_federation()
    _, trial = ran(federation=federation, **settings, **{"fedanchor.weight": 0.7, "fedanchor.tau": 0.4})
    held = federation.server["noisy"]
    pixels = torch.from_numpy(federation.images[held.rows]).float().permute(0, 3, 1, 2) / 255
    images, labels = (pixels - federation.mean[0]) / federation.std[0], torch.from_numpy(held.labels)
    begun = trial.plan.initial[0]
    module = module_of(trial, begun).train()
    features = module.features(images)
    loss = F.cross_entropy(module.head(features), labels)
    (loss + 0.7 * label_contrast(module.anchor(features), labels, 0.4, "class")).backward()
    slope = torch.cat([p.grad.flatten() for p in module.parameters()])
    arrived = trial.record.downs[0][1].models[0]
    assert torch.allclose((begun - arrived)[: len(slope)], slope, atol=1e-5)


def test_the_anchor_head_is_the_servers():
    """No client trains it, decays it or reports it."""
    _, trial = ran(rounds=1, weight_decay=0.1)
    layout = trial.plan.layout
    assert layout.count(("*",)) - layout.count(("anchor",)) == len(trial.record.ups[0].models[0])
    assert len(trial.record.downs[0][1].models[0]) == layout.size
    state, _ = ran(rounds=1, weight_decay=0.1, **{"fedanchor.server.epochs": 0})
    anchor = layout.slices(("anchor",))
    for part in anchor:
        assert torch.equal(state.models[0][0][part], trial.record.downs[0][1].models[0][part])


def test_without_contrast_and_without_guesses_it_is_server_sl():
    """The model beside the anchor head, bit by bit."""
    state, trial = ran(**{"fedanchor.weight": 0.0, "fedanchor.threshold": 1.5})
    assert {up.skipped for up in trial.record.ups} == {"no guess is sure"}
    plain = {k: v for k, v in MLP.items() if "fedanchor" not in k}
    with Contract.of("server-sl", plain).trial() as alone:
        expected = alone.plan.layout.named(alone.run().models[0][0])
    mine = trial.plan.layout.named(state.models[0][0])
    assert mine.keys() > expected.keys()
    assert all(torch.equal(mine[name], value) for name, value in expected.items())


def test_idle_clients_change_nothing():
    (idle, _), (silent, _) = ran(epochs=0), ran(**{"fedanchor.threshold": 1.5})
    assert torch.equal(idle.models[0][0], silent.models[0][0])


def test_the_reading_is_a_choice():
    (one, _), (two, _) = (ran(rounds=1, **{"fedanchor.per": per}) for per in READINGS)
    assert not torch.equal(one.models[0][0], two.models[0][0])


@pytest.mark.parametrize("method", ["fedprox+fedanchor", "moon+fedanchor", "scaffold+fedanchor", "ksim+fedanchor"])
def test_it_composes(method):
    with Contract.of(method, {"rounds": 2}).trial() as trial:
        assert bool(torch.isfinite(trial.run().models[0][0]).all())
        assert any(up.models for up in trial.record.ups)


@pytest.mark.parametrize(
    ("method", "code"),
    [
        ("fedanchor+fedrn", "FS115"),
        ("fedanchor+gce", "FS103"),
        ("fixmatch+fedanchor", "FS106"),
        ("local+fedanchor", "FS101"),
        ("fedanchor+co-teaching", "FS108"),
    ],
)
def test_what_has_no_sense_is_refused(method, code):
    with pytest.raises(CompositionError) as problem:
        Contract.of(method, {}).plan(tiny_federation())
    assert problem.value.code == code
