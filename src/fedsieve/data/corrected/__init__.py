"""Data written anew with the labels that people decided, in the form in which they came, never over the original."""

from __future__ import annotations

from pathlib import Path

from fedsieve.base.errors import ConfigError
from fedsieve.data.corrected.base import Outcome, Verdicts
from fedsieve.data.sources import EMBEDDED, HUB, MANIFEST, DataOptions, cache_folder

__all__ = ["Outcome", "Verdicts", "write_corrected"]


def write_corrected(
    data: str, verdicts: Verdicts, out: Path, options: DataOptions = DataOptions(), *, link: bool = False
) -> Outcome:
    """The data that `data=` stands for, after the decisions. `link` links image files where it would copy them."""
    if out.exists() or out.is_symlink():
        raise ConfigError("FS005", f"{out} exists. Choose another place: nothing is written over")
    if data.startswith(HUB):
        from fedsieve.data.corrected.hub import correct_hub

        return correct_hub(data.removeprefix(HUB), verdicts, out, options)
    path = EMBEDDED if data == "embedded" else Path(data).expanduser()
    if not path.exists() and (cached := cache_folder() / f"{data}.npz").exists():
        path = cached
    if path.is_dir():
        from fedsieve.data.corrected.folders import correct_folder, correct_listed_folder

        correct = correct_listed_folder if (path / MANIFEST).is_file() else correct_folder
        return correct(path, verdicts, out, options, link=link)
    if path.suffix == ".csv":
        from fedsieve.data.corrected.tables import correct_csv

        return correct_csv(path, verdicts, out, options)
    from fedsieve.data.corrected.arrays import correct_arrays

    return correct_arrays(
        path, data if path in (EMBEDDED, cache_folder() / f"{data}.npz") else path.stem, verdicts, out, options
    )
