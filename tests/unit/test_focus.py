"""FOCUS: credibilities by hand, both halves of the error by an independent path, and who gains by it."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedsieve.base.errors import CompositionError
from fedsieve.core.client import Skipped
from fedsieve.methods.focus import Credibility, credibility
from fedsieve.parts.credit import clean_score
from fedsieve.testing import Contract, check_method, fake_client, tiny_federation

SMALL = {"model": "mlp", "model.hidden": [6], "augment": "none"}
PLAIN = SMALL | {"momentum": 0.0, "rounds": 1}
PART = "Credibility"


def test_credibility_by_hand():
    """exp of 0, ln 2, ln 5 are 1, 2, 5 of 8."""
    errors = torch.tensor([0.0, math.log(2), math.log(5)])
    assert credibility(errors, 1.0).tolist() == pytest.approx([7 / 8, 6 / 8, 3 / 8])


def test_the_temperature_multiplies_the_error():
    errors = torch.tensor([0.0, math.log(2)])
    assert credibility(errors, 2.0).tolist() == pytest.approx([4 / 5, 1 / 5])
    assert credibility(errors, 0.0).tolist() == [0.5, 0.5]


def test_only_the_worst_are_really_weighed_down():
    """Ten clients with errors from 1 to 6: the published rule saturates."""
    trust = credibility(torch.linspace(1, 6, 10), 1.0)
    assert [round(float(value), 3) for value in (trust[0], trust[-1])] == [0.997, 0.572]


def test_a_client_alone_is_believed():
    assert credibility(torch.tensor([7.0]), 1.0).tolist() == [1.0]


@pytest.mark.parametrize("odd", [math.inf, math.nan])
def test_an_error_beyond_numbers_earns_nothing(odd):
    assert credibility(torch.tensor([0.0, odd, math.log(3)]), 1.0).tolist() == pytest.approx([3 / 4, 0.0, 1 / 4])
    assert credibility(torch.tensor([odd, 2.0]), 1.0).tolist() == [0.0, 1.0]
    assert credibility(torch.tensor([odd, odd]), 1.0).tolist() == [1.0, 1.0]


def test_huge_errors_do_not_overflow():
    assert credibility(torch.tensor([1e6, 2e6]), 1.0).tolist() == [1.0, 0.0]


def test_a_model_is_scored_by_loss_and_accuracy():
    logits = torch.tensor([[0.0, math.log(3)], [0.0, math.log(3)]])
    loss, accuracy = clean_score(logits, torch.tensor([1, 0]))
    assert loss == pytest.approx((math.log(4 / 3) + math.log(4)) / 2)
    assert accuracy == 0.5


# Whole rounds


def mean_loss(plan, vector, federation, rows, labels):
    model = plan.build(0)
    model.load_state_dict(plan.layout.named(vector))
    pixels = torch.from_numpy(federation.images[rows]).double().permute(0, 3, 1, 2) / 255
    with torch.no_grad():
        logits = model.double()((pixels - federation.mean[0]) / federation.std[0])
    return float(F.cross_entropy(logits, torch.from_numpy(labels)))


def uneven():
    """Four clients, of which client 1 has only six samples."""
    whole = tiny_federation()
    rows, given = list(whole.rows), list(whole.given)
    rows[1], given[1] = rows[1][:6], given[1][:6]
    return replace(whole, rows=tuple(rows), given=tuple(given), served=None)


@pytest.mark.parametrize("alpha", [1.0, 3.0])
def test_a_round_by_hand(alpha):
    federation = uneven()
    with Contract.of("focus", PLAIN | {"augment": "flip", "focus.alpha": alpha}).trial(federation) as trial:
        state = trial.run()
        clean = federation.server["clean"]
        errors = []
        for client, up in enumerate(trial.record.ups):
            before = trial.record.downs[client][1].models[0]
            local = mean_loss(trial.plan, before, federation, federation.rows[client], federation.given[client])
            assert up.notes[PART]["local_loss"] == pytest.approx(local, rel=1e-5)
            errors.append(local + mean_loss(trial.plan, up.models[0], federation, clean.rows, clean.labels))
        powers = np.exp(alpha * np.array(errors))
        trust = 1 - powers / powers.sum()
        weights = np.array([24, 6, 24, 24]) * trust
        assert list(trial.record.rounds[0].weights.values()) == pytest.approx(weights / weights.sum(), rel=1e-5)
        assert state.columns["credibility"].tolist() == pytest.approx(trust, rel=1e-5)


def test_one_client_in_the_round_counts_fully_and_is_not_judged():
    with Contract.of("focus", PLAIN | {"fraction": 0.25}).trial() as trial:
        state = trial.run()
        (what,) = trial.record.rounds
        assert list(what.weights.values()) == [1.0]
        assert not what.events
        assert "credibility" not in state.columns


def test_noisy_clients_weigh_less():
    """Clients 2 and 3 have nothing but wrong labels."""
    whole = tiny_federation(rows=60)
    wrong = [np.where(right, (g + 1) % 4, g) for right, g in zip(whole.served, whole.given, strict=True)]
    federation = replace(whole, given=(*whole.given[:2], *wrong[2:]))
    with Contract.of("focus", PLAIN | {"rounds": 3, "epochs": 3}).trial(federation) as trial:
        state = trial.run()
        trust = state.columns["credibility"].tolist()
        assert max(trust[2:]) < min(trust[:2])
        weights = trial.record.rounds[-1].weights
        assert max(weights[2], weights[3]) < min(weights[0], weights[1])


def test_a_client_without_labels_takes_no_part():
    whole = tiny_federation()
    federation = replace(whole, given=(np.full(24, -1), *whole.given[1:]))
    with Contract.of("focus", PLAIN).trial(federation) as trial:
        trial.run()
        assert trial.record.ups[0].skipped == "no labelled sample"
        assert set(trial.record.rounds[0].weights) == {1, 2, 3}


def test_beside_a_loss_without_labels_it_still_needs_some():
    whole = tiny_federation()
    c = fake_client(Credibility(), federation=replace(whole, given=(np.full(24, -1), *whole.given[1:])), **SMALL)
    with pytest.raises(Skipped, match="no labelled sample"):
        Credibility().start(c)


@pytest.mark.parametrize("method", ["focus", "client-selection", "clipfl"])
def test_clean_data_at_the_server_are_needed(method):
    whole = tiny_federation()
    federation = replace(whole, server={name: held for name, held in whole.server.items() if name != "clean"})
    with pytest.raises(CompositionError) as caught:
        Contract.of(method, {}).plan(federation)
    assert caught.value.code == "FS112"
    assert "server.clean" in str(caught.value)


@pytest.mark.parametrize("method", ["focus+scaffold", "focus+co-teaching"])
def test_it_composes(method):
    check_method(method, **SMALL)
