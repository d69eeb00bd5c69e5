"""Weights that lie in packages of the Python Package Index, of which no code is ever imported."""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path

from fedsieve.base.errors import ConfigError, DataError


def package_folder(package: str, what: str, advice: str) -> Path:
    """Where a package has its files; FS008 if it is not installed."""
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        named = package.replace("_", "-")
        raise ConfigError("FS008", f"{what} needs the package {named}, which holds its weights. {advice}")
    return Path(found.submodule_search_locations[0])


def known_bytes(file: Path, sha256: str) -> bytes:
    """What a file holds, if it is the very file that is known; otherwise FS310."""
    if not file.is_file():
        raise DataError("FS301", f"{file}: no such file. Install the package again")
    content = file.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise DataError(
            "FS310",
            f"{file}: not the known file (sha256 {found[:12]}, not {sha256[:12]}). Install the package again",
        )
    return content
