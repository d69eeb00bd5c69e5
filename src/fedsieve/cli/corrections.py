"""The commands below `fedsieve corrections`."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fedsieve.base.errors import ConfigError, one_line
from fedsieve.cli.arguments import Json, settings_of
from fedsieve.cli.helpful import Helpful

corrections_app = typer.Typer(
    help="What people decided about labels: look at it, apply it to data, hand it on.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

File = Annotated[Path, typer.Argument(help="The decisions.jsonl of a review.", show_default=False)]
Reader = Annotated[
    str | None, typer.Option(help="Only what this reader decided; the latest of all if not given.", show_default=False)
]


class Format(StrEnum):
    """What other tools read."""

    label_studio = "label-studio"
    cleanlab = "cleanlab"
    argilla = "argilla"
    csv = "csv"


@corrections_app.command(cls=Helpful)
def show(decisions: File, as_json: Json = False) -> None:
    """Count decisions, and say how far readers agree. Example: fedsieve corrections show decisions.jsonl"""
    from dataclasses import asdict

    from fedsieve.data.corrections import summary
    from fedsieve.data.decisions import read_decisions
    from fedsieve.review.readers import agreements

    found = read_decisions(decisions)
    by_reader = found.by_reader()
    pairs = agreements(by_reader)
    if as_json:
        actions = {who: _counted([one.decision.action for one in mine.values()]) for who, mine in by_reader.items()}
        told = {"lines": len(found.entries), "torn": bool(found.torn), "last": found.last, "readers": actions}
        typer.echo(json.dumps(told | {"agreement": [asdict(pair) for pair in pairs]}, indent=1))
        return
    lines = [
        f"{len(found.entries)} lines, chain intact up to {found.last[:12]}",
        *found.notes,
        summary(found.standing()),
    ]
    if len(by_reader) > 1:
        lines += [f"{who}: {summary(mine)}" for who, mine in by_reader.items()]
    for pair in pairs:
        both = f"{pair.first} and {pair.second}: {pair.rows} rows both"
        lines.append(f"{both}, {pair.differ} differ, Cohen's kappa {pair.kappa:.3f}")
    typer.echo("\n".join(map(one_line, lines)))


@corrections_app.command(cls=Helpful)
def apply(
    decisions: File,
    data: Annotated[str, typer.Option(help="The data that were reviewed, as behind `data=`.", show_default=False)],
    out: Annotated[Path, typer.Option(help="A new file or folder.", show_default=False)],
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="[data.KEY=value ...]", help="How the data are read.", show_default=False),
    ] = None,
    reader: Reader = None,
    link: Annotated[bool, typer.Option("--link", help="Link image files to the originals, do not copy.")] = False,
) -> None:
    """Write corrected data. Example: fedsieve corrections apply decisions.jsonl --data scans --out scans-corrected"""
    from fedsieve.data.corrected import Verdicts, write_corrected
    from fedsieve.data.decisions import read_decisions
    from fedsieve.settings.config import resolve

    found = read_decisions(decisions)
    for note in found.notes:
        typer.echo(one_line(note), err=True)
    options = resolve(settings_of(keys) | {"data": data}).data()
    typer.echo(one_line(str(write_corrected(data, Verdicts(found, reader), out, options, link=link))))


@corrections_app.command(cls=Helpful)
def export(
    decisions: File,
    form: Annotated[Format, typer.Option("--format", help="For which tool.", show_default=False)],
    out: Annotated[Path, typer.Option(help="The file to write.", show_default=False)],
    reader: Reader = None,
) -> None:
    """Write decisions for another tool. Example: fedsieve corrections export d.jsonl --format csv --out d.csv"""
    from fedsieve.base.disk import write_bytes
    from fedsieve.data.decisions import read_decisions
    from fedsieve.review.exports import FORMATS

    if out.exists():
        raise ConfigError("FS005", f"{out} exists. Choose another file")
    standing = read_decisions(decisions).standing(reader).values()
    write_bytes(out, FORMATS[form](standing).encode())
    typer.echo(one_line(f"{out}: {len(standing)} decisions for {form}"))


def _counted(actions: list[str]) -> dict[str, int]:
    return {action: actions.count(action) for action in sorted(set(actions))}
