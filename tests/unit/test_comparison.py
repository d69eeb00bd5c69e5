"""What a comparison will run."""

import json
import shutil

import numpy as np
import pytest

import fedsieve
from fedsieve.base.errors import ConfigError, DataError, RunError
from fedsieve.runs import comparison
from fedsieve.runs.comparison import Outcome, cells, compare, impossible


def values(settings, *keys):
    return [tuple(cell.config.flat().get(key) for key in keys) for cell in cells(settings)]


def test_lists_multiply():
    found = values({"method": ["fedavg", "gce"], "seed": [0, 1, 2], "rounds": 4}, "method", "seed", "rounds")
    assert found == [(method, seed, 4) for method in ("fedavg", "gce") for seed in (0, 1, 2)]


def test_commas_multiply_as_yaml_lists_do():
    assert values({"method": "fedavg,gce", "lr": "0.1,0.2"}, "method", "lr") == values(
        {"method": ["fedavg", "gce"], "lr": [0.1, 0.2]}, "method", "lr"
    )
    assert values({"lr": "0.1, 0.2"}, "lr") == [(0.1,), (0.2,)]


def test_one_value_is_one_run():
    (cell,) = cells({"method": "gce", "seed": 3})
    assert cell.varied == {}
    assert cell.name.startswith("run-")


def test_options_go_only_to_runs_that_know_them():
    settings = {
        "method": "fedavg,fedprox",
        "fedprox.mu": "0.1,0.2",
        "noise": "none,symmetric",
        "noise.rate": "0.3",
        "partition": "iid,dirichlet",
        "partition.alpha": "0.5,1.0",
    }
    found = set(values(settings, "method", "fedprox.mu", "noise", "noise.rate", "partition", "partition.alpha"))
    methods = (("fedavg", None), ("fedprox", 0.1), ("fedprox", 0.2))
    noises = (("none", None), ("symmetric", 0.3))
    partitions = (("iid", None), ("dirichlet", 0.5), ("dirichlet", 1.0))
    assert found == {(*m, *n, *p) for m in methods for n in noises for p in partitions}
    assert len(cells(settings)) == len(found)


def test_what_differs_is_told_for_each_run():
    found = cells({"method": "fedavg,fedprox", "fedprox.mu": "0.1,0.2", "seed": 1})
    assert [cell.varied for cell in found] == [
        {"method": "fedavg"},
        {"method": "fedprox", "fedprox.mu": 0.1},
        {"method": "fedprox", "fedprox.mu": 0.2},
    ]
    assert len({cell.name for cell in found}) == 3
    assert not any(set("/:") & set(cell.name) for cell in cells({"data": ["a/b.npz", "c:d.npz"], "partition": "iid"}))


def test_an_option_that_no_run_knows_is_refused():
    with pytest.raises(ConfigError, match=r"fedprox\.mu is an option of the method fedprox") as problem:
        cells({"method": "fedavg,gce", "fedprox.mu": 1})
    assert problem.value.code == "FS001"
    with pytest.raises(ConfigError, match=r"'combine\.trim': no run of this comparison knows it.*\[FS001\]"):
        cells({"combine": "median,krum", "combine.trim": 0.3})
    with pytest.raises(ConfigError, match=r"partition\.alpha is an option of partition=dirichlet"):
        cells({"partition": "iid", "partition.alpha": 1})
    with pytest.raises(ConfigError, match=r"unknown key 'roundz'\. Did you mean 'rounds'"):
        cells({"roundz": "1,2"})
    with pytest.raises(ConfigError, match=r"noise\.rate has no effect: noise is none.*\[FS001\]"):
        cells({"noise": "none", "noise.rate": "0.1,0.2"})


def test_the_same_run_is_planned_once():
    assert len(cells({"seed": [0, 1, 0]})) == 2
    assert len(cells({"lr": "1,1.0"})) == 1
    assert len(cells({"method": "scaffold+gce,gce+scaffold"})) == 1


def test_the_key_is_of_what_decides_the_result():
    def key(**settings):
        return cells(settings)[0].key

    assert key(runtime="pool", workers=4, checkpoint_every=3) == key(runtime="serial", workers=1) == key()
    assert key(out="a", overwrite=True) == key(out="b")
    others = [key(seed=1), key(rounds=3), key(method="gce"), key(lr=0.1), key(dropout=0.1), key()]
    assert len(set(others)) == len(others)


def test_values_that_are_lists_do_not_multiply():
    assert len(cells({"model": "mlp", "model.hidden": [3, 4]})) == 1


def test_nested_options_multiply_and_go_where_they_belong():
    assert len(cells({"method": ["fedavg", "fedprox"], "fedprox": {"mu": [0.1, 0.2]}})) == 3


def test_a_default_said_aloud_is_the_same_run():
    assert cells({"method": "fedprox", "fedprox.mu": 0.01})[0].key == cells({"method": "fedprox"})[0].key


def test_an_empty_list_is_refused():
    with pytest.raises(ConfigError, match="clients"):
        cells({"clients": []})


@pytest.mark.parametrize("text", ["x, y: z: w", "a,[", "2024-13-45,b"])
def test_text_between_commas_that_is_no_yaml_is_refused_or_stays_text(text):
    assert len(cells({"data": text})) == 2


def test_rounds_that_a_method_adds_are_counted():
    plain, staged = cells({"method": "fedavg,fedcorr", "rounds": 20, "clients": 20, "fedcorr.iterations": 2})
    assert plain.rounds == 20
    assert staged.rounds == 2 * 20 + 18, "two laps, one client a round, cost as much as two rounds of all"


# Runs in processes of their own, which are made up here


class Made:
    """A child that ends at once with what is planned for its method, or runs on until it is told to end."""

    plan: dict = {}
    ended: list = []
    started: list = []

    def __init__(self, command, environment, inherited):
        Made.started.append(command)
        named = [name for name in Made.plan if any(f"{name}-" in word for word in command)]
        self.method = (named or [*Made.plan])[0]

    def poll(self):
        return Made.plan[self.method][0]

    def last_words(self):
        return Made.plan[self.method][1]

    def terminate(self):
        Made.ended.append(self.method)

    def wait(self):
        return 0


@pytest.fixture
def planned(monkeypatch, tmp_path):
    """Runs a comparison whose children do as planned."""
    monkeypatch.setattr(comparison, "Child", Made)
    monkeypatch.setattr(Made, "ended", [])
    monkeypatch.setattr(Made, "started", [])

    def run(**plan):
        monkeypatch.setattr(Made, "plan", plan)
        return compare({"method": ",".join(plan), "seed": "0,1", "rounds": 1, "out": str(tmp_path)}, jobs=2)

    return run


@pytest.mark.parametrize(
    ("words", "reason"), [("error: no disk [FS243]", "no disk [FS243]"), ("", "status 4")], ids=["told", "silent"]
)
def test_a_run_that_fails_is_told_of_and_the_others_go_on(planned, capfd, words, reason):
    with pytest.raises(RunError, match=r"4 of 4 runs are missing: gce-0-[0-9a-f]{6}: ") as problem:
        planned(gce=(4, words), fedavg=(4, "error: other"))
    assert problem.value.code == "FS215"
    assert f": {reason}; " in problem.value.message
    assert len(Made.started) == 4
    assert not Made.ended
    assert f"failed: {reason}" in capfd.readouterr().err


def test_a_run_that_leaves_no_whole_summary_is_named_and_the_others_are_ended(planned, capfd):
    with pytest.raises(DataError, match=r"summary\.json: cannot be read .* Start the comparison again") as problem:
        planned(gce=(0, ""), fedavg=(None, ""))
    assert problem.value.code == "FS311"
    assert Made.ended == ["gce"], "the second of its seeds"
    assert "stopped; what is finished is kept" in capfd.readouterr().err


def test_a_run_that_was_cut_off_is_resumed(planned, tmp_path):
    first, second = cells({"method": "gce", "seed": "0,1", "rounds": 1})
    for name in (first.name, second.name):
        (tmp_path / name / "checkpoint").mkdir(parents=True)
        (tmp_path / name / "config.yaml").write_text("")
    (tmp_path / first.name / "checkpoint" / "00000001.json").write_text(json.dumps({}))
    with pytest.raises(DataError):
        planned(gce=(0, ""))
    words = [command[4:6] for command in Made.started]
    assert words == [["resume", str(tmp_path / first.name)], ["run", str(tmp_path / f".{second.name}.yaml")]]


def test_runs_that_cannot_be_are_found_before_any_starts(tiny_file):
    settings = {
        "data": str(tiny_file),
        "method": "fedavg,focus,gce+mae,rhfl",
        "seed": "0,1",
        "clients": 2,
        "model": "mlp",
    }
    found = impossible(cells(settings))
    assert {name.partition("-")[0] for name in found} == {"focus", "gce+mae", "rhfl"}
    assert len(found) == 6, "of both seeds"
    assert all("FS112" in why for name, why in found.items() if name.startswith("focus"))
    assert all("FS103" in why for name, why in found.items() if name.startswith("gce"))


@pytest.mark.parametrize(
    ("keys", "code"),
    [
        ({"data": "nowhere.npz"}, "FS301"),
        ({"clients": 100_000}, "FS308"),
        ({"model": "mlp", "model.hidden": [3], "method": "ifca+local"}, "FS114"),
    ],
)
def test_why_a_run_cannot_be(tiny_file, keys, code):
    (why,) = impossible(cells({"data": str(tiny_file), "clients": 2, **keys})).values()
    assert code in why


def test_the_truth_is_asked_for_only_where_it_is_known(tmp_path, tiny_file):
    arrays = dict(np.load(tiny_file))
    np.savez(tmp_path / "real.npz", **arrays, client=np.arange(len(arrays["y_train"])) % 2)
    real = {"data": str(tmp_path / "real.npz"), "method": "fedavg,oracle"}
    assert [name.partition("-")[0] for name in impossible(cells(real))] == ["oracle"]
    assert not impossible(cells(real | {"noise": "pair", "server.clean": 5}))


def test_what_is_missing_is_told_in_the_end(tmp_path):
    Outcome(tmp_path, [{}], {}, 1).complain()
    with pytest.raises(RunError, match=r"1 of 2 runs is missing: a: why\. Mend that and start again.*\[FS215\]"):
        Outcome(tmp_path, [{}], {"a": "why"}, 2).complain()


def test_of_runs_whose_files_are_gone_the_row_counts(tmp_path, tiny_file):
    settings = {
        "data": str(tiny_file), "method": ["fedavg", "gce"], "clients": 2, "rounds": 1, "epochs": 1, "model": "mlp",
        "out": str(tmp_path), "quiet": True,
    }  # fmt: skip
    first = fedsieve.compare(**settings)
    for row, reported in zip(first.rows, (True, False), strict=True):
        shutil.rmtree(tmp_path / row["folder"])
        (tmp_path / "report.html").unlink()
        again = fedsieve.compare(**settings)
        assert (again.rows, again.table) == (first.rows, first.table)
        assert (tmp_path / "report.html").exists() == reported
        assert not (tmp_path / row["folder"]).exists()
        (tmp_path / "report.html").touch()
