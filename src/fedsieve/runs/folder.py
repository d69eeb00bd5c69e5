"""The folder of a run: the settings in it, and whether it may be written to."""

from __future__ import annotations

from pathlib import Path

from fedsieve.base.errors import ConfigError
from fedsieve.base.own_code import AllowCode
from fedsieve.base.yaml_file import UNREADABLE, load_yaml
from fedsieve.evaluate.schema import File
from fedsieve.runs.belongings import foreign
from fedsieve.settings.config import Config, resolve


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


def check_free(folder: Path, overwrite: bool) -> None:
    """An existing folder is refused, or replaced if asked and if all in it is a run's."""
    if not folder.exists() or (folder.is_dir() and all(path.name == File.LOCK for path in folder.iterdir())):
        return
    if not overwrite:
        raise ConfigError(
            "FS005", f"{folder} exists. Go on with it by `fedsieve resume {folder}`, or replace it with overwrite=true"
        )
    strange = foreign(folder) if folder.is_dir() else folder
    if strange is not None:
        raise ConfigError(
            "FS005", f"{folder} is not replaced: no run wrote {strange}. Choose another out=, or take it away"
        )
