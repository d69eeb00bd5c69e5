"""The commands below `fedsieve data`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from shutil import get_terminal_size
from typing import Annotated

import typer

from fedsieve.cli.arguments import Json, Keys, settings_of
from fedsieve.cli.helpful import Helpful

data_app = typer.Typer(
    help="Get data, look at them and at how they are split, write them out.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@data_app.command(cls=Helpful)
def inspect(
    keys: Keys = None,
    picture: Annotated[
        Path | None, typer.Option(help="Also draw it, into an .svg or .html file.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what each client would hold. Example: fedsieve data inspect partition=dirichlet noise=symmetric"""
    from fedsieve.data.federation import describe
    from fedsieve.data.inspection import as_text
    from fedsieve.settings.config import resolve
    from fedsieve.settings.splitting import federation_of

    if picture is not None:
        from fedsieve.report.picture import check_suffix, write_picture

        check_suffix(picture)
    federation, truth = federation_of(resolve(settings_of(keys)))
    described = describe(federation, truth)
    room = get_terminal_size().columns if sys.stdout.isatty() else None
    typer.echo(json.dumps(described, indent=1) if as_json else as_text(described, room))
    if picture is not None:
        typer.echo(f"picture: {write_picture(described, picture)}", err=True)


@data_app.command(cls=Helpful)
def get(
    name: Annotated[str, typer.Argument(help="mnist, fashion-mnist, cifar10, cifar100 or svhn.", show_default=False)],
) -> None:
    """Download a data set into the cache folder. Example: fedsieve data get cifar10"""
    from fedsieve.data.download import fetch

    typer.echo(fetch(name))


@data_app.command(cls=Helpful)
def export(
    folder: Annotated[Path, typer.Argument(help="A new folder.", show_default=False)],
    keys: Keys = None,
) -> None:
    """Write a federation as folders of images, or as a table. Example: fedsieve data export shared noise=pair"""
    from fedsieve.data.export import export_federation, refuse_existing
    from fedsieve.settings.config import resolve
    from fedsieve.settings.splitting import federation_of

    refuse_existing(folder)
    federation, truth = federation_of(resolve(settings_of(keys)))
    for line in export_federation(federation, truth, folder):
        typer.echo(line)
