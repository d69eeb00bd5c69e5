"""Arguments that several commands take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from fedsieve.base.ending import INTERRUPTED
from fedsieve.base.errors import FedSieveError
from fedsieve.base.own_code import AllowCode, is_own
from fedsieve.cli.completion import complete_settings

Keys = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILE.yaml] [key=value ...]",
        help="Settings: a file of them first, if any, then single ones.",
        show_default=False,
        autocompletion=complete_settings,
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

Code = Annotated[
    bool, typer.Option("--allow-code", help="A file may name methods and models of one's own, which are imported.")
]


def settings_of(keys: list[str] | None) -> dict[str, Any]:
    """The settings of a YAML file, if the first argument is one, and of `key=value` arguments."""
    from fedsieve.settings.config import read_settings

    given = list(keys or [])
    file = Path(given.pop(0)) if given and "=" not in given[0] else None
    return read_settings(file, given)


def code_of(keys: list[str] | None, allow_code: bool) -> AllowCode:
    """Code of one's own that may be imported: what is named here, or whatever a file names too."""
    named = [key.partition("=")[2] for key in keys or () if key.startswith(("method=", "model="))]
    parts = [part.strip() for value in named for choice in value.split(",") for part in choice.split("+")]
    return allow_code or {part for part in parts if is_own(part)}


class Interrupted(FedSieveError):  # noqa: N818  # the user meant it
    exit_code = INTERRUPTED


@contextmanager
def interruptible(folder: Path | None = None, code: AllowCode = False) -> Iterator[None]:
    """An interrupt becomes a message that says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        saved = folder is not None and any((folder / "checkpoint").glob("*.json"))
        again = f"fedsieve resume {folder}{' --allow-code' if code else ''}"
        how = f"saved; go on with `{again}`" if saved else "start the same command again to go on"
        raise Interrupted("FS216", f"interrupted: {how}") from None
