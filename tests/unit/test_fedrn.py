"""FedRN's scores and its choice of samples, against values worked out by hand."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.mixture import GaussianMixture

from fedsieve.base.rng import torch_rng
from fedsieve.evaluate.exhibits import write_exhibits
from fedsieve.methods.fedrn import ReliableNeighbours
from fedsieve.parts.selection import clean_probability, in_warmup, min_max
from fedsieve.testing import Contract, fake_client, fake_server, tiny_federation

OUTPUTS = {0: [1.0, 0.0, 0.0, 0.0], 1: [0.6, 0.8, 0.0, 0.0], 2: [0.0, 1.0, 0.0, 0.0], 3: [1.0, 0.0, 0.0, 0.0]}
ACCURACY = {0: 0.5, 1: 0.9, 2: 0.7, 3: 0.5}


@pytest.fixture
def server():
    """A server after warm-up to which all four clients have reported known numbers."""
    plan = Contract.of("fedrn", {"rounds": 10}).plan(tiny_federation())
    probes = {client: torch.tensor(output) for client, output in OUTPUTS.items()}
    last = {client: torch.full((plan.sizes["U"],), float(client)) for client in OUTPUTS}
    rows = {"probe": probes, "last": last}
    return fake_server(part_of(plan), plan=plan, t=5, columns={"accuracy": [*ACCURACY.values()]}, rows=rows)


def part_of(plan):
    return next(part for part in plan.stages[0].parts if isinstance(part, ReliableNeighbours))


def test_reliability_by_hand(server):
    # Exp of (0.5, 0.9, 0.7, 0.5) is (0, 1, 0.5, 0); Sim of client 0 with itself and 1, 2, 3 is (1, 0.6, 0, 1).
    found = server.part.reliability(server, 0, [1, 2, 3])
    expected = [0.6 * 0 + 0.4 * 1, 0.6 * 1 + 0.4 * 0.6, 0.6 * 0.5 + 0.4 * 0, 0.6 * 0 + 0.4 * 1]
    assert found.tolist() == pytest.approx(expected)


def test_the_most_reliable_neighbours_are_sent_with_their_trust(server):
    brief = server.part.brief(server, 0)
    assert brief["models"][:, 0].tolist() == [1.0, 3.0]
    assert brief["trust"].tolist() == pytest.approx([0.4, 0.84, 0.4])


def test_clients_that_never_trained_are_nobodys_neighbours(server):
    for client in (1, 3):
        del server.rows("last")[client]
    assert server.part.brief(server, 0)["models"][:, 0].tolist() == [2.0]


def test_the_global_model_stands_in_for_a_client_that_never_trained(server):
    del server.rows("probe")[0], server.rows("last")[0]
    column = server.columns["accuracy"].clone()
    column[0] = torch.nan
    server.state.columns["accuracy"] = column
    found = server.part.reliability(server, 0, [1, 2, 3])
    # Its accuracy is the mean of the others, (0.9 + 0.7 + 0.5) / 3 = 0.7, half way between worst and best.
    assert found[0].item() == pytest.approx(0.6 * 0.5 + 0.4 * 1)
    assert torch.isfinite(found).all()


def test_neighbours_come_from_the_clients_own_group(server):
    server.state.columns["group"] = torch.tensor([0.0, 1.0, 0.0, 1.0], dtype=torch.float64)
    assert server.part.brief(server, 0)["models"][:, 0].tolist() == [2.0]


def test_random_neighbours_and_equal_scores(server):
    part = replace(server.part, neighbours="random", k=3)
    brief = part.brief(server.by(part), 0)
    assert sorted(brief["models"][:, 0].tolist()) == [1.0, 2.0, 3.0]
    assert min_max(torch.tensor([0.3, 0.3])).tolist() == [0, 0]


def test_nothing_is_sent_while_warming_up(server):
    server.state.t = 1
    brief = server.part.brief(server, 0)
    assert len(brief["models"]) == 0
    assert [in_warmup(t, 10, None) for t in (0, 1, 2)] == [True, True, False]
    assert [in_warmup(t, 10, 1) for t in (0, 1)] == [True, False]


def test_the_mixture_finds_the_small_losses():
    target = torch.eye(4)[torch.arange(40) % 4]
    logits = 4.0 * target + 0.3 * torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    wrong = torch.arange(40) < 12
    given = torch.where(wrong[:, None], target.roll(1, dims=1), target)
    assert torch.equal(clean_probability(logits, given) > 0.5, ~wrong)


def test_a_clean_client_is_kept_whole_by_the_guard():
    rng = torch.Generator().manual_seed(1)
    target = torch.eye(4)[torch.arange(400) % 4]
    logits = 2 * target + torch.randn(400, 4, generator=rng)
    assert (clean_probability(logits, target, guard=True) > 0.5).float().mean() >= 0.95
    assert (clean_probability(logits, target) > 0.5).float().mean() < 0.95, "without the guard one hump is cut in two"
    wrong = torch.rand(400, generator=rng) < 0.6
    mostly_wrong = torch.where(wrong[:, None], target.roll(1, dims=1), target)
    kept = clean_probability(logits, mostly_wrong, guard=True) > 0.5
    assert kept.float().mean() < 0.6, "the guard does not take a client of mostly wrong labels for a clean one"
    assert kept[~wrong].float().mean() > 0.9
    allwrong = clean_probability(logits, target.roll(1, dims=1), guard=True) > 0.5
    assert allwrong.float().mean() < 0.95, "one hump of wrong labels is no clean client"


def test_an_outlier_does_not_squeeze_the_other_losses_together_with_the_guard():
    """Losses of 0.1 and 1.5, and two of 200, beside which the others look alike."""
    wrong = torch.arange(300) % 3 == 0
    losses = torch.where(wrong, 1.5, 0.1) + 0.02 * torch.randn(300, generator=torch.Generator().manual_seed(2))
    losses[:2] = 200.0
    p = torch.exp(-losses)
    logits = torch.stack([p.clamp_min(1e-30).log(), (1 - p).clamp_min(1e-6).log()], 1)
    logits[:2] = torch.tensor([-200.0, 0.0])
    target = torch.tensor([[1.0, 0.0]]).expand(300, 2)
    assert torch.equal(clean_probability(logits, target, guard=True)[2:] > 0.5, ~wrong[2:])
    assert bool((clean_probability(logits, target)[2:] > 0.5).all())


def test_the_mixture_stops_where_the_authors_stop():
    """scikit-learn's mixture from the same cut, with FedRN's settings."""
    rng = torch.Generator().manual_seed(5)
    target = torch.eye(4)[torch.arange(300) % 4]
    given = torch.where(torch.rand(300, 1, generator=rng) < 0.4, target.roll(1, dims=1), target)
    logits = 2 * target + torch.randn(300, 4, generator=rng)
    losses = min_max(torch.nn.functional.cross_entropy(logits, given, reduction="none")).double().numpy()[:, None]
    theirs = GaussianMixture(2, max_iter=100, tol=1e-2, reg_covar=5e-4, n_init=1, random_state=0).fit(losses)
    expected = theirs.predict_proba(losses)[:, theirs.means_.argmin()]
    assert theirs.n_iter_ < 10
    assert clean_probability(logits, given).numpy() == pytest.approx(expected, abs=0.05)
    assert np.abs(clean_probability(logits, given, tol=1e-6, max_iter=1000).numpy() - expected).max() > 0.1
    few, many = (clean_probability(logits, given, tol=1e-9, max_iter=n) for n in (1, 50))
    assert not torch.allclose(few, many, atol=1e-3)


@pytest.mark.parametrize("finetune", [True, False])
def test_only_the_head_of_a_neighbour_is_tuned(finetune):
    part = ReliableNeighbours(finetune=finetune)
    c = fake_client(part)
    lent = c.borrow(c.nets[0].received)
    before = lent.vector.clone()
    rows = torch.arange(20)
    logits = part.adapt(c, lent, c.nets[0].labels, rows, 0)
    changed = {
        entry.name for entry in lent.layout.entries if not torch.equal(entry.view(before), entry.view(lent.vector))
    }
    assert changed == ({"head.weight", "head.bias"} if finetune else set())
    assert torch.allclose(logits, c.outputs(lent).logits, atol=1e-5)


def test_a_client_that_finds_everything_wrong_trains_on_all(monkeypatch):
    part = ReliableNeighbours(warmup=0)
    c = fake_client(part, brief={"models": torch.empty(0, 0), "trust": torch.ones(1)})
    monkeypatch.setattr("fedsieve.parts.selection.clean_probability", lambda *_, **__: torch.zeros(c.n))
    assert part.relabel(c, c.nets[0], c.nets[0].labels).training_rows().tolist() == list(range(c.n))


def test_traffic_is_k_plus_one_models_down_and_one_up(tmp_path, tiny_file):
    import fedsieve

    result = fedsieve.run(
        data=str(tiny_file), method="fedrn", clients=4, rounds=3, epochs=1, batch=10, runtime="serial",
        noise="symmetric", out=str(tmp_path / "run"), quiet=True, **{"fedrn.warmup": 1, "fedrn.k": 2},
    )  # fmt: skip
    model = next(row["bytes"] for row in result["disclosure"] if row["part"] == "model")
    after = result["rows"][-1]
    small = 4 * 3 * 4 + 1000  # trust down; accuracy and probe up
    assert after["bytes_down"] == pytest.approx(4 * 3 * model, abs=small)
    assert after["bytes_up"] == pytest.approx(4 * model, abs=small)
    assert 0 < after["label_precision"] <= 1
    assert 0 < after["label_recall"] <= 1
    assert after["client_noise_auc"] is None or 0 <= after["client_noise_auc"] <= 1
    labels = (tmp_path / "run" / "labels.csv").read_text().splitlines()
    assert len(labels) == 161
    scores = np.array([float(line.split(",")[4]) for line in labels[1:]])
    assert ((scores >= 0) & (scores <= 1)).all()
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["secure_aggregation"] is False


def test_the_report_is_shown_both_indicators(server, tmp_path):
    del server.rows("probe")[2]
    write_exhibits(tmp_path, server)
    with np.load(tmp_path / "exhibits.npz", allow_pickle=False) as found:
        assert [one["kind"] for one in json.loads(str(found["index"]))] == ["clients", "pairs"]
        assert found["0"].tolist() == pytest.approx([0.5, 0.9, 0.5])
        assert found["0/clients"].tolist() == [0, 1, 3]
        assert found["1"] == pytest.approx(np.array([[1, 0.6, 1], [0.6, 1, 0.6], [1, 0.6, 1]]), abs=1e-6)


def test_before_any_report_there_is_nothing_to_show(server, tmp_path):
    server.rows("probe").clear()
    write_exhibits(tmp_path, server)
    assert not (tmp_path / "exhibits.npz").exists()


# The client's half, Eq. 6 to 9

TRUST = torch.tensor([0.2, 0.5, 0.3])


@pytest.fixture
def client():
    """Client 0 after the warm-up, lent the models of two neighbours, with an opinion of its own on every sample."""

    def make(t=5, **options):
        federation = tiny_federation()
        settings = {"model": "mlp", "model.hidden": [6], "augment": "none", "rounds": 10, "batch": 5, "lr": 0.3}
        plan = Contract.of("fedrn", settings | {"momentum": 0.9} | options).plan(federation)
        part, lent = part_of(plan), torch.stack([plan.fresh(group)[0] for group in (1, 2)])
        c = fake_client(part, plan=plan, t=t, brief={"models": lent, "trust": TRUST})
        guessed = torch.randn(c.n, 4, generator=torch.Generator().manual_seed(7)) + 1.5 * c.labels.target
        c.keep(part)["logits"] = guessed
        pixels = torch.from_numpy(federation.images[federation.rows[0]]).float().permute(0, 3, 1, 2) / 255
        return part, c, lent, (pixels - federation.mean[0]) / federation.std[0]

    return make


def net_of(plan, vector):
    module = plan.build(0)
    for name, value in plan.layout.named(vector).items():
        dict(module.named_parameters())[name].data.copy_(value)
    return module.eval()


def tuned_head(c, part, module, x, rows, number):
    """A neighbour's logits after one epoch of SGD with momentum on its head, with gradients worked out by hand."""
    features = module.features(x).detach()
    weight, bias = module.head.weight.detach().clone(), module.head.bias.detach().clone()
    speed = torch.zeros_like(weight), torch.zeros_like(bias)
    order = rows[torch.randperm(len(rows), generator=c.rng(part, "head", number))]
    for some in torch.split(order, 5):
        off = ((features[some] @ weight.T + bias).softmax(1) - c.labels.target[some]) / len(some)
        speed = 0.9 * speed[0] + off.T @ features[some], 0.9 * speed[1] + off.sum(0)
        weight, bias = weight - 0.3 * speed[0], bias - 0.3 * speed[1]
    return features @ weight.T + bias


@pytest.mark.parametrize("scorer", ["local", "global"])
def test_the_choice_of_samples_by_hand(client, scorer):
    part, c, lent, x = client(**{"fedrn.scorer": scorer})
    own = c.keep(part)["logits"] if scorer == "local" else net_of(c.plan, c.plan.initial[0])(x).detach()
    votes = [clean_probability(own, c.labels.target)]  # Eq. 6
    auxiliary = (votes[0] > 0.5).nonzero().flatten()  # Eq. 9
    assert 5 < len(auxiliary) < c.n
    for number, model in enumerate(lent):
        logits = tuned_head(c, part, net_of(c.plan, model), x, auxiliary, number)
        votes.append(clean_probability(logits, c.labels.target))
    expected = 0.2 * votes[0] + 0.5 * votes[1] + 0.3 * votes[2]  # Eq. 7
    table = part.relabel(c, c.nets[0], c.nets[0].labels)
    assert torch.allclose(table.score, expected, atol=1e-4)
    assert table.training_rows().tolist() == (expected > 0.5).nonzero().flatten().tolist()  # Eq. 8
    assert 0 < len(table.training_rows()) < c.n


def test_the_mixtures_of_the_choice_follow_their_options(client):
    _, c, _, _ = client()
    logits = torch.randn(c.n, 4, generator=torch.Generator().manual_seed(1))
    found = []
    for tol, max_iter in ((0.01, 100), (1e-6, 1000), (1e-6, 1)):
        part = ReliableNeighbours(tol=tol, max_iter=max_iter)
        found.append(part.clean_probability(logits, c.labels.target))
        assert torch.equal(found[-1], clean_probability(logits, c.labels.target, tol=tol, max_iter=max_iter))
    assert torch.equal(found[0], ReliableNeighbours().clean_probability(logits, c.labels.target))
    assert not torch.equal(found[0], found[1])
    assert not torch.equal(found[1], found[2])


def test_while_warming_up_a_client_trains_on_everything(client):
    part, c, _, _ = client(t=1)
    assert part.relabel(c, c.nets[0], c.nets[0].labels) is c.nets[0].labels


@pytest.mark.parametrize("similarity", ["softmax", "logits"])
def test_what_a_client_reports_by_hand(client, similarity):
    """Its accuracy on all rows, trained on or not, by the labels that stand; and the answer to the probe."""
    part, c, _, x = client(**{"fedrn.similarity": similarity})
    corrected = c.labels.target.clone()
    corrected[:10] = corrected[:10].roll(1, dims=1)
    c.rewrite(c.labels.towards(corrected))
    c.nets[0].labels = c.labels.only(torch.arange(c.n) < 6)
    module = net_of(c.plan, c.plan.initial[0])
    right = module(x).argmax(1) == corrected.argmax(1)
    assert right.float().mean() not in (
        right[:6].float().mean(),
        (module(x).argmax(1) == c.labels.given).float().mean(),
    )
    note = part.finish(c)
    assert note["accuracy"] == pytest.approx(float(right.float().mean()))
    probe = module(torch.randn(1, *c.plan.sample_shape, generator=torch_rng(c.plan.seed, "probe")))[0].detach()
    expected = probe.softmax(0) if similarity == "softmax" else probe
    assert torch.allclose(note["probe"], expected, atol=1e-6)
    assert torch.allclose(c.keep(part)["logits"], module(x).detach(), atol=1e-5)
