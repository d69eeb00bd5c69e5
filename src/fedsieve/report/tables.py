"""Tables of text that print as Markdown, CSV and LaTeX, and the table that compares runs."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsieve.base.sheets import write_rows
from fedsieve.evaluate.schema import DERIVED, METRICS, Metric

UNKNOWN = "–"

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

    def to_latex(self, caption: str | None = None) -> str:
        """A booktabs `tabular`, inside a `table` when there is a caption."""
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


SHOWN = {metric.name: metric for metric in (*DERIVED, *METRICS) if metric.heading}
COMPARED = tuple(name for name, metric in SHOWN.items() if metric.compared)


def compare_table(
    rows: Sequence[Mapping[str, Any]],
    vary: Sequence[str],
    metrics: Sequence[str] = COMPARED,
) -> Table:
    """Mean ± sample standard deviation over runs that differ in their seed alone; the best mean of a column is bold.

    Groups stand in the order in which their settings first appear. A metric that no run knows gets no column; a mean
    over fewer runs than the group has says so.
    """
    settings = [key for key in vary if key != "seed"]
    keys = [tuple(setting_text(row.get(key)) for key in settings) for row in rows]
    first_seen = [list(dict.fromkeys(column)) for column in zip(*keys, strict=True)]
    groups = sorted(
        dict.fromkeys(keys), key=lambda key: [seen.index(value) for seen, value in zip(first_seen, key, strict=True)]
    )
    members = [[row for row, key in zip(rows, keys, strict=True) if key == group] for group in groups]
    shown = [name for name in metrics if any(_known(row.get(name)) for row in rows)]
    formats = [SHOWN.get(name, Metric(name, "", heading=name, decimals=4)) for name in shown]

    header = (*settings, "n", *(form.heading for form in formats))
    columns = [[_summary(runs, name, form) for runs in members] for name, form in zip(shown, formats, strict=True)]
    body = tuple(
        (*group, str(len(runs)), *(column[i][1] for column in columns))
        for i, (group, runs) in enumerate(zip(groups, members, strict=True))
    )
    best = frozenset(
        (i, len(settings) + 1 + j)
        for j, (column, form) in enumerate(zip(columns, formats, strict=True))
        for i in _best([mean for mean, _ in column], form)
    )
    return Table(header, body, best)


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


def _summary(runs: Sequence[Mapping[str, Any]], name: str, form: Metric) -> tuple[float, str]:
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
