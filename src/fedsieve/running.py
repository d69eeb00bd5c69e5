"""Starting and resuming runs. Workers are started first, so that they load PyTorch while this process does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedsieve.config import FREE, Config, resolve
from fedsieve.ending import typed
from fedsieve.errors import ConfigError
from fedsieve.own_code import AllowCode
from fedsieve.progress import Progress
from fedsieve.runtime.belongings import NODES, foreign
from fedsieve.runtime.claim import LOCK
from fedsieve.runtime.crew import Crew
from fedsieve.yaml_file import UNREADABLE, load_yaml


def run(
    settings: Mapping[str, Any], progress: Progress, *, allow_code: AllowCode = False
) -> tuple[Path, dict[str, Any]]:
    """One run from its settings; returns its folder and its summary."""
    config = resolve(settings, allow_code=allow_code)
    folder = config.folder()
    with typed():
        check_free(folder, config.top.overwrite)
        return folder, _conducted(config, folder, progress, resuming=False)


def resume(
    folder: Path, progress: Progress, changes: Mapping[str, Any] = {}, *, allow_code: AllowCode = False
) -> tuple[Path, dict[str, Any]]:
    """Go on with a run from its last checkpoint. Only keys that do not alter results may change."""
    config = read_config(folder, allow_code=allow_code)
    if (folder / NODES).exists():
        raise ConfigError(
            "FS007",
            f"{folder}: its clients are Flower nodes. Go on with it by starting the Flower app again (`flwr run`)",
        )
    for key in changes:
        if key not in FREE:
            raise ConfigError(
                "FS001", f"'{key}' cannot change when a run is resumed. You may set {', '.join(sorted(FREE))}"
            )
    with typed():
        return folder, _conducted(config.changed(**changes), folder, progress, resuming=True)


def read_config(folder: Path, *, allow_code: AllowCode = False) -> Config:
    """The settings of an existing run."""
    path = folder / "config.yaml"
    if not path.is_file():
        raise ConfigError("FS007", f"{folder} is not the folder of a run: it has no config.yaml. Check the path")
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
    if not folder.exists() or (folder.is_dir() and all(path.name == LOCK for path in folder.iterdir())):
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


def _conducted(config: Config, folder: Path, progress: Progress, *, resuming: bool) -> dict[str, Any]:
    if config.top.runtime == "flower":
        from fedsieve.runtime.flower.simulation import simulate

        return simulate(config, folder, progress, resuming=resuming)
    crew = Crew(config.top.workers) if config.top.runtime == "pool" else None
    try:
        from fedsieve.conduct import conduct, on_this_machine

        return conduct(config, folder, on_this_machine(crew), progress, resuming=resuming)
    finally:
        if crew is not None:
            crew.close()
