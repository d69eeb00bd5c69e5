"""The audit as an owner meets it: one command, a table of owners, a file with the doubtful labels."""

import csv
import json
import subprocess
import sys

import numpy as np
import pytest

import fedsieve

KEYS = ["clients=4", "partition=dirichlet", "noise=symmetric", "noise.rates=ramp", "noise.high=0.6", "runtime=serial"]


def audit(*arguments, cwd):
    command = [sys.executable, "-m", "fedsieve", "audit", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("audit")
    return audit(*KEYS, "out=judged", cwd=folder), folder / "judged"


def test_every_owner_is_told_what_is_suspected(found):
    out, folder = found
    head, *owners, last, further = out.splitlines()
    assert " ".join(head.split()) == "owner rows flagged wrong labels look at the most doubtful first"
    assert [line.split()[0] for line in owners] == ["0", "1", "2", "3"]
    with (folder / "labels.csv").open() as file:
        rows = list(csv.DictReader(file))
    flagged = [row for row in rows if row["flagged"] == "true"]
    assert last == f"{len(flagged)} of {len(rows)} labels are flagged: judged/labels.csv, report.html"
    most = max(owners, key=lambda line: int(line.split()[2])).split()[0]
    assert further == f"look at them: fedsieve review judged --owner {most}"
    assert "accuracy at the end" not in (folder / "report.html").read_text(), "nothing was trained"
    assert sum(int(line.split()[1]) for line in owners) == len(rows) == 8000
    assert all(row["suggested"] != row["given"] for row in flagged)
    assert all(row["suggested"] == row["given"] for row in rows if row["flagged"] == "false")


def test_what_it_says_is_true(found):
    out, folder = found
    settings = {key: value for key, _, value in (each.partition("=") for each in KEYS)}
    federation, truth = fedsieve.federation(**settings | {"method": "audit"})
    with (folder / "labels.csv").open() as file:
        rows = list(csv.DictReader(file))
    wrong = {
        place: given != true
        for k in range(federation.clients)
        for place, given, true in zip(federation.places(k), federation.given[k], truth.labels[k], strict=True)
    }
    errors = np.array([wrong[row["where"]] for row in rows])
    flagged = np.array([r["flagged"] == "true" for r in rows])
    score = np.array([float(r["score"]) for r in rows])
    assert (flagged & errors).sum() / flagged.sum() > 0.85
    assert (flagged & errors).sum() / errors.sum() > 0.85
    assert 1 - score.mean() == pytest.approx(errors.mean(), abs=0.03)
    shares = [int(line.split()[3]) for line in out.splitlines()[1:-2]]
    for k, share in enumerate(shares):
        assert share == pytest.approx(100 * (truth.labels[k] != federation.given[k]).mean(), abs=6)


def test_json_has_the_same(found, tmp_path):
    told = json.loads(audit(*KEYS, "--json", "--quiet", "audit.precision=0.99", cwd=tmp_path))
    assert [owner["owner"] for owner in told["owners"]] == ["0", "1", "2", "3"]
    assert told["rounds"] == 0
    assert told["secure_aggregation"] is True
    _, folder = found
    flagged = sum(row["flagged"] == "true" for row in csv.DictReader((folder / "labels.csv").open()))
    assert 0 < sum(owner["flagged"] for owner in told["owners"]) < flagged
    assert all(owner["wrong"]["low"] <= owner["wrong"]["share"] <= owner["wrong"]["high"] for owner in told["owners"])


def test_contradicting_copies_are_told_of(tmp_path, monkeypatch):
    """Three rows of a table stand there twice, the second time with another label."""
    rng = np.random.default_rng(0)
    true = rng.integers(0, 3, 120)
    values = np.round(4 * np.eye(3)[true] + rng.normal(size=(120, 3)), 4)
    rows = [[*x.tolist(), "abc"[t], f"h{i % 2}"] for i, (x, t) in enumerate(zip(values, true, strict=True))]
    rows += [[*row[:3], "abc"[("abc".index(row[3]) + 1) % 3], row[4]] for row in rows[:3]]
    with (tmp_path / "t.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["x", "y", "z", "label", "client"], *rows])
    keys = ["data=t.csv", "runtime=serial", "--quiet"]
    lines = audit(*keys, "out=judged", cwd=tmp_path).splitlines()
    told = "{}: {} rows are nearly the same as another that is labelled otherwise (column twin)"
    assert lines[3:5] == [told.format("h0", 4), told.format("h1", 2)]
    listed = csv.DictReader((tmp_path / "judged" / "labels.csv").open())
    twins = {row["where"]: row["twin"] for row in listed if row["twin"]}
    pairs = {f"t.csv:{line}": f"t.csv:{line + 120}" for line in (2, 3, 4)}
    assert twins == pairs | {copy: row for row, copy in pairs.items()}
    told = json.loads(audit(*keys, "out=again", "--json", cwd=tmp_path))
    assert [owner["twins"] for owner in told["owners"]] == [4, 2]
    assert "nearly the same as t.csv:" in (tmp_path / "judged" / "report.html").read_text()
    written = (tmp_path / "judged" / "labels.csv").read_bytes()
    audit("data=t.csv", "runtime=pool", "workers=2", "--quiet", "out=pooled", cwd=tmp_path)
    assert (tmp_path / "pooled" / "labels.csv").read_bytes() == written
    for name in ("summary.json", "labels.csv"):
        (tmp_path / "pooled" / name).unlink()
    monkeypatch.chdir(tmp_path)  # where its data are
    fedsieve.resume("pooled", quiet=True)
    assert (tmp_path / "pooled" / "labels.csv").read_bytes() == written


def test_another_method_is_refused(tmp_path):
    command = [sys.executable, "-m", "fedsieve", "audit", "method=fedavg"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert "is no audit" in done.stderr.splitlines()[-1]
