"""Which method to take: rules on what an audit and the federation tell."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

import fedsieve
from fedsieve.cli.app import app
from fedsieve.cli.recommend import with_method
from fedsieve.runs.recommendation import FEW_WRONG, Facts, advice, told

NOISY = Facts((30, 10), 3, (0.5, 0.2), 0.4, labelled=True, server=())


@pytest.mark.parametrize(
    ("facts", "method"),
    [
        (NOISY, "sieve"),
        (replace(NOISY, wrong=FEW_WRONG), "sieve"),
        (replace(NOISY, wrong=FEW_WRONG - 0.001), "fedavg"),
        (replace(NOISY, wrong=None, shares=()), "symce"),
        (replace(NOISY, labelled=False, wrong=None, shares=()), "simclr"),
        (replace(NOISY, labelled=False, wrong=None, shares=(), server=("noisy",)), "semifl"),
        (replace(NOISY, labelled=False, wrong=None, shares=(), server=("clean",)), "semifl"),
        (replace(NOISY, labelled=False, wrong=None, shares=(), server=("unlabelled",)), "simclr"),
    ],
)
def test_the_first_rule_that_applies(facts, method):
    assert advice(facts).method == method


def test_five_lines():
    lines = told(replace(NOISY, server=("clean",)), advice(NOISY), "method=sieve data=x.npz").split("\n")
    assert lines == [
        "data     40 rows of 2 owners, 10 to 30 each, 3 classes; the server holds clean data",
        "labels   about 40 % look wrong, 20 to 50 % from owner to owner",
        "take     method=sieve",
        "because  wrong labels can be told from the samples; sieve mends them before and during training",
        "next     fedsieve run method=sieve data=x.npz",
    ]
    assert "none at the owners" in told(replace(NOISY, labelled=False), advice(NOISY), "")
    assert "could not be judged" in told(replace(NOISY, wrong=None, rows=(4,)), advice(NOISY), "")


def test_a_file_stays_first():
    assert with_method(["a.yaml", "method=fedrn", "seed=1", "out=x"], "sieve") == ["a.yaml", "method=sieve", "seed=1"]
    assert with_method(["seed=1"], "sieve") == ["method=sieve", "seed=1"]
    assert with_method([], "sieve") == ["method=sieve"]


NOISE = ("noise=symmetric", "noise.rate=0.5", "clients=3")


def test_a_federation_with_wrong_labels(tmp_path, monkeypatch):
    """Settings of training do not matter, and nothing is left behind."""
    monkeypatch.chdir(tmp_path)
    keys = [*NOISE, "method=fedrn", "fedrn.k=1", "rounds=50", "out=here", "runtime=serial"]
    found = CliRunner().invoke(app, ["recommend", *keys, "--json", "--quiet"])
    assert found.exit_code == 0, found.output
    assert (facts := json.loads(found.stdout))["method"] == "sieve"
    assert facts["wrong"] == pytest.approx(0.5, abs=0.06)
    assert len(facts["rows"]) == len(facts["shares"]) == 3
    assert not list(tmp_path.iterdir())


def test_from_python_and_without_labels():
    found = fedsieve.recommend(client_labels=False, clients=3, quiet=True, **{"server.noisy": 100})
    assert found.method == "semifl"
    assert not found.shares


def test_what_is_wrong_with_the_data_is_said():
    with pytest.raises(fedsieve.DataError, match="FS301"):
        fedsieve.recommend(data="nowhere.npz", quiet=True)
