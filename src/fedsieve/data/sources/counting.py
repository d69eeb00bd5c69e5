"""How far a long piece of work on data is: a bar on a terminal, a plain line now and then when piped."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fedsieve.base.errors import one_line

STEPS = 10
"""Lines of a whole piece of work when piped."""


@contextmanager
def counting(what: str, total: int, done: int = 0) -> Iterator[Callable[[int], None]]:
    """Yields a function to call with every few items done."""
    with _bar(what, total, done) if sys.stderr.isatty() else _lines(what, total, done) as advance:
        yield advance


@contextmanager
def _lines(what: str, total: int, done: int) -> Iterator[Callable[[int], None]]:
    reached = done

    def advance(items: int) -> None:
        nonlocal reached
        before, reached = reached, reached + items
        if before * STEPS // total != reached * STEPS // total:
            _say(f"{what}: {reached:,} of {total:,}")

    _say(f"{what}: {done:,} of {total:,}")
    yield advance


@contextmanager
def _bar(what: str, total: int, done: int) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(one_line(what), total=total, completed=done)
        yield lambda items: bar.advance(task, items)


def _say(text: str) -> None:
    sys.stderr.write(f"{one_line(text)}\n")
    sys.stderr.flush()
