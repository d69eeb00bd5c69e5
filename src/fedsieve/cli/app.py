"""The command line. Commands load what they need when called, so that help and lists are instant."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer

from fedsieve import __version__
from fedsieve.base.ending import (
    INTERRUPTED,
    leave,
    open_standard_streams,
    signals_as_interrupts,
    silent_when_nobody_reads,
    typed,
)
from fedsieve.base.error_words import as_ours
from fedsieve.base.errors import DataError, FedSieveError, one_line
from fedsieve.base.sheets import write_rows
from fedsieve.cli.arguments import Code, Json, Keys, Quiet, code_of, interruptible, settings_of
from fedsieve.cli.audit import audit
from fedsieve.cli.completion import complete_method, complete_model, complete_section
from fedsieve.cli.corrections import corrections_app
from fedsieve.cli.data import data_app
from fedsieve.cli.features import features
from fedsieve.cli.flower import flower_app
from fedsieve.cli.helpful import Helpful
from fedsieve.cli.labels import labels, told_of_labels
from fedsieve.cli.leaderboard import leaderboard
from fedsieve.cli.pretrain import pretrain
from fedsieve.cli.recommend import recommend
from fedsieve.cli.review import review
from fedsieve.runtime.children import end_with_parent

if TYPE_CHECKING:
    from fedsieve.base.options import Option

app = typer.Typer(
    help="Federated learning when part of the labels are wrong.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(data_app, name="data")
app.add_typer(corrections_app, name="corrections")
app.add_typer(flower_app, name="flower")
app.command(cls=Helpful)(audit)
app.command(cls=Helpful)(features)
app.command(cls=Helpful)(labels)
app.command(cls=Helpful)(leaderboard)
app.command(cls=Helpful)(pretrain)
app.command(cls=Helpful)(recommend)
app.command(cls=Helpful)(review)

Folder = Annotated[Path, typer.Argument(help="Folder of a run.", show_default=False)]


@app.callback(invoke_without_command=True)
def top(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(f"fedsieve {__version__}")
        raise typer.Exit


@app.command(cls=Helpful)
def run(keys: Keys = None, quiet: Quiet = False, as_json: Json = False, allow_code: Code = False) -> None:
    """Train with one method. Example: fedsieve run method=fedprox fedprox.mu=0.1 noise=symmetric noise.rate=0.4"""
    from fedsieve import start
    from fedsieve.report.progress import chosen_progress
    from fedsieve.settings.config import resolve

    settings, code = settings_of(keys), code_of(keys, allow_code)
    with interruptible(resolve(settings, allow_code=code).folder(), code):
        folder, summary = start.run(settings, chosen_progress(quiet), allow_code=code)
    _show_summary(folder, summary, as_json)


@app.command(cls=Helpful)
def resume(
    folder: Folder, keys: Keys = None, quiet: Quiet = False, as_json: Json = False, allow_code: Code = False
) -> None:
    """Go on with a run that was cut off. Example: fedsieve resume runs/embedded-fedavg-s0"""
    from fedsieve import start
    from fedsieve.report.progress import chosen_progress

    with interruptible(folder, allow_code):
        progress, changes = chosen_progress(quiet), settings_of(keys)
        _, summary = start.resume(folder, progress, changes, allow_code=allow_code)
    _show_summary(folder, summary, as_json)


@app.command(cls=Helpful)
def compare(
    keys: Keys = None,
    jobs: Annotated[int | None, typer.Option(help="Runs at a time; the number of cores if not given.", min=1)] = None,
    quiet: Quiet = False,
    as_json: Json = False,
    allow_code: Code = False,
) -> None:
    """Run every combination of comma-separated values. Example: fedsieve compare method=fedavg,gce seed=0,1"""
    from fedsieve.api import varied_keys
    from fedsieve.runs import comparison

    settings, code = settings_of(keys), code_of(keys, allow_code)
    with interruptible(None, code):
        outcome = comparison.compare(settings, jobs=jobs, quiet=quiet, allow_code=code)
    folder = outcome.folder
    tables = comparison.write_tables(folder, outcome.rows, varied_keys(settings, code))
    if as_json:
        typer.echo(json.dumps(outcome.rows, indent=1))
    else:
        typer.echo(tables.text)
        of = "" if tables.reported == len(outcome.rows) else f" of the {tables.reported} runs whose files are here"
        report = (
            f"report{of}: {folder}/report.html" if tables.reported else "no report: of these runs only rows are here"
        )
        _say(f"tables: {folder}/table.md, .csv, .tex; {report}")
    outcome.complain()


@app.command(cls=Helpful)
def report(
    folders: Annotated[list[Path], typer.Argument(help="Folders of runs, or of a comparison.", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="Where to write the page.")] = None,
    title: Annotated[str | None, typer.Option(help="Its heading.")] = None,
) -> None:
    """Write one page about a run, or about several. Example: fedsieve report runs/embedded-fedavg-s0"""
    from fedsieve.evaluate.schema import File
    from fedsieve.report.html import write_report
    from fedsieve.runs.comparison import runs_in

    runs = [run for folder in folders for run in runs_in(folder)]
    typer.echo(write_report(runs, out or folders[0] / File.REPORT, title=title))


@app.command(cls=Helpful)
def predict(
    folder: Folder,
    samples: Annotated[
        list[str],
        typer.Argument(
            help="Images, folders of images, .csv (paths of images, or a table), .npz or .npy; for a model of texts "
            "the texts themselves, or .csv with a column of them.",
            show_default=False,
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="Write a CSV file instead of printing.", show_default=False)] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", "-p", help="A column more for each class, with its probability.")
    ] = False,
    group: Annotated[int, typer.Option(help="Which group's model, where there are several.")] = 0,
    model: Annotated[
        str | None,
        typer.Option(
            help="package.module:Class, for a model of one's own: its file is not believed.", show_default=False
        ),
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(help="hf:NAME or hf:FOLDER, where one of these encoded the texts.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Classify new samples. Example: fedsieve predict runs/embedded-fedavg-s0 photo.png"""
    from fedsieve.runs.prediction import class_names, predict_files
    from fedsieve.runs.text_inputs import files_among

    found, unread = predict_files(folder, files_among(samples), group, model, encoder)
    each = found.pop("probabilities")
    if as_json:
        typer.echo(json.dumps(found | ({"probabilities": each} if probabilities else {})))
    else:
        if probabilities:
            columns = zip(*each, strict=True)
            found |= {f"p({name})": column for name, column in zip(class_names(folder), columns, strict=True)}
        if not out:  # a class or a file may be called anything
            found = {one_line(key): [one_line(v) if isinstance(v, str) else v for v in found[key]] for key in found}
        rows = [["row", *found], *([i, *row] for i, row in enumerate(zip(*found.values(), strict=True)))]
        with out.open("w", newline="") if out else _stdout() as file:
            write_rows(file, rows)
    for line in unread:
        _say(f"left out: {one_line(line)}")
    if unread:
        raise DataError("FS302", f"{len(unread)} samples could not be read and are left out; the others are predicted")


@app.command(cls=Helpful)
def methods(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Show one method, or several joined by +, with the options.",
            show_default=False,
            autocompletion=complete_method,
        ),
    ] = None,
    table: Annotated[
        bool, typer.Option("--table", help="What each judges, needs, sends and costs, as a Markdown table.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the methods, or show one with its options. Example: fedsieve methods scaffold"""
    from fedsieve.methods import METHODS, method_options

    if name is not None:
        options = method_options(name, allow_code=True)
        if not as_json:
            _show_method(name)
        _show_options(options, as_json)
    elif as_json:
        from fedsieve.testing.profile import profile

        listed = {n: {"summary": e.summary, "source": e.source} | profile(n).as_dict() for n, e in METHODS.items()}
        typer.echo(json.dumps(listed, indent=1))
    elif table:
        from fedsieve.testing.profile import method_table

        typer.echo(method_table().to_markdown(), nl=False)
    else:
        for known, entry in METHODS.items():
            typer.echo(f"{known:<17} {entry.summary}{f' ({entry.source})' if entry.source else ''}")


@app.command(cls=Helpful)
def models(
    name: Annotated[
        str | None,
        typer.Argument(help="Show one model's options.", show_default=False, autocompletion=complete_model),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the models, or show one with its options. Example: fedsieve models resnet18"""
    from fedsieve.models import MODELS, options_of_model

    if name is not None:
        _show_options({"model": options_of_model(name, allow_code=True)}, as_json)
    elif as_json:
        typer.echo(json.dumps({known: {"summary": entry.summary} for known, entry in MODELS.items()}, indent=1))
    else:
        for known, entry in MODELS.items():
            typer.echo(f"{known:<14} {entry.summary}")


@app.command(cls=Helpful)
def keys(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A section (data, partition, noise, server, schedule, admit, combine, flower) or one key; "
            "the top keys if not given.",
            show_default=False,
            autocompletion=complete_section,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the settings with their defaults and choices. Example: fedsieve keys noise"""
    from fedsieve.settings.choices import listed_options

    _show_options(listed_options(name), as_json)


def main() -> None:
    """Entry point: the last line on stderr is the message, and the exit code tells the kind of error."""
    open_standard_streams()
    signals_as_interrupts()
    end_with_parent()
    try:
        with typed(), silent_when_nobody_reads():
            status = app(standalone_mode=False)
        if status == INTERRUPTED:  # before there was anything to save
            _say("error: interrupted: start the same command again [FS216]")
    except FedSieveError as problem:
        _say(f"error: {problem}")
        status = problem.exit_code
    except click.ClickException as problem:
        problem.show()
        status = problem.exit_code
    except (click.Abort, KeyboardInterrupt):
        _say("error: interrupted: start the same command again [FS216]")
        status = INTERRUPTED
    except Exception as problem:  # nobody foresaw it, or it is code of one's own: where it was, and one line in the end
        traceback.print_exc()
        error = as_ours(problem)
        _say(f"error: {error}")
        status = error.exit_code
    leave(status if isinstance(status, int) else 0)


@contextmanager
def _stdout() -> Iterator[Any]:
    yield sys.stdout


def _show_summary(folder: Path, summary: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(summary | {"folder": str(folder)}, indent=1))
        return
    tested = summary["test_accuracy"] is not None
    typer.echo(told_accuracy(summary) if tested else "not tested: accuracies are unknown")
    for line in told_of_labels(summary, folder / "labels.csv"):
        typer.echo(line)
    listed = "labels.csv, " if summary.get("labels") else ""
    typer.echo(f"run {folder}: report.html, {listed}model.safetensors, metrics.jsonl, clients.jsonl")


def told_accuracy(summary: dict[str, Any]) -> str:
    """Of the model that was saved, and what methods are compared by."""
    from fedsieve.evaluate.schema import last_tests

    return (
        f"test accuracy {summary['test_accuracy']:.4f} at the end (the saved model), "
        f"{summary['test_accuracy_last10']:.4f} in {last_tests(summary['tests_in_mean'])}, "
        f"{summary['test_accuracy_best']:.4f} at best"
    )


def _show_method(name: str) -> None:
    """What a method is and does, before its options."""
    from fedsieve.methods import METHODS
    from fedsieve.testing.profile import profile

    told = profile(name, allow_code=True)
    for part in name.split("+"):
        if entry := METHODS.get(part):
            typer.echo(f"{part}: {entry.summary}{f' ({entry.source})' if entry.source else ''}")
    judges = "judges labels" if told.judges else "judges no label"
    suggests = " and suggests others" if told.suggests else ""
    typer.echo(f"{judges}{suggests}; needs {told.needed()}")
    typer.echo(
        f"sends besides the model: {', '.join(told.sends) or 'nothing'}; models down and up: {told.models_down:g} and "
        f"{told.models_up:g}; secure aggregation possible: {'yes' if told.secure_aggregation else 'no'}"
    )


def _show_options(sections: Mapping[str, Mapping[str, Option]], as_json: bool) -> None:
    from fedsieve.base.options import REQUIRED
    from fedsieve.settings.choices import OPEN, choices

    def plain(option: Option) -> Any:
        return None if option.default is REQUIRED else option.default

    def values(label: str, option: Option) -> tuple[str, ...]:
        section = label.partition("=")[0].partition(".")[0]
        return choices(f"{section}.{option.name}" if section else option.name, option)

    if as_json:
        listed = {
            label: {
                name: {"default": plain(o), "help": o.doc, "choices": list(values(label, o)) or None}
                for name, o in options.items()
            }
            for label, options in sections.items()
        }
        typer.echo(json.dumps(listed, indent=1, default=str))
        return
    for label, options in sections.items():
        before = f"{label}." if label and "=" not in label else ""
        if "=" in label:
            typer.echo(label)
        for name, option in options.items():
            doc = " ".join(option.doc.split())
            found = (
                () if not label and name in ("method", "model") else values(label, option)
            )  # have lists of their own
            word = "Known" if not label and name in OPEN else "One of"
            said = f" {word}: {', '.join(found)}." if found else ""
            typer.echo(f"{before or ('  ' if label else '')}{name} ({plain(option)})  {doc}{said}")
        if not options and "=" not in label:
            typer.echo(f"{label} has no options")


def _say(text: str) -> None:
    with suppress(OSError):  # nobody listens; the exit code still tells
        typer.echo(text, err=True)
