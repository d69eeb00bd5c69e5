"""The command `fedsieve recommend`."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from fedsieve.cli.arguments import Code, Json, Keys, Quiet, code_of, interruptible, settings_of
from fedsieve.methods import METHODS

if TYPE_CHECKING:
    from fedsieve.runs.recommendation import Advice


def recommend(keys: Keys = None, quiet: Quiet = False, as_json: Json = False, allow_code: Code = False) -> None:
    """Say which method to take for these data, and why. Example: fedsieve recommend data=scans.csv"""
    from fedsieve import start
    from fedsieve.report.progress import chosen_progress
    from fedsieve.runs.recommendation import told

    with interruptible():
        facts, chosen = start.recommend(settings_of(keys), chosen_progress(quiet), allow_code=code_of(keys, allow_code))
    again = shlex.join(with_method(keys or [], chosen))
    typer.echo(json.dumps(asdict(facts) | asdict(chosen), indent=1) if as_json else told(facts, chosen, again))


def with_method(keys: list[str], chosen: Advice) -> list[str]:
    """The arguments of a run: a file stays first, the method is the one recommended, options of others are left out."""
    file = keys[:1] if keys and "=" not in keys[0] else []
    others = {*METHODS, "method", "out"}
    kept = [key for key in keys[len(file) :] if key.partition("=")[0].partition(".")[0] not in others]
    return [*file, *chosen.keys(), *kept]
