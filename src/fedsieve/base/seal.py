"""JSON that tells when it was damaged: an object whose last key, `check`, is a checksum of what stands before it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

KEY = "check"
DIGITS = 16
_SEAL = re.compile(rf'"{KEY}": "([0-9a-f]{{{DIGITS}}})"\s*\}}\s*')


def seal(content: Mapping[str, Any], indent: int | None = None) -> str:
    """The object as text; on one line unless it is indented."""
    body = json.dumps(content, indent=indent)
    blank, end = (" ", "") if indent is None else ("\n" + " " * indent, "\n")
    kept = body[:-1].rstrip()
    return f'{kept},{blank}"{KEY}": "{_digest(kept)}"{end}}}'


def unseal(text: str, *, required: bool = False) -> dict[str, Any]:
    """The object without its checksum; ValueError if it was damaged, or has none where one is required."""
    try:
        content = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(content, dict) or (required and KEY not in content):
        raise ValueError("not an object with a checksum")
    if KEY not in content:
        return content
    place = text.rfind(f'"{KEY}"')
    before, seal = text[:place].rstrip(), _SEAL.fullmatch(text, place)
    if seal is None or not before.endswith(",") or seal[1] != _digest(before[:-1]):
        raise ValueError("does not match its checksum")
    del content[KEY]
    return content


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]
