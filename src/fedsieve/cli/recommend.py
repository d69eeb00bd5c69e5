"""The command `fedsieve recommend`."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict

import typer

from fedsieve.cli.arguments import Code, Json, Keys, Quiet, code_of, interruptible, settings_of


def recommend(keys: Keys = None, quiet: Quiet = False, as_json: Json = False, allow_code: Code = False) -> None:
    """Say which method to take for these data, and why. Example: fedsieve recommend data=scans.csv"""
    from fedsieve import start
    from fedsieve.report.progress import chosen_progress
    from fedsieve.runs.recommendation import told

    with interruptible():
        facts, chosen = start.recommend(settings_of(keys), chosen_progress(quiet), allow_code=code_of(keys, allow_code))
    again = shlex.join(with_method(keys or [], chosen.method))
    typer.echo(json.dumps(asdict(facts) | asdict(chosen), indent=1) if as_json else told(facts, chosen, again))


def with_method(keys: list[str], method: str) -> list[str]:
    """The arguments of a run: a file stays first, and the method is the one recommended."""
    kept = [key for key in keys if not key.startswith(("method=", "out="))]
    file = kept[:1] if kept and "=" not in kept[0] else []
    return [*file, f"method={method}", *kept[len(file) :]]
