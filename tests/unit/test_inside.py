"""What a watched run shows at its end: the map, the neighbours, and their place on the page."""

import re
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from threadpoolctl import threadpool_limits

import fedsieve
from fedsieve.base.errors import DataError
from fedsieve.core import Method, Part, Stage
from fedsieve.data.truth import GroundTruth
from fedsieve.evaluate.embedding import flat_map, principal_components
from fedsieve.evaluate.neighbours import ANCHORS, OTHERS, retrieved
from fedsieve.parts.frozen import Retrieves
from fedsieve.report.folder import read_run
from fedsieve.report.html import write_report
from fedsieve.testing import Contract, tiny_federation

MLP = {"model": "mlp", "model.hidden": [8]}
TEST = np.arange(40) % 4

# The map


def test_principal_components_are_those_of_scikit_learn():
    x = np.random.default_rng(0).normal(size=(30, 6)) * [5, 4, 3, 2, 1, 0.5]
    mine, theirs = principal_components(x, 3), PCA(3).fit_transform(x)
    assert np.allclose(np.abs(mine), np.abs(theirs))
    assert all(column[np.abs(column).argmax()] > 0 for column in mine.T)
    assert principal_components(x[:2], 50).shape == (2, 2)


def test_the_map_keeps_neighbours_together_and_is_the_same_again():
    centres = torch.eye(3).repeat_interleave(20, 0) * 10
    x = torch.cat([centres, torch.zeros(60, 7)], 1) + torch.from_numpy(np.random.default_rng(1).normal(size=(60, 10)))
    points, how = flat_map(x)
    assert (how, points.shape, points.dtype) == ("t-SNE", (60, 2), np.float32)
    distances = ((points[:, None] - points[None]) ** 2).sum(-1) + 1e9 * np.eye(60)
    assert np.array_equal(distances.argmin(1) // 20, np.arange(60) // 20)
    with threadpool_limits(2):
        assert np.array_equal(points, flat_map(x)[0])


@pytest.mark.parametrize("x", [torch.ones(30, 4), torch.randn(3, 5), torch.randn(12, 1), torch.zeros(0, 4)])
def test_what_has_no_neighbourhoods_is_drawn_by_its_components(x):
    points, how = flat_map(x)
    assert (how, points.shape) == ("principal components", (len(x), 2))
    assert np.isfinite(points).all()


# Neighbours


@dataclass(frozen=True, kw_only=True)
class Next(Part):
    """The neighbours of a row are the two that come after it in the batch."""

    def retrieve(self, samples, rows):
        assert len(samples) >= len(rows)
        places = torch.arange(len(rows))
        return torch.stack([(places + 1) % len(rows), (places + 2) % len(rows)], 1)


def shown(federation, truth=None, batch=8, part=None):
    truth = truth or GroundTruth(tuple((g + 1) % 4 for g in federation.given), TEST, TEST[:0])
    plan = Contract.of(Method("own", (Stage(parts=(part or Next(),)),)), MLP | {"batch": batch}).plan(federation)
    return list(retrieved(plan, federation, truth))


def test_neighbours_come_with_their_owner_s_labels():
    federation = tiny_federation()
    (found,) = shown(federation)
    assert (found.part, found.near) == ("Next", 2)
    assert found.clients.tolist() == [0, 0, 1, 2, 2, 3]
    assert found.images.shape == (ANCHORS, 1 + 2 + OTHERS, 12, 12, 1)
    assert np.array_equal(found.true, (found.given + 1) % 4)
    for client, images, given in zip(found.clients, found.images, found.given, strict=True):
        owned = federation.images[federation.rows[client]]
        places = [np.flatnonzero((owned == image).all((1, 2, 3))).tolist() for image in images]
        assert all(len(place) == 1 for place in places), "each is one of the client's own"
        assert len({place[0] for place in places}) == len(places), "and none stands twice"
        assert federation.given[client][[place[0] for place in places]].tolist() == given.tolist()
    first, second = found.images[0], found.images[1]
    assert np.array_equal(first[1], second[0]), "the next in the batch is the nearest"
    again = shown(federation)[0]
    assert np.array_equal(found.images, again.images)


def test_small_batches_and_clients_show_what_there_is():
    federation = tiny_federation(25, degenerate=True)
    (found,) = shown(federation, batch=3)
    assert found.given.shape == (ANCHORS, 3)
    assert not set(found.clients) & {4, 5}, "who has one row or none has no neighbours"
    assert shown(federation, batch=1) == []
    table = replace(federation, images=np.zeros((len(federation.images), 5), np.float32))
    plan = Contract.of(Method("own", (Stage(parts=(Next(),)),)), MLP | {"batch": 8}).plan(federation)
    assert list(retrieved(plan, table, GroundTruth(federation.given, TEST, TEST[:0]))) == []
    assert list(retrieved(plan, federation, GroundTruth(None, TEST, TEST[:0]))) == []


def test_large_images_are_shrunk():
    """Each pixel of 12 x 12 as a square of 16: 192 pixels, by the means of three 64."""
    federation = tiny_federation()
    large = np.repeat(np.repeat(federation.images, 16, 1), 16, 2)
    (found,), (small,) = shown(replace(federation, images=large)), shown(federation)
    assert found.images.shape[2:] == (64, 64, 1)
    assert np.array_equal(found.images[:, :, 1::16, 1::16], small.images[:, :, ::3, ::3])
    edge = small.images[:, :, 0, 0].astype(float) + 2.0 * small.images[:, :, 0, 1]  # columns 15, 16 and 17
    assert np.array_equal(found.images[:, :, 0, 5], (edge / 3).round())


def test_ksim_shows_the_nearest_of_its_encoder():
    federation = tiny_federation()
    plan = Contract.of("ksim", MLP | {"ksim.features": "pixels", "ksim.k": 3, "batch": 24}).plan(federation)
    (found,) = retrieved(plan, federation, GroundTruth(federation.given, TEST, TEST[:0]))
    assert found.near == 3
    for client, line in zip(found.clients, found.images, strict=True):
        owned = federation.images[federation.rows[client]].reshape(24, -1) / 255.0
        flat = line.reshape(len(line), -1) / 255.0
        unit = owned / np.linalg.norm(owned, axis=1, keepdims=True)
        order = np.argsort(-(unit @ (flat[0] / np.linalg.norm(flat[0]))))
        assert np.array_equal(owned[order[:4]], flat[:4]), "itself, then the three of the greatest cosine"
    assert not isinstance(Part(), Retrieves)


# On the page


@pytest.fixture(scope="module")
def runs(tmp_path_factory, tiny_file):
    root = tmp_path_factory.mktemp("runs")
    keys = {"clients": 3, "rounds": 2, "epochs": 1, "batch": 20, "noise": "symmetric", "noise.rate": 0.4, **MLP}
    keys |= {"data": str(tiny_file), "runtime": "serial", "watch": True}
    for method in ("ksim", "fedavg"):
        fedsieve.run(quiet=True, **keys, method=method, out=str(root / method))
    return root


def headings(page):
    return re.findall(r"<h2>(.*?)</h2>", page)


INSIDE = ["Right and wrong labels", "A map of the features", "Neighbours of the frozen encoder"]


def test_a_watched_run_shows_what_happened_inside(runs):
    page = (runs / "ksim" / "report.html").read_text()
    assert [title for title in headings(page) if title in INSIDE] == INSIDE
    assert "brought to two dimensions by t-SNE" in page
    assert re.search(r"mean cross entropy of right and wrong labels over rounds: right labels end at \d", page)
    assert "6 samples with 4 neighbours each" in page
    ids = re.findall(r'\bid="(.*?)"', page)
    assert len(ids) == len(set(ids))
    assert [t for t in headings((runs / "fedavg" / "report.html").read_text()) if t in INSIDE] == INSIDE[:2]


def test_a_comparison_shows_the_curves_of_each_and_their_maps(runs, tmp_path):
    page = write_report([runs / "fedavg", runs / "ksim"], tmp_path / "both.html").read_text()
    for label in ("fedavg, right labels", "fedavg, wrong labels", "ksim, right labels", "ksim, wrong labels"):
        assert f">{label}</text>" in page
    assert page.count("coloured by true class.") == 2
    assert "This is ksim." in page


DAMAGE = {
    "no index": {"index": None},
    "a list": {"index": np.array("[1]")},
    "an unnamed map": {"index": np.array('{"map": 3, "neighbours": []}')},
    "no points": {"map/points": None},
    "few points": {"map/points": np.zeros((3, 2))},
    "points nowhere": {"map/points": np.full((160, 2), np.nan)},
    "no such class": {"map/true": np.full(160, -1)},
    "neither right nor wrong": {"map/wrong": np.zeros(160)},
    "no pixels": {"neighbours/0/images": np.zeros((6, 8, 12, 12, 1))},
    "empty images": {"neighbours/0/images": np.zeros((6, 8, 0, 12, 1), np.uint8)},
    "no such label": {"neighbours/0/given": np.full((6, 8), -2)},
    "classes of others": {"neighbours/0/true": np.zeros((6, 7), int)},
    "half a client": {"neighbours/0/clients": np.full(6, 0.5)},
}


@pytest.mark.parametrize("change", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_is_named(runs, tmp_path, change):
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("config.yaml", "metrics.jsonl", "federation.json", "summary.json"):
        (folder / name).write_bytes((runs / "ksim" / name).read_bytes())
    with np.load(runs / "ksim" / "inside.npz") as whole:
        arrays = dict(whole)
    np.savez(folder / "inside.npz", **arrays)
    assert read_run(folder).inside.map.points.shape == (160, 2)
    np.savez(folder / "inside.npz", **{name: value for name, value in (arrays | change).items() if value is not None})
    with pytest.raises(DataError, match=r"inside\.npz: cannot be read.*\[FS311\]"):
        write_report([folder], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()
