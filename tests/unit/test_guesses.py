"""Guessed labels in the record: what a client notes, what stays with it, and what the evaluator makes of it."""

import json
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from fedsieve import run
from fedsieve.base.errors import RunError
from fedsieve.core.part import Method, Part, Stage
from fedsieve.data.truth import GroundTruth
from fedsieve.evaluate.evaluator import Evaluator, Judged
from fedsieve.evaluate.metrics import guessing
from fedsieve.parts.losses import CrossEntropy
from fedsieve.testing import Contract, fake_client, tiny_federation
from fedsieve.testing.tiny import without_labels

MLP = {"model": "mlp", "model.hidden": [8], "augment": "none", "rounds": 1}


def test_the_numbers_by_hand():
    """Four of six rows are guessed, three right; three guesses are used, two right; they are of two classes."""
    true = np.array([0, 1, 2, 3, 0, 1])
    guessed = np.array([0, 1, 2, 0, -1, -1])
    used = np.array([True, False, True, True, False, False])
    accuracy, precision, share, entropy = guessing(guessed, used, true, 4)
    assert (accuracy, precision, share) == (0.75, pytest.approx(2 / 3), 0.5)
    spread = -(2 / 3 * math.log(2 / 3) + 1 / 3 * math.log(1 / 3)) / math.log(4)
    assert entropy == pytest.approx(spread)


def test_the_ends_of_the_numbers():
    classes = np.arange(4)
    every, nothing = np.ones(4, bool), np.zeros(4, bool)
    assert guessing(classes, every, classes, 4) == (1.0, 1.0, 1.0, pytest.approx(1.0))
    assert guessing(classes * 0 + 2, every, classes, 4) == (0.25, 0.25, 1.0, 0.0)
    assert guessing(classes, nothing, classes, 4) == (1.0, None, 0.0, None)
    assert guessing(classes - 9, nothing, classes, 4) == (None, None, 0.0, None)
    assert guessing(classes[:0], nothing[:0], classes[:0], 4) == (None, None, None, None)


@dataclass(frozen=True, kw_only=True)
class Guessing(Part):
    """Guesses class 1 for every row and trains on every other; in its second round it is silent."""

    guesses = True

    def finish(self, c):
        if c.t == 0:
            rows = torch.arange(c.n)
            c.guess(self, rows, torch.zeros(c.n, dtype=torch.int64), rows >= 0)
            c.guess(self, rows, torch.ones(c.n, dtype=torch.int64), rows % 2 == 0)
        return {}


@dataclass(frozen=True, kw_only=True)
class Undeclared(Part):
    def finish(self, c):
        c.guess(self, torch.arange(2), torch.zeros(2), torch.ones(2))
        return {}


def judged(rounds, federation):
    """Judgements after so many rounds, by true labels that are 1 for the first half of the rows."""
    with Contract.of(Method("own", (Stage(parts=(Guessing(), CrossEntropy())),)), MLP | {"rounds": rounds}).trial(
        federation
    ) as trial:
        state = trial.run()
        true = tuple((np.arange(len(given)) < len(given) // 2).astype(np.int64) for given in federation.given)
        judge = Evaluator(trial.federation, GroundTruth(true, np.zeros(4, np.int64), true[0][:0]), trial.states)
        assert all(not up.notes["Guessing"] for up in trial.record.ups)
        return judge.selections(state.versions)


def test_the_last_guess_of_a_row_counts():
    found = judged(1, tiny_federation())
    assert found == dict.fromkeys(
        range(4), Judged(guess_accuracy=0.5, guess_precision=0.5, guess_share=0.5, guess_entropy=0.0)
    )


def test_guesses_are_those_of_the_last_message():
    assert judged(2, tiny_federation()) == {}


def test_guesses_must_be_declared():
    with pytest.raises(RunError, match="Undeclared notes guesses") as problem:
        Undeclared().finish(fake_client(Undeclared()))
    assert problem.value.code == "FS206"


@pytest.mark.parametrize("labels", [True, False])
def test_a_run_records_guesses(tmp_path, labels):
    """Whether clients have labels makes no difference to guesses, and no label is said to be chosen or judged."""
    keys = {"clients": 3, "rounds": 2, "epochs": 1, "data.limit": 200, "server.noisy": 60, "client_labels": labels}
    options = {"fixmatch.threshold": 0.5, "fixmatch.pretrain": 3, "fixmatch.server.epochs": 1, "runtime": "serial"}
    summary = run(method="fixmatch", out=str(tmp_path / "run"), **keys, **options)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["extra"] for row in rows] == [True, False, False]
    assert rows[0]["guess_share"] is None
    for row in rows[1:]:
        assert 0 <= row["guess_share"] <= 1
        assert 0 <= row["guess_accuracy"] <= 1
    assert summary["guess_share"] == rows[-1]["guess_share"]
    assert summary["label_precision"] is None
    assert not (tmp_path / "run" / "labels.csv").exists()
    clients = [json.loads(line) for line in (tmp_path / "run" / "clients.jsonl").read_text().splitlines()]
    assert rows[-1]["guess_share"] == pytest.approx(np.mean([c["guess_share"] for c in clients if c["round"] == 3]))
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Guessed labels" in page
    assert "60 noisy (20.00 % of the labels wrong)" in page
    assert ("the clients have no labels" in page) == (not labels)


def test_without_labels_guesses_are_the_same():
    """The record of guesses says nothing of the labels that clients have."""
    states = []
    for federation in (tiny_federation(), without_labels(tiny_federation())):
        with Contract.of("fixmatch", {"fixmatch.threshold": 0.3, "rounds": 1}).trial(federation) as trial:
            state = trial.run()
            states.append([trial.states.load(k, state.versions[k])["judged/guessed"] for k in range(4)])
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))
