"""YAML files of settings, which may come from anybody: small, flat, and without tricks."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import yaml

LARGEST = 1 << 20
"""Bytes of a file."""
DEEPEST = 20
MOST = 100_000
"""Values in all, those that aliases repeat counted each time."""
UNREADABLE = (yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""What PyYAML raises for text that is no YAML, or whose tags do not fit."""


def load_yaml(file: Path) -> Any:
    """The content; OSError or one of `UNREADABLE` with a reason in one line."""
    state = file.stat()
    if not stat.S_ISREG(state.st_mode):
        raise ValueError("is no regular file")
    if state.st_size > LARGEST:
        raise ValueError(f"has {state.st_size:,} bytes, {LARGEST:,} at most are taken")
    text = file.read_text(encoding="utf-8")
    _check(text)
    return yaml.safe_load(text)


def _check(text: str) -> None:
    """Refuse depth and repetition before anything is built of them: a parser of events needs no memory for either."""
    sizes: dict[str, int] = {}
    opened: list[tuple[str | None, int]] = []
    seen = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            opened.append((event.anchor, seen))
            seen += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = opened.pop()
            if anchor is not None:
                sizes[anchor] = seen - before
        elif isinstance(event, yaml.AliasEvent):
            seen += sizes.get(event.anchor or "", 1)
        elif isinstance(event, yaml.ScalarEvent):
            seen += 1
        if len(opened) > DEEPEST:
            raise ValueError(f"is nested more than {DEEPEST} levels deep")
        if seen > MOST:
            raise ValueError(f"holds more than {MOST:,} values")
