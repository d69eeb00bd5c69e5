"""Commands in processes of their own that end with the one that started them, even if that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from threading import Thread

LIFELINE = "FEDSIEVE_LIFELINE"
"""Environment variable with the descriptor of a pipe; its other end is open as long as the parent lives."""
GRACE = 60.0
"""Seconds that a process has to save what it did when its parent died."""


class Child:
    """One of our commands; what it says on stderr is kept, however much it is."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], inherited: Sequence[int]) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the process runs
        theirs, self._lifeline = os.pipe()
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._said,
                pass_fds=[theirs, *inherited],
                env={**os.environ, **environment, LIFELINE: str(theirs)},
            )
        finally:
            os.close(theirs)

    def poll(self) -> int | None:
        return self._process.poll()

    def terminate(self) -> None:
        self._process.terminate()

    def wait(self) -> int:
        return self._process.wait()

    def last_words(self) -> str:
        """The last line that it wrote."""
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def __del__(self) -> None:
        if hasattr(self, "_lifeline"):
            os.close(self._lifeline)
            self._said.close()


def end_with_parent() -> None:
    """If this process is such a child, it is interrupted when its parent is gone, as if it were told to terminate."""
    lifeline = os.environ.pop(LIFELINE, "")
    if lifeline.isdecimal():
        Thread(target=_watch, args=(int(lifeline),), daemon=True).start()


def _watch(lifeline: int) -> None:
    try:
        os.read(lifeline, 1)
    except OSError:  # no such pipe: somebody set the variable by hand
        return
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os._exit(1)
