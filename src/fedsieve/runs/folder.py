"""The folder of a run: the settings in it, and whether it may be written to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedsieve.base.errors import ConfigError
from fedsieve.base.own_code import AllowCode
from fedsieve.base.seal import unseal
from fedsieve.base.yaml_file import UNREADABLE, load_yaml
from fedsieve.evaluate.schema import RESULTS, File
from fedsieve.runs.belongings import foreign
from fedsieve.settings.config import Config, resolve

LISTED = 3
"""Names of strange files that a message lists."""


def read_config(folder: Path, *, allow_code: AllowCode = False) -> Config:
    """The settings of an existing run."""
    path = folder / File.CONFIG
    if not path.is_file():
        raise ConfigError("FS007", f"{folder} is not the folder of a run: it has no {File.CONFIG}. Check the path")
    try:
        settings = load_yaml(path)
    except (OSError, *UNREADABLE) as problem:
        reason = " ".join(str(problem).split())
        raise ConfigError("FS003", f"{path}: cannot be read as YAML ({reason}). Restore it") from None
    if not isinstance(settings, dict):
        raise ConfigError("FS003", f"{path}: holds no settings, but a {type(settings).__name__}. Restore it")
    return resolve(settings, allow_code=allow_code)


def _what_is_there(folder: Path) -> str:
    """What somebody would find in a folder or file, and what may be done about it."""
    if not folder.is_dir():
        return "it is a file. Choose another out="
    if (folder / RESULTS).is_file():
        return (
            "it holds a comparison. Go on with it by starting the same `fedsieve compare` again, or choose another out="
        )
    if not (folder / File.CONFIG).is_file():
        names = sorted(path.name for path in folder.iterdir() if path.name != File.LOCK)
        more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
        return f"it holds no run, but {', '.join(names[:LISTED])}{more}. Choose another out="
    done = _summary(folder)
    if done is None:
        return f"an unfinished run. Go on with it by `fedsieve resume {folder}`, or replace it with overwrite=true"
    accuracy = done.get("test_accuracy")
    reached = f", test accuracy {accuracy:.4f}" if isinstance(accuracy, float) else ""
    return (
        f"a finished run ({done.get('method')}, {done.get('rounds')} rounds{reached}). Replace it with overwrite=true, "
        "or choose another out="
    )


def _summary(folder: Path) -> dict[str, Any] | None:
    """Of a finished run; a damaged one tells nothing."""
    try:
        return unseal((folder / File.SUMMARY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def is_run(folder: Path) -> bool:
    return (folder / File.CONFIG).is_file()


def check_free(folder: Path, overwrite: bool) -> None:
    """An existing folder is refused, or replaced if asked and if all in it is a run's."""
    if not folder.exists() or (folder.is_dir() and all(path.name == File.LOCK for path in folder.iterdir())):
        return
    if not overwrite:
        raise ConfigError("FS005", f"{folder} exists: {_what_is_there(folder)}")
    strange = foreign(folder) if folder.is_dir() else folder
    if strange is not None:
        raise ConfigError(
            "FS005", f"{folder} is not replaced: no run wrote {strange}. Choose another out=, or take it away"
        )
