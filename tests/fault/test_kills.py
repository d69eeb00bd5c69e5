"""Runs that are killed anywhere and resumed end with the same bytes.

A child process is forked for each life of a run; it is killed after a random time, or at a random write.
`FEDSIEVE_KILLS` sets how often (20; `make test-faults` takes 200).
"""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from fedsieve.report.progress import Progress
from fedsieve.start import resume, run

KILLS = int(os.environ.get("FEDSIEVE_KILLS", "20"))
SETTINGS = {
    "clients": 3,
    "rounds": 4,
    "epochs": 1,
    "batch": 10,
    "method": "scaffold+moon",
    "noise": "symmetric",
    "dropout": 0.2,
    "runtime": "serial",
}


def life(folder: Path, settings: dict, fatal_write: int | None) -> None:
    """Run or resume in a forked child; exit 0 when finished."""
    if fatal_write is not None:
        writes, fsync = iter(range(10**9)), os.fsync

        def deadly(fd):
            if next(writes) == fatal_write:
                os.kill(os.getpid(), signal.SIGKILL)
            fsync(fd)

        os.fsync = deadly
    if (folder / "config.yaml").exists():
        resume(folder, Progress())
    else:
        run(settings | {"out": str(folder), "overwrite": True}, Progress())


def forked(work, kill_after: float | None) -> int:
    """The exit status of a child that does the work, killed after some seconds if it still lives."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as problem:
            os.write(2, f"{type(problem).__name__}: {problem}\n".encode())
            os._exit(1)
        os._exit(0)
    if kill_after is not None:
        ends = time.monotonic() + kill_after
        while time.monotonic() < ends:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.002)
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_killed_anywhere_and_resumed(tmp_path, tiny_file):
    chance = random.Random(7)
    settings = SETTINGS | {"data": str(tiny_file)}
    begun = time.monotonic()
    assert forked(lambda: life(tmp_path / "whole", settings, None), None) == 0
    length = time.monotonic() - begun
    expected = (tmp_path / "whole" / "model.safetensors").read_bytes()
    kills, number = 0, 0
    while kills < KILLS:
        folder, number = tmp_path / f"run{number}", number + 1
        for _ in range(50):
            by_time = chance.random() < 0.5
            wait = chance.uniform(0, length) if by_time else None
            write = None if by_time else chance.randrange(60)
            status = forked(lambda f=folder, w=write: life(f, settings, w), wait)
            assert status in (0, -signal.SIGKILL)
            kills += status != 0
            if status == 0:
                break
        else:
            pytest.fail("the run never ended")
        assert (folder / "model.safetensors").read_bytes() == expected, f"run {number} after {kills} kills"
        rounds = [line.count('"round"') for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert rounds == [1] * SETTINGS["rounds"]
