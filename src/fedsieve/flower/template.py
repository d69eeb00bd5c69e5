"""A ready Flower app: its settings in pyproject.toml, and two modules that hand over to FedSieve."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedsieve.base.errors import ConfigError
from fedsieve.base.version import VERSION
from fedsieve.settings.config import Config, resolve

PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "{name}"
version = "1.0.0"
description = "{method} with FedSieve on Flower"
license = {{ text = "private" }}
dependencies = ["fedsieve[flower]=={version}", "flwr>=1.41,<1.43"]

[tool.setuptools]
packages = ["{package}"]

[tool.flwr.app]
publisher = "{package}"

[tool.flwr.app.components]
serverapp = "{package}.server_app:app"
clientapp = "{package}.client_app:app"

# The settings of the run: `fedsieve keys` lists them all. Only keys that stand here can be changed by
# `flwr run --run-config`. Lists are written as text: "[1, 2]".
[tool.flwr.app.config]
{settings}
"""
MODULE = '''"""{what}"""

from fedsieve.flower.{module} import app

__all__ = ["app"]
'''
MODULES = {"server_app": "Conducts the run.", "client_app": "Does a node's part."}
SHOWN = ("data", "clients", "rounds", "epochs", "batch", "lr", "model", "method", "seed", "out")
"""Keys that an app states in any case, so that they can be changed when it is run."""
WAITING = ("flower.min_nodes", "flower.wait", "flower.timeout")


def write_app(folder: Path, settings: Mapping[str, Any]) -> list[Path]:
    """Write the app into a new folder; returns its files."""
    config = resolve({**settings, "runtime": "flower"})
    if folder.exists():
        raise ConfigError("FS005", f"{folder} exists. Name a folder that does not")
    package = re.sub(r"\W+", "_", folder.name.lower()).strip("_")
    if not package.isidentifier() or package == "fedsieve":
        raise ConfigError("FS002", f"'{folder.name}' cannot be the name of a Python package. Begin with a letter")
    name = package.replace("_", "-")
    written = {
        "pyproject.toml": PYPROJECT.format(
            name=name,
            package=package,
            method=config.top.method,
            version=VERSION,
            settings=_settings(config, settings),
        ),
        f"{package}/__init__.py": "",
        **{f"{package}/{m}.py": MODULE.format(what=what, module=m) for m, what in MODULES.items()},
    }
    for file, text in written.items():
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return [folder / file for file in written]


def _settings(config: Config, given: Mapping[str, Any]) -> str:
    """TOML lines; dotted keys are quoted, as `noise` and `noise.rate` cannot both be tables of TOML."""
    flat = {**config.flat(), "out": str(config.folder())}
    keys = dict.fromkeys([*SHOWN, *(key for key in flat if key in given), *WAITING])
    return "\n".join(f"{_key(key)} = {_value(flat[key])}" for key in keys)


def _key(key: str) -> str:
    return json.dumps(key) if "." in key else key


def _value(value: Any) -> str:
    """Flower knows texts, numbers and truth values; anything else becomes text that YAML reads."""
    return json.dumps(value if isinstance(value, bool | int | float | str) else json.dumps(value))
