"""Starting and resuming runs. Workers are started first, so that they load PyTorch while this process does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from fedsieve.config import Config, resolve
from fedsieve.errors import ConfigError
from fedsieve.own_code import AllowCode
from fedsieve.progress import Progress
from fedsieve.runtime.crew import Crew

NODES = "nodes.json"
"""Who is which client, where clients are nodes of Flower."""
FILES = {
    "config.yaml", "federation.json", "truth.npz", "metrics.jsonl", "clients.jsonl", "labels.csv", "summary.json",
    "checkpoint", "model.safetensors", "exhibits.npz", "report.html", "tensorboard", "mlruns", "wandb", "tracking.json",
    NODES,
}  # fmt: skip
"""All that a run may leave in its folder; a folder with anything else is never replaced."""


def run(
    settings: Mapping[str, Any], progress: Progress, *, allow_code: AllowCode = False
) -> tuple[Path, dict[str, Any]]:
    """One run from its settings; returns its folder and its summary."""
    config = resolve(settings, allow_code=allow_code)
    folder = config.folder()
    check_free(folder, config.top.overwrite)
    return folder, _conducted(config, folder, progress, resuming=False)


def resume(
    folder: Path, progress: Progress, changes: Mapping[str, Any] = {}, *, allow_code: AllowCode = False
) -> tuple[Path, dict[str, Any]]:
    """Go on with a run from its last checkpoint. Only keys that do not alter results may change."""
    config = read_config(folder, allow_code=allow_code)
    free = {"workers", "runtime", "device", "checkpoint_every", "track"}
    if (folder / NODES).exists():
        raise ConfigError(
            "FS007",
            f"{folder}: its clients are Flower nodes. Go on with it by starting the Flower app again (`flwr run`)",
        )
    for key in changes:
        if key not in free:
            raise ConfigError(
                "FS001", f"'{key}' cannot change when a run is resumed. You may set {', '.join(sorted(free))}"
            )
    return folder, _conducted(config.changed(**changes), folder, progress, resuming=True)


def read_config(folder: Path, *, allow_code: AllowCode = False) -> Config:
    """The settings of an existing run."""
    path = folder / "config.yaml"
    if not path.is_file():
        raise ConfigError("FS007", f"{folder} is not the folder of a run: it has no config.yaml. Check the path")
    try:
        return resolve(yaml.safe_load(path.read_text()), allow_code=allow_code)
    except (yaml.YAMLError, AttributeError) as problem:
        raise ConfigError("FS003", f"{path}: cannot be read as YAML ({problem}). Restore it") from None


def check_free(folder: Path, overwrite: bool) -> None:
    """An existing folder is refused, or replaced if asked and if it is a run's."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not overwrite:
        raise ConfigError(
            "FS005", f"{folder} exists. Go on with it by `fedsieve resume {folder}`, or replace it with overwrite=true"
        )
    if not folder.is_dir() or not {path.name for path in folder.iterdir() if path.suffix != ".tmp"} <= FILES:
        raise ConfigError("FS005", f"{folder} is not the folder of a run and is not replaced. Choose another out=")


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
