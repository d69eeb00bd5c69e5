"""FedLN's three methods: the poll and the scores by hand, a step by autograd, and whole runs."""

import csv
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fedsieve
from fedsieve.base.errors import ConfigError
from fedsieve.core import SideHead
from fedsieve.core.layout import pack
from fedsieve.core.types import Mail
from fedsieve.estimate.neighbours import nearest
from fedsieve.methods import build_method
from fedsieve.methods.fedln_na import JudgeByEnergy, WeighNoisyLess, energies, shares_above
from fedsieve.methods.fedln_nnc import TakeTheVote
from fedsieve.models.heads import head_of
from fedsieve.models.saved import SavedModels
from fedsieve.testing import Contract, fake_client, fake_reports, fake_server, tiny_federation

MLP = {"model": "mlp", "model.hidden": [6], "augment": "none"}
ONE_STEP = MLP | {"rounds": 1, "epochs": 1, "batch": 1000, "momentum": 0.0, "lr": 1.0}
EMBEDDED = {
    "clients": 20,
    "fraction": 0.1,
    "rounds": 1,
    "epochs": 1,
    "runtime": "serial",
    "noise": "symmetric",
    "noise.rate": 0.4,
}
LINE = [[0.0, 0.0], [0.0, 1.0], [0.0, 3.0], [9.0, 0.0], [9.0, 1.0], [9.0, 3.0]]
"""Two clouds of three, with no two distances equal within one."""


# The poll of a client


def test_a_poll_by_hand():
    """k = 2: in each cloud the two others vote. Rows 0 and 1 tie, which the smaller class wins; row 2 is outvoted."""
    poll = TakeTheVote(k=2).poll(fake_client(TakeTheVote(), given=[0, 0, 1, 1, 1, 1], says=LINE))
    assert poll.rows.tolist() == [True] * 6
    assert poll.elected.tolist() == [0, 0, 0, 1, 1, 1]
    assert poll.agreement.tolist() == [0.5, 0.5, 0.0, 1.0, 1.0, 1.0]
    assert poll.noise == pytest.approx(1 / 6)


@pytest.mark.parametrize(("threshold", "noise"), [(1 / 6, 1 / 6), (0.17, 0.0)])
def test_below_the_threshold_there_is_no_noise(threshold, noise):
    part = TakeTheVote(k=2, threshold=threshold)
    assert part.poll(fake_client(part, given=[0, 0, 1, 1, 1, 1], says=LINE)).noise == pytest.approx(noise)


def test_a_sample_votes_for_itself_only_if_told_to():
    c = fake_client(TakeTheVote(), given=[0, 0, 1, 1, 1, 1], says=LINE)
    assert TakeTheVote(k=1).poll(c).noise == pytest.approx(1 / 6)
    alone = TakeTheVote(k=1, with_self=True).poll(fake_client(TakeTheVote(), given=[0, 0, 1, 1, 1, 1], says=LINE))
    assert alone.noise == 0.0
    assert alone.agreement.tolist() == [1.0] * 6


def test_rows_without_a_label_take_no_part():
    """Row 1 neither votes nor is voted on: row 0's neighbour is row 2, which bears class 1. Then row 2 has none."""
    poll = TakeTheVote(k=1).poll(fake_client(TakeTheVote(), given=[0, -1, 1, 1, 1, 1], says=LINE))
    assert poll.rows.tolist() == [True, False, True, True, True, True]
    assert poll.elected.tolist() == [1, 0, 1, 1, 1]
    assert poll.agreement.tolist() == [0.0, 0.0, 1.0, 1.0, 1.0]
    poll = TakeTheVote(k=1).poll(fake_client(TakeTheVote(), given=[0, 0, -1, 1, 1, 1], says=LINE))
    assert poll.elected.tolist() == [0, 0, 1, 1, 1]


@pytest.mark.parametrize("given", [[1], [1, -1]])
def test_who_has_no_neighbours_is_not_judged(given):
    c = fake_client(TakeTheVote(), given=given, says=LINE[: len(given)])
    poll = TakeTheVote().poll(c)
    assert poll.noise == 0.0
    assert poll.elected.tolist() == [each for each in given if each >= 0]
    TakeTheVote().answer(c, "vote", {})
    assert c.labels.score.isnan().all()
    assert torch.equal(c.labels.target.sum(1) > 0, torch.tensor(given) >= 0)


def test_the_labels_that_stand_are_polled_and_the_given_ones_scored():
    c = fake_client(TakeTheVote(), given=[0, 0, 1, 1, 1, 1], says=LINE)
    c.rewrite(c.labels.rename(torch.arange(6) < 3, torch.tensor([1, 1, 1])))
    poll = TakeTheVote(k=2).poll(c)
    assert poll.noise == 0.0
    assert poll.elected.tolist() == [1] * 6
    assert poll.agreement.tolist() == [0.0, 0.0, 1.0, 1.0, 1.0, 1.0]


# Correction by the neighbours


def test_a_noisy_client_takes_every_vote_for_good():
    part = TakeTheVote(k=2)
    c = fake_client(part, given=[0, 0, 1, 1, 1, 1, -1], says=[*LINE, [9.0, 2.0]])
    assert part.answer(c, "vote", {}) == {}
    assert c.labels.target.argmax(1)[:6].tolist() == [0, 0, 0, 1, 1, 1]
    assert c.labels.target.sum(1).tolist() == [1.0] * 6 + [0.0]
    assert c.labels.score.nan_to_num(-1).tolist() == [0.5, 0.5, 0.0, 1.0, 1.0, 1.0, -1.0]
    assert c.labels.given.tolist() == [0, 0, 1, 1, 1, 1, -1]
    assert torch.equal(c.state["labels/target"], c.labels.target)


def test_a_clean_client_keeps_its_labels_and_has_them_scored():
    part = TakeTheVote(k=2, threshold=0.2)
    c = fake_client(part, given=[0, 0, 1, 1, 1, 1], says=LINE)
    before = c.labels.target.clone()
    part.answer(c, "vote", {})
    assert torch.equal(c.labels.target, before)
    assert c.labels.score.tolist() == [0.5, 0.5, 0.0, 1.0, 1.0, 1.0]


def test_it_is_a_prelude():
    names = [(stage.name, stage.rounds) for stage in build_method("fedln-nnc", {}).stages]
    assert names == [("vote", 0), ("train", None)]
    composed = build_method("fedcorr+fedln-nnc", {}).stages
    assert [stage.name for stage in composed] == ["vote", "pre", "finetune", "train"]


def half_noisy():
    """Four clients; the first two have a third of their labels drawn anew, the others only right ones."""
    federation = tiny_federation(rows=60)
    keep = [np.full(60, True) if k < 2 else right for k, right in enumerate(federation.served)]
    rows, given = (
        tuple(values[kept] for values, kept in zip(column, keep, strict=True))
        for column in (federation.rows, federation.given)
    )
    return replace(federation, rows=rows, given=given, served=None)


def test_everybody_is_asked_once_and_nothing_comes_back():
    federation = half_noisy()
    with Contract.of("fedln-nnc", MLP | {"fraction": 0.5}).trial(federation) as trial:
        state = trial.run()
        assert [client for client, _ in trial.record.questions] == [0, 1, 2, 3]
        assert all(question.models is None for _, question in trial.record.questions)
        assert [answer.payload for answer in trial.record.answers] == [{}] * 4
        changed = []
        for client, given in enumerate(federation.given):
            kept = trial.states.load(client, state.versions[client])
            changed.append(int((kept["judged/suggested"].numpy() != given).sum()))
            assert not kept["judged/score"].isnan().any()
        assert min(changed[:2]) > 5
        assert changed[2:] == [0, 0]


# Distillation


def test_the_model_s_head_is_as_wide_as_the_encoder_s_features():
    plan = Contract.of("fedln-akd", MLP).plan(tiny_federation())
    assert plan.method.heads == (SideHead(name="mimic", layers=1, width=144),)
    assert plan.build(0).mimic[0].weight.shape == (144, 6)


def steps(settings, federation=None):
    """The trial, and for each client the update that it reports and that of its head, in one full-batch step."""
    with Contract.of("fedln-akd", ONE_STEP | settings).trial(federation) as trial:
        state = trial.run()
        plan = trial.plan
        updates = [pack(plan.initial[0], plan.up_slices) - up.models[0] for up in trial.record.ups]
        first = pack(plan.initial[0], plan.keep_slices)
        heads = [first - trial.states.load(k, state.versions[k])["net/0"] for k in range(len(updates))]
        return trial, updates, heads


@pytest.mark.parametrize("options", [{}, {"alpha": 3.0}, {"l2": 0.3}, {"features": "pixels", "k": 3}])
def test_a_step_follows_cross_entropy_and_the_imitation(options):
    """CE + α · MAE + L2, recomputed with autograd on the same batch; all four clients are noisy."""
    trial, updates, heads = steps({f"fedln-akd.{key}": value for key, value in options.items()})
    federation = trial.federation
    for client, (update, head) in enumerate(zip(updates, heads, strict=True)):
        module = trial.plan.build(0)
        images = torch.from_numpy(federation.images[federation.rows[client]])
        x = ((images.float() / 255 - torch.tensor(federation.mean)) / torch.tensor(federation.std)).permute(0, 3, 1, 2)
        z, seen = module.features(x), images.float().flatten(1) / 255
        loss = F.cross_entropy(module.head(z), torch.from_numpy(federation.given[client]))
        loss = loss + options.get("alpha", 10.0) * (module.mimic(z) - seen).abs().mean()
        (loss + options.get("l2", 0.0) * module.mimic[0].weight.square().sum()).backward()
        slopes = {name: p.grad.flatten() for name, p in module.named_parameters()}
        own = torch.cat([slope for name, slope in slopes.items() if not name.startswith("mimic")])
        assert torch.allclose(update[: len(own)], own, atol=1e-5), client
        mine = torch.cat([slope for name, slope in slopes.items() if name.startswith("mimic")])
        assert torch.allclose(head, mine, atol=1e-5), client
        assert mine.abs().max() > 0


def test_clean_clients_train_as_fedavg_unless_all_are_taught():
    with Contract.of("fedavg", ONE_STEP).trial() as plain:
        plain.run()
        wanted = [plain.plan.initial[0] - up.models[0] for up in plain.record.ups]
    _, updates, heads = steps({"fedln-akd.threshold": 1.0})
    assert all(torch.equal(a, b) for a, b in zip(updates, wanted, strict=True))
    assert not any(head.abs().max() for head in heads)
    _, taught, moved = steps({"fedln-akd.threshold": 1.0, "fedln-akd.all_clients": True})
    assert not any(torch.equal(a, b) for a, b in zip(taught, wanted, strict=True))
    assert all(head.abs().max() for head in moved)


def test_only_clients_with_wrong_labels_are_taught():
    federation = half_noisy()
    _, _, heads = steps({}, federation)
    assert [bool(head.abs().max()) for head in heads] == [True, True, False, False]


def test_the_head_stays_with_the_client_and_goes_on():
    with Contract.of("fedln-akd", MLP | {"rounds": 2}).trial() as trial:
        state = trial.run()
        plan = trial.plan
        section = plan.layout.slices(("mimic",))
        assert plan.keep_slices == section
        assert all(len(up.models[0]) == plan.layout.size - 7 * 144 for up in trial.record.ups)
        assert all(len(down.models[0]) == plan.layout.size - 7 * 144 for _, down in trial.record.downs)
        first = pack(plan.initial[0], section)
        assert torch.equal(pack(state.models[0][0], section), first)
        kept = trial.states.load(0, state.versions[0])["net/0"]
        assert not torch.equal(kept, first)
        mail = Mail(stage=0, round=2, t=2, group=0, version=state.versions[0], saves=99, retain=())
        again = trial.host.client(0, mail, tuple(pack(m, plan.down_slices) for m in state.models[0]), {})
        assert torch.equal(pack(again.nets[0].vector, section), kept)


def test_neighbours_are_looked_for_once(monkeypatch):
    asked = []
    monkeypatch.setattr("fedsieve.parts.neighbours.nearest", lambda *given: asked.append(given[1:]) or nearest(*given))
    with Contract.of("fedln-akd", MLP | {"rounds": 3, "fedln-akd.k": 4}).trial() as trial:
        state = trial.run()
        assert asked == [(4, False)] * 4
        assert trial.states.load(0, state.versions[0])["keep/Distil/near"].shape == (24, 4)


def test_the_encoder_may_see_what_the_net_sees():
    runs = {}
    for augment in ("none", "weak"):
        for reference in ("stored", "augmented"):
            settings = MLP | {"augment": augment, "fedln-akd.reference": reference, "rounds": 1}
            with Contract.of("fedln-akd", settings).trial() as trial:
                runs[augment, reference] = trial.run().models[0][0]
    assert torch.allclose(runs["none", "stored"], runs["none", "augmented"], atol=1e-6)
    assert not torch.allclose(runs["weak", "stored"], runs["weak", "augmented"], atol=1e-6)


# Weights by energy


def test_energies_by_hand():
    assert energies(torch.tensor([[0.0, 0.0], [1.0, -1.0]])).tolist() == pytest.approx(
        [math.log(2), math.log(math.e + 1 / math.e)]
    )


def test_the_share_above_everybody_s_percentile_by_hand():
    """Before: 0 to 4 over both clients, whose 75th percentile is 3, and whose 60th is 2.4. Equal does not exceed."""
    scores = {
        3: (torch.tensor([0.0, 4.0]), torch.tensor([2.5, 3.5])),
        1: (torch.tensor([3.0, 1.0, 2.0]), torch.tensor([3.0, 2.0, 0.0])),
    }
    assert shares_above(scores, 75.0) == pytest.approx({3: 0.5, 1: 0.0})
    assert shares_above(scores, 60.0) == pytest.approx({3: 1.0, 1: 1 / 3})


def test_how_much_of_a_client_counts():
    """min(0.1 n, n − n_noisy) of n."""
    part = WeighNoisyLess()
    assert [part.part_counted(noise) for noise in (0.0, 0.149, 0.15, 0.9, 0.96, 1.0)] == pytest.approx(
        [1.0, 1.0, 0.1, 0.1, 0.04, 0.0]
    )
    assert WeighNoisyLess(threshold=0.5, most=0.8).part_counted(0.6) == pytest.approx(0.4)
    assert WeighNoisyLess(threshold=0.45).part_counted(1.0 - (1.0 - 0.45)) == 0.1


def test_clients_are_weighed_by_the_column_and_strangers_as_clean():
    plan = Contract.of("fedln-na", MLP).plan(tiny_federation())
    (part, _) = plan.stages[2].parts
    s = fake_server(part, columns={"right": [1.0, 0.7, 0.02, math.nan]}, plan=plan, stage=2)
    w = part.weigh(s, {}, {-1: 8.0, 0: 10.0, 1: 10.0, 2: 50.0, 3: 7.0})
    assert w == pytest.approx({-1: 8.0, 0: 10.0, 1: 1.0, 2: 1.0, 3: 7.0})


def test_what_the_judging_round_finds_weighs_at_once_and_is_written_down():
    part = JudgeByEnergy()
    s = fake_server(part, columns={"right": [0.0] * 4})
    reports = fake_reports(
        part,
        {
            0: {"before": torch.tensor([0.0, 1.0]), "after": torch.tensor([0.0, 1.0])},
            2: {"before": torch.tensor([2.0, 3.0]), "after": torch.tensor([2.0, 4.0])},
        },
    )
    assert part.weigh(s, reports, {0: 3.0, 2: 5.0}) == pytest.approx({0: 3.0, 2: 0.5})
    part.learn(s, reports, {0: 0.5, 2: 0.5})
    assert s.columns["right"].tolist() == [1.0, 0.0, 0.5, 0.0]
    part.learn(s, {}, {})


@pytest.mark.parametrize(
    ("rounds", "warm", "lengths"),
    [(100, None, [25, 1, 74]), (20, None, [5, 1, 14]), (2, None, [1, 1, 0]), (9, 3, [3, 1, 5])],
)
def test_one_round_after_a_quarter_judges(rounds, warm, lengths):
    plan = Contract.of("fedln-na", MLP | {"rounds": rounds, "fedln-na.warm": warm}).plan(tiny_federation())
    assert [(s.name, s.rounds) for s in plan.stages] == list(zip(["warm", "judge", "weighed"], lengths, strict=True))
    assert plan.verdict == "right"


@pytest.mark.parametrize("warm", [8, 25])
def test_a_warm_up_that_leaves_no_round_is_refused(warm):
    with pytest.raises(ConfigError, match=rf"fedln-na.warm={warm}: the run ends before") as problem:
        Contract.of("fedln-na", MLP | {"rounds": 9, "fedln-na.warm": warm}).plan(tiny_federation())
    assert problem.value.code == "FS002"


def test_everybody_is_judged_once_and_weighed_from_then_on():
    """Few take part in other rounds. Scores are those of the received and of the reported model, recomputed here."""
    settings = MLP | {"rounds": 6, "fraction": 0.5, "lr": 0.3, "epochs": 3}
    with Contract.of("fedln-na", settings).trial() as trial:
        state = trial.run()
        plan, federation = trial.plan, trial.federation
        rounds = trial.record.rounds
        assert [len(what.weights) for what in rounds] == [2, 2, 4, 2, 2, 2]
        scores = {}
        for (client, down), up in zip(trial.record.downs, trial.record.ups, strict=True):
            assert set(up.notes) == ({"JudgeByEnergy"} if down.mail.stage == 1 else set())
            if down.mail.stage != 1:
                continue
            images = torch.from_numpy(federation.images[federation.rows[client]])
            x = ((images.float() / 255 - 0.5) / 0.25).permute(0, 3, 1, 2)
            for name, model in (("before", down.models[0]), ("after", up.models[0])):
                module = plan.build(0).eval()
                module.load_state_dict(plan.layout.named(model), strict=False)
                assert torch.allclose(up.notes["JudgeByEnergy"][name], module(x).logsumexp(1), atol=1e-5)
            scores[client] = tuple(up.notes["JudgeByEnergy"][name] for name in ("before", "after"))
        noise = shares_above(scores, 75.0)
        assert state.columns["right"].tolist() == pytest.approx([1 - noise[k] for k in range(4)])
        counted = {k: 1.0 if noise[k] < 0.15 else min(0.1, 1 - noise[k]) for k in range(4)}
        assert len(set(counted.values())) > 1
        for what in rounds[2:]:
            total = sum(counted[k] for k in what.weights)
            assert what.weights == pytest.approx({k: counted[k] / total for k in what.weights})


# Together, and with others


@pytest.mark.parametrize(
    "method",
    [
        "fedln-akd+symce",
        "fedln-akd+moon",
        "fedln-akd+dividemix",
        "fedln-akd+fedcorr",
        "fedln-nnc+fedrn",
        "fedln-nnc+fednoro",
        "fedln-na+scaffold",
        "fedln-na+fedds",
        "fedln-akd+fedln-nnc+fedln-na",
    ],
)
def test_they_compose(method):
    with Contract.of(method, MLP | {"rounds": 3}).trial() as trial:
        state = trial.run()
        assert all(bool(torch.isfinite(net).all()) for nets in state.models.values() for net in nets)
        wanted = {"fedln-akd": "Distil", "fedln-nnc": "TakeTheVote", "fedln-na": "JudgeByEnergy"}
        names = {part.name for stage in trial.plan.stages for part in stage.parts}
        assert {name for method_name, name in wanted.items() if method_name in method.split("+")} <= names


def test_a_run_on_the_embedded_data(tmp_path):
    """End to end: mended labels and their scores in labels.csv, and a model whose file names the head as any other."""
    fedsieve.run(method="fedln-akd+fedln-nnc", out=tmp_path / "run", quiet=True, **EMBEDDED)
    federation, truth = fedsieve.federation(**EMBEDDED)
    with (tmp_path / "run" / "labels.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == sum(map(len, federation.given))
    true = {
        (federation.owner(k), where): federation.class_names[label]
        for k, labels in enumerate(truth.labels)
        for where, label in zip(federation.places(k), labels, strict=True)
    }
    wrong = {"given": 0, "suggested": 0}
    for row in rows:
        assert float(row["score"]) * 10 == pytest.approx(round(float(row["score"]) * 10))
        for column in wrong:
            wrong[column] += row[column] != true[row["owner"], row["where"]]
    assert wrong["suggested"] < wrong["given"] == 0.4 * len(rows)
    card = SavedModels.read(tmp_path / "run" / "model.safetensors").card
    assert [head_of(each) for each in card["heads"]] == [SideHead(name="mimic", layers=1, width=144)]
    assert card["shared"]
