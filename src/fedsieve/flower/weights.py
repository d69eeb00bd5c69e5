"""Encoders and first weights on a node: the very same as the server's, known by their hash.

A node takes no path from a message. It looks for a file among those that its owner named and those that it was sent
before; one that it has not is sent to it once, and kept in its state folder under its hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedsieve.base.errors import ConfigError, DataError, RunError
from fedsieve.base.files import private_folder, write_bytes
from fedsieve.data.features import MODEL_FILE
from fedsieve.data.features.encoders import model_file
from fedsieve.flower.briefing import Briefing
from fedsieve.flower.vetting import NodeConfig, allowed, not_allowed
from fedsieve.settings.weights import encoder_key, is_file, is_registered, sha256_of

ENCODER, STORE = "encoder", "encoders"
MOST_SENT = 1 << 30
"""Bytes of a file that is sent; a larger one must lie on the node."""


def held_weights(node: NodeConfig, state: Path, briefing: Briefing) -> dict[str, str]:
    """By key, the hash of what the node would use; empty where it has no file yet."""
    found = {}
    for key, wanted in briefing.weights.items():
        name = str(briefing.settings.get(key))
        if is_file(key, name):
            files = _files(node, state, name, wanted)
            found[key] = wanted if wanted in files else _another(files, briefing)
        elif is_registered(key, name) or name in allowed(node):
            found[key] = encoder_key(key, name)
        else:
            raise not_allowed(key, name)
    return found


def own_files(node: NodeConfig, state: Path, briefing: Briefing) -> dict[str, str]:
    """By key, the node's file in place of the server's; FS232 where it has another, or none."""
    own = {}
    for key, wanted in briefing.weights.items():
        name = str(briefing.settings.get(key))
        if is_file(key, name):
            files = _files(node, state, name, wanted)
            if wanted not in files:
                found = _another(files, briefing) or "none"
                raise RunError(
                    "FS232",
                    f"the file of {key} is {found[:12]} here, {wanted[:12]} at the server. Name the right one in the "
                    f"node's `{ENCODER}`, or leave that out and start the app again, which sends it",
                )
            own[key] = str(files[wanted])
    return own


def without_files(briefing: Briefing) -> dict[str, Any]:
    """The settings but for files, which a node need not have before the run has begun."""
    named = {key for key in briefing.weights if is_file(key, str(briefing.settings.get(key)))}
    return {key: value for key, value in briefing.settings.items() if key not in named}


def keep_file(state: Path, briefing: Briefing, key: str, content: Tensor) -> dict[str, Any]:
    """Keep a file that the server sent, if it is the one that the briefing speaks of and holds a model."""
    wanted = briefing.weights.get(key, "")
    if content.dtype != torch.uint8 or content.ndim != 1 or len(content) > MOST_SENT:
        raise RunError("FS224", f"the file of {key} is none that is sent. Install the same fedsieve")
    raw = content.numpy().tobytes()
    if hashlib.sha256(raw).hexdigest() != wanted:
        raise RunError("FS224", f"the file of {key} is not the one that the briefing names. Install the same fedsieve")
    file = _stored(state, wanted)
    private_folder(private_folder(state) / STORE)
    write_bytes(file, raw, private=True)
    try:
        model_file(file)
    except (ConfigError, DataError):
        file.unlink()
        raise
    return {}


def _another(files: Mapping[str, Path], briefing: Briefing) -> str:
    """The hash of a file that nobody asked for; empty if there is none."""
    return next((found for found in files if found not in briefing.weights.values()), "")


def _files(node: NodeConfig, state: Path, name: str, wanted: str) -> dict[str, Path]:
    """By hash, the files that may be used: the owner's, the one that was sent, and the named one if it is allowed."""
    owned = [Path(text.strip()).expanduser() for text in str(node.get(ENCODER, "")).split(",") if text.strip()]
    named = [Path(name).expanduser()] if name in allowed(node) else []
    there = [file for file in (*owned, _stored(state, wanted), *named) if file in owned or file.is_file()]
    return {sha256_of(file): file for file in there}


def _stored(state: Path, wanted: str) -> Path:
    """The hash is of the briefing, whose fields are checked: hexadecimal digits and nothing else."""
    return state / STORE / f"{wanted}{MODEL_FILE}"
