"""Weights from elsewhere that settings name: a run, its resumption and its nodes must use the very same."""

from __future__ import annotations

import hashlib
from pathlib import Path

from fedsieve.base.errors import DataError
from fedsieve.data import features, texts
from fedsieve.settings.config import SECTIONS, Config

INIT, TEXTS = "init", "data.text_features"


def named_weights(config: Config) -> dict[str, str]:
    """By key, the encoders with weights that a method's options or the data name, and what the model starts from."""
    named = {
        f"{section}.{name}": value
        for section, options in config.options.items()
        if section not in SECTIONS
        for name, value in options.items()
        if isinstance(value, str) and features.has_weights(value)
    }
    data = config.data()
    if data.text is not None and texts.has_weights(data.text_features):
        named[TEXTS] = data.text_features
    return named | ({INIT: config.top.init} if config.top.init else {})


def weight_files(config: Config) -> dict[str, Path]:
    """Those of them that are files."""
    return {key: Path(name).expanduser() for key, name in named_weights(config).items() if is_file(key, name)}


def file_hashes(config: Config) -> dict[str, str]:
    return {key: sha256_of(file) for key, file in weight_files(config).items()}


def weight_hashes(config: Config) -> dict[str, str]:
    """Of files what they hold, of other encoders their key."""
    files = file_hashes(config)
    return {key: files.get(key) or encoder_key(key, name) for key, name in named_weights(config).items()}


def is_file(key: str, name: str) -> bool:
    return key == INIT or (key != TEXTS and name.endswith(features.MODEL_FILE))


def encoder_key(key: str, name: str) -> str:
    """Of the encoder that a key of the settings names."""
    return texts.text_map(name).key if key == TEXTS else features.feature_map(name).key


def is_registered(key: str, name: str) -> bool:
    """Whether a key of the settings names an encoder that FedSieve knows, and no file or download."""
    return texts.is_known(name) if key == TEXTS else features.is_registered(name)


def sha256_of(file: Path) -> str:
    try:
        with file.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except OSError:
        raise DataError("FS301", f"{file}: no such file. Give the model.safetensors of a run") from None
