"""What a run writes into its folder, and nothing else: only that is replaced, and links are never followed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree

from fedsieve.base.disk import TEMPORARY
from fedsieve.evaluate.schema import File

FILES = frozenset(File) - {File.CHECKPOINT}
NUMBERED = r"\d{8}\.(json|safetensors)"
ROWS = r"[^/]+\.\d{8}\.safetensors"
STATE = r"\d{8}\.safetensors"
WITHIN = re.compile(rf"{NUMBERED}|rows(/{ROWS})?|(clients|server)(/-?\d+(/{STATE})?)?")
"""Of `checkpoint/`."""
EVENTS = re.compile(r"events\.out\.tfevents\..+")
TREES = {"mlruns": "mlflow", "wandb": "wandb"}
"""Folders that a tracker fills as it likes; a run's only where tracking.json says that it told that tracker."""


def foreign(folder: Path) -> Path | None:
    """Something in the folder that no run wrote."""
    tracked = _trackers(folder)
    for path in sorted(folder.iterdir()):
        if path.is_symlink():
            return path
        if path.name == File.CHECKPOINT and path.is_dir():
            strange = next((found for found in _walk(path) if not _of_checkpoint(found, path)), None)
        elif path.name == "tensorboard" and path.is_dir():
            strange = next((found for found in _walk(path) if not EVENTS.fullmatch(found.name)), None)
        elif path.name in TREES and path.is_dir():
            strange = None if TREES[path.name] in tracked else path
        else:
            known = path.name in FILES or TEMPORARY.fullmatch(path.name)
            strange = None if known and path.is_file() else path
        if strange is not None:
            return strange
    return None


def clear(folder: Path) -> None:
    """Remove what a run wrote, but the lock; what is foreign stays, and with it the folders it lies in."""
    tracked = _trackers(folder)
    for path in list(folder.iterdir()):
        if path.is_symlink():
            continue
        if path.name == File.CHECKPOINT and path.is_dir():
            _empty(path, [found for found in _walk(path) if _of_checkpoint(found, path)])
        elif path.name == "tensorboard" and path.is_dir():
            _empty(path, [found for found in _walk(path) if EVENTS.fullmatch(found.name)])
        elif path.name in TREES and path.is_dir() and TREES[path.name] in tracked:
            rmtree(path)  # removes links, not what they lead to
        elif path.name != File.LOCK and path.is_file() and (path.name in FILES or TEMPORARY.fullmatch(path.name)):
            path.unlink()


def _walk(folder: Path) -> Iterator[Path]:
    """All below a folder, what is in a folder before the folder itself; links are named and not followed."""
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda one: one.name):
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(Path(entry.path))
            yield Path(entry.path)


def _of_checkpoint(path: Path, checkpoint: Path) -> bool:
    if path.is_symlink():
        return False
    if TEMPORARY.fullmatch(path.name):
        return path.is_file()
    known = WITHIN.fullmatch(path.relative_to(checkpoint).as_posix())
    return known is not None and path.is_dir() == (path.suffix == "")


def _empty(folder: Path, mine: list[Path]) -> None:
    for path in [*mine, folder]:
        if not path.is_dir():
            path.unlink()
        elif not any(path.iterdir()):
            path.rmdir()


def _trackers(folder: Path) -> set[str]:
    """The trackers that a run in this folder told something."""
    try:
        return set(json.loads((folder / File.TRACKING).read_text()))
    except (OSError, ValueError, TypeError, RecursionError):
        return set()
