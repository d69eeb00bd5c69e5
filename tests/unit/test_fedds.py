"""FedDS: whom the votes on the server's unlabelled images make trustworthy, and that no label takes part in it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedsieve.base.errors import CompositionError, RunError
from fedsieve.core.types import Reads
from fedsieve.data.federation import Holding
from fedsieve.estimate import dawid_skene
from fedsieve.estimate.dawid_skene import DawidSkene
from fedsieve.methods.fedds import DawidSkeneWeights
from fedsieve.testing import Contract, fake_reports, fake_server, tiny_federation

CLASSES, ITEMS = 4, 400
ACCURACY = {0: 0.95, 1: 0.8, 2: 0.55, 3: 0.3}


def said(seed=0):
    """Logits of four clients whose votes are right as often as ACCURACY says."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, CLASSES, ITEMS)
    logits = {}
    for client, accuracy in ACCURACY.items():
        other = (truth + rng.integers(1, CLASSES, ITEMS)) % CLASSES
        votes = np.where(rng.random(ITEMS) < accuracy, truth, other)
        logits[client] = torch.nn.functional.one_hot(torch.from_numpy(votes), CLASSES).float() * 5
    return logits, truth


def server_of(part, logits):
    s = fake_server(part)
    s.assessed[Reads.UNLABELLED] = logits
    return s


def ups_of(clients):
    return fake_reports(DawidSkeneWeights(), {k: {} for k in clients}, n=10)


def test_weights_are_the_mean_diagonals():
    logits, truth = said()
    part = DawidSkeneWeights()
    s = server_of(part, logits)
    weights = part.weigh(s, ups_of(logits), dict.fromkeys(logits, 10.0))
    votes = np.stack([each.argmax(1).numpy() for each in logits.values()], 1)
    expected = [np.mean([m[c, c] for c in range(CLASSES)]) for m in DawidSkene(CLASSES).fit(votes).confusion_]
    assert list(weights.values()) == pytest.approx(expected)
    measured = [np.mean([(votes[truth == c, k] == c).mean() for c in range(CLASSES)]) for k in range(4)]
    assert list(weights.values()) == pytest.approx(measured, abs=0.06), "close to what the hidden truth would say"
    assert s.columns["reliability"].tolist() == pytest.approx(list(weights.values()))


def test_confusions_are_shown_of_those_who_took_part():
    logits, _ = said()
    part = DawidSkeneWeights()
    s = server_of(part, {k: logits[k] for k in (0, 2)})
    assert part.show(s) == []
    part.weigh(s, ups_of((0, 2)), {0: 1.0, 2: 1.0})
    reliability, confusions = part.show(s)
    assert reliability.clients == confusions.clients == (0, 2)
    diagonals = confusions.values.diagonal(dim1=1, dim2=2).mean(1)
    assert reliability.values.tolist() == pytest.approx(diagonals.tolist(), abs=1e-6)


def test_sizes_count_only_if_asked_for():
    logits, _ = said()
    sizes = {0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0}
    plain = DawidSkeneWeights().weigh(server_of(DawidSkeneWeights(), logits), ups_of(logits), sizes)
    part = DawidSkeneWeights(use_size=True)
    sized = part.weigh(server_of(part, logits), ups_of(logits), sizes)
    assert sized == pytest.approx({k: plain[k] * sizes[k] for k in sizes})


def test_soft_votes_of_sure_models_are_hard_votes():
    logits, _ = said()
    sure = {k: 100 * each for k, each in logits.items()}
    hard, soft = DawidSkeneWeights(), DawidSkeneWeights(votes="soft")
    one = hard.weigh(server_of(hard, sure), ups_of(sure), dict.fromkeys(sure, 1.0))
    two = soft.weigh(server_of(soft, sure), ups_of(sure), dict.fromkeys(sure, 1.0))
    assert one == pytest.approx(two, abs=1e-9)
    doubting = {k: each / 5 for k, each in logits.items()}
    three = soft.weigh(server_of(soft, doubting), ups_of(sure), dict.fromkeys(sure, 1.0))
    assert three != pytest.approx(one, abs=1e-3), "doubt counts"


def test_what_em_could_not_do_is_told():
    logits, _ = said()
    part = DawidSkeneWeights(iterations=1)
    s = server_of(part, logits)
    part.weigh(s, ups_of(logits), dict.fromkeys(logits, 1.0))
    assert [event.code for event in s.events][:1] == ["FS217"]
    assert "1 iterations" in s.events[0].message


def test_switched_classes_are_told_and_undone(monkeypatch):
    logits, _ = said()
    shares = dawid_skene._vote_shares
    monkeypatch.setattr(dawid_skene, "_vote_shares", lambda *given: shares(*given)[:, [1, 0, 2, 3]])
    found = {}
    for realign in (False, True):
        part = DawidSkeneWeights(realign=realign)
        s = server_of(part, logits)
        found[realign] = part.weigh(s, ups_of(logits), dict.fromkeys(logits, 1.0))
        assert [event.code for event in s.events] == ([] if realign else ["FS218"])
    assert found[False][0] < 0.6 < found[True][0]


def test_no_label_reaches_it(tmp_path):
    """Its set has no labels, it may not ask for any, and labels put there by force change no bit."""
    contract = Contract.of("fedds", {"rounds": 2})
    federation = tiny_federation()
    held = federation.server["unlabelled"]
    assert held.labels is None
    s = server_of(DawidSkeneWeights(), {})
    for name in ("clean", "noisy"):
        with pytest.raises(RunError, match=f"looks at the server's {name} data without declaring it"):
            getattr(s, name)
    models = []
    for labels in (None, np.zeros(len(held.rows), np.int64), np.arange(len(held.rows)) % CLASSES):
        forced = replace(federation, server={**federation.server, "unlabelled": Holding(held.rows, labels)})
        with contract.trial(forced) as trial:
            models.append(trial.run().models[0][0])
    assert torch.equal(models[0], models[1])
    assert torch.equal(models[0], models[2])


def test_the_noisy_client_weighs_least(tmp_path):
    """With labels of its own that mean nothing, a client's votes agree with nobody's."""
    federation = tiny_federation(rows=48)
    shuffled = np.random.default_rng(0).permutation(federation.given[2])
    given = tuple(shuffled if k == 2 else labels for k, labels in enumerate(federation.given))
    with Contract.of("fedds", {"rounds": 3, "epochs": 6}).trial(replace(federation, given=given)) as trial:
        trial.run()
        weights = trial.record.rounds[-1].weights
    assert min(weights, key=lambda k: weights[k]) == 2
    assert sum(weights.values()) == pytest.approx(1)


def test_votes_are_a_step_of_their_own():
    with Contract.of("fedds", {"rounds": 1}).trial() as trial:
        trial.run()
        assert {"train", "assess", "combine"} <= trial.record.rounds[0].seconds.keys()


def test_it_needs_unlabelled_images():
    from fedsieve.settings.planning import config_of, plan_of

    federation = replace(tiny_federation(), server={})
    with pytest.raises(CompositionError, match=r"Set server\.unlabelled"):
        plan_of(config_of({"method": "fedds"}), federation)
