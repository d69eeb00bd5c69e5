"""The commands `fedsieve flower ...`: Flower's simulation, and an app for nodes on machines of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsieve.base.errors import ConfigError
from fedsieve.cli.arguments import Code, Json, Keys, Quiet, settings_of
from fedsieve.cli.helpful import Helpful

flower_app = typer.Typer(
    help="Run on Flower: simulated, or on machines of their own.", no_args_is_help=True, rich_markup_mode=None
)


@flower_app.command(cls=Helpful)
def simulate(keys: Keys = None, quiet: Quiet = False, as_json: Json = False, allow_code: Code = False) -> None:
    """Train on Flower's simulation. Example: fedsieve flower simulate method=fedrn clients=10 rounds=3"""
    from fedsieve.cli.app import run  # which imports this module

    settings = settings_of(keys)
    if settings.get("runtime", "flower") != "flower":
        raise ConfigError("FS002", f"runtime={settings['runtime']}: this command runs on Flower. Leave runtime out")
    run([*(keys or []), "runtime=flower"], quiet, as_json, allow_code)


@flower_app.command(cls=Helpful)
def init(
    folder: Annotated[Path, typer.Argument(help="Where to write the app; must not exist.", show_default=False)],
    keys: Keys = None,
) -> None:
    """Write a Flower app for this run. Example: fedsieve flower init ward-app method=fedrn clients=3 rounds=10"""
    from fedsieve.flower.template import write_app

    for path in write_app(folder, settings_of(keys)):
        typer.echo(path)
