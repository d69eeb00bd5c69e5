"""The command `fedsieve leaderboard`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def leaderboard(
    folders: Annotated[
        list[Path],
        typer.Argument(help="Folders of comparisons, each of them a board; their comparisons are its columns."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Where to write leaderboard.md and leaderboard.html; the first folder if not given."),
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option(help="The Markdown file, where it is not to lie beside the page.", show_default=False)
    ] = None,
) -> None:
    """Rank methods over several comparisons. Example: fedsieve leaderboard runs/leaderboard"""
    from fedsieve import api

    made = api.leaderboard(*folders, out=out, markdown=markdown)
    typer.echo(made.table, nl=False)
    typer.echo(f"\nranks, costs and settings: {made.markdown}, {made.page}")
