"""The command `fedsieve audit`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedsieve.base.errors import one_line
from fedsieve.cli.arguments import Code, Json, Keys, Quiet, code_of, interruptible, settings_of

if TYPE_CHECKING:
    from fedsieve.runs.findings import Findings


def audit(keys: Keys = None, quiet: Quiet = False, as_json: Json = False, allow_code: Code = False) -> None:
    """Find the suspicious labels of every owner. Example: fedsieve audit data=scans.csv"""
    from fedsieve import start
    from fedsieve.report.progress import chosen_progress
    from fedsieve.runs.findings import findings
    from fedsieve.settings.auditing import for_auditing
    from fedsieve.settings.config import resolve

    settings, code = settings_of(keys), code_of(keys, allow_code)
    with interruptible(resolve(for_auditing(settings), allow_code=code).folder(), code):
        folder, summary = start.audit(settings, chosen_progress(quiet), allow_code=code)
    found = findings(folder)
    if as_json:
        owners = [each.plain() for each in found]
        typer.echo(json.dumps(summary | {"owners": owners, "folder": str(folder)}, indent=1))
    else:
        typer.echo(told(folder, found))


def told(folder: Path, found: Sequence[Findings]) -> str:
    """Owner by owner what is suspected and where to begin, and where the rows are."""
    if not found:
        return f"no label could be judged: no class has rows enough. Run {folder}"
    head = ("owner", "rows", "flagged", "wrong labels", "look at the most doubtful first")
    rows = [head, *(_row(each) for each in found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    flagged, judged = sum(each.flagged for each in found), sum(each.rows for each in found)
    worst = max(found, key=lambda each: each.flagged)
    where = f"{flagged} of {judged} labels are flagged: {folder}/labels.csv, report.html"
    twins = [one_line(_twins(each)) for each in found if each.twins]
    return "\n".join([*lines, *twins, where, one_line(f"look at them: {shlex.join(_review(folder, worst.owner))}")])


def _twins(each: Findings) -> str:
    return f"{each.owner}: {each.twins} rows are nearly the same as another that is labelled otherwise (column twin)"


def _review(folder: Path, owner: str) -> list[str]:
    return ["fedsieve", "review", str(folder), "--owner", owner]


def _row(each: Findings) -> tuple[str, ...]:
    share = f"{100 * each.wrong.share:.0f} % ({100 * each.wrong.low:.0f} to {100 * each.wrong.high:.0f})"
    first = f"{each.budget.rows} rows, about {each.budget.wrong:.0f} of them wrong"
    return one_line(each.owner), str(each.rows), str(each.flagged), share, first
