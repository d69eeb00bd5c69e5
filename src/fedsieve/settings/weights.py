"""Weights from elsewhere that settings name: a run, its resumption and its nodes must use the very same."""

from __future__ import annotations

import hashlib
from pathlib import Path

from fedsieve.base.errors import DataError
from fedsieve.data.features import MODEL_FILE, feature_map, has_weights
from fedsieve.settings.config import SECTIONS, Config

INIT = "init"


def named_weights(config: Config) -> dict[str, str]:
    """By key, the encoders with weights that a method's options name, and what the model starts from."""
    named = {
        f"{section}.{name}": value
        for section, options in config.options.items()
        if section not in SECTIONS
        for name, value in options.items()
        if isinstance(value, str) and has_weights(value)
    }
    return named | ({INIT: config.top.init} if config.top.init else {})


def weight_files(config: Config) -> dict[str, Path]:
    """Those of them that are files."""
    return {
        key: Path(name).expanduser()
        for key, name in named_weights(config).items()
        if key == INIT or name.endswith(MODEL_FILE)
    }


def file_hashes(config: Config) -> dict[str, str]:
    return {key: sha256_of(file) for key, file in weight_files(config).items()}


def weight_hashes(config: Config) -> dict[str, str]:
    """Of files what they hold, of other encoders their key."""
    files = file_hashes(config)
    return {key: files.get(key) or feature_map(name).key for key, name in named_weights(config).items()}


def sha256_of(file: Path) -> str:
    try:
        with file.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except OSError:
        raise DataError("FS301", f"{file}: no such file. Give the model.safetensors of a run") from None
