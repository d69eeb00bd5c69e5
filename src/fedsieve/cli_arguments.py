"""Arguments that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

Keys = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILE.yaml] [key=value ...]", help="Settings; `fedsieve keys` lists them.", show_default=False
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def settings_of(keys: list[str] | None) -> dict[str, Any]:
    """The settings of a YAML file, if the first argument is one, and of `key=value` arguments."""
    from fedsieve.config import read_settings

    given = list(keys or [])
    file = Path(given.pop(0)) if given and "=" not in given[0] else None
    return read_settings(file, given)
