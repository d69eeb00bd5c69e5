"""What is told of judged labels: names, origins and suggestions, in the file, on the screen and as a frame."""

import json
import sys
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

import fedsieve
from fedsieve.api import Run
from fedsieve.base.errors import ConfigError, DataError
from fedsieve.cli.labels import told_of_labels
from fedsieve.core import Method, Part, Stage
from fedsieve.evaluate import labels as module
from fedsieve.evaluate.labels import (
    JudgedLabel,
    counts_by_owner,
    flagged_by_owner,
    judged_labels,
    labels_csv,
    shown_suspects,
    write_suspects,
)
from fedsieve.report.arrays import suspects_of
from fedsieve.report.folder import read_labels
from fedsieve.runs.labels import labels_of
from fedsieve.testing import Contract, tiny_federation

NAMES = ("cat", "dog", "emu", "fox")


def judged(**state):
    """One client with six rows 10 to 15, given cat dog emu fox cat and no label."""
    federation = replace(
        tiny_federation(),
        rows=(np.arange(10, 16),),
        given=(np.array([0, 1, 2, 3, 0, -1]),),
        class_names=NAMES,
        client_names=("ward",),
        data="zoo",
    )
    stored = {
        "judged/score": torch.tensor([0.9, 0.5, 0.1, 0.3, torch.nan, 0.0]),
        "judged/suggested": torch.tensor([0, 1, 3, 3, 0, 0]),
        "judged/kept": torch.tensor([1, 0, 0, 0, 0, 0], dtype=torch.bool),
    } | {f"judged/{name}": torch.tensor(value) for name, value in state.items()}
    return {label.where: label for label in judged_labels(federation, 0, stored, "some+other")}


def test_names_origins_and_order():
    found = judged(opinion=[-1, 2, 0, 3, 1, -1])
    assert list(found) == ["zoo[14]", "zoo[12]", "zoo[13]", "zoo[11]", "zoo[10]"], "worst first, and labels alone"
    assert {label.owner for label in found.values()} == {"ward"}
    assert {label.method for label in found.values()} == {"some+other"}
    assert [found[f"zoo[{row}]"].given for row in range(10, 15)] == ["cat", "dog", "emu", "fox", "cat"]
    assert [found[f"zoo[{row}]"].flagged for row in range(10, 15)] == [False, True, True, True, True]
    assert found["zoo[14]"].score == 0, "flagged without a score"


def test_a_flagged_label_has_another_suggestion_or_none():
    found = judged(opinion=[-1, 2, 0, 3, 1, -1])
    assert found["zoo[10]"].suggested == "cat", "kept as it is"
    assert found["zoo[12]"].suggested == "fox", "the method's word counts, not the net's"
    assert found["zoo[11]"].suggested == "emu", "taken out without a word: what the net says"
    assert found["zoo[13]"].suggested == "", "the net agrees with the label"
    assert found["zoo[14]"].suggested == "dog"
    silent = judged()
    assert [silent[f"zoo[{row}]"].suggested for row in range(10, 15)] == ["cat", "", "fox", "", ""], "nobody was asked"


@dataclass(frozen=True, kw_only=True)
class Dropping(Part):
    """Leaves out every third row, and calls every fifth class 0."""

    labels = True

    def relabel(self, c, net, labels):
        fifth = torch.arange(0, c.n, 5)
        renamed = labels.rename(fifth, torch.zeros(len(fifth), dtype=torch.int64))
        return renamed.only(torch.arange(c.n) % 3 > 0)


def test_the_net_is_asked_for_rows_that_are_left_out_without_a_word():
    """Its answer is that of the model which the client reports, and changes nothing else."""
    method = Method("own", (Stage(parts=(Dropping(),)),))
    with Contract.of(method, {"rounds": 2}).trial() as trial:
        trial.run()
        for up in trial.record.ups[-4:]:
            state = trial.states.load(up.client, up.version)
            rows, given = trial.federation.rows[up.client], torch.from_numpy(trial.federation.given[up.client])
            silent = (torch.arange(up.n) % 3 == 0) & ((torch.arange(up.n) % 5 > 0) | (given == 0))
            assert torch.equal(silent, ~state["judged/kept"] & (state["judged/suggested"] == given))
            seen = trial.host.inspect(up.models, "training", torch.from_numpy(rows)).logits.argmax(1)
            assert torch.equal(state["judged/opinion"], torch.where(silent, seen, -1))


def label(owner="a", where="x[0]", **more):
    plain = {"given": "cat", "suggested": "dog", "score": 0.5, "flagged": True, "method": "m", "twin": ""}
    return JudgedLabel(owner=owner, where=where, **plain | {"client": 0, "row": 0} | more)


AWKWARD = ["a,b", 'q"uote', "two\nlines", "\rreturn", "1\r2", "=1+1", "+x", "-y", "@z", "'=q", "-3", " blank ", ""]


@pytest.mark.parametrize("name", AWKWARD)
def test_any_name_comes_back(tmp_path, name):
    written = [label(owner=name, where=name, given=name, suggested=name, twin=name), label()]
    (tmp_path / "labels.csv").write_bytes(labels_csv(written))
    found = read_labels(tmp_path / "labels.csv")
    assert [tuple(one.model_dump().values()) for one in found] == [one[:8] for one in written]
    for line in (tmp_path / "labels.csv").read_text().split("\n"):
        assert not line.startswith(("=", "+x", "-y", "@"))


def test_names_that_no_text_can_hold():
    """A file's name may be any bytes; what is shown of it is text, and two files stay two."""
    federation = replace(
        tiny_federation(), rows=(np.arange(2),), given=(np.zeros(2, np.int64),), client_names=("w\udcff",),
        origins=["\udcff.png", "\udcfe.png"], class_names=("a\udc80", "b", "c", "d"),
    )  # fmt: skip
    state = {"score": torch.zeros(2), "suggested": torch.zeros(2, dtype=torch.int64), "kept": torch.ones(2).bool()}
    found = judged_labels(federation, 0, {f"judged/{name}": value for name, value in state.items()}, "m")
    assert [one.where for one in found] == [r"\udcff.png", r"\udcfe.png"]
    assert found[0].owner == r"w\udcff"
    assert rb"w\udcff,\udcff.png,a\udc80,a\udc80,0,false,m," in labels_csv(found)


def test_owners_with_the_most_flagged_come_first_and_few_are_shown():
    labels = [label(f"o{k}", f"x[{i}]", flagged=i < 2 * k) for k in range(15) for i in range(40)]
    assert [len(mine) for mine in flagged_by_owner(labels).values()] == list(range(28, -1, -2))
    shown = shown_suspects(labels)
    assert list(shown) == [f"o{k}" for k in range(14, 4, -1)]
    assert [len(mine) for mine in shown.values()] == [12] * 9 + [10]
    assert [one.where for one in shown["o14"]] == [f"x[{i}]" for i in range(12)]
    assert counts_by_owner(labels)[3] == {"owner": "o3", "judged": 40, "flagged": 6}


def test_what_a_run_says_when_it_ends(tmp_path):
    labels = [label(f"o{k}\x1b[2J", f"x[{i}]", flagged=i < k) for k in range(12) for i in range(40)]
    said = told_of_labels({"labels": counts_by_owner(labels)}, tmp_path / "labels.csv")
    assert said[0] == f"66 of 480 labels are flagged, all are in {tmp_path / 'labels.csv'}:"
    assert len(said) == 12
    assert "11 of 40" in said[1]
    assert "\x1b" not in "".join(said)
    assert said[-1] == "  and 2 more"
    assert told_of_labels({"labels": None}, tmp_path) == []
    assert len(told_of_labels({"labels": counts_by_owner(labels[:400])}, tmp_path)) == 11


def written_suspects(folder, samples, labels):
    federation = replace(tiny_federation(), images=samples, rows=(np.arange(len(samples))[::-1],))
    write_suspects(folder, federation, labels)
    with np.load(folder / "suspects.npz", allow_pickle=False) as arrays:
        return suspects_of(arrays)


def test_samples_of_suspects_are_those_of_their_rows(tmp_path):
    images = np.arange(5, dtype=np.uint8)[:, None, None, None] * np.ones((1, 130, 130, 3), np.uint8)
    found = written_suspects(tmp_path, images, [label(where=f"x[{4 - i}]", row=i) for i in (1, 3)])
    assert list(found) == [("a", "x[3]"), ("a", "x[1]")]
    assert [sample.image.shape for sample in found.values()] == [(43, 43, 3)] * 2
    assert [int(sample.image.mean()) for sample in found.values()] == [3, 1]
    assert not found["a", "x[3]"].values


def test_rows_of_tables_are_told_in_words(tmp_path):
    table = np.linspace(-1, 2, 5 * 10, dtype=np.float32).reshape(5, 10)
    (found,) = written_suspects(tmp_path, table, [label(row=4), label(row=3, flagged=False)]).values()
    assert found.image is None
    assert found.values == "-1, -0.9388, -0.8776, -0.8163, -0.7551, -0.6939, -0.6327, -0.5714 and 2 more"


def test_nothing_flagged_and_pictures_that_are_too_large(tmp_path, monkeypatch):
    images = np.zeros((3, 8, 8, 1), np.uint8)
    write_suspects(tmp_path, replace(tiny_federation(), images=images, rows=(np.arange(3),)), [label(flagged=False)])
    assert not (tmp_path / "suspects.npz").exists()
    monkeypatch.setattr(module, "MOST_BYTES", 63)
    assert written_suspects(tmp_path, images, [label()])["a", "x[0]"].image is None


@pytest.mark.parametrize(
    ("index", "images"),
    [
        ([{"owner": "a", "where": "b"}], None),
        ([{"owner": "a", "where": 1, "values": ""}], None),
        ([{"owner": "a", "where": "b", "values": ""}] * 121, None),
        ([{"owner": "a", "where": "b", "values": ""}], np.zeros((2, 4, 4, 1), np.uint8)),
        ([{"owner": "a", "where": "b", "values": ""}], np.zeros((1, 4, 4, 1))),
        ([{"owner": "a", "where": "b", "values": ""}], np.zeros((1, 4, 4), np.uint8)),
        ([{"owner": "a", "where": "b", "values": ""}], np.zeros((1, 4, 0, 1), np.uint8)),
        ([{"owner": "a", "where": "b", "values": ""}], np.zeros((1, 2000, 2000, 1), np.uint8)),
        (7, None),
    ],
)
def test_suspects_that_no_run_wrote(index, images):
    arrays = {"index": np.array(json.dumps(index))} | ({} if images is None else {"images": images})
    with pytest.raises((ValueError, KeyError, TypeError)):
        suspects_of(arrays)


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny_file):
    settings = {"clients": 3, "rounds": 1, "epochs": 1, "batch": 20, "runtime": "serial", "noise": "symmetric"}
    settings |= {"data": str(tiny_file), "method": "fedrn", "fedrn.warmup": 0}
    return fedsieve.run(**settings, out=str(tmp_path_factory.mktemp("run") / "run"), quiet=True)


def test_a_frame_of_labels(run):
    frame = run.labels()
    assert list(frame) == ["owner", "where", "given", "suggested", "score", "flagged", "method", "twin"]
    assert len(frame) == 160
    assert frame.flagged.dtype == bool
    assert run["labels"] == [
        {"owner": owner, "judged": len(mine), "flagged": int(mine.flagged.sum())}
        for owner, mine in frame.groupby("owner", sort=False)
    ]
    assert (frame[frame.flagged].suggested != frame[frame.flagged].given).all()
    assert all(mine.score.is_monotonic_increasing for _, mine in frame.groupby("owner"))
    some = fedsieve.load(run["folder"]).labels(owner="1", flagged=True, cleanlab=True)
    assert list(some) == ["owner", "where", "is_label_issue", "label_quality", "given_label", "predicted_label"]
    assert some.is_label_issue.all()
    assert set(some["where"]) == set(frame[frame.flagged & (frame.owner == "1")]["where"])


def test_labels_that_cannot_be_shown(run, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"no owner '9'") as caught:
        run.labels(owner="9")
    assert caught.value.code == "FS002"
    with pytest.raises(DataError, match="whose method judges labels") as problem:
        labels_of(tmp_path)
    assert problem.value.code == "FS311"
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match=r"labels\(\) needs pandas"):
        Run(folder=run["folder"]).labels()
