"""The command `fedsieve labels`, and what a run says of labels when it ends."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fedsieve.base.errors import one_line
from fedsieve.base.sheets import write_rows
from fedsieve.cli.arguments import Json

MOST_OWNERS = 10
"""Lines about owners when a run ends."""


def labels(
    folder: Annotated[Path, typer.Argument(help="Folder of a run, or of a Flower node's run.", show_default=False)],
    owner: Annotated[str | None, typer.Option(help="Only this owner's.", show_default=False)] = None,
    flagged: Annotated[bool, typer.Option("--flagged", help="Only those that are flagged.")] = False,
    cleanlab: Annotated[bool, typer.Option("--cleanlab", help="With cleanlab's names of the columns.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write a CSV file instead of printing.")] = None,
    as_json: Json = False,
) -> None:
    """Print the judged labels of a run. Example: fedsieve labels runs/judged --owner hospital-a --flagged"""
    from fedsieve.runs.labels import columns, labels_of

    found = labels_of(folder, owner=owner, flagged=flagged, cleanlab=cleanlab)
    table = [[*columns(cleanlab).values()], *([_cell(value) for value in row.values()] for row in found)]
    if as_json:
        typer.echo(json.dumps(found, indent=1))
    elif out:
        with out.open("w", newline="", encoding="utf-8") as file:
            write_rows(file, table)
    else:
        write_rows(sys.stdout, ([one_line(cell) for cell in row] for row in table))


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def told_of_labels(summary: dict[str, Any], file: Path) -> list[str]:
    """How many labels are flagged at which owners, the most first, and where they are listed."""
    counts = sorted(summary.get("labels") or (), key=lambda mine: -mine["flagged"])
    if not counts:
        return []
    flagged, judged = (sum(mine[key] for mine in counts) for key in ("flagged", "judged"))
    lines = [f"{flagged:,} of {judged:,} labels are flagged, all are in {file}:"]
    shown = counts[:MOST_OWNERS]
    lines += [one_line(f"  {mine['owner']}: {mine['flagged']:,} of {mine['judged']:,}") for mine in shown]
    return lines + ([f"  and {len(counts) - len(shown):,} more"] if len(counts) > len(shown) else [])
