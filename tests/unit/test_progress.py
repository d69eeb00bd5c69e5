"""What a person sees while something goes on: a bar on a terminal, plain lines when piped, nothing when asked."""

import io
import re
import sys

import pytest

from fedsieve.data.sources.counting import counting
from fedsieve.report.progress import Bar, Lines, Progress, Several, chosen_progress
from fedsieve.testing import Contract, tiny_federation

ROW = {
    "round": 2, "test_accuracy": 0.5, "reports": 3, "refused": 1, "dropped": 0, "skipped": 2, "seconds": 1.25,
    "events": [{"code": "FS202", "client": 1, "message": "client 1 sent NaN"}],
}  # fmt: skip


class Stream(io.StringIO):
    """Standard error as a person at a terminal, or a pipe, would have it."""

    def __init__(self, terminal):
        super().__init__()
        self._terminal = terminal

    def isatty(self):
        return self._terminal

    def plain(self):
        """Without what steers the terminal."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.getvalue())


@pytest.fixture
def stderr(monkeypatch):
    """A function that makes standard error one or the other."""
    for name, value in {"TERM": "xterm", "COLUMNS": "160"}.items():
        monkeypatch.setenv(name, value)
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)

    def become(terminal):
        stream = Stream(terminal)
        monkeypatch.setattr(sys, "stderr", stream)
        return stream

    return become


@pytest.fixture(scope="module")
def begun():
    """What a run of two rounds that begins anew tells."""
    federation = tiny_federation()
    return "fedprox", 2, 0, Contract.of("fedprox", {}).plan(federation), federation


@pytest.mark.parametrize(
    ("quiet", "terminal", "kind"), [(True, True, Progress), (False, True, Bar), (False, False, Lines)]
)
def test_who_looks_decides(stderr, quiet, terminal, kind):
    stderr(terminal)
    assert type(chosen_progress(quiet)) is kind


def test_lines_tell_the_round_and_its_trouble(begun):
    stream = io.StringIO()
    lines = Lines(stream)
    lines.begin(*begun)
    lines.round(ROW)
    lines.round(ROW | {"round": 3, "test_accuracy": None, "refused": 0, "skipped": 0, "events": []})
    lines.round(ROW | {"server": [{"status": "reported"}], "events": []})
    lines.end()
    head, _, second, event, third, fourth = stream.getvalue().splitlines()
    assert head.startswith("fedprox on tiny: 4 clients, ")
    assert second == "round 2/2: accuracy 0.5000, 3 reports, 1 refused, 2 skipped, 1.2 s"
    assert event == "round 2: client 1 sent NaN [FS202]"
    assert third == "round 3/2: not tested, 3 reports, 1.2 s"
    assert fourth.startswith("round 2/2: accuracy 0.5000, 3 reports and the server's own, ")


def test_a_run_that_goes_on_says_from_where(begun):
    method, total, _, plan, federation = begun
    stream = io.StringIO()
    Lines(stream).begin(method, total, 1, plan, federation)
    assert ", from round 2\n" in stream.getvalue()


def test_the_bar_shows_rounds_accuracy_and_trouble(stderr, begun):
    stream = stderr(True)
    bar = Bar()
    bar.begin(*begun)
    bar.round(ROW)
    bar.end()
    shown = stream.plain()
    assert shown.startswith("fedprox on tiny: 4 clients, ")
    assert "note: round 2: client 1 sent NaN [FS202]\n" in shown
    assert "note: round 2: 1 reports refused; see clients.jsonl\n" in shown
    assert "2/2 accuracy 0.5000 clients 3" in shown.splitlines()[-1]


def test_several_runs_have_one_bar_on_a_terminal(stderr):
    stream = stderr(True)
    several = Several(quiet=False)
    several.begin(3, 1, 10, 2)
    several.rounds(4)
    several.note("[one] ended")
    several.end()
    shown = stream.plain()
    assert shown.startswith("3 runs, 1 finished before, 2 at a time\n")
    assert "[one] ended" in shown
    assert " 4/10 " in shown.splitlines()[-1]


@pytest.mark.parametrize(
    ("quiet", "terminal", "rounds", "said"),
    [
        (False, False, 10, "3 runs, 1 finished before, 2 at a time\none ended\n"),
        (False, True, 0, "3 runs, 1 finished before, 2 at a time\none ended\n"),
        (True, True, 10, ""),
    ],
)
def test_several_runs_without_a_bar(stderr, quiet, terminal, rounds, said):
    stream = stderr(terminal)
    several = Several(quiet=quiet)
    several.begin(3, 1, rounds, 2)
    several.rounds(4)
    several.note("one ended")
    several.end()
    assert stream.getvalue() == said


def test_long_work_has_a_bar_on_a_terminal(stderr):
    stream = stderr(True)
    with counting("decoding [images]", 8, 2) as advance:
        advance(1)
        advance(2)
    last = stream.plain().splitlines()[-1]
    assert last.startswith("decoding [images] ")
    assert " 5/8 " in last


def test_long_work_is_told_in_tenths_when_piped(stderr):
    stream = stderr(False)
    with counting("decoding", 2000) as advance:
        for _ in range(20):
            advance(50)
    reached = ["0", "200", "400", "600", "800", "1,000"]
    assert stream.getvalue().splitlines() == [f"decoding: {n} of 2,000" for n in reached]
