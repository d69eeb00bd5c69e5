"""FB-NLL: who is put together, which labels are corrected, what travels for it."""

from dataclasses import dataclass, replace
from itertools import pairwise, product

import numpy as np
import pytest
import torch

from fedsieve.core.part import Method, Part, Stage
from fedsieve.core.types import Ask, Topic
from fedsieve.data.federation import Federation, Holding
from fedsieve.estimate.subspace import by_class, relevances, repair, share_named_rightly, signature, whole_classes
from fedsieve.methods import build_method
from fedsieve.methods.compose import complete, compose
from fedsieve.methods.fb_nll import ClusterBySubspace, fb_nll_minus, fb_nll_repair
from fedsieve.methods.fb_nll_repair import RepairBySubspace
from fedsieve.runtime.serial import SerialRuntime
from fedsieve.testing import Contract, fake_server

SETTINGS = {"model": "mlp", "model.hidden": [6], "epochs": 1, "rounds": 1, "augment": "none"}
CLASSES, WIDTH = 4, 30
OWNERS = {0: (0, 1), 1: (2, 3), 2: (0, 1), 3: (2, 3), 4: (0, 1)}
"""Which classes each client holds: two tasks."""


def classes_of_subspaces(rng, labels, spread=0.05):
    """Rows near three directions of the class's own."""
    directions = np.linalg.qr(np.random.default_rng(9).normal(size=(WIDTH, 3 * CLASSES)))[0].T
    mixed = rng.normal(size=(len(labels), 3)) * (2.0, 1.5, 1.0)
    rows = np.einsum("nk,nkd->nd", mixed, directions.reshape(CLASSES, 3, WIDTH)[labels])
    return (rows + spread * rng.normal(size=rows.shape)).astype(np.float32)


def federation(wrong=0.0, spread=0.01, seed=0):
    """A table of samples; a share of each client's labels is moved to another class."""
    rng = np.random.default_rng(seed)
    true = [rng.choice(classes, 60) for classes in OWNERS.values()]
    clean = np.arange(40) % CLASSES
    labels = np.concatenate([*true, clean])
    ends = np.cumsum([0, *map(len, true), len(clean)])
    rows = [np.arange(a, b) for a, b in pairwise(ends)]
    given = [np.where(rng.random(60) < wrong, (t + rng.integers(1, CLASSES, 60)) % CLASSES, t) for t in true]
    return (
        Federation(
            images=classes_of_subspaces(rng, labels, spread),
            test_images=classes_of_subspaces(rng, np.arange(20) % CLASSES, spread),
            rows=tuple(rows[:-1]),
            given=tuple(given),
            server={"clean": Holding(rows[-1], clean)},
            validation=np.empty(0, np.int64),
            class_names=tuple("abcd"),
            mean=(0.0,) * WIDTH,
            std=(1.0,) * WIDTH,
            tasks=tuple(OWNERS.values()),
        ),
        true,
    )


def run(method, data, **settings):
    with Contract.of(method, SETTINGS | settings).trial(data) as trial:
        state = trial.run()
        audits = [trial.states.load(k, state.versions[k]) for k in range(data.clients)]
        return state, audits, trial.record


@pytest.mark.parametrize("settings", [{"fb-nll-minus.groups": 2}, {}, {"fb-nll-minus.choose": "gap"}])
def test_clients_of_a_task_share_a_model(settings):
    data, _ = federation(wrong=0.5)
    state, _, _ = run("fb-nll-minus", data, **settings)
    assert state.columns["group"].tolist() == [0, 1, 0, 1, 0]
    assert len(state.models) == 2
    assert not torch.equal(state.models[0][0], state.models[1][0])


def test_what_the_server_learns_is_each_clients_own_measure():
    data, _ = federation()
    state, _, record = run("fb-nll-minus", data)
    features = [data.images[rows].astype(float) for rows in data.rows]
    own = [signature(x) for x in features]
    expected = relevances(features, [one.values for one in own], [one.vectors for one in own])
    rows = state.rows["ClusterBySubspace", "relevance"]
    assert torch.stack([rows[k] for k in range(5)]).numpy() == pytest.approx(expected, abs=1e-4)
    assert all(answer.payload.keys() == {"vectors"} for answer in record.answers[:5])
    assert all(answer.payload.keys() == {"relevance"} for answer in record.answers[5:])


def test_wrong_labels_are_put_right():
    data, true = federation(wrong=0.4)
    state, audits, _ = run("fb-nll-repair", data)
    for k, audit in enumerate(audits):
        suggested, score = audit["judged/suggested"].numpy(), audit["judged/score"].numpy()
        assert np.mean(data.given[k] == true[k]) < 0.75
        assert np.mean(suggested == true[k]) > 0.95
        wrong = data.given[k] != true[k]
        assert score[wrong].max() < 0.5 < score[~wrong].min()
    assert not state.rows, "nothing is remembered but the labels, at the clients"


def test_right_labels_are_left_alone():
    data, true = federation()
    _, audits, _ = run("fb-nll-repair", data)
    assert all((audit["judged/suggested"].numpy() == t).all() for audit, t in zip(audits, true, strict=True))


def test_a_class_with_another_name_is_renamed_as_a_whole():
    data, true = federation()
    renamed = tuple(np.where(t == 0, 2, t) for t in data.given)  # all of class 0 is called 2
    _, audits, _ = run("fb-nll-repair", replace(data, given=renamed))
    assert (audits[0]["judged/suggested"].numpy() == true[0]).all()


def test_corrected_labels_are_trained_on():
    data, true = federation(wrong=0.4)
    right = replace(data, given=tuple(true))
    repaired, _, _ = run("fb-nll-repair", data)
    reference, _, _ = run("fb-nll-repair", right)
    assert torch.allclose(repaired.models[0][0], reference.models[0][0], atol=0.02)
    plain, _, _ = run("fedavg", data)
    assert not torch.allclose(plain.models[0][0], reference.models[0][0], atol=0.02)


def test_features_that_tell_nothing_change_nothing():
    data, _ = federation(wrong=0.4, spread=30.0)
    _, audits, record = run("fb-nll-repair", data)
    assert all("judged/suggested" not in audit for audit in audits)
    events = [event for what in record.rounds for event in what.events]
    assert [event.code for event in events] == ["FS219"]
    assert "no label is corrected" in events[0].message
    _, forced, _ = run("fb-nll-repair", data, **{"fb-nll-repair.trust": 0.0})
    assert any((a["judged/suggested"].numpy() != g).any() for a, g in zip(forced, data.given, strict=True))


def test_a_sample_can_be_held_to_the_clients_own_classes():
    data, _ = federation()
    alien = data.images.copy()
    alien[data.rows[0][0]] = classes_of_subspaces(np.random.default_rng(5), np.array([3]))[0]
    mixed = tuple(np.where(np.arange(60) % 3 == 0, 1 - t, t) if k == 0 else t for k, t in enumerate(data.given))
    data = replace(data, images=alien, given=mixed)
    everywhere = run("fb-nll-repair", data)[1][0]["judged/suggested"][0]
    at_home = run("fb-nll-repair", data, **{"fb-nll-repair.among": "own"})[1][0]["judged/suggested"][0]
    assert int(everywhere) == 3
    assert int(at_home) in OWNERS[0]


def test_only_eigenvectors_and_scores_travel():
    data, _ = federation(wrong=0.3)
    _, _, record = run("fb-nll", data)
    names = {name for answer in record.answers for name in answer.payload}
    assert names == {"vectors", "relevance"}
    for answer in record.answers:
        vectors = answer.payload.get("vectors")
        if vectors is not None:
            lengths = vectors.reshape(-1, WIDTH, vectors.shape[-1]).norm(dim=1)
            assert ((lengths - 1).abs().lt(1e-4) | lengths.eq(0)).all(), "columns of length one, or none"


def test_the_bases_are_not_kept_for_ever():
    data, _ = federation()
    assert not [key for audit in run("fb-nll", data)[1] for key in audit if key.startswith("keep/")]


def test_halves_of_the_clean_set_try_each_other():
    rng = np.random.default_rng(3)
    labels = np.arange(40) % CLASSES
    clean = by_class(classes_of_subspaces(rng, labels), labels, CLASSES)
    assert share_named_rightly(clean, 20) == 1.0
    shuffled = by_class(classes_of_subspaces(rng, rng.permutation(labels)), labels, CLASSES)
    assert share_named_rightly(shuffled, 20) < 0.6
    assert share_named_rightly([np.zeros((0, 3))] * 2, 20) == 0.0


def test_a_correction_starts_from_labels_as_they_stand(monkeypatch):
    """Half of class 0 is called 1, and an earlier correction has put them right."""
    data, true = federation()
    given = tuple(np.where((np.arange(60) % 2 == 0) & (t == 0), 1, t) for t in data.given)
    seen = []
    monkeypatch.setattr(
        "fedsieve.methods.fb_nll_repair.repair",
        lambda features, label, bases, decided, among, judged: (
            seen.append((label, judged)) or repair(features, label, bases, decided, among, judged)
        ),
    )

    @dataclass(frozen=True, kw_only=True)
    class Mended(Part):
        topics = {"mend": Topic({}, {})}
        writes = frozenset({"labels"})

        def talk(self, s, moment):
            if moment == "start":
                yield Ask("mend", {k: {} for k in s.clients})

        def answer(self, c, topic, question):
            c.rewrite(c.labels.towards(torch.eye(CLASSES)[torch.from_numpy(true[c.id])]))
            return {}

    method = compose(Method("mended", (Stage("mend", 0, (Mended(),)),)), fb_nll_repair(RepairBySubspace()))
    _, audits, _ = run(method, replace(data, given=given))
    assert [label.tolist() for label, _ in seen] == [t.tolist() for t in true]
    assert [judged.tolist() for _, judged in seen] == [g.tolist() for g in given]
    wrong = torch.from_numpy(given[0] != true[0])
    assert (audits[0]["judged/suggested"].numpy() == true[0]).all()
    assert audits[0]["judged/score"][wrong].max() < 0.5 < audits[0]["judged/score"][~wrong].min()


@pytest.mark.parametrize(
    ("method", "stages"),
    [
        ("fedcorr+fb-nll", ["cluster", "pre", "finetune", "repair", "train"]),
        ("fedcorr+fb-nll-minus", ["cluster", "pre", "finetune", "train"]),
        ("fedcorr+fb-nll-repair", ["pre", "finetune", "repair", "train"]),
        ("clipfl+fb-nll", ["cluster", "repair", "screen", "train"]),
        ("fedavg+fb-nll", ["cluster", "repair", "train"]),
    ],
)
def test_clients_are_clustered_first_and_labels_corrected_late(method, stages):
    assert [stage.name for stage in build_method(method, {}).stages] == stages


def test_no_stage_of_fedcorr_mixes_tasks():
    data, _ = federation(wrong=0.3)
    state, _, record = run("fedcorr+fb-nll-minus", data, rounds=6, **{"fb-nll-minus.groups": 2})
    assert state.columns["group"].tolist() == [0, 1, 0, 1, 0]
    assert all(down.mail.group == k % 2 for k, down in record.downs)


def test_where_it_is_inserted():
    """Before any training, but the correction after FedCorr's second stage."""
    one = complete(compose(fb_nll_minus(ClusterBySubspace())), rounds=3, fraction=1.0, clients=4, local_norm=False)
    assert [(stage.name, stage.rounds, stage.base) for stage in one.stages] == [
        ("cluster", 0, "size"),
        ("train", 3, "equal"),
    ]
    three = Method("three", (Stage("pre", 1), Stage("finetune", 1), Stage()))
    joined = compose(three, fb_nll_repair(RepairBySubspace()))
    assert [stage.name for stage in joined.stages] == ["pre", "finetune", "repair", "train"]


@pytest.mark.parametrize("clients", [1, 2])
def test_few_clients(clients):
    data, _ = federation()
    few = replace(data, rows=data.rows[:clients], given=data.given[:clients], tasks=data.tasks[:clients])
    state, _, _ = run("fb-nll", few)
    assert sorted(set(state.columns["group"].tolist())) == list(range(clients))


def test_a_client_without_samples_does_not_stop_the_others():
    data, _ = federation(wrong=0.3)
    empty = replace(data, rows=(*data.rows[:4], data.rows[4][:0]), given=(*data.given[:4], data.given[4][:0]))
    state, audits, _ = run("fb-nll", empty, **{"fb-nll.groups": 2})
    assert state.columns["group"].tolist() == [0, 1, 0, 1, 0], "who says nothing joins the largest group"
    assert "judged/suggested" in audits[0]


def few(data, client, rows):
    """The federation with only so many rows at one client."""
    cut = [list(data.rows), list(data.given)]
    for table in cut:
        table[client] = table[client][:rows]
    return replace(data, rows=tuple(cut[0]), given=tuple(cut[1]))


@pytest.mark.parametrize(("rows", "columns"), [(4, 0), (5, 5)])
def test_a_client_of_few_samples_sends_no_eigenvector_and_joins_the_largest_group(rows, columns):
    data = few(federation(wrong=0.3)[0], 4, rows)
    with Contract.of("fb-nll-minus", SETTINGS | {"fb-nll-minus.groups": 2}).trial(data) as trial:
        state = trial.run()
        told = {a.client: a.payload["vectors"] for a in trial.record.answers if "vectors" in a.payload}
        assert told[4].shape[1] <= columns
        assert (told[4].shape[1] == 0) == (columns == 0)
        asked = {client for client, question in trial.record.questions if question.topic == "relevance"}
        assert (4 in asked) == (columns > 0)
        groups = state.columns["group"].tolist()
        assert columns or groups[4] == max(range(2), key=groups[:4].count)


def test_where_nobody_has_samples_enough_there_is_one_group():
    data = federation()[0]
    for client in range(data.clients):
        data = few(data, client, 4)
    with Contract.of("fb-nll-minus", SETTINGS).trial(data) as trial:
        state = trial.run()
        assert state.columns["group"].tolist() == [0.0] * data.clients
        assert {question.topic for _, question in trial.record.questions} == {"signature"}


def test_likeness_and_tree_are_shown_of_those_who_said_something():
    """Client 2 said nothing. What 0 and 1 make of each other, 0.8 and 0.4, is averaged; they join first."""
    part = ClusterBySubspace()
    rows = {0: torch.tensor([1.0, 0.8, 0.0, 0.2]), 1: torch.tensor([0.4, 1.0, 0.0, 0.2])}
    rows[3] = torch.tensor([0.2, 0.2, 0.0, 1.0])
    pairs, tree = part.show(fake_server(part, rows={"relevance": rows}))
    assert (pairs.kind, tree.kind, pairs.clients, tree.clients) == ("pairs", "tree", (0, 1, 3), (0, 1, 3))
    expected = [[1.0, 0.6, 0.2], [0.6, 1.0, 0.2], [0.2, 0.2, 1.0]]
    assert np.asarray(pairs.values) == pytest.approx(np.array(expected))
    assert tree.values[0].tolist() == pytest.approx([0, 1, 0.4, 2])
    assert part.show(fake_server(part, rows={"relevance": {3: rows[3]}})) == []


def test_nothing_is_said_of_a_class_of_few_samples():
    data, _ = federation(wrong=0.3)
    settings = SETTINGS | {"fb-nll-repair.trust": 0}
    for smallest in (1, 5, 1000):
        with Contract.of("fb-nll-repair", {**settings, "fb-nll-repair.smallest_class": smallest}).trial(data) as trial:
            trial.run()
            for answer in trial.record.answers:
                if "vectors" in answer.payload:
                    counts = np.bincount(data.given[answer.client], minlength=data.n_classes)
                    said = answer.payload["vectors"].any(1).any(1).tolist()
                    assert said == (counts >= smallest).tolist()


def test_eigenvectors_of_another_width_are_outvoted():
    def narrow(answer):
        if answer.client == 0 and "vectors" in answer.payload:
            return replace(answer, payload={"vectors": torch.eye(3)[:, :1]})
        return answer

    class Narrow(SerialRuntime):
        def query(self, messages):
            return map(narrow, super().query(messages))

    data, _ = federation(wrong=0.3)
    with Contract.of("fb-nll-minus", SETTINGS | {"fb-nll-minus.groups": 2}).trial(data) as trial:
        state = trial.run(Narrow(trial.host))
        assert sorted(state.rows["ClusterBySubspace", "relevance"]) == [1, 2, 3, 4]
        (event,) = trial.record.rounds[0].events
        assert (event.code, event.client) == ("FS202", 0)
        assert "{'wide': 3} where most have" in event.message


def leading(x, rank):
    """Eigenpairs of X'X / n by numpy, largest first."""
    values, vectors = np.linalg.eigh(x.T @ x / len(x))
    return values[::-1][:rank], vectors[:, ::-1][:, :rank]


def answer_to(x, others):
    """Eq. 3 to 5: how strongly data answer to the eigenvectors of others, in as many directions as both have."""
    rank = min(5, len(x), len(others))
    values, vectors = leading(x, rank)[0], leading(others, rank)[1]
    answers = np.linalg.norm((x.T @ x / len(x)) @ vectors, axis=0)
    return np.prod(np.minimum(values, answers) / np.maximum(values, answers)) ** (1 / rank)


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("tau", [0.85, 0.3])
def test_how_classes_are_compared_by_hand(monkeypatch, tau, center):
    """Given classes (rows) against clean ones (columns), the mean of both views, held against τ."""
    data, _ = federation(wrong=0.3, spread=0.3)
    data = replace(data, images=data.images + 0.5)
    seen = []
    monkeypatch.setattr(
        "fedsieve.methods.fb_nll_repair.whole_classes",
        lambda matrix, threshold: seen.append((matrix, threshold)) or whole_classes(matrix, threshold),
    )
    options = {"fb-nll-repair.tau": tau, "fb-nll-repair.center": center, "fb-nll-repair.trust": 0.0}
    options["fb-nll-repair.smallest_class"] = 1
    run("fb-nll-repair", data, **options)
    clean = data.server["clean"]
    features = data.images.astype(np.float64)
    features = features - features[clean.rows].mean(axis=0) * center
    assert [threshold for _, threshold in seen] == [tau] * 5
    for client, (matrix, _) in enumerate(seen):
        mine = by_class(features[data.rows[client]], data.given[client], CLASSES)
        theirs = by_class(features[clean.rows], clean.labels, CLASSES)
        for given, right in product(range(CLASSES), range(CLASSES)):
            here, there = mine[given], theirs[right]
            expected = (answer_to(there, here) + answer_to(here, there)) / 2
            assert matrix[given, right] == pytest.approx(expected, abs=2e-3)


def test_samples_are_projected_after_centring(monkeypatch):
    """The bases are those of the server's centred features, and so are the samples that are projected on them."""
    data, _ = federation(wrong=0.3, spread=0.3)
    data, seen = replace(data, images=data.images + 0.5), []

    def spied(features, label, bases, *rest):
        seen.append((features, bases))
        return repair(features, label, bases, *rest)

    monkeypatch.setattr("fedsieve.methods.fb_nll_repair.repair", spied)
    run("fb-nll-repair", data, **{"fb-nll-repair.center": True, "fb-nll-repair.trust": 0.0})
    clean = data.server["clean"]
    centred = data.images - data.images[clean.rows].mean(axis=0)
    assert seen[1][0] == pytest.approx(centred[data.rows[1]], abs=1e-4)
    one = centred[clean.rows][clean.labels == 2]
    expected = np.linalg.svd(one, full_matrices=False)[2].T @ np.linalg.svd(one, full_matrices=False)[2]
    found = seen[1][1][2] @ seen[1][1][2].T
    assert found == pytest.approx(expected, abs=1e-3), "the subspace of the ten clean samples of class 2"
