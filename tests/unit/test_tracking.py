"""Trackers get the numbers of every round once, go on when a run is resumed, and never end a run."""

import json
import os
import sys
import time

import pytest

from fedsieve.base.errors import ConfigError, RunError
from fedsieve.report import tracking
from fedsieve.report.progress import Progress
from fedsieve.report.tracking import TRACKERS, Tracking, numbers
from fedsieve.runs.comparison import cells
from fedsieve.settings.config import resolve
from fedsieve.start import resume, run

SETTINGS = {"method": "fedprox", "fedprox.mu": 0.25, "clients": 3}
SUMMARY = {"rounds": 3, "test_accuracy_best": 0.75, "bytes_up": 600, "finished": True, "versions": {"python": "3"}}
PACKAGES = {"tensorboard": "tensorboard", "mlflow": "mlflow", "wandb": "wandb"}


def row(number, accuracy):
    return {
        "round": number,
        "stage": "train",
        "test_accuracy": accuracy,
        "label_recall": None,
        "bytes_up": 200,
        "seconds_by": {"train": 0.5},
        "events": [],
    }


ROWS = [row(1, 0.5), row(2, None), row(3, 0.75)]
CURVES = {
    "test_accuracy": {1: 0.5, 3: 0.75},
    "bytes_up": {1: 200, 2: 200, 3: 200},
    "seconds_by/train": {1: 0.5, 2: 0.5, 3: 0.5},
}
TOTALS = {"summary/rounds": 3, "summary/test_accuracy_best": 0.75, "summary/bytes_up": 600}


@pytest.fixture(autouse=True)
def only_here(monkeypatch, tmp_path_factory):
    """No setting of the person who runs the tests, and nothing in their home."""
    for name in [name for name in os.environ if name.startswith(("MLFLOW_", "WANDB_"))]:
        monkeypatch.delenv(name)
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path_factory.getbasetemp() / "wandb"))


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "run"
    made.mkdir()
    return made


def follow(names, folder, past, new, notes=None, summary=None, problem=None):
    """One session: rows of before, new rows, and an end."""
    told = Tracking(names, ([] if notes is None else notes).append)
    with told.following(folder, SETTINGS, past):
        for each in new:
            told.round(each)
        if problem is not None:
            raise problem
        if summary is not None:
            told.end(summary)


# What each package reads back: ({metric: [(step, value)]}, {total: value}, settings)


def read_tensorboard(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    found = {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    (text,) = events.Tensors("config/text_summary")
    lines = text.tensor_proto.string_val[0].decode().splitlines()
    curves = {tag: points for tag, points in found.items() if not tag.startswith("summary/")}
    totals = {tag: points[0][1] for tag, points in found.items() if tag not in curves and len(points) == 1}
    return curves, totals, dict(line.strip().split(": ") for line in lines)


def mlflow_run(folder):
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=(folder / "mlruns").as_uri())
    (found,) = client.search_runs([client.get_experiment_by_name("fedsieve").experiment_id])
    return client, found


def read_mlflow(folder):
    client, found = mlflow_run(folder)
    assert found.info.status == "FINISHED"
    history = {name: client.get_metric_history(found.info.run_id, name) for name in found.data.metrics}
    points = {name: [(metric.step, metric.value) for metric in metrics] for name, metrics in history.items()}
    curves = {name: found for name, found in points.items() if not name.startswith("summary/")}
    totals = {name: found[0][1] for name, found in points.items() if name not in curves and len(found) == 1}
    return curves, totals, found.data.params


def wandb_records(file):
    """The records of an offline run that is over. W&B's own process writes them, which may be after `finish`."""
    ends = time.monotonic() + 60
    while not (records := list(written(file.read_bytes()))) or not records[-1].HasField("exit"):
        assert time.monotonic() < ends, f"no last record in {file}"
        time.sleep(0.1)
    return records


def written(content):
    """After a header, chunks of checksum (4), length (2), kind (1) and data."""
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]  # made by protobuf

    place, whole = 7, b""
    assert content[:4] in (b":W&B", b"")
    assert len(content) < 2**15, "one block"
    while place + 7 <= len(content):
        length, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        whole += content[place + 7 : place + 7 + length]
        place += 7 + length
        if place > len(content):
            return  # the rest is still to come
        if kind in (1, 4):  # a whole record, or the last chunk of one
            yield Record.FromString(whole)
            whole = b""


def items(listed):
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in listed}


def wandb_files(folder):
    return sorted((folder / "wandb").glob("offline-run-*/run-*.wandb"))


def read_wandb(folder):
    curves, totals, settings = {}, {}, {}
    files = wandb_files(folder)
    assert len({file.name for file in files}) == 1, "every session has the same id"
    for record in (record for file in files for record in wandb_records(file)):
        logged = items(record.history.item)
        for name, value in logged.items():
            if not name.startswith("_"):
                curves.setdefault(name, []).append((logged["_step"], value))
        totals |= {name: value for name, value in items(record.summary.update).items() if name.startswith("summary/")}
        settings |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
    return curves, totals, settings


READERS = {"tensorboard": read_tensorboard, "mlflow": read_mlflow, "wandb": read_wandb}


def test_every_tracker_is_read_back_here():
    assert set(READERS) == set(PACKAGES) == set(TRACKERS)


def test_numbers_of_a_row():
    given = {
        "round": 2,
        "stage": "a",
        "loss": 0.5,
        "none": None,
        "flag": True,
        "by": {"x": 1.5, "y": {"z": 2}},
        "l": [1],
    }
    assert numbers(given) == {"round": 2, "loss": 0.5, "by/x": 1.5, "by/y/z": 2}


@pytest.mark.parametrize("name", TRACKERS)
def test_a_run_that_is_cut_off_and_resumed_is_one_run(name, folder, capfd):
    """Round 2 is run again, as after a crash, and not told again."""
    with pytest.raises(KeyboardInterrupt):
        follow([name], folder, [], ROWS[:2], problem=KeyboardInterrupt())
    run_before = json.loads((folder / "tracking.json").read_text())[name]["run"]
    follow([name], folder, ROWS[:1], [row(2, 0.99), ROWS[2]], summary=SUMMARY)
    follow([name], folder, ROWS, [], summary=SUMMARY)  # resuming a finished run changes nothing
    after = json.loads((folder / "tracking.json").read_text())[name]
    assert after == {"run": run_before, "round": 3, "summary": True}
    curves, totals, settings = READERS[name](folder)
    assert {metric: dict(points) for metric, points in curves.items()} == CURVES
    assert {metric: len(points) for metric, points in curves.items()} == {"test_accuracy": 2} | dict.fromkeys(
        ("bytes_up", "seconds_by/train"), 3
    )
    assert totals == TOTALS
    for key, value in SETTINGS.items():
        assert str(settings[key]) == str(value)
    assert capfd.readouterr() == ("", ""), "standard output may be JSON, and --quiet means quiet"


@pytest.mark.parametrize("name", TRACKERS)
def test_a_tracker_that_comes_later_gets_the_rounds_before(name, folder):
    follow([name], folder, ROWS[:2], [ROWS[2]], summary=SUMMARY)
    curves, _, _ = READERS[name](folder)
    assert {metric: dict(points) for metric, points in curves.items()} == CURVES


@pytest.mark.parametrize(
    ("problem", "status"), [(KeyboardInterrupt(), "KILLED"), (RunError("FS201", "no client"), "FAILED")]
)
def test_mlflow_shows_how_a_run_ended(problem, status, folder):
    with pytest.raises(type(problem)):
        follow(["mlflow"], folder, [], ROWS[:1], problem=problem)
    assert mlflow_run(folder)[1].info.status == status


def test_mlflow_goes_where_its_variable_says(folder, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (elsewhere / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "fedsieve")
    follow(["mlflow"], folder, [], ROWS)
    assert mlflow_run(elsewhere)[1].data.metrics["test_accuracy"] == 0.75
    assert not (folder / "mlruns").exists()


def test_mlflow_where_another_run_made_the_experiment_first(folder, monkeypatch):
    """Runs of a comparison start together: each finds none, and the second to make it is refused."""
    from mlflow import MlflowClient

    find, late = MlflowClient.get_experiment_by_name, []

    def too_early(client, name):
        if not late:
            late.append(client.create_experiment(name))
            return None
        return find(client, name)

    monkeypatch.setattr(MlflowClient, "get_experiment_by_name", too_early)
    follow(["mlflow"], folder, [], ROWS)
    monkeypatch.undo()
    assert mlflow_run(folder)[1].info.experiment_id == late[0]
    assert mlflow_run(folder)[1].data.metrics["test_accuracy"] == 0.75


def test_mlflow_where_no_experiment_can_be_made_is_left_out(folder, monkeypatch):
    from mlflow import MlflowClient, MlflowException

    def refused(client, name):
        raise MlflowException("not allowed here")

    monkeypatch.setattr(MlflowClient, "get_experiment_by_name", lambda client, name: None)
    monkeypatch.setattr(MlflowClient, "create_experiment", refused)
    notes = []
    follow(["mlflow"], folder, [], ROWS, notes=notes)
    (said,) = notes
    assert "not allowed here" in said


def test_mlflow_in_a_folder_that_is_replaced(folder):
    """MLflow remembers stores for the life of a process."""
    from shutil import rmtree

    for accuracy in (0.25, 0.5):
        follow(["mlflow"], folder, [], [row(1, accuracy)])
        assert mlflow_run(folder)[1].data.metrics["test_accuracy"] == accuracy
        rmtree(folder)
        folder.mkdir()


def test_wandb_works_in_the_mode_its_variable_says(folder, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    follow(["wandb"], folder, [], ROWS, summary=SUMMARY)
    assert not (folder / "wandb").exists()


def test_wandb_leaves_a_run_of_the_calling_script_alone(folder, tmp_path):
    import wandb

    own = wandb.init(mode="offline", dir=str(tmp_path), settings=wandb.Settings(console="off", silent=True))
    follow(["wandb"], folder, [], ROWS)
    own.log({"mine": 1})
    own.finish()
    assert wandb_files(folder)[0].stem != wandb_files(tmp_path)[0].stem == f"run-{own.id}"
    assert set(read_wandb(folder)[0]) == set(CURVES)


def test_nothing_calls_home_unless_the_user_wants_it(monkeypatch):
    Tracking(TRACKERS, print)
    assert os.environ["WANDB_ERROR_REPORTING"] == "false"
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "false")
    Tracking(TRACKERS, print)
    assert os.environ["WANDB_ERROR_REPORTING"] == "true"
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "false"


class Flaky:
    """Works until a given moment."""

    def __init__(self, fails_at=""):
        self.fails_at, self.seen, self.ended = fails_at, [], []

    def __call__(self):
        return self

    def _now(self, what):
        if what == self.fails_at:
            raise OSError("no space\nleft on device")

    def begin(self, folder, settings, run):
        self._now("begin")
        return tracking.Begun(run or "mine", "here")

    def log(self, found, step):
        self._now(f"round {step}")
        self.seen.append(step)

    def summarise(self, found, step):
        self._now("summarise")
        self.seen.append("summary")

    def close(self, problem):
        self._now("close")
        self.ended.append(problem)


@pytest.mark.parametrize(
    ("moment", "seen"),
    [
        ("begin", []),
        ("round 1", []),
        ("round 2", [1]),
        ("summarise", [1, 2, 3]),
        ("close", [1, 2, 3, "summary"]),
    ],
)
def test_a_tracker_that_fails_is_noted_once_and_left_out(moment, seen, folder, monkeypatch):
    flaky, steady, notes = Flaky(moment), Flaky(), []
    monkeypatch.setattr(tracking, "TRACKERS", {"flaky": flaky, "steady": steady})
    follow(["flaky", "steady"], folder, [], ROWS, notes, SUMMARY)
    assert flaky.seen == seen
    assert flaky.ended == []
    assert steady.seen == [1, 2, 3, "summary"]
    assert steady.ended == [None]
    (note,) = [note for note in notes if "failed" in note]
    assert note == "flaky failed and gets no more (OSError: no space left on device); the run goes on"


def test_a_tracker_that_failed_is_tried_again_when_the_run_is_resumed(folder, monkeypatch):
    flaky = Flaky("round 2")
    monkeypatch.setattr(tracking, "TRACKERS", {"flaky": flaky})
    follow(["flaky"], folder, [], ROWS[:2])
    flaky.fails_at = ""
    follow(["flaky"], folder, ROWS[:2], ROWS[2:])
    assert flaky.seen == [1, 2, 3]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"flaky": 1}', '{"flaky": {"run": "x"}}'])
def test_a_damaged_file_means_beginning_anew(content, folder, monkeypatch):
    flaky = Flaky()
    monkeypatch.setattr(tracking, "TRACKERS", {"flaky": flaky})
    (folder / "tracking.json").write_text(content)
    follow(["flaky"], folder, ROWS[:1], ROWS[1:])
    assert flaky.seen == [1, 2, 3]


# Settings


def test_names_are_checked_with_the_other_settings():
    assert resolve({"track": "mlflow+tensorboard"}).trackers() == ["mlflow", "tensorboard"]
    assert resolve({}).trackers() == []
    for wrong, hint in (
        ("tensorbord", "Did you mean 'tensorboard'?"),
        ("wandb+", "Known: mlflow, tensorboard, wandb."),
    ):
        with pytest.raises(ConfigError) as caught:
            resolve({"track": wrong})
        assert caught.value.code == "FS004"
        assert hint in caught.value.message


def test_trackers_do_not_make_another_result():
    plain, tracked = (cells({"seed": 0} | more)[0] for more in ({}, {"track": "tensorboard"}))
    assert plain.key == tracked.key
    assert tracked.config.flat()["track"] == "tensorboard", "but the run is told"


# Whole runs


class Noting(Progress):
    """Remembers notes; presses Ctrl-C when a round is told."""

    def __init__(self, stop_at=0):
        self.notes, self.stop_at = [], stop_at

    def note(self, text):
        self.notes.append(text)

    def round(self, row):
        if row["round"] == self.stop_at:
            raise KeyboardInterrupt


def quick(tiny_file, out, **more):
    tiny = {"data": str(tiny_file), "model": "mlp", "clients": 3, "rounds": 3, "epochs": 1, "runtime": "serial"}
    return tiny | {"out": str(out)} | more


@pytest.mark.parametrize("name", PACKAGES)
def test_a_missing_package_is_told_before_anything_is_made(name, tmp_path, tiny_file, monkeypatch):
    monkeypatch.setitem(sys.modules, PACKAGES[name], None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    with pytest.raises(ConfigError) as caught:
        run(quick(tiny_file, tmp_path / "run", track=name), Progress())
    assert caught.value.code == "FS008"
    assert f"track={name}" in caught.value.message
    assert "pip install fedsieve[track]" in caught.value.message
    assert not (tmp_path / "run").exists()


def test_a_run_tells_its_metrics_and_ends_with_the_same_model(tmp_path, tiny_file):
    _, plain = run(quick(tiny_file, tmp_path / "plain"), Progress())
    target, progress = tmp_path / "tracked", Noting(stop_at=3)
    with pytest.raises(KeyboardInterrupt):
        run(quick(tiny_file, target, track="tensorboard"), progress)
    assert progress.notes == [f"tensorboard: tensorboard --logdir {target}/tensorboard"]
    _, summary = resume(target, Progress(), {"track": "tensorboard+mlflow"})
    assert summary["model_sha256"] == plain["model_sha256"]
    rows = [json.loads(line) for line in (target / "metrics.jsonl").read_text().splitlines()]
    expected = {
        (name, each["round"]): value for each in rows for name, value in numbers(each).items() if name != "round"
    }
    timed = {key for key in expected if key[0].startswith("seconds")}
    assert {key[0] for key in expected} >= {"test_accuracy", "train_loss", "bytes_down", "seconds_by/train"}
    for name in ("tensorboard", "mlflow"):
        curves, totals, _ = READERS[name](target)
        found = {(metric, step): value for metric, points in curves.items() for step, value in points}
        assert found.keys() == expected.keys()
        for key in expected.keys() - timed:  # round 3 ran twice, and only its times differ
            assert found[key] == pytest.approx(expected[key], rel=1e-6), key
        assert totals["summary/test_accuracy_best"] == pytest.approx(summary["test_accuracy_best"])


def test_a_server_that_is_not_there_does_not_end_a_run(tmp_path, tiny_file, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    progress = Noting()
    _, summary = run(quick(tiny_file, tmp_path / "run", track="mlflow+tensorboard"), progress)
    assert summary["finished"]
    assert [note.split(" (")[0] for note in progress.notes if "failed" in note] == ["mlflow failed and gets no more"]
    assert len(read_tensorboard(tmp_path / "run")[0]["test_accuracy"]) == 3
