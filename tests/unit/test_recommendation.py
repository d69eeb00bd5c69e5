"""Which method to take: rules on what an audit and the federation tell."""

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import fedsieve
from fedsieve.cli.app import app
from fedsieve.cli.recommend import with_method
from fedsieve.data import packaged
from fedsieve.data.features import at_hand, efficientnet
from fedsieve.runs.recommendation import FEW_WRONG, MOST_WRONG, Advice, Facts, advice, facts_of, told
from fedsieve.settings.config import resolve

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
    facts = replace(NOISY, server=("public",))
    lines = told(facts, advice(facts), "method=sieve data=x.npz").split("\n")
    assert lines == [
        "data     40 rows of 2 owners, 10 to 30 each, 3 classes; the server holds public data",
        "labels   about 40 % look wrong, 20 to 50 % from owner to owner",
        "take     method=sieve",
        "because  wrong labels can be told from the samples; sieve mends them before and during training",
        "next     fedsieve run method=sieve data=x.npz",
    ]
    assert "none at the owners" in told(replace(NOISY, labelled=False), advice(NOISY), "")
    assert "could not be judged" in told(replace(NOISY, wrong=None, rows=(4,)), advice(NOISY), "")


@pytest.mark.parametrize(
    ("wrong", "server", "words"),
    [
        (MOST_WRONG, (), "A few hundred right labels at the server (server.clean) would help it"),
        (MOST_WRONG - 0.001, (), "sieve mends them before and during training"),
        (0.9, ("clean",), "by the server's right labels too"),
        (0.2, ("clean", "public"), "by the server's right labels too"),
    ],
)
def test_right_labels_at_the_server(wrong, server, words):
    assert advice(replace(NOISY, wrong=wrong, server=server)).why.endswith(words)


SIEVE = Advice("sieve", "")


def test_a_file_stays_first():
    assert with_method(["a.yaml", "method=fedrn", "seed=1", "out=x"], SIEVE) == ["a.yaml", "method=sieve", "seed=1"]
    assert with_method(["seed=1"], SIEVE) == ["method=sieve", "seed=1"]
    assert with_method([], SIEVE) == ["method=sieve"]


def test_options_of_other_methods_are_left_out_and_those_of_the_look_go_on():
    """So that what stands behind `next` can be run."""
    facts = replace(NOISY, look={"features": "pixels", "dims": 8})
    keys = ["method=fedrn", "fedrn.k=1", "audit.features=pixels", "audit.dims=8", "rounds=2"]
    expected = ["method=sieve", "sieve.features=pixels", "sieve.dims=8", "rounds=2"]
    assert with_method(keys, advice(facts)) == expected
    resolve(dict(key.split("=") for key in expected))


def test_an_encoder_that_is_at_hand():
    facts = replace(NOISY, encoders=("efficientnet-lite0", "resnet50"))
    chosen = advice(facts)
    assert chosen.options == {"sieve.features": "resnet50", "sieve.size": 96}
    lines = told(facts, chosen, "").split("\n")
    assert lines[0].endswith("; at hand: efficientnet-lite0, resnet50")
    assert lines[2] == "take     method=sieve sieve.features=resnet50 sieve.size=96"
    assert not advice(replace(facts, encoders=("efficientnet-lite0",))).options
    assert advice(replace(facts, look={"features": "hog"})).options == {"sieve.features": "hog"}
    assert not advice(replace(facts, wrong=0.0)).options


@pytest.mark.parametrize(("shape", "expected"), [((8, 8, 3), ("resnet50",)), ((8, 8), ("resnet50",)), ((8,), ())])
def test_encoders_are_those_on_this_machine_where_samples_are_images(tmp_path, monkeypatch, shape, expected):
    monkeypatch.setenv("FEDSIEVE_DATA", str(tmp_path))
    monkeypatch.setattr(efficientnet, "weights_file", lambda name: tmp_path / "none")
    images, labels = np.zeros((40, *shape), np.uint8 if expected else np.float32), np.arange(40) % 2
    np.savez(tmp_path / "mine.npz", x_train=images, y_train=labels, x_test=images[:2], y_test=labels[:2])
    federation, _ = fedsieve.federation(data=tmp_path / "mine.npz", clients=2)
    assert facts_of(federation, [], {}).encoders == ()
    (tmp_path / "resnet50.npz").write_bytes(b"never read")
    assert facts_of(federation, [], {}).encoders == expected


def test_a_package_that_is_not_installed_is_not_at_hand(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSIEVE_DATA", str(tmp_path))
    monkeypatch.setattr(packaged, "find_spec", lambda package: None)
    assert at_hand() == ()


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
