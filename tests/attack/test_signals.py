"""Signals save; a closed or full stream, a full disk or a lost folder ends a command with a code and one line."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import time

import pytest
from longer import longer

import fedsieve
from fedsieve.base import ending
from fedsieve.base.ending import as_typed
from fedsieve.base.errors import RunError

RUN = ["clients=3", "rounds=400", "epochs=1", "batch=20", "model=mlp", "runtime=serial", "checkpoint_every=1000"]


def begun(tmp_path, tiny_file, *more, before=()):
    """A run that is under way."""
    folder = tmp_path / "run"
    command = [*before, sys.executable, "-m", "fedsieve", "run", *RUN, f"data={tiny_file}", f"out={folder}", *more]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (folder / "metrics.jsonl").exists() or (folder / "metrics.jsonl").read_bytes().count(b"\n") < 3:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    return process, folder


@pytest.mark.parametrize("which", ["SIGHUP", "SIGQUIT", "SIGTERM"])
def test_a_signal_saves(tmp_path, tiny_file, which):
    process, folder = begun(tmp_path, tiny_file)
    for _ in range(3):  # twice more while it saves changes nothing
        process.send_signal(getattr(signal, which))
    _, err = process.communicate()
    assert process.returncode == 130
    last = err.strip().splitlines()[-1]
    assert last == f"error: interrupted: saved; go on with `fedsieve resume {folder}` [FS216]"
    assert "Traceback" not in err
    rows = (folder / "metrics.jsonl").read_bytes().count(b"\n")
    manifest = max((folder / "checkpoint").glob("*.json")).read_text()
    assert f'"round": {rows},' in manifest or f'"round": {rows - 1},' in manifest
    assert not (folder / ".lock").exists()


def test_nohup_is_respected(tmp_path, tiny_file):
    process, folder = begun(tmp_path, tiny_file, before=["nohup"])
    process.send_signal(signal.SIGHUP)
    rows = (folder / "metrics.jsonl").read_bytes().count(b"\n")
    while (folder / "metrics.jsonl").read_bytes().count(b"\n") < rows + 3:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 130


def test_a_signal_before_anything_is_saved_says_so(tmp_path, tiny_file):
    for wait in (0.3, 0.8, 1.3):
        folder = tmp_path / f"run{wait}"
        command = [sys.executable, "-m", "fedsieve", "run", *RUN, f"data={tiny_file}", f"out={folder}"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(wait)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate()
        assert process.returncode in (130, -signal.SIGTERM), err
        assert "Traceback" not in err
        if process.returncode == 130 and not (folder / "checkpoint").exists():
            assert "saved" not in err


def test_a_signal_waits_while_pytorch_loads(monkeypatch):
    """Within its C++ an interrupt would end the process; afterwards it is one like any other."""
    loaded = []

    def load(name):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)
        loaded.append(name)

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(ending, "import_module", load)
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            ending.load_pytorch()
        assert loaded == ["torch"]
        assert signal.getsignal(signal.SIGTERM) is interrupt
    finally:
        signal.signal(signal.SIGTERM, before)


def shell(line, cwd):
    words = line.replace("fedsieve", f"{sys.executable} -m fedsieve")
    return subprocess.run(["bash", "-c", words], capture_output=True, text=True, cwd=cwd, check=False)


def test_lists_end_with_their_reader(tmp_path):
    done = shell("fedsieve methods | head -1; echo ${PIPESTATUS[0]}", tmp_path)
    assert done.stderr == ""
    first, status = done.stdout.splitlines()
    assert first.startswith("local")
    assert int(status) in (0, 128 + signal.SIGPIPE)
    done = shell("fedsieve methods | true; echo ${PIPESTATUS[0]}", tmp_path)
    assert (done.stderr, done.stdout) == ("", f"{128 + signal.SIGPIPE}\n")


@pytest.mark.parametrize("command", ["methods", "keys --json", "methods fedprox", "data inspect clients=2"])
@pytest.mark.parametrize("stream", ["> /dev/full", ">&-"])
def test_results_that_cannot_be_written_are_an_error(tmp_path, command, stream):
    done = shell(f"fedsieve {command} {stream}", tmp_path)
    assert done.returncode == 4
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.rstrip().endswith("[FS243]")


def test_messages_that_cannot_be_written_leave_the_exit_code(tmp_path):
    for stream in ("2> /dev/full", "2>&-", "2>&- >&-", "2>&- <&-"):
        assert shell(f"fedsieve run rouns=3 {stream}", tmp_path).returncode == 2
    assert shell("fedsieve methods 2>&-", tmp_path).returncode == 0


def test_a_run_whose_progress_nobody_reads_saves_and_ends(tmp_path, tiny_file):
    process, folder = begun(tmp_path, tiny_file)
    process.stderr.close()
    assert process.wait() == 4
    assert list((folder / "checkpoint").glob("*.json"))


def limited(kind, value):
    """Set a limit in a child before it begins."""
    return lambda: resource.setrlimit(kind, (value, value))


def run_limited(tmp_path, tiny_file, before, *more):
    command = [sys.executable, "-m", "fedsieve", "run", *RUN[:1], "rounds=2", *RUN[2:], f"data={tiny_file}", *more]
    command.append(f"out={tmp_path / 'run'}")
    # The limit is the run's: `make coverage` would count its lines in a file that falls under it too.
    alone = {key: value for key, value in os.environ.items() if not key.startswith("COVERAGE_")}
    return subprocess.run(command, capture_output=True, text=True, env=alone, check=False, preexec_fn=before)


@pytest.mark.parametrize("size", [2_000, 20_000])
def test_a_file_that_cannot_grow_ends_the_run(tmp_path, tiny_file, size):
    done = run_limited(tmp_path, tiny_file, limited(resource.RLIMIT_FSIZE, size))
    assert done.returncode == 4, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"error: {tmp_path / 'run'}")
    assert "File too large. Make room" in last
    assert last.endswith("[FS243]")
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "run").rglob("*.tmp")), "nothing half written stays"


@pytest.mark.parametrize("runtime", ["serial", "pool"])
@pytest.mark.parametrize("count", [4, 9, *longer(6, 12)])
def test_no_descriptor_left(tmp_path, tiny_file, runtime, count):
    done = run_limited(tmp_path, tiny_file, limited(resource.RLIMIT_NOFILE, count), f"runtime={runtime}", "workers=2")
    assert done.returncode in (0, 1, 3, 4), done.stderr
    if done.returncode == 1:
        assert "fedsieve" not in done.stderr, "Python itself cannot start"
    elif done.returncode:
        assert done.stderr.strip().splitlines()[-1].endswith("]")
        assert "Traceback" not in done.stderr


def test_a_folder_that_is_removed_ends_the_run(tmp_path, tiny_file):
    process, folder = begun(tmp_path, tiny_file)
    while folder.exists():
        shutil.rmtree(folder, ignore_errors=True)
    _, err = process.communicate()
    assert process.returncode == 4
    last = err.strip().splitlines()[-1]
    assert "No such file or directory. If it was moved or removed meanwhile, put it back" in last
    assert "Traceback" not in err


@pytest.mark.parametrize("out", ["x" * 300, "/proc/nothing/run", "/dev/null/run", "nul\0"])
def test_a_folder_that_cannot_be_made(tmp_path, tiny_file, monkeypatch, out):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((RunError, fedsieve.base.errors.ConfigError)) as problem:
        fedsieve.run(data=str(tiny_file), out=out, clients=2, rounds=1, runtime="serial", quiet=True)
    assert problem.value.code in ("FS243", "FS002")


def test_no_shared_memory_is_named(tmp_path, tiny_file, monkeypatch):
    def refuse(*_):
        raise OSError(12, os.strerror(12))

    monkeypatch.setattr(os, "memfd_create", refuse)
    with pytest.raises(RunError, match="memory ran out") as problem:
        fedsieve.run(data=str(tiny_file), out=str(tmp_path / "run"), clients=2, rounds=1, workers=1, quiet=True)
    assert problem.value.code == "FS244"


@pytest.mark.parametrize(
    ("problem", "code"),
    [
        (OSError(28, "No space left on device", "x"), "FS243"),
        (OSError(30, "Read-only file system", "x"), "FS243"),
        (PermissionError(13, "Permission denied", "x"), "FS243"),
        (OSError(24, "Too many open files"), "FS243"),
        (ImportError("libc.so: cannot open shared object file: Too many open files"), "FS243"),
        (RuntimeError("can't start new thread"), "FS243"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), "FS244"),
        (MemoryError(), "FS244"),
        (RuntimeError("a fault of ours"), None),
        (ImportError("No module named 'x'"), None),
        (KeyError("x"), None),
    ],
    ids=repr,
)
def test_what_the_system_refuses_has_a_code(problem, code):
    found = as_typed(problem)
    assert (found and found.code) == code
    assert found is None or "\n" not in str(found)
