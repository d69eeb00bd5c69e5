"""Who is noisy by class losses, and how much the noisy weigh, by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedsieve.core.types import Told, Up
from fedsieve.methods.ifca import PickCluster
from fedsieve.parts.few_rows import SMALLEST, enough
from fedsieve.parts.noisy_clients import (
    UNSEEN,
    ClassLossDetector,
    DistanceAware,
    class_losses,
    comparable,
    noisier_half,
    noisy_clients,
)
from fedsieve.testing import Contract, fake_server, tiny_federation

PLAIN = {"model": "mlp", "model.hidden": [6], "augment": "none"}


def test_class_losses_by_hand():
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25], [0.2, 0.4, 0.4], [0.1, 0.8, 0.1]]))
    target = torch.eye(3)[[0, 0, 1]]
    expected = [-(np.log(0.5) + np.log(0.2)) / 2, -np.log(0.8), UNSEEN]
    assert class_losses(logits, target).tolist() == pytest.approx(expected)


def test_gaps_are_filled_and_every_class_is_scaled():
    losses = torch.tensor([[1.0, UNSEEN, 2.0, UNSEEN], [3.0, 0.5, 2.0, UNSEEN], [UNSEEN, 1.5, 2.0, UNSEEN]])
    low = comparable(losses, "minimum")
    assert low.tolist() == [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    middle = comparable(losses, "mean")
    assert middle.tolist() == [[0.0, 0.5, 0.0], [1.0, 0.0, 0.0], [0.5, 1.0, 0.0]]
    assert comparable(torch.full((3, 4), UNSEEN), "mean").shape == (3, 0)


def clients(noisy, clean, spread=0.05, classes=4):
    """Class losses of so many noisy and clean clients, scaled."""
    draws = torch.randn(noisy + clean, classes, generator=torch.Generator().manual_seed(0))
    return comparable(1 + spread * draws + 0.5 * (torch.arange(noisy + clean) < noisy)[:, None], "mean")


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_the_larger_losses_are_noisy(covariance):
    found = noisier_half(clients(5, 11), range(9), covariance, guard=False)
    assert found.tolist() == [True] * 5 + [False] * 11


def test_the_set_that_most_mixtures_find_wins(monkeypatch):
    """Three of five starts lead to the first row alone."""
    starts = iter([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0]])

    class Given:
        means_ = np.array([[0.0], [1.0]])
        lower_bound_ = 0.0

        def __init__(self, *_, **__):
            pass

        def fit(self, x, shares):
            self.shares = shares
            return self

        def predict_proba(self, x):
            return self.shares

        def bic(self, x):
            return 0.0

    monkeypatch.setattr("fedsieve.parts.noisy_clients.GaussianMixture", Given)
    monkeypatch.setattr("fedsieve.parts.noisy_clients.scattered_start", lambda *_: np.eye(2)[next(starts)])
    assert noisier_half(torch.arange(4.0)[:, None], range(5), "full", guard=False).tolist() == [True] + [False] * 3


@pytest.mark.parametrize("points", [torch.zeros(0, 3), torch.rand(2, 3), torch.ones(6, 3), torch.zeros(6, 0)])
def test_nobody_is_noisy_where_there_is_nothing_to_compare(points):
    assert not noisier_half(points.double(), range(3), "diagonal", guard=False).any()


def test_the_guard_leaves_equals_alone():
    alike = clients(0, 20)
    assert noisier_half(alike, range(9), "diagonal", guard=False).any(), "without it a single cloud is cut in two"
    assert not noisier_half(alike, range(9), "diagonal", guard=True).any()
    assert noisier_half(clients(5, 11), range(9), "diagonal", guard=True).sum() == 5


@pytest.mark.parametrize(("size", "shape"), [((30, 10), "full"), ((29, 10), "diagonal"), ((20, 5), "full")])
def test_the_covariance_follows_the_number_of_clients(size, shape):
    assert ClassLossDetector().shape(*size) == shape
    assert ClassLossDetector(covariance="full").shape(2, 100) == "full"


@pytest.fixture
def server():
    return fake_server(DistanceAware(), plan=Contract.of("fednoro", PLAIN).plan(tiny_federation()))


def reports(s, offsets):
    """Each client's model is the server's, moved by so much along every weight."""
    model = s.models[0]
    return {k: Up(k, 0, 10, 0, (model + offset,), {}, 0, 0.0) for k, offset in offsets.items()}


def weighed(s, offsets, clean, **settings):
    s.by(ClassLossDetector()).columns.write("clean", clean)
    w = dict.fromkeys(offsets, 10.0)
    return DistanceAware(**settings).weigh(s, reports(s, offsets), w)


def test_noisy_clients_weigh_less_the_further_they_are_from_a_clean_one(server):
    """Distances to the nearest clean model are 1 and 2 steps: D is 1/2 and 1."""
    found = weighed(server, {0: 0.0, 1: 1.0, 2: -2.0, 3: 10.0}, {0: 1, 1: 0, 2: 0, 3: 1})
    assert found == pytest.approx({0: 10.0, 1: 10 * np.exp(-0.5), 2: 10 * np.exp(-1), 3: 10.0}, rel=1e-5)


def test_only_this_rounds_clients_are_compared(server):
    """Client 0, next to client 1, does not report: the nearest clean one is client 3."""
    found = weighed(server, {1: 1.0, 2: 8.0, 3: 10.0}, {0: 1, 1: 0, 2: 0, 3: 1})
    assert found == pytest.approx({1: 10 * np.exp(-1), 2: 10 * np.exp(-2 / 9), 3: 10.0}, rel=1e-5)


@pytest.mark.parametrize("clean", [{0: 0, 1: 0}, {0: 1, 1: 1}, {}])
def test_weights_stay_where_all_are_of_one_kind(server, clean):
    assert weighed(server, {0: 0.0, 1: 1.0}, clean) == {0: 10.0, 1: 10.0}


def test_equal_models_weigh_the_same(server):
    assert weighed(server, {0: 0.5, 1: 0.5}, {0: 0, 1: 1}) == {0: 10.0, 1: 10.0}


def test_the_published_distance_sums_over_tensors(server):
    """Moved by one, a tensor of n numbers is √n away; all weights together are √W away."""
    layout = server.plan.layout
    one, other = [torch.ones(layout.size)], [torch.zeros(layout.size)]
    sizes = [entry.stop - entry.start for entry in layout.entries]
    assert DistanceAware(published=True).distance(one, other, layout) == pytest.approx(sum(np.sqrt(sizes)))
    assert DistanceAware().distance(one, other, layout) == pytest.approx(np.sqrt(layout.trainable))


def test_clients_that_were_never_judged_count_as_clean(server):
    assert noisy_clients(server) == set()
    server.by(ClassLossDetector()).columns.write("clean", {1: 0.0, 2: 1.0})
    assert noisy_clients(server) == {1}


def test_groups_are_split_each_by_itself():
    """All of group 1 lose more than all of group 0; within each, one client stands out."""
    plan = Contract.of("fednoro", PLAIN | {"clients": 8}).plan(replace_clients(8))
    s = fake_server(ClassLossDetector(), plan=plan, federation=replace_clients(8))
    s.by(PickCluster()).split({k: int(k >= 4) for k in range(8)})
    dialogue = ClassLossDetector().talk(s, "start")
    next(dialogue)
    levels = [0.1, 0.11, 0.12, 0.9, 5.0, 5.01, 5.02, 9.0]
    answers = {k: Told({"losses": torch.full((4,), level)}) for k, level in enumerate(levels)}
    with pytest.raises(StopIteration):
        dialogue.send(answers)
    assert noisy_clients(s) == {3, 7}


def replace_clients(count):
    whole = tiny_federation()
    return replace(
        whole, rows=whole.rows * (count // 4), given=whole.given * (count // 4), served=whole.served * (count // 4)
    )


def test_of_classes_with_few_samples_no_loss_is_told():
    target = torch.eye(3)[torch.tensor([0] * 5 + [1] * 4)]
    told = class_losses(torch.zeros(9, 3), target, SMALLEST)
    assert told.tolist() == pytest.approx([np.log(3), UNSEEN, UNSEEN])
    assert enough(torch.tensor([0] * 5 + [1] * 4), 3).tolist() == [True, False, False]
