"""The Python side of what the command line does. Results are dicts whose entries are attributes too."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar, Unpack

import numpy as np

from fedsieve import start
from fedsieve.base.errors import ConfigError, DataError, nearest
from fedsieve.base.options import options_of
from fedsieve.base.own_code import AllowCode
from fedsieve.base.seal import unseal
from fedsieve.data.truth import GroundTruth
from fedsieve.estimate.audit import audit as audit
from fedsieve.evaluate.schema import File
from fedsieve.report.progress import chosen_progress
from fedsieve.runs import comparison
from fedsieve.runs.folder import read_config
from fedsieve.settings.config import Settings, resolve
from fedsieve.settings.keys import FreeKeys, Keys, SeveralKeys

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

    from fedsieve.data.federation import Federation

P = ParamSpec("P")
R = TypeVar("R")
Samples: TypeAlias = np.ndarray | str | Path | Sequence[str | Path]
SHOWN = 3
"""Predictions that are shown."""


class Result(dict[str, Any]):
    """A dict whose entries are attributes too; `to_frame()` gives its rows as a pandas DataFrame."""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(f"no '{name}' here. {nearest(name, self)}")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self})

    def to_frame(self) -> pd.DataFrame:
        """Its rows, where pandas is installed."""
        return _frame(self["rows"], "to_frame()")


def _frame(rows: list[dict[str, Any]], what: str, columns: list[str] | None = None) -> pd.DataFrame:
    try:
        import pandas as pd
    except ImportError:
        raise ConfigError("FS008", f"{what} needs pandas. Install it with `pip install pandas`") from None
    return pd.DataFrame(rows, columns=columns)


class Run(Result):
    """A run: what `summary.json` has, with `config` (its settings), `rows` (one a round) and `folder`."""

    def __repr__(self) -> str:
        method, folder = self["config"]["method"], self["folder"]
        if not self.get("finished"):
            return f"<run {folder}: {method}, not finished, {len(self['rows'])} rounds so far>"
        accuracy = self.get("test_accuracy")
        tested = (
            "" if accuracy is None else f", test accuracy {accuracy:.4f} at the end, best {self.test_accuracy_best:.4f}"
        )
        return f"<run {folder}: {method}, {self.rounds} rounds{tested}>"

    def model(self, group: int = 0, model: str | None = None) -> nn.Module:
        """The trained net, in evaluation mode: from standardised samples to logits.

        `group` is which one, where there are several. `model` names the class as package.module:Class, where that is
        one's own: what a file says is not believed.
        """
        from fedsieve.runs.prediction import read_saved, saved_model

        return saved_model(read_saved(Path(self["folder"])), group, model)

    def labels(self, *, owner: str | None = None, flagged: bool = False, cleanlab: bool = False) -> pd.DataFrame:
        """Its judged labels: a row each as in labels.csv, or with cleanlab's names of the columns."""
        from fedsieve.runs.labels import columns, labels_of

        found = labels_of(Path(self["folder"]), owner=owner, flagged=flagged, cleanlab=cleanlab)
        return _frame(found, "labels()", [*columns(cleanlab).values()])

    def predict(
        self, samples: Samples, *, group: int = 0, model: str | None = None, encoder: str | None = None
    ) -> Predictions:
        """As `fedsieve.predict`, by this run."""
        return predict(self["folder"], samples, group=group, model=model, encoder=encoder)


class Comparison(Result):
    """A comparison: `rows` (one a run), `table` (Markdown) and `folder`."""

    def __repr__(self) -> str:
        return f"<comparison {self['folder']}: {len(self['rows'])} runs>\n{self['table']}"


class Predictions(Result):
    """Of each sample `label`, `name`, `probability` and all `probabilities`; `where` it came from, if from a file."""

    def __repr__(self) -> str:
        shown = [
            f"{name} ({share:.2f})" for name, share in zip(self["name"][:SHOWN], self["probability"], strict=False)
        ]
        more = ", ..." if len(self["name"]) > SHOWN else ""
        return f"<{len(self['name'])} predictions: {', '.join(shown)}{more}>"


def _with_keys(function: Callable[P, R]) -> Callable[P, R]:
    """The function with the top keys of a run in its signature and its help, as the settings declare them."""
    own = inspect.signature(function)
    named = [one for one in own.parameters.values() if one.kind is not one.VAR_KEYWORD]
    rest = [one for one in own.parameters.values() if one.kind is one.VAR_KEYWORD]
    keys = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=option.type)
        for name, option in options_of(Settings).items()
    ]
    signature = own.replace(parameters=[*named, *keys, *rest])
    told = "\n".join(f"    {name}: {' '.join(option.doc.split())}" for name, option in options_of(Settings).items())
    function.__signature__ = signature  # type: ignore[attr-defined]  # what `inspect` looks for
    function.__doc__ = (
        f"{function.__doc__}\n\n    Keys, as on the command line; `fedsieve keys` lists their options:\n\n{told}\n"
    )
    return function


@_with_keys
def run(*, quiet: bool = False, **settings: Unpack[Keys]) -> Run:
    """One run. Keys are those of the command line, such as `data`, `method`, `noise`, `rounds`, `seed` and `out`.

    Options as `**{"fedprox.mu": 0.1}` or `fedprox={"mu": 0.1}`.
    """
    folder, _ = start.run(settings, chosen_progress(quiet), allow_code=True)
    return load(folder)


@_with_keys
def pretrain(*, quiet: bool = False, **settings: Unpack[Keys]) -> Run:
    """Learn an encoder without labels; keys are those of `run`, defaults those of `fedsieve pretrain`."""
    folder, _ = start.pretrain(settings, chosen_progress(quiet), allow_code=True)
    return load(folder)


def resume(folder: str | Path, *, quiet: bool = False, allow_code: bool = False, **changes: Unpack[FreeKeys]) -> Run:
    """Go on with a run that was cut off. `allow_code`: the folder may name a method or a model of one's own.

    Keys that alter no result may change: `workers`, `runtime`, `device`, `checkpoint_every`, `track`, `watch`.
    """
    start.resume(Path(folder), chosen_progress(quiet), changes, allow_code=allow_code)
    return load(folder)


@_with_keys
def compare(*, jobs: int | None = None, quiet: bool = False, **settings: Unpack[SeveralKeys]) -> Comparison:
    """Run every combination of the values given as lists; `jobs` runs at a time. Finished runs are not run again.

    Keys are those of `run`, each with one value or several: `method=["fedavg", "gce"], seed=range(3)`.
    Where runs cannot be or failed, the tables and the report of the others are written before FS215 is raised.
    """
    outcome = comparison.compare(settings, jobs=jobs, quiet=quiet, allow_code=True)
    tables = comparison.write_tables(outcome.folder, outcome.rows, varied_keys(settings, allow_code=True))
    outcome.complain()
    return Comparison(folder=str(outcome.folder), rows=outcome.rows, table=tables.text)


def leaderboard(*folders: str | Path, out: str | Path | None = None, markdown: str | Path | None = None) -> Result:
    """Methods over the comparisons in each folder, which is a board: `table`, and the files `markdown` and `page`.

    They are written into `out`, or the first folder, the Markdown into a file of its own if one is named. In a file
    that is there, the tables alone change.
    """
    from fedsieve.report.leaderboard import accuracy_table, write_leaderboard
    from fedsieve.runs.leaderboard import methods_of, read_board
    from fedsieve.testing.profile import needed

    if not folders:
        raise ConfigError("FS002", "no folder to read. Give at least one that holds comparisons")
    boards = [read_board(Path(folder)) for folder in folders]
    needs = {method: needed(method) for method in methods_of(boards)}
    where = None if markdown is None else Path(markdown)
    written, page = write_leaderboard(boards, needs, Path(folders[0] if out is None else out), where)
    table = "\n".join(accuracy_table(board).to_markdown() for board in boards)
    return Result(table=table, markdown=str(written), page=str(page))


@_with_keys
def federation(**settings: Unpack[Keys]) -> tuple[Federation, GroundTruth]:
    """The data as a run with these settings would split and spoil them, and the truth, for evaluation only.

    Keys are those of `run`; it is `data`, `clients`, `partition`, `noise`, `validation` and `seed` that matter.
    """
    from fedsieve.settings.splitting import federation_of

    return federation_of(resolve(settings))


@_with_keys
def recommend(*, quiet: bool = False, **settings: Unpack[Keys]) -> Result:
    """Which `method` to take for these data and `why`, with what is known of them: `rows`, `wrong`, `shares`...

    Keys are those of `run`; of these the ones of the data count. Labels are audited for it, which takes seconds.
    """
    facts, chosen = start.recommend(settings, chosen_progress(quiet), allow_code=True)
    return Result(asdict(facts) | asdict(chosen))


def load(folder: str | Path) -> Run:
    """A run by its folder: summary, settings, and `rows`, one a round."""
    folder = Path(folder)
    config = read_config(folder)
    summary = folder / File.SUMMARY
    metrics = folder / File.METRICS
    rows = [_whole(line, f"{metrics}, line {n}") for n, line in enumerate(_lines(metrics), 1) if line.strip()]
    found = _whole("\n".join(_lines(summary)), str(summary)) if summary.exists() else {"finished": False}
    return Run(found | {"folder": str(folder), "config": config.flat(), "rows": rows})


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").split("\n") if file.exists() else []
    except UnicodeDecodeError as problem:
        raise DataError("FS311", f"{file}: cannot be read ({problem}). Restore it, or run again") from None


def _whole(text: str, place: str) -> dict[str, Any]:
    try:
        return unseal(text)
    except ValueError as problem:
        raise DataError("FS311", f"{place}: {problem}. Restore it, or run again") from None


def predict(
    run: str | Path,
    samples: Samples,
    *,
    group: int = 0,
    model: str | None = None,
    encoder: str | None = None,
) -> Predictions:
    """Classes of new samples, or of texts, by the model of a run, with the probability of each class.

    `samples` is an array, or the path of an image, a folder of images, a .csv, .npz or .npy file, or several of them;
    what of these cannot be read is left out, warned of, and listed under `unread`. For a model of texts a string is a
    text, and a `Path` a file. `model` names the model's class, where that is one's own, and `encoder` what encoded its
    texts, where that is hf:NAME or hf:FOLDER.
    """
    from fedsieve.runs.prediction import predict_files, predict_samples

    unread: list[str] = []
    if isinstance(samples, str | Path):
        samples = [samples]
    if isinstance(samples, Sequence) and all(isinstance(one, str | Path) for one in samples):
        found, unread = predict_files(Path(run), samples, group, model, encoder)
    else:
        found = predict_samples(Path(run), samples, group, model, encoder)  # type: ignore[arg-type]  # no path is left
    for line in unread:
        warnings.warn(f"left out: {line}", stacklevel=2)
    rows = [dict(zip(found, values, strict=True)) for values in zip(*found.values(), strict=True)]
    return Predictions(found | {"unread": unread, "rows": rows})


def varied_keys(settings: Mapping[str, Any], allow_code: AllowCode = False) -> list[str]:
    """The keys of a comparison that take several values."""
    return list(dict.fromkeys(key for cell in comparison.cells(settings, allow_code) for key in cell.varied))
