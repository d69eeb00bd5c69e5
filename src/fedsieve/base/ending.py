"""How work ends before its time: by a signal, by what the operating system refuses, by a reader that went away."""

from __future__ import annotations

import atexit
import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import NoReturn

from fedsieve.base.errors import FedSieveError, RunError

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
INTERRUPTED = 130
GRACE = 10.0
"""Seconds after a signal in which others change nothing: the first is being seen to."""
ROOM = "Make room, then go on with `fedsieve resume`"
PLACE = "Choose a place that may be written to"
ADVICE = {
    errno.ENOSPC: ROOM,
    errno.EDQUOT: ROOM,
    errno.EFBIG: ROOM,
    errno.EROFS: PLACE,
    errno.EACCES: PLACE,
    errno.EPERM: PLACE,
    errno.EMFILE: "Allow more open files (ulimit -n), or lower workers",
    errno.ENFILE: "Close other programs, or lower workers",
    errno.EAGAIN: "Close other programs, or lower workers",
    errno.ENAMETOOLONG: "Choose a shorter name",
    errno.ENOENT: "If it was moved or removed meanwhile, put it back",
    errno.ENOTDIR: "If it was moved or replaced meanwhile, put it back",
    errno.EPIPE: "Keep the reader of the output open, or write into a file",
    errno.EBADF: "Leave stdout and stderr open",
    errno.EIO: "Check the disk",
}
MEMORY = ("can't allocate memory", "Cannot allocate memory", "out of memory", "failed to map segment")
"""How libraries say that memory ran out, where they do not raise MemoryError."""


def as_typed(problem: BaseException) -> RunError | None:
    """What the operating system refused, in one line with its code; None for other exceptions."""
    text = str(problem)
    if isinstance(problem, OSError) and problem.errno is not None:
        stream = "stdout or stderr" if problem.errno in (errno.EPIPE, errno.EBADF) else ""
        where = f"{problem.filename or stream}: " if problem.filename or stream else ""
        advice = ADVICE.get(problem.errno, "Mend that, then go on with `fedsieve resume`")
        if problem.errno != errno.ENOMEM:
            return RunError("FS243", f"{where}{problem.strerror or os.strerror(problem.errno)}. {advice}")
    if isinstance(problem, MemoryError) or (isinstance(problem, OSError) and problem.errno == errno.ENOMEM):
        return RunError(
            "FS244", f"memory ran out ({text or 'no more of it'}). Lower workers or batch, or take less data"
        )
    if isinstance(problem, RuntimeError | ImportError):
        if any(said in text for said in MEMORY):
            return RunError(
                "FS244", f"memory ran out ({text.splitlines()[0]}). Lower workers or batch, or take less data"
            )
        for number in (errno.EMFILE, errno.ENFILE, errno.EAGAIN):
            if os.strerror(number) in text or (number == errno.EAGAIN and "can't start new thread" in text):
                return RunError("FS243", f"{text.splitlines()[0]}. {ADVICE[number]}")
    return None


@contextmanager
def typed() -> Iterator[None]:
    """Whatever the operating system refuses becomes a RunError; other exceptions stay as they are."""
    try:
        yield
    except FedSieveError:
        raise
    except (OSError, MemoryError, RuntimeError, ImportError) as problem:
        error = as_typed(problem)
        if error is None:
            raise
        raise error from problem


@contextmanager
def silent_when_nobody_reads() -> Iterator[None]:
    """For lists and results: who reads only their beginning (`| head -1`) wants no more. Runs are `typed` within."""
    stdout = sys.stdout
    try:
        yield
    except BrokenPipeError:
        _by_broken_pipe()
    except SystemExit:
        if sys.stdout is not stdout:  # typer noticed it, put something quiet in its place, and would exit with 1
            _by_broken_pipe()
        raise


def signals_as_interrupts() -> None:
    """Every signal that asks to end becomes KeyboardInterrupt, which saves; those that are ignored stay so (nohup)."""
    last = -GRACE

    def interrupt(*_: object) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= GRACE:
            last = now
            raise KeyboardInterrupt

    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, interrupt)


def load_pytorch() -> None:
    """Import it; signals wait meanwhile, for an interrupt within its C++ would end the process without a word."""
    waiting: list[int] = []
    here = threading.current_thread() is threading.main_thread()  # no other thread is ever interrupted
    handlers = {n: handler for n in SIGNALS if here and callable(handler := signal.getsignal(n))}
    for number in handlers:
        signal.signal(number, lambda number, _: waiting.append(number))
    try:
        import_module("torch")
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    for signalled in waiting:
        handlers[signal.Signals(signalled)](signalled, None)


def open_standard_streams() -> None:
    """Streams that the caller closed: what is opened next must not take their numbers, and get what is meant for them.

    Writing to a closed stdout fails, as it should; what nobody reads on stderr is dropped.
    """
    for number, flags in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags)  # takes the lowest free number
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def leave(status: int) -> NoReturn:
    """Exit when all that was written has arrived. A reader that went away ends us as it ends every tool, silently."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _by_broken_pipe()
    except OSError as problem:
        _drop(1)
        if not status:
            status = RunError.exit_code
            with suppress(OSError):
                sys.stderr.write(f"error: {as_typed(OSError(problem.errno, problem.strerror, 'stdout'))}\n")
    try:
        sys.stderr.flush()
    except OSError:
        _drop(2)
        status = status or RunError.exit_code
    if status == INTERRUPTED:
        # An interrupt that passed through a module's C code is remembered, and would replace our exit code by a signal.
        atexit._run_exitfuncs()
        os._exit(status)
    sys.exit(status)


def _by_broken_pipe() -> NoReturn:
    _drop(1)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGPIPE)
    os._exit(128 + signal.SIGPIPE)


def _drop(number: int) -> None:
    """What is still to be written to a stream goes nowhere, so that it cannot fail again at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)
