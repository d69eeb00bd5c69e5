"""Frozen features of what a view shows: the very images that the net sees, brought back to what a map takes."""

from dataclasses import dataclass, replace
from weakref import ref

import numpy as np
import pytest
import torch

from fedsieve.core import Method, Part, SideHead, Stage
from fedsieve.core.net import Batch
from fedsieve.data.augment import augmentation
from fedsieve.data.features import hog
from fedsieve.data.samples import Preprocess, Samples
from fedsieve.parts import frozen
from fedsieve.parts.frozen import FrozenHead, FrozenViews, frozen_features, frozen_width
from fedsieve.testing import Contract, check_method, tiny_federation

MLP = {"model": "mlp", "model.hidden": [8]}


def samples_of(images, augment="flip", mean=(0.3, 0.5, 0.7), std=(0.2, 0.25, 0.31)):
    ready = Preprocess(mean, std, augment, torch.device("cpu"))
    return Samples(torch.from_numpy(images), torch.arange(len(images)), ready)


def batch_of(samples, rows, seed=0):
    return Batch(rows, lambda r, view: samples.view(r, view, torch.Generator().manual_seed(seed + len(view))))


@pytest.fixture
def images():
    return np.random.default_rng(0).integers(0, 256, (9, 16, 16, 3), np.uint8)


def test_every_level_comes_back_from_its_standardisation():
    levels = np.arange(256, dtype=np.uint8).repeat(3).reshape(1, 16, 16, 3)
    for std in (0.01, 0.2, 1.0):
        samples = samples_of(levels, mean=(0.1, 0.5, 0.9), std=(std,) * 3)
        assert np.array_equal(samples.as_stored(samples.view(torch.arange(1))).numpy(), levels)


@pytest.mark.parametrize("view", ["train", "train#2", "strong", "contrastive"])
def test_a_map_gets_what_the_view_shows(images, view):
    """By hand: the augmentation on [0, 1], rounded to 256 levels, never standardised."""
    samples, rows = samples_of(images), torch.tensor([7, 2, 4, 4])
    found = FrozenViews(samples, "hog").of(batch_of(samples, rows), view)
    x = torch.from_numpy(images)[rows].float() / 255
    drawn = augmentation("flip" if view.startswith("train") else view)(
        x.permute(0, 3, 1, 2), torch.Generator().manual_seed(len(view))
    )
    by_hand = (drawn.permute(0, 2, 3, 1) * 255).round().to(torch.uint8).numpy()
    assert np.abs(found.numpy() - hog(by_hand)).max() < 1e-2  # a value between two levels may fall to either side
    assert np.abs(found.numpy() - hog(by_hand)).mean() < 1e-5
    assert not torch.equal(found, FrozenViews(samples, "hog").of(batch_of(samples, rows), "clean"))


def test_the_clean_view_is_that_of_the_stored_samples(images):
    samples, rows = samples_of(images), torch.tensor([3, 1])
    views, batch = FrozenViews(samples, "pixels"), batch_of(samples, rows)
    assert torch.equal(views.of(batch, "clean"), torch.from_numpy(frozen_features(samples, "pixels"))[rows])
    assert views.stored is views.stored
    plain = FrozenViews(samples_of(images, "none"), "pixels")
    unaugmented = samples_of(images, "none")
    assert torch.equal(plain.of(batch_of(unaugmented, rows), "train"), plain.stored[rows])


def test_tables_are_as_they_are():
    table = np.random.default_rng(1).standard_normal((5, 3)).astype(np.float32)
    samples = samples_of(table)
    rows = torch.tensor([4, 0])
    assert torch.equal(FrozenViews(samples).of(batch_of(samples, rows), "train"), torch.from_numpy(table)[rows])


@pytest.mark.parametrize("name", ["auto", "hog", "pixels"])
def test_their_width_is_known_from_the_shape_of_a_sample(images, name):
    """A sample's shape has its channels first, stored images have them last."""
    assert frozen_width((3, 16, 16), name) == frozen_features(samples_of(images), name).shape[1]
    assert frozen_width((7,), name) == 7
    assert frozen_width((3, 16, 24), "hog") == 2 * frozen_width((3, 16, 16), "hog") == 72


def test_a_head_is_as_wide_as_they_are():
    filled = FrozenHead(name="mimic", base="projector", features="pixels").filled((2, 3, 4))
    assert filled == SideHead(name="mimic", base="projector", layers=1, width=24)


def test_once_a_batch_and_view(images, monkeypatch):
    asked = []

    def counted(name, size):
        return lambda shown: asked.append((name, len(shown))) or np.zeros((len(shown), 2), np.float32)

    monkeypatch.setattr(frozen, "_map", counted)
    samples = samples_of(images)
    batch, one, other = batch_of(samples, torch.arange(4)), FrozenViews(samples), FrozenViews(samples)
    first = one.of(batch)
    assert one.of(batch) is other.of(batch) is first
    assert asked == [("hog", 4)]
    one.of(batch, "train#2")
    FrozenViews(samples, "pixels").of(batch)
    one.of(batch_of(samples, torch.arange(3)))
    assert asked == [("hog", 4), ("hog", 4), ("pixels", 4), ("hog", 3)]


@dataclass(frozen=True, kw_only=True)
class Likeness(Part):
    """Draws features together as far as the frozen ones of the same view are alike; it reads no labels."""

    view: str = "train"

    def start(self, c):
        c.scratch(self)["frozen"] = FrozenViews(c.samples, "pixels")

    def loss(self, c, net, batch):
        frozen = c.scratch(self)["frozen"].of(batch, self.view)
        assert not frozen.requires_grad
        wanted = torch.nn.functional.normalize(frozen) @ torch.nn.functional.normalize(frozen).T
        found = torch.nn.functional.normalize(net.features(batch, self.view))
        return (found @ found.T - wanted).square().mean()


@pytest.mark.parametrize("view", ["train", "train#2", "weak"])
def test_a_method_on_views_keeps_the_contract(view):
    check_method(Method("own", (Stage(parts=(Likeness(view=view),)),)), **MLP, augment="weak")


def test_asking_for_features_shifts_nobody_s_draws():
    """The net trains on the same bits whether or not a map looks at its view, before or after it."""

    @dataclass(frozen=True, kw_only=True)
    class Looking(Part):
        def term(self, c, net, batch):
            return 0.0 * FrozenViews(c.samples, "pixels").of(batch).mean()

    states = []
    for parts in ((), (Looking(),)):
        federation = replace(tiny_federation(), mean=(0.4,))
        with Contract.of(Method("own", (Stage(parts=parts),)), MLP | {"augment": "weak"}).trial(federation) as trial:
            states.append(trial.run().models[0][0])
    assert torch.equal(*states)


def test_features_are_found_again_in_this_process(images, monkeypatch):
    """Only for the very same rows of the very same store, and only as many as there is room for."""
    made = []
    monkeypatch.setattr(frozen, "_computed", lambda samples, *what: made.append(what) or np.ones((len(samples), 2)))
    monkeypatch.setattr(frozen, "_RECENT", frozen.Recent(most=9 * 2 * 8 + 1))
    samples = samples_of(images)
    first = frozen_features(samples, "pixels")
    assert frozen_features(Samples(samples.origin[0], torch.arange(9), samples._preprocess), "pixels") is first
    assert len(made) == 1
    frozen_features(samples, "hog")
    assert len(made) == 2
    frozen_features(samples, "pixels")
    assert len(made) == 3, "there was room for one"
    other = Samples(samples.origin[0], torch.arange(1, 9), samples._preprocess)
    frozen_features(other, "pixels")
    assert len(made) == 4, "other rows"
    frozen_features(samples_of(images.copy()), "pixels")
    assert len(made) == 5, "another store"


def test_a_store_that_is_gone_is_not_taken_for_another(images):
    recent = frozen.Recent(most=10**6)
    samples = samples_of(images)
    key = (id(samples.origin[0]), samples.origin[1], "map")
    gone = torch.zeros(1)
    recent._held[key] = ref(gone), np.zeros(1)
    assert recent.get(samples, ("map",), lambda: np.ones(3)).tolist() == [1, 1, 1]


@pytest.mark.parametrize("rows", [5, 9])
def test_cosines_within_a_batch_are_those_of_its_features(images, rows):
    """Whether pairs are kept, as of nine images of many pixels, or there are more rows than features."""
    samples = samples_of(images if rows == 9 else images[:, :1, :1, :])
    views, batch = FrozenViews(samples, "pixels"), batch_of(samples, torch.tensor([3, 0, 4]))
    unit = torch.nn.functional.normalize(views.stored[batch.rows], dim=1)
    assert torch.allclose(views.alike(batch, "clean"), unit @ unit.T, atol=1e-6)
    shown = torch.nn.functional.normalize(views.of(batch, "train"), dim=1)
    assert torch.allclose(views.alike(batch, "train"), shown @ shown.T, atol=1e-6)
