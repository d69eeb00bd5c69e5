"""The command `fedsieve review`."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import Annotated

import typer

from fedsieve.base.errors import one_line
from fedsieve.cli.arguments import settings_of


def review(
    folder: Annotated[Path, typer.Argument(help="Folder of a run, or of a Flower node's state.", show_default=False)],
    keys: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[key=value ...]", help="Where the data are, if not where the run says.", show_default=False
        ),
    ] = None,
    owner: Annotated[str | None, typer.Option(help="Whose labels, where there are several owners.")] = None,
    reader: Annotated[str | None, typer.Option(help="Who decides; the name of the user if not given.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Time that is there for it.", min=1, max=100_000)] = None,
    controls: Annotated[
        int | None,
        typer.Option(help="Unsuspected rows mixed in; if not given a tenth of the flagged, at least 30.", min=0),
    ] = None,
    port: Annotated[int, typer.Option(help="Of the page; a free one if 0.", min=0, max=65_535)] = 0,
    no_open: Annotated[bool, typer.Option("--no-open", help="Print the address and open no browser.")] = False,
    static: Annotated[
        Path | None, typer.Option(help="Write a page for those who cannot start a server.", show_default=False)
    ] = None,
    rows: Annotated[int, typer.Option(help="Most rows of a page that is written with --static.", min=1)] = 500,
) -> None:
    """Look at suspicious labels and decide. Example: fedsieve review runs/embedded-fedrn-s0 --owner 3"""
    from fedsieve.review.desk import Desk, Sitting
    from fedsieve.review.subject import open_subject

    def say(text: str) -> None:
        typer.echo(one_line(text))

    subject = open_subject(folder, owner, settings_of(keys))
    desk = Desk(subject, Sitting(reader or getpass.getuser(), minutes, controls))
    for note in desk.log.notes:
        say(note)
    if static is not None:
        from fedsieve.review.static_page import write_static

        say(write_static(desk, static, rows))
        return
    from fedsieve.review.serve import serve

    serve(desk, port, show=not no_open, say=say)
    say(f"{len(desk.log.standing())} rows decided by {desk.sitting.reader}: {subject.file}")
