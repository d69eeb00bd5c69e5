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
    path, name = _file_of(data)
    if path.is_dir():
        from fedsieve.data.corrected.folders import correct_folder, correct_listed_folder

        if (path / MANIFEST).is_file():
            return correct_listed_folder(path, verdicts, out, options, link=link)
        return correct_folder(path, verdicts, out, link=link)
    if path.suffix == ".csv":
        from fedsieve.data.corrected.tables import correct_csv

        return correct_csv(path, verdicts, out, options)
    from fedsieve.data.corrected.arrays import correct_arrays

    return correct_arrays(path, name, verdicts, out, options)


def _file_of(data: str) -> tuple[Path, str]:
    """The path that a name stands for, and how its rows call it."""
    path, cached = Path(data).expanduser(), cache_folder() / f"{data}.npz"
    if data == "embedded":
        return EMBEDDED, data
    return (cached, data) if not path.exists() and cached.exists() else (path, path.stem)
