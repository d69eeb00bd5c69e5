"""The Python side of what the command line does. Results are plain dicts."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsieve import start
from fedsieve.base.errors import ConfigError, DataError
from fedsieve.base.own_code import AllowCode
from fedsieve.base.seal import unseal
from fedsieve.data.truth import GroundTruth
from fedsieve.evaluate.schema import File
from fedsieve.report.progress import chosen_progress
from fedsieve.runs import comparison
from fedsieve.runs.folder import read_config
from fedsieve.settings.config import resolve

if TYPE_CHECKING:
    import pandas as pd

    from fedsieve.data.federation import Federation


class Result(dict[str, Any]):
    """A dict; `to_frame()` gives its rows as a pandas DataFrame where pandas is installed."""

    def to_frame(self) -> pd.DataFrame:
        try:
            import pandas as pd
        except ImportError:
            raise ConfigError("FS008", "to_frame() needs pandas. Install it with `pip install pandas`") from None
        return pd.DataFrame(self["rows"])


def run(*, quiet: bool = False, **settings: Any) -> Result:
    """One run. Keys are those of the command line; options as `**{"fedprox.mu": 0.1}` or `fedprox={"mu": 0.1}`."""
    folder, _ = start.run(settings, chosen_progress(quiet), allow_code=True)
    return load(folder)


def pretrain(*, quiet: bool = False, **settings: Any) -> Result:
    """Learn an encoder without labels; keys are those of `run`, defaults those of `fedsieve pretrain`."""
    folder, _ = start.pretrain(settings, chosen_progress(quiet), allow_code=True)
    return load(folder)


def resume(folder: str | Path, *, quiet: bool = False, allow_code: bool = False, **changes: Any) -> Result:
    """Go on with a run that was cut off. `allow_code`: the folder may name a method or a model of one's own."""
    start.resume(Path(folder), chosen_progress(quiet), changes, allow_code=allow_code)
    return load(folder)


def compare(*, jobs: int | None = None, quiet: bool = False, **settings: Any) -> Result:
    """Every combination of the values given as lists. Finished runs are not run again.

    Where runs cannot be or failed, the tables and the report of the others are written before FS215 is raised.
    """
    outcome = comparison.compare(settings, jobs=jobs, quiet=quiet, allow_code=True)
    table = comparison.write_tables(outcome.folder, outcome.rows, varied_keys(settings, allow_code=True))
    outcome.complain()
    return Result(folder=str(outcome.folder), rows=outcome.rows, table=table)


def federation(**settings: Any) -> tuple[Federation, GroundTruth]:
    """The data as a run with these settings would split and spoil them, and the truth, for evaluation only."""
    from fedsieve.settings.splitting import federation_of

    return federation_of(resolve(settings))


def load(folder: str | Path) -> Result:
    """A run by its folder: summary, settings, and `rows`, one a round."""
    folder = Path(folder)
    config = read_config(folder)
    summary = folder / File.SUMMARY
    metrics = folder / File.METRICS
    rows = [_whole(line, f"{metrics}, line {n}") for n, line in enumerate(_lines(metrics), 1) if line.strip()]
    found = _whole("\n".join(_lines(summary)), str(summary)) if summary.exists() else {"finished": False}
    return Result(found | {"folder": str(folder), "config": config.flat(), "rows": rows})


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
    samples: np.ndarray | str | Path | Sequence[str | Path],
    *,
    group: int = 0,
    model: str | None = None,
) -> Result:
    """Classes of new samples by the model of a run, with the probability of each class.

    `samples` is an array, or the path of an image, a folder of images, a .csv, .npz or .npy file, or several of them;
    what of these cannot be read is left out, warned of, and listed under `unread`. `model` names the model's class,
    where that is one's own.
    """
    from fedsieve.runs.prediction import predict_files, predict_samples

    unread: list[str] = []
    if isinstance(samples, str | Path):
        samples = [samples]
    if isinstance(samples, Sequence) and all(isinstance(one, str | Path) for one in samples):
        found, unread = predict_files(Path(run), [Path(one) for one in samples], group, model)
    else:
        found = predict_samples(Path(run), np.asarray(samples), group, model)
    for line in unread:
        warnings.warn(f"left out: {line}", stacklevel=2)
    rows = [dict(zip(found, values, strict=True)) for values in zip(*found.values(), strict=True)]
    return Result(found | {"unread": unread, "rows": rows})


def varied_keys(settings: dict[str, Any], allow_code: AllowCode = False) -> list[str]:
    """The keys of a comparison that take several values."""
    return list(dict.fromkeys(key for cell in comparison.cells(settings, allow_code) for key in cell.varied))
