"""One run, one folder at a time; and runs that differ have folders that differ."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from longer import longer

import fedsieve
from fedsieve.base.errors import ConfigError, RunError
from fedsieve.evaluate.schema import File
from fedsieve.runs import claim
from fedsieve.runs.claim import claimed
from fedsieve.settings.config import resolve

HOLD = "import sys, time; from fedsieve.runs.claim import claimed\n"
HOLD += (
    "from pathlib import Path\nwith claimed(Path(sys.argv[1]), print):\n    print('held', flush=True); time.sleep(60)"
)


@pytest.fixture
def holder():
    """Another process that holds a folder."""
    started = []

    def hold(folder):
        process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield hold
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(claim, "PATIENCE", 0.0)


@pytest.mark.usefixtures("impatient")
def test_a_second_run_a_resume_and_a_comparison_are_refused(tmp_path, tiny_file, folder, holder):
    settings = {"data": str(tiny_file), "clients": 2, "rounds": 1, "runtime": "serial", "quiet": True}
    process = holder(tmp_path / "new")
    with pytest.raises(RunError, match=rf"new: process {process.pid} is writing to it\. Wait") as problem:
        fedsieve.run(**settings, out=str(tmp_path / "new"))
    assert problem.value.code == "FS240"
    with pytest.raises(RunError, match=f"process {process.pid} is writing"):
        fedsieve.compare(**settings, out=str(tmp_path / "new"))
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    process = holder(folder)
    with pytest.raises(RunError, match=f"process {process.pid} is writing"):
        fedsieve.resume(folder, quiet=True)
    with pytest.raises(RunError, match=f"process {process.pid} is writing"):
        fedsieve.run(**settings, out=str(folder), overwrite=True)
    for path, changed in before.items():
        assert path.stat().st_mtime_ns == changed


def test_the_lock_ends_with_its_holder_however_that_ends(tmp_path, holder):
    process = holder(tmp_path / "run")
    assert (tmp_path / "run" / File.LOCK).read_text() == f"{process.pid}\n"
    process.kill()
    process.wait()
    assert (tmp_path / "run" / File.LOCK).exists()
    with claimed(tmp_path / "run", print):
        assert (tmp_path / "run" / File.LOCK).read_text() == f"{os.getpid()}\n"
    assert not (tmp_path / "run" / File.LOCK).exists()


def test_nothing_is_left_where_nothing_was_written(tmp_path):
    with claimed(tmp_path / "deep" / "er", print):
        pass
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    with claimed(tmp_path / "mine", print):
        pass
    assert (tmp_path / "mine").is_dir(), "what was there stays"
    with pytest.raises(ConfigError):
        fedsieve.run(data="embedded", method="gce+mae", out=str(tmp_path / "new"), runtime="serial", quiet=True)
    assert not (tmp_path / "new").exists()


def test_of_many_at_once_one_is_in_at_a_time(tmp_path):
    code = (
        "import sys, os; from pathlib import Path; from fedsieve.runs import claim; claim.PATIENCE = 60\n"
        "for _ in range(30):\n"
        "    with claim.claimed(Path(sys.argv[1]), print):\n"
        "        os.mkdir(sys.argv[1] + '/alone'); os.rmdir(sys.argv[1] + '/alone')\n"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "run")]) for _ in range(4)]
    assert [process.wait() for process in processes] == [0] * 4


@pytest.mark.parametrize("taken", [1, 2])
def test_a_folder_that_its_holder_takes_away_meanwhile_is_made_again(tmp_path, monkeypatch, taken):
    real, seen = os.open, []

    def late(file, *given):
        seen.append(file)
        if len(seen) <= taken:
            Path(file).parent.rmdir()
        return real(file, *given)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", late)
        with claimed(tmp_path / "run", print):
            assert (tmp_path / "run" / File.LOCK).exists()
    assert len(seen) == taken + 1


@pytest.mark.usefixtures("impatient")
def test_a_folder_that_never_stays_is_given_up(tmp_path, monkeypatch):
    def late(file, *given):
        Path(file).parent.rmdir()
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(file))

    monkeypatch.setattr(os, "open", late)
    with pytest.raises(FileNotFoundError), claimed(tmp_path / "run", print):
        pass


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    said = []
    with claimed(tmp_path / "run", said.append):
        pass
    assert len(said) == 1
    assert "has no locks" in said[0]


def test_what_a_killed_process_left_half_written_is_removed(folder):
    left = [
        folder / ".config.yaml.123.tmp",
        folder / "checkpoint" / ".x.9.tmp",
        folder / "checkpoint/clients/0/.y.1.tmp",
    ]
    for path in left:
        path.write_text("half")
    fedsieve.resume(folder, quiet=True)
    assert not any(path.exists() for path in left)


def test_a_comparison_removes_what_one_before_left(tmp_path, tiny_file):
    left = [tmp_path / "c" / ".gce-0-abcdef.yaml", tmp_path / "c" / ".results.jsonl.77.tmp"]
    mine = tmp_path / "c" / ".mine.yaml"
    mine.parent.mkdir()
    for path in [*left, mine]:
        path.write_text("half")
    settings = {"data": str(tiny_file), "clients": 2, "rounds": 1, "epochs": 1, "quiet": True}
    fedsieve.compare(**settings, out=str(tmp_path / "c"), seed=[0])
    assert not any(path.exists() for path in left)
    assert mine.exists()


@pytest.mark.parametrize("kill", [signal.SIGKILL, *longer(signal.SIGTERM, signal.SIGHUP)], ids=lambda s: s.name)
def test_a_killed_comparison_ends_its_runs(tmp_path, tiny_file, kill):
    import psutil

    command = [sys.executable, "-m", "fedsieve", "compare", "clients=4", "rounds=50000", "seed=0,1", "epochs=1"]
    process = subprocess.Popen([*command, f"data={tiny_file}", f"out={tmp_path / 'c'}", "--jobs", "2", "--quiet"])
    while sum(1 for _ in (tmp_path / "c").glob("*/metrics.jsonl")) < 2:
        assert process.poll() is None
        time.sleep(0.02)
    children = psutil.Process(process.pid).children()
    assert len(children) == 2
    process.send_signal(kill)
    process.wait()
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive
    for path in (tmp_path / "c").glob("*/metrics.jsonl"):
        rows = [json.loads(line)["round"] for line in path.read_text().splitlines()]
        assert rows == list(range(1, len(rows) + 1))
    assert not list((tmp_path / "c").glob("*/summary.json"))


def test_the_folder_of_a_run_tells_what_differs(monkeypatch):
    def name(**settings):
        return str(resolve(settings).folder())

    plain = "runs/embedded-gce-s3"
    assert name(method="gce", seed=3) == plain
    assert name(method="gce", seed=3, workers=7, runtime="serial", checkpoint_every=4, device="cpu") == plain
    assert name(method="gce", seed=3, rounds=20, **{"gce.q": 0.7, "partition": "iid"}) == plain, "defaults said aloud"
    others = [
        name(method="gce", seed=3, lr=lr, **{"gce.q": q, "noise": noise, "model.hidden": hidden, "model": "mlp"})
        for lr in (0.1, 0.2)
        for q in (0.5, 0.6)
        for noise in ("none", "symmetric")
        for hidden in ([3], [4])
    ]
    assert len(set(others)) == len(others)
    for other in others:
        assert Path(other).name.startswith("embedded-gce-s3-")
        assert len(other) == len(plain) + 7
    assert name(lr=0.1) == name(lr=0.1, workers=3), "it does not tell what does not matter"
    assert name(out="mine", lr=0.1) == "mine"


def test_a_lock_that_fails_otherwise_is_told(tmp_path, monkeypatch):
    opened = []

    def broken(fd, _):
        opened.append(fd)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fcntl, "flock", broken)
    with pytest.raises(OSError, match="Input/output error"), claimed(tmp_path / "run", print):
        pass
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])


def test_a_lock_on_a_file_that_its_holder_took_away_is_taken_again(tmp_path, monkeypatch):
    lock, taken = fcntl.flock, []

    def late(fd, how):
        if not taken:
            (tmp_path / "run" / File.LOCK).unlink()  # by whoever held it until now
        taken.append(fd)
        lock(fd, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with claimed(tmp_path / "run", print):
        assert (tmp_path / "run" / File.LOCK).read_text() == f"{os.getpid()}\n"
    assert len(taken) == 2
