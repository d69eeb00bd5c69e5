"""One self-contained page about a run, or about several compared: no script, nothing loaded from elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from fedsieve.base.errors import DataError
from fedsieve.evaluate.probe import has_collapsed
from fedsieve.evaluate.schema import File
from fedsieve.report.bar_plots import boxes, sorted_clients, time_by_group, time_by_round
from fedsieve.report.classes import classes_section
from fedsieve.report.comparing import (
    compare_command,
    comparison_headlines,
    comparison_section,
    mean_heading,
    pairs_section,
    pivot_section,
)
from fedsieve.report.curve_plots import client_band, curves
from fedsieve.report.federation_plots import (
    classes_plot,
    held_at_server,
    known_noise,
    missing_labels,
    noise_plot,
    transitions_plot,
)
from fedsieve.report.folder import RunFolder, Runs, read_run
from fedsieve.report.inside import curves_section, map_section, neighbours_section
from fedsieve.report.over_rounds import features_section, guesses_section, selection_section, series_of
from fedsieve.report.page import write_page
from fedsieve.report.section import Section
from fedsieve.report.suspects import relabelling_section, suspects_section
from fedsieve.report.tables import UNKNOWN, Table, count, duration, per_cent
from fedsieve.report.traffic import disclosure_section
from fedsieve.report.verdicts import exhibit_plots, trust_plots

SHOWN_ROWS = 20
"""Long tables show this many rows; the whole is in the run's folder."""


def write_report(folders: Sequence[Path], target: Path, *, title: str | None = None) -> Path:
    """Writes the page of one run, or of several compared, and returns where it is; FS311 when a file cannot be used."""
    if not folders:
        raise DataError("FS311", "no run to report on. Give the folder of at least one run")
    runs = Runs(tuple(read_run(Path(folder)) for folder in folders))
    return write_page(
        Path(target),
        title=title or _title(runs),
        subtitle=_subtitle(runs),
        warnings=_warnings(runs),
        headlines=comparison_headlines(runs) if runs.several else _run_headlines(runs.first),
        sections=[section for build in SECTIONS if (section := build(runs)) is not None],
        footer=_footer(runs),
    )


def _title(runs: Runs) -> str:
    methods, data = runs.values("method"), runs.first.data
    if not runs.several:
        return f"{runs.first.method} on {data}"
    return f"{len(methods)} methods on {data}" if len(methods) > 1 else f"{runs.first.method} on {data}, compared"


def _subtitle(runs: Runs) -> str:
    if runs.several:
        return " · ".join(f"{key} {', '.join(values)}" for key in [*runs.vary, "seed"] if (values := runs.values(key)))
    keys = ("model", "clients", "partition", "noise", "seed")
    return " · ".join(f"{key} {fact}" for key in keys if (fact := runs.first.fact(key)) is not None)


def _warnings(runs: Runs) -> list[str]:
    unfinished = [run.name for run in runs.runs if not run.finished]
    said = [f"Not finished: {', '.join(unfinished)}. The numbers are those of the rounds so far."] if unfinished else []
    untested = [run.name for run in runs.runs if run.federation and not run.federation.test]
    if untested:
        said.append(f"Not tested: {', '.join(untested)}. No rows were kept for it, so accuracies are unknown.")
    for run in runs.runs:
        if missing := run.missing_rounds:
            listed = ", ".join(map(str, missing[:SHOWN_ROWS])) + (" and others" if len(missing) > SHOWN_ROWS else "")
            said.append(f"{run.name}: there is no row of rounds {listed}. Sums and means lack them.")
        spread, rank = (list(run.by_round(f"feature_{kind}").values()) for kind in ("spread", "rank"))
        if spread and rank and has_collapsed(spread[-1], rank[-1]):
            said.append(f"{run.name}: the features collapsed. They are as good as the same for all samples.")
    return said


def _run_headlines(run: RunFolder) -> list[tuple[str, str]]:
    contacts = sum(row.reports + row.refused + row.dropped for row in run.rounds)
    traffic = sum(row.bytes_up + row.bytes_down for row in run.rounds)
    numbers = run.numbers
    own = [report.weight for row in run.rounds for report in row.server if report.weight is not None]
    accuracies = [
        ("accuracy at the end, of the saved model", per_cent(numbers.get("test_accuracy"))),
        (mean_heading([run]), per_cent(numbers.get("test_accuracy_last10"))),
        ("best of test", per_cent(numbers.get("test_accuracy_best"))),
        ("worst client", per_cent(numbers.get("worst_client"))),
    ]
    return [
        *(accuracies if run.rounds else ()),  # an audit trains nothing
        (_rounds_heading(run), f"{len(run.rounds):,}"),
        ("time", duration(numbers["seconds"])),
        ("MB a client and round", f"{traffic / contacts / 1e6:.2f}" if contacts else UNKNOWN),
        *([("mean weight of the server", per_cent(float(np.mean(own))))] if own else []),
        ("labels flagged", count(None if run.labels is None else sum(label.flagged for label in run.labels))),
    ]


def _rounds_heading(run: RunFolder) -> str:
    """Says why there are more or fewer than the setting, where a method has its own."""
    asked = run.config.get("rounds")
    own = run.finished and asked is not None and asked != len(run.rounds) and not run.missing_rounds
    return f"rounds (rounds={asked}; stages: {_by_stage(run)})" if own else "rounds"


def _by_stage(run: RunFolder) -> str:
    return ", ".join(f"{name} {length}" for name, length in Counter(row.stage for row in run.rounds).items())


def _accuracy(runs: Runs) -> Section | None:
    series = series_of(runs, "test_accuracy")
    if not series:
        return None
    ends = "; ".join(f"{one.label} ends at {per_cent(list(one.mean().values())[-1])}" for one in series if one.mean())
    plot = curves("accuracy", f"Test accuracy over rounds: {ends}.", "test accuracy (%)", series, _stages(runs))
    seeds = " Thin lines are single seeds, strong lines their mean." if any(len(one.runs) > 1 for one in series) else ""
    means = {one.label: one.mean() for one in series}
    rounds = sorted({number for mean in means.values() for number in mean})
    rows = tuple((str(r), *(per_cent(mean.get(r)) for mean in means.values())) for r in rounds)
    text = f"Accuracy on the test set after each evaluated round.{seeds}"
    return Section(
        "Accuracy", text, plots=(plot,), folded=Table(("round", *means), rows), fold="The numbers of the curves"
    )


def _stages(runs: Runs) -> dict[int, str]:
    """The first round of each stage, where one run is shown and it has several."""
    rows = runs.first.rounds
    begins = {row.round: row.stage for before, row in pairwise(rows) if row.stage != before.stage}
    return {rows[0].round: rows[0].stage, **begins} if begins and not runs.several else {}


def _data(runs: Runs) -> Section | None:
    federation = runs.first.federation
    if federation is None or not federation.clients:
        return None
    rows = [client.rows for client in federation.clients]
    held = ", ".join(held_at_server(federation))
    facts = (
        f"{sum(rows):,} rows on {len(rows):,} clients ({min(rows):,} to {max(rows):,} each)",
        f"{federation.n_classes} classes",
        f"{federation.test:,} test rows" + (f", {federation.validation:,} validation" * bool(federation.validation)),
        f"the server holds {held or 'no data'}",
        *([f"partition {federation.partition}"] if federation.partition else []),
        *([f"noise {runs.first.fact('noise') or federation.noise}"] if federation.noise else []),
        *missing_labels(federation),
    )
    text = "; ".join(facts) + "."
    if len({run.federation.hash for run in runs.runs if run.federation}) > 1:
        text += f" The runs do not share one federation: here and below it is that of the first, {runs.first.name}."
    shown = (classes_plot(federation),) if any(any(client.classes) for client in federation.clients) else ()
    return Section("Clients and classes", text, notes=federation.notes, plots=shown)


def _noise(runs: Runs) -> Section | None:
    federation = runs.first.federation
    if federation is None:
        return None
    known = known_noise(federation)
    drawn = (noise_plot(federation), transitions_plot(federation, (3.8, 3.4) if known else (5.6, 4.6)))
    shown = tuple(plot for plot in drawn if plot is not None)
    wrong = "" if not known else f" On average {per_cent(float(np.mean(known)))} of a client's labels are wrong."
    text = f"From the true labels, which neither clients nor server saw.{wrong}"
    return Section("Label noise", text, plots=shown) if shown else None


def _clients(runs: Runs) -> Section | None:
    if runs.several:
        pooled = {
            label: [a for run in group for a in run.client_accuracy.values()] for label, group in runs.groups.items()
        }
        known = {label: values for label, values in pooled.items() if values}
        if not known:
            return None
        alt = "Accuracy of the clients: " + "; ".join(
            f"{k} {per_cent(min(v))} to {per_cent(max(v))}" for k, v in known.items()
        )
        plot = boxes("clients", alt, "test accuracy of a client (%)", pooled)
        text = "Box: quartiles and median; whiskers: worst and best client."
        return Section("Spread over clients", text, plots=(plot,))
    run, shown = runs.first, []
    if run.client_accuracy:
        values = list(run.client_accuracy.values())
        alt = f"Accuracy of {len(values)} clients, from {per_cent(min(values))} to {per_cent(max(values))}."
        named = [(run.client_name(client), value) for client, value in run.client_accuracy.items()]
        shown.append(sorted_clients("clients", alt, named))
    mean, std, worst = (run.by_round(f"client_accuracy_{kind}") for kind in ("mean", "std", "min"))
    rounds = [r for r in mean if r in std and r in worst]
    if len(rounds) > 1:
        last = rounds[-1]
        alt = f"Accuracy over clients: the mean ends at {per_cent(mean[last])}, the worst at {per_cent(worst[last])}."
        columns = ([values[r] for r in rounds] for values in (mean, std, worst))
        shown.append(client_band("band", alt, rounds, *columns))
    return Section("Spread over clients", plots=tuple(shown)) if shown else None


def _trust(runs: Runs) -> Section | None:
    shown = trust_plots(runs.first)
    if agreement := series_of(runs, "client_noise_rank"):
        alt = "Rank correlation of the clients' scores with their share of right labels, over rounds."
        shown.append(curves("rank", alt, "rank correlation of scores with right labels (%)", agreement, {}))
    auc = runs.first.numbers.get("client_noise_auc")
    text = "What the method made of each client, against the share of its labels that are wrong."
    text += "" if auc is None else f" Area under the ROC curve for finding noisy clients: {auc:.3f}."
    text += _of_first(runs)
    return Section("Trust in clients", text, plots=tuple(shown)) if shown else None


def _exhibits(runs: Runs) -> Section | None:
    showing = [run for group in runs.groups.values() for run in group[:1] if run.exhibits]
    shown = [plot for place, run in enumerate(showing) for plot in exhibit_plots(run, place)]
    text = "From what the method knew after the last round."
    text += f" In this order: {', '.join(run.name for run in showing)}." if runs.several else ""
    return Section("What the method found out", text, plots=tuple(shown)) if shown else None


def _time(runs: Runs) -> Section | None:
    stages = list(dict.fromkeys(key for run in runs.runs for row in run.rounds for key in row.seconds_by))
    if not stages:
        return None
    if not runs.several:
        rows = runs.first.rounds
        parts = {key: [row.seconds_by.get(key, 0.0) for row in rows] for key in stages}
        alt = "Seconds a round: " + ", ".join(f"{key} {np.mean(values):.2f}" for key, values in parts.items()) + "."
        return Section("Time", plots=(time_by_round("time", alt, [row.round for row in rows], parts),))
    totals = {
        key: [
            float(np.mean([sum(row.seconds_by.get(key, 0.0) for row in run.rounds) for run in group]))
            for group in runs.groups.values()
        ]
        for key in stages
    }
    alt = "Seconds a run by what they were spent on, for " + ", ".join(runs.groups) + "."
    return Section("Time", "Mean over seeds.", plots=(time_by_group("time", alt, list(runs.groups), totals),))


def _missing(runs: Runs) -> Section | None:
    lost = [row for row in runs.first.client_reports if row.status in ("refused", "dropped")]
    if not lost:
        return None
    counts = Counter(row.status for row in lost)
    text = (
        ", ".join(f"{count(n)} {status}" for status, n in counts.items())
        + _more(len(lost), File.CLIENTS)
        + _of_first(runs)
    )
    rows = tuple(
        (str(row.round), runs.first.client_name(row.client), row.status, row.reason or UNKNOWN)
        for row in lost[:SHOWN_ROWS]
    )
    return Section("Reports that did not count", text, table=Table(("round", "client", "status", "reason"), rows))


def _more(total: int, file: str) -> str:
    return f". The first {SHOWN_ROWS} of {count(total)} are shown; all are in {file}." if total > SHOWN_ROWS else "."


def _of_first(runs: Runs) -> str:
    return f" This is the first run, {runs.first.name}." if runs.several else ""


def _settings(runs: Runs) -> Section:
    """Those that somebody chose, or in which runs differ; the others, which are as by default, folded."""
    keys = dict.fromkeys(key for run in runs.runs for key in run.config)
    told = [run.federation.chosen for run in runs.runs if run.federation and run.federation.chosen is not None]
    chosen = {key for listed in told for key in listed} | {key for key in keys if len(runs.values(key)) > 1}
    if len(told) < len(runs.runs):  # of older runs nobody knows
        chosen = set(keys)

    def table(wanted: bool) -> Table | None:
        rows = [
            (key, " | ".join(runs.values(key)) + _not_applied(runs, key)) for key in keys if (key in chosen) == wanted
        ]
        return Table(("key", "value"), tuple(rows)) if rows else None

    text = "Settings that are not as by default" if told else "All settings"
    text += "; the runs differ where a key has several values." if runs.several else "."
    return Section("Settings", text, table=table(True), folded=table(False), fold="All other settings")


def _not_applied(runs: Runs, key: str) -> str:
    """What stands in the settings, but was not asked for: the data name the clients."""
    found = {run.fact(key) for run in runs.runs}
    if key != "clients" or found == {*runs.values(key)}:
        return ""
    return f" (does not apply: the data name {' | '.join(sorted(map(str, found)))})"


def _redo(runs: Runs) -> Section:
    if command := compare_command(runs):
        return Section("How to redo it", "With a new place for the results:", command=command)
    where = "Each folder" if runs.several else "The folder"
    text = f"{where} of the run holds its config.yaml. From there, with a new place for the results:"
    return Section("How to redo it", text, command="fedsieve run config.yaml out=NEW_FOLDER")


def _footer(runs: Runs) -> list[tuple[str, str]]:
    run = runs.first
    summary, federation = run.summary, run.federation
    facts = {
        "run": ", ".join(one.name for one in runs.runs),
        "hardware": summary and summary.hardware,
        "versions": summary and ", ".join(f"{name} {version}" for name, version in summary.versions.items()),
        "federation": federation and federation.hash,
        "model": None if runs.several else summary and summary.model_sha256,
    }
    return [(key, value) for key, value in facts.items() if value]


SECTIONS: tuple[Callable[[Runs], Section | None], ...] = (
    _accuracy,
    features_section,
    comparison_section,
    pivot_section,
    pairs_section,
    _data,
    _noise,
    classes_section,
    _clients,
    selection_section,
    guesses_section,
    _trust,
    _exhibits,
    curves_section,
    map_section,
    neighbours_section,
    disclosure_section,
    _time,
    _missing,
    relabelling_section,
    suspects_section,
    _settings,
    _redo,
)
