"""What a page says of several runs compared."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence

import numpy as np

from fedsieve.base.yaml_file import UNREADABLE, load_yaml
from fedsieve.evaluate.schema import ASKED, LAST, last_tests
from fedsieve.report.folder import RunFolder, Runs
from fedsieve.report.section import Section
from fedsieve.report.tables import (
    UNKNOWN,
    Table,
    compare_table,
    duration,
    is_bound,
    paired_table,
    per_cent,
    pivot_table,
    setting_text,
)


def mean_heading(runs: Sequence[RunFolder]) -> str:
    """Of how many tests the mean is."""
    counted = sorted({int(run.numbers.get("tests_in_mean", LAST)) for run in runs})
    return f"accuracy, {last_tests(*counted)}".replace("the mean", "mean")


def comparison_headlines(runs: Runs) -> list[tuple[str, str]]:
    return [
        *(_best_by_setting(runs) or _best_of_all(runs)),
        ("methods", str(len(runs.values("method")))),
        ("runs", str(len(runs.runs))),
        ("time of all runs", duration(sum(run.numbers["seconds"] or 0 for run in runs.runs) or None)),
    ]


def _best_by_setting(runs: Runs) -> list[tuple[str, str]]:
    """Who is best in most settings, where there are several: across them accuracies tell how hard a setting is."""
    table = _pivot(runs)
    if table is None:
        return []
    wins = Counter(table.rows[i][0] for i, _ in sorted(table.best))
    settings = len(table.header) - 1
    return [
        (
            "best in most settings",
            ", ".join(f"{name} ({n} of {settings})" for name, n in wins.most_common(1)) or UNKNOWN,
        )
    ]


def _best_of_all(runs: Runs) -> list[tuple[str, str]]:
    known = {
        label: [run.numbers["test_accuracy_last10"] for run in group if "test_accuracy_last10" in run.numbers]
        for label, group in runs.groups.items()
    }
    means = {label: float(np.mean(values)) for label, values in known.items() if values}
    bounds = {label: mean for label, mean in means.items() if is_bound(runs.groups[label][0].method)}
    best = max(means.keys() - bounds.keys(), key=lambda label: (means[label], label), default=None)
    return [
        ("best on average", best or UNKNOWN),
        (f"its {mean_heading(runs.groups[best] if best else runs.runs)}", per_cent(means[best] if best else None)),
        *((f"bound ({label})", per_cent(mean)) for label, mean in list(bounds.items())[:1]),
    ]


def comparison_section(runs: Runs) -> Section | None:
    if not runs.several:
        return None
    text = (
        "Mean ± sample standard deviation over n runs that differ in their seed; the best mean of a column is bold "
        "within one setting. A bound knows the truth and is no rival. "
        "“Best of test” chooses the round by the test set, so it is optimistic."
    )
    return Section("Comparison", text, table=compare_table([run.numbers for run in runs.runs], runs.vary))


def pivot_section(runs: Runs) -> Section | None:
    table = _pivot(runs)
    return (
        Section("Methods by settings", "The same numbers, the best of each setting bold.", table=table)
        if table
        else None
    )


def _pivot(runs: Runs) -> Table | None:
    return pivot_table([run.numbers for run in runs.runs], runs.vary) if runs.several else None


def pairs_section(runs: Runs) -> Section | None:
    table = paired_table([run.numbers for run in runs.runs], runs.vary) if runs.several else None
    text = "Seed by seed within one setting, with Student's 95 % interval: one that holds 0 tells of no difference."
    return Section("Paired differences", text, table=table) if table else None


def compare_command(runs: Runs) -> str:
    """The command line that asks for the same comparison; empty where it is not known what was asked for."""
    parents = {run.folder.resolve().parent for run in runs.runs}
    try:
        asked = load_yaml(parents.pop() / ASKED) if runs.several and len(parents) == 1 else None
    except (OSError, *UNREADABLE):
        return ""
    if not isinstance(asked, dict):
        return ""
    told = [f"{key}={setting_text(value)}" for key, value in asked.items() if key not in ("out", "overwrite")]
    return " ".join(["fedsieve compare", *map(shlex.quote, told), "out=NEW_FOLDER"])
