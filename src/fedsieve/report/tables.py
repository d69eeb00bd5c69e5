"""Tables of text that print as Markdown, CSV and LaTeX, and the table that compares runs."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedsieve.base.sheets import write_rows
from fedsieve.evaluate.schema import DERIVED, LAST, METRICS, Metric
from fedsieve.methods import METHODS as KNOWN_METHODS

UNKNOWN = "–"
Row = Mapping[str, Any]
"""The settings and results of a run."""

_NUMBER = re.compile(r"[-+]?[\d,]*\.?\d+(e[-+]?\d+)?( ± [\d,]*\.?\d+(e[-+]?\d+)?)?( \(n=\d+\))?", re.IGNORECASE)
_MARKDOWN = str.maketrans(
    {"\\": r"\\", "|": r"\|", "*": r"\*", "`": r"\`", "<": "&lt;", ">": "&gt;", "\n": " ", "\r": " "}
)
_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "±": r"$\pm$",
        "–": "--",
        "\n": " ",
        "\r": " ",
    }
)


@dataclass(frozen=True)
class Table:
    """A table of text. The cells of `best`, as (row, column), are set in bold where the format can."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    best: frozenset[tuple[int, int]] = frozenset()

    def numeric(self, column: int) -> bool:
        """Whether a column holds numbers, which are aligned to the right."""
        cells = [row[column] for row in self.rows if row[column] not in ("", UNKNOWN)]
        return bool(cells) and all(_NUMBER.fullmatch(cell) for cell in cells)

    def to_markdown(self) -> str:
        rule = ["---:" if self.numeric(column) else ":---" for column in range(len(self.header))]
        lines = [[cell.translate(_MARKDOWN) for cell in self.header], rule, *self._marked(_MARKDOWN, "**{}**")]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def to_csv(self) -> str:
        text = io.StringIO()
        rows = [
            [cell.replace("\r", " ") for cell in row] for row in (self.header, *self.rows)
        ]  # left bare by the writer
        write_rows(text, rows)
        return text.getvalue()

    def to_latex(self, caption: str | None = None, label: str | None = None) -> str:
        """A booktabs `tabular`, inside a `table` with its label when there is a caption."""
        columns = "".join("r" if self.numeric(column) else "l" for column in range(len(self.header)))
        head = " & ".join(cell.translate(_LATEX) for cell in self.header)
        body = [" & ".join(row) + r" \\" for row in self._marked(_LATEX, r"\textbf{{{}}}")]
        lines = [
            f"\\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            head + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
        ]
        if caption is not None:
            before = [r"\begin{table}", r"\centering", f"\\caption{{{caption.translate(_LATEX)}}}"]
            before += [f"\\label{{{label}}}"] if label else []
            lines = [*before, *lines, r"\end{table}"]
        return "\n".join(lines) + "\n"

    def _marked(self, escapes: dict[int, str], bold: str) -> list[list[str]]:
        return [
            [
                bold.format(cell.translate(escapes)) if (i, j) in self.best else cell.translate(escapes)
                for j, cell in enumerate(row)
            ]
            for i, row in enumerate(self.rows)
        ]


MEAN = "test_accuracy_last10"
"""What methods are compared by."""
BOUNDS = frozenset({"oracle"})
"""Methods that no other can beat, for they know the truth."""
SHOWN = {metric.name: metric for metric in (*DERIVED, *METRICS) if metric.heading}
COMPARED = tuple(name for name, metric in SHOWN.items() if metric.compared)


def compare_table(
    rows: Sequence[Row],
    vary: Sequence[str],
    metrics: Sequence[str] = COMPARED,
) -> Table:
    """Mean ± sample standard deviation over runs that differ in their seed alone.

    The best mean of a column is bold among the runs that share all settings but the method and its options; bounds such
    as the oracle stand last and are never best. Else groups stand in the order in which their settings first appear. A
    metric that no run knows gets no column; a mean over fewer runs than the group has says so.
    """
    settings = [key for key in vary if key != "seed"]
    groups = _groups(rows, settings)
    shown = [name for name in metrics if any(_known(row.get(name)) for row in rows)]
    formats = [_format(name, rows) for name in shown]

    header = (*settings, "n", *(form.heading for form in formats))
    columns = [
        [_summary(runs, name, form) for runs in groups.values()] for name, form in zip(shown, formats, strict=True)
    ]
    body = tuple(
        (*_marked_bound(settings, group), str(len(runs)), *(column[i][1] for column in columns))
        for i, (group, runs) in enumerate(groups.items())
    )
    around = [_around(settings, group) for group in groups]
    bounds = [_bound(settings, group) for group in groups]
    best = frozenset(
        (i, len(settings) + 1 + j)
        for j, (column, form) in enumerate(zip(columns, formats, strict=True))
        for setting in dict.fromkeys(around)
        for i in _best(
            [mean if around[i] == setting and not bounds[i] else np.nan for i, (mean, _) in enumerate(column)],
            form,
        )
    )
    return Table(header, body, best)


def is_bound(method: str) -> bool:
    """Whether a method is served with the truth, and so no rival of the others."""
    return bool(BOUNDS & set(method.split("+")))


def _marked_bound(settings: Sequence[str], group: Sequence[str]) -> list[str]:
    return [
        f"{cell} (bound)" if key == "method" and is_bound(cell) else cell
        for key, cell in zip(settings, group, strict=True)
    ]


def _groups(rows: Sequence[Row], settings: Sequence[str]) -> dict[tuple[str, ...], list[Mapping[str, Any]]]:
    """Runs that differ in their seed alone; bounds last."""
    keys = [tuple(setting_text(row.get(key)) for key in settings) for row in rows]
    first_seen = [list(dict.fromkeys(column)) for column in zip(*keys, strict=True)]

    def place(group: tuple[str, ...]) -> list[int]:
        return [
            int(_bound(settings, group)),
            *(seen.index(value) for seen, value in zip(first_seen, group, strict=True)),
        ]

    ordered = sorted(dict.fromkeys(keys), key=place)
    return {group: [row for row, key in zip(rows, keys, strict=True) if key == group] for group in ordered}


def _format(name: str, rows: Sequence[Row]) -> Metric:
    """How a metric is shown; a mean of the last tests says of how many."""
    form = SHOWN.get(name, Metric(name, "", heading=name, decimals=4))
    counted = {int(row["tests_in_mean"]) for row in rows if _known(row.get("tests_in_mean"))}
    if name == MEAN and counted:
        form = replace(
            form, heading=form.heading.replace(str(LAST), "–".join(map(str, sorted({min(counted), max(counted)}))))
        )
    return form


def _is_of_method(key: str) -> bool:
    """Whether a key is the method or an option of one: these make rivals, all others make settings."""
    return key == "method" or key.partition(".")[0] in KNOWN_METHODS


def _around(settings: Sequence[str], group: Sequence[str]) -> tuple[str, ...]:
    return tuple(value for key, value in zip(settings, group, strict=True) if not _is_of_method(key))


def _named_method(settings: Sequence[str], group: Sequence[str]) -> str:
    """A method with those of its options that vary."""
    told = [(key, value) for key, value in zip(settings, group, strict=True) if _is_of_method(key) and value != UNKNOWN]
    return ", ".join(value if key == "method" else f"{key}={value}" for key, value in told) or UNKNOWN


def _named_setting(settings: Sequence[str], around: Sequence[str]) -> str:
    others = [key for key in settings if not _is_of_method(key)]
    return ", ".join(f"{key}={value}" for key, value in zip(others, around, strict=True) if value != UNKNOWN) or "all"


def pivot_table(rows: Sequence[Row], vary: Sequence[str], metric: str = MEAN) -> Table | None:
    """Methods by settings, one number each; None where there is only one setting, or nobody knows the number."""
    settings = [key for key in vary if key != "seed"]
    groups = _groups(rows, settings)
    columns = list(dict.fromkeys(_around(settings, group) for group in groups))
    if len(columns) < 2 or not any(_known(row.get(metric)) for row in rows):
        return None
    form = _format(metric, rows)
    found: dict[str, dict[tuple[str, ...], tuple[float, str]]] = {}
    for group, runs in groups.items():
        method = _named_method(settings, group) + (" (bound)" if _bound(settings, group) else "")
        found.setdefault(method, {})[_around(settings, group)] = _summary(runs, metric, form)
    nothing = (np.nan, UNKNOWN)
    body = tuple((method, *(cells.get(column, nothing)[1] for column in columns)) for method, cells in found.items())
    best = frozenset(
        (i, j + 1)
        for j, column in enumerate(columns)
        for i in _best([np.nan if m.endswith("(bound)") else c.get(column, nothing)[0] for m, c in found.items()], form)
    )
    return Table((form.heading, *(_named_setting(settings, column) for column in columns)), body, best)


def _bound(settings: Sequence[str], group: Sequence[str]) -> bool:
    return is_bound(dict(zip(settings, group, strict=True)).get("method", ""))


def paired_table(rows: Sequence[Row], vary: Sequence[str], metric: str = MEAN) -> Table | None:
    """How far each method is from the first one, seed by seed within one setting; None where no two seeds are shared.

    The interval is Student's, of 95 %: d ± t(n - 1) s / √n over the n seeds that both know.
    """
    settings = [key for key in vary if key != "seed"]
    form, groups = _format(metric, rows), _groups(rows, settings)
    body = []
    for around in dict.fromkeys(_around(settings, group) for group in groups):
        rivals = {group: runs for group, runs in groups.items() if _around(settings, group) == around}
        (first, theirs), *others = rivals.items()
        for group, runs in others:
            if (found := paired(_by_seed(runs, metric), _by_seed(theirs, metric))) is None:
                continue
            n, mean, half = found
            shown = [f"{form.scale * value:+.{form.decimals}f}" for value in (mean, mean - half, mean + half)]
            names = [_named_method(settings, one) for one in (group, first)]
            body.append((_named_setting(settings, around), *names, str(n), shown[0], f"{shown[1]} to {shown[2]}"))
    header = ("setting", "method", "against", "n", f"Difference in {form.heading}", "95 % interval")
    return Table(header, tuple(body)) if body else None


def paired(one: Mapping[int, float], other: Mapping[int, float]) -> tuple[int, float, float] | None:
    """Number of seeds that both know, mean difference and half the width of its 95 % interval; None below two seeds."""
    from scipy.special import stdtrit

    shared = sorted(one.keys() & other.keys())
    if len(shared) < 2:
        return None
    apart = np.array([one[seed] - other[seed] for seed in shared])
    half = stdtrit(len(apart) - 1, 0.975) * apart.std(ddof=1) / np.sqrt(len(apart))
    return len(apart), float(apart.mean()), float(half)


def _by_seed(runs: Sequence[Row], metric: str) -> dict[int, float]:
    return {
        int(row["seed"]): float(row[metric]) for row in runs if _known(row.get(metric)) and row.get("seed") is not None
    }


def setting_text(value: Any) -> str:
    """A value of a configuration as a person would write it on the command line."""
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(setting_text(item) for item in value)
    return str(value)


def per_cent(share: float | None) -> str:
    """A share for reading, such as 81.25 %."""
    return UNKNOWN if share is None else f"{100 * share:.2f} %"


def count(number: int | None) -> str:
    """A number of things for reading, such as 12,076."""
    return UNKNOWN if number is None else f"{number:,}"


def duration(seconds: float | None) -> str:
    """A time for reading, no finer than matters."""
    if seconds is None:
        return UNKNOWN
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s"
    if whole < 600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 3600:
        return f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _known(value: Any) -> bool:
    return value is not None and bool(np.isfinite(value))


def _summary(runs: Sequence[Row], name: str, form: Metric) -> tuple[float, str]:
    """The mean, for ranking, and the text of one cell."""
    values = np.array([row[name] for row in runs if _known(row.get(name))], dtype=float) * form.scale
    if len(values) == 0:
        return np.nan, UNKNOWN
    mean = float(values.mean())
    text = f"{mean:.{form.decimals}f}"
    if len(values) > 1:
        text += f" ± {values.std(ddof=1):.{form.decimals}f}"
    if len(values) < len(runs):
        text += f" (n={len(values)})"
    return mean, text


def _best(means: Sequence[float], form: Metric) -> list[int]:
    """The groups with the best mean as printed, so that equal numbers are marked alike; none where all are equal."""
    printed = np.array([float(f"{mean:.{form.decimals}f}") for mean in means])
    if len(set(printed[np.isfinite(printed)])) < 2:
        return []
    best = np.nanmax(printed) if form.higher_is_better else np.nanmin(printed)
    return [int(i) for i in np.flatnonzero(printed == best)]
