"""What a person sees while a run goes on: a bar on a terminal, plain lines when piped, nothing when asked."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TextIO

from fedsieve.base.errors import one_line

if TYPE_CHECKING:
    from fedsieve.core.plan import Plan
    from fedsieve.data.federation import Federation


class Progress:
    """Silent; the others say more."""

    def begin(self, method: str, total: int, done: int, plan: Plan, federation: Federation) -> None: ...

    def round(self, row: dict[str, Any]) -> None: ...

    def note(self, text: str) -> None: ...

    def end(self) -> None: ...


class Lines(Progress):
    """One plain line a round."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._total = 0

    def begin(self, method: str, total: int, done: int, plan: Plan, federation: Federation) -> None:
        self._total = total
        self._say(introduction(method, done, plan, federation))

    def round(self, row: dict[str, Any]) -> None:
        accuracy = row["test_accuracy"]
        shown = "not tested" if accuracy is None else f"accuracy {accuracy:.4f}"
        own = " and the server's own" if any(one["status"] == "reported" for one in row.get("server", ())) else ""
        reports = f"{row['reports']} reports{own}"
        trouble = "".join(f", {row[kind]} {kind}" for kind in ("refused", "dropped", "skipped") if row[kind])
        self._say(f"round {row['round']}/{self._total}: {shown}, {reports}{trouble}, {row['seconds']:.1f} s")
        for event in row["events"]:
            self._say(one_line(f"round {row['round']}: {event['message']} [{event['code']}]"))

    def note(self, text: str) -> None:
        self._say(f"note: {one_line(text)}")

    def _say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)  # this is what the class is for


class Bar(Progress):
    """A live bar with round, accuracy, clients and time left."""

    def __init__(self) -> None:
        self._bar = _rich_bar()
        self._console = self._bar.console
        self._task: Any = None

    def begin(self, method: str, total: int, done: int, plan: Plan, federation: Federation) -> None:
        shown = introduction(method, done, plan, federation)
        self._console.print(shown, style="dim", highlight=False, markup=False, emoji=False)
        self._task = self._bar.add_task(method, total=total, completed=done, shown="starting")
        self._bar.start()

    def round(self, row: dict[str, Any]) -> None:
        accuracy = row["test_accuracy"]
        shown = "" if accuracy is None else f"accuracy {accuracy:.4f} "
        self._bar.update(self._task, completed=row["round"], shown=f"{shown}clients {row['reports']}")
        for event in row["events"]:
            self.note(f"round {row['round']}: {event['message']} [{event['code']}]")
        if row["refused"]:
            self.note(f"round {row['round']}: {row['refused']} reports refused; see clients.jsonl")

    def note(self, text: str) -> None:
        self._console.print(f"note: {one_line(text)}", style="yellow", highlight=False, markup=False, emoji=False)

    def end(self) -> None:
        self._bar.stop()


class Several:
    """How far several runs are: a bar over all their rounds on a terminal, a line for each that ends when piped."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._bar: Any = None
        self._task: Any = None

    def begin(self, runs: int, finished: int, rounds: int, jobs: int) -> None:
        self.note(f"{runs} runs, {finished} finished before, {jobs} at a time")
        if not self._quiet and sys.stderr.isatty() and rounds:
            self._bar = _rich_bar()
            self._task = self._bar.add_task("rounds", total=rounds, shown="")
            self._bar.start()

    def rounds(self, done: int) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=done)

    def note(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(one_line(text), highlight=False, markup=False, emoji=False)
        elif not self._quiet:
            sys.stderr.write(f"{one_line(text)}\n")

    def end(self) -> None:
        if self._bar is not None:
            self._bar.stop()


def _rich_bar() -> Any:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}", style="bold", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[shown]}", markup=False),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )


def introduction(method: str, done: int, plan: Plan, federation: Federation) -> str:
    """What runs, on what, and what leaves each client."""
    from fedsieve.evaluate.disclosure import disclosure, messages, secure_aggregation

    sent = [row for row in disclosure(plan) if row["direction"] == "up"]
    names = ", ".join(dict.fromkeys(row["name"] for row in sent)) or "nothing"
    what = one_line(f"{method} on {federation.data}")
    resumed = f", from round {done + 1}" if done else ""
    return (
        f"{what}: {federation.clients} clients, {plan.layout.trainable:,} parameters{resumed}\n"
        f"leaves each client: {names}; secure aggregation possible: {'yes' if secure_aggregation(plan) else 'no'}; "
        f"messages per client and round: {messages(plan)}"
    )


def chosen_progress(quiet: bool) -> Progress:
    if quiet:
        return Progress()
    return Bar() if sys.stderr.isatty() else Lines()
