"""Help pages of commands: a sentence for every argument, and brackets as they are."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import click
from typer.core import TyperArgument, TyperCommand
from typer.models import ArgumentInfo

SETTINGS = "keys"
"""The argument that takes settings."""
WAY = "`fedsieve keys` lists the settings and their choices, `fedsieve methods` the methods."


class Helpful(TyperCommand):
    """Typer escapes brackets for Rich, which is not used here, and some versions of Click drop arguments' help."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        declared = get_type_hints(self.callback, include_extras=True) if self.callback else {}
        for param in self.params:
            if isinstance(param, TyperArgument):
                param.help = param.help or _help_of(declared.get(param.name or ""))
            if param.name == SETTINGS:
                self.epilog = self.epilog or WAY

    def format_arguments(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """They stand above the options, where some versions of Click would list them a second time."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, kind in (("Arguments", "argument"), ("Options", "option")):
            records = [param.get_help_record(ctx) for param in self.get_params(ctx) if param.param_type_name == kind]
            shown = [(name, text.replace("\\[", "[")) for name, text in filter(None, records)]
            if shown:
                with formatter.section(title):
                    formatter.write_dl(shown)


def _help_of(declared: Any) -> str:
    """What an annotation says about its argument."""
    said = [one.help for one in get_args(declared)[1:] if isinstance(one, ArgumentInfo) and one.help]
    return said[0] if said else ""
