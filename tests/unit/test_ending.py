"""How commands and their children end: what becomes an error with a code, what a signal means, what a reader leaves."""

import atexit
import errno
import os
import signal
import sys
import time

import pytest

from fedsieve.base import ending
from fedsieve.base.ending import INTERRUPTED, SIGNALS, leave, signals_as_interrupts, silent_when_nobody_reads, typed
from fedsieve.base.errors import DataError, RunError
from fedsieve.runtime import children
from fedsieve.runtime.children import LIFELINE, Child, end_with_parent

BY_PIPE = 128 + signal.SIGPIPE


class Died(BaseException):
    """In place of the end of this process."""


class Stream:
    """A stream that cannot be written to."""

    def __init__(self, problem=None):
        self.problem, self.text = problem, ""

    def flush(self):
        if self.problem is not None:
            raise self.problem

    def write(self, text):
        self.text += text


@pytest.fixture
def deaths(monkeypatch):
    """What would have ended this process, in order."""
    seen = []

    def exited(status):
        seen.append(status)
        raise Died

    monkeypatch.setattr(os, "kill", lambda pid, number: seen.append((pid, number)))
    monkeypatch.setattr(os, "_exit", exited)
    monkeypatch.setattr(ending, "_drop", lambda number: seen.append(f"dropped {number}"))
    before = {number: signal.getsignal(number) for number in (*SIGNALS, signal.SIGPIPE)}
    yield seen
    for number, handler in before.items():
        signal.signal(number, handler)


def test_what_the_system_refuses_is_typed_and_all_else_is_as_it_was():
    for problem in (DataError("FS301", "x: no such file"), RuntimeError("a fault of ours"), KeyError("x")):
        with pytest.raises(type(problem)) as found, typed():
            raise problem
        assert found.value is problem
    with pytest.raises(RunError, match=r"x: No space left on device\. Make room.*\[FS243\]"), typed():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "x")
    with pytest.raises(RunError, match=r"memory ran out .*\[FS244\]"), typed():
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


def test_a_reader_that_went_away_ends_us_as_it_ends_every_tool(deaths, monkeypatch):
    end = ["dropped 1", (os.getpid(), signal.SIGPIPE), BY_PIPE]
    with pytest.raises(Died), silent_when_nobody_reads():
        raise BrokenPipeError
    assert deaths == end
    assert signal.getsignal(signal.SIGPIPE) is signal.SIG_DFL

    def noticed():
        """As typer does when it notices."""
        monkeypatch.setattr(sys, "stdout", Stream())
        raise SystemExit(1)

    with pytest.raises(Died), silent_when_nobody_reads():
        noticed()
    assert deaths == 2 * end
    with pytest.raises(SystemExit) as found, silent_when_nobody_reads():
        raise SystemExit(3)
    assert (found.value.code, deaths) == (3, 2 * end)
    monkeypatch.setattr(sys, "stdout", Stream(BrokenPipeError()))
    with pytest.raises(Died):
        leave(0)
    assert deaths == 3 * end


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("out", "err", "status", "code", "says"),
    [
        (None, None, 0, 0, ""),
        (None, None, 2, 2, ""),
        (FULL, None, 0, 4, "error: stdout: No space left on device. Make room"),
        (FULL, None, 2, 2, ""),
        (None, FULL, 0, 4, ""),
        (None, FULL, 3, 3, ""),
    ],
)
def test_what_cannot_be_written_is_told_by_the_exit_code(deaths, monkeypatch, out, err, status, code, says):
    monkeypatch.setattr(sys, "stdout", Stream(out))
    monkeypatch.setattr(sys, "stderr", Stream(err))
    with pytest.raises(SystemExit) as found:
        leave(status)
    assert found.value.code == code
    assert sys.stderr.text.startswith(says)
    assert bool(sys.stderr.text) == bool(says)
    assert deaths == [f"dropped {number}" for number, broken in ((1, out), (2, err)) if broken]


def test_what_is_written_to_a_dropped_stream_goes_nowhere():
    read, write = os.pipe()
    ending._drop(write)
    os.write(write, b"lost")
    assert os.read(read, 10) == b"", "nobody holds its other end any more"
    os.close(read)
    os.close(write)


def test_streams_that_the_caller_closed_have_their_numbers_taken(monkeypatch):
    opened = []

    def closed(number):
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", closed)
        patched.setattr(os, "open", lambda path, flags: opened.append((path, flags)))
        patched.setattr(sys, "stdout", None)
        patched.setattr(sys, "stderr", None)
        ending.open_standard_streams()
        assert (sys.stdout.fileno(), sys.stderr.fileno()) == (1, 2)
    assert opened == [(os.devnull, flags) for flags in (os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)]


def test_an_interrupt_ends_with_its_own_code(deaths, monkeypatch):
    monkeypatch.setattr(atexit, "_run_exitfuncs", lambda: deaths.append("exit functions"))
    with pytest.raises(Died):
        leave(INTERRUPTED)
    assert deaths == ["exit functions", INTERRUPTED]


def test_the_first_signal_interrupts_and_those_right_after_it_do_not(deaths):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signals_as_interrupts()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN, "nohup"
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGTERM)
    assert deaths == []


def test_a_child_is_told_to_end_and_its_last_words_are_kept():
    child = Child([sys.executable, "-S", "-c", "import sys; sys.exit('first\\nerror: broken [FS210]')"], {}, [])
    assert child.wait() == 1
    assert child.poll() == 1
    assert child.last_words() == "error: broken [FS210]"
    silent = Child([sys.executable, "-S", "-c", "__import__('time').sleep(600)"], {}, [])
    assert silent.poll() is None
    silent.terminate()
    assert silent.wait() == -signal.SIGTERM
    assert silent.last_words() == ""


def test_a_child_whose_parent_is_gone_is_interrupted_and_in_the_end_stopped(deaths, monkeypatch):
    theirs, ours = os.pipe()
    waited = []
    monkeypatch.setattr(time, "sleep", waited.append)
    os.close(ours)
    with pytest.raises(Died):
        children._watch(theirs)
    os.close(theirs)
    assert deaths == [(os.getpid(), signal.SIGTERM), 1]
    assert waited == [children.GRACE]


def test_a_variable_set_by_hand_ends_nothing(deaths, monkeypatch):
    started = []
    monkeypatch.setattr(children, "Thread", lambda **options: started.append(options) or Idle())
    for value in ("", "nonsense", "99999"):
        monkeypatch.setenv(LIFELINE, value)
        end_with_parent()
        assert LIFELINE not in os.environ, "children of ours have lines of their own"
    (only,) = started
    assert only["args"] == (99999,)
    children._watch(99999)
    assert deaths == []


class Idle:
    """A thread that is never started."""

    def start(self):
        pass
