"""Files that are either whole or not there: temporary file, fsync, rename, and a checksum inside.

No code travels or is stored: tensors are safetensors, everything else is JSON. Both hold what a run knows of its
clients, and are written for their owner alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors
from torch import Tensor

from fedsieve.base.disk import private_folder, write_bytes

__all__ = [
    "Damaged",
    "private_folder",
    "read_json",
    "read_tensors",
    "refuse_link",
    "tensors_digest",
    "write_bytes",
    "write_json",
    "write_tensors",
]

CHECKSUM = "sha256"


class Damaged(Exception):  # noqa: N818  # says what the file is
    """A file is torn, flipped or missing. Callers decide whether an older one will do."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_bytes(path, save_safetensors(ready, {CHECKSUM: tensors_digest(ready)}), private=True)


def refuse_link(path: Path) -> None:
    """What a run reads back lies where the run put it; a link may lead anywhere."""
    if path.is_symlink():
        raise Damaged(f"{path} is a link, which no run writes")


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, if its checksum holds."""
    refuse_link(path)
    try:
        content = path.read_bytes()
        tensors = load_safetensors(content)
        length = int.from_bytes(content[:8], "little")
        stated = json.loads(content[8 : 8 + length])["__metadata__"][CHECKSUM]
    except FileNotFoundError:
        raise Damaged(f"{path} is missing") from None
    except (SafetensorError, ValueError, KeyError, OSError, TypeError, RecursionError) as problem:
        raise Damaged(f"{path} cannot be read ({problem})") from None
    if stated != tensors_digest(tensors):
        raise Damaged(f"{path} does not match its checksum")
    return tensors


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    body = json.dumps(content, sort_keys=True)
    outer = {CHECKSUM: _text_digest(body), "content": json.loads(body)}
    write_bytes(path, json.dumps(outer, indent=1).encode(), private=True)


def read_json(path: Path) -> dict[str, Any]:
    refuse_link(path)
    try:
        outer = json.loads(path.read_text())
        content: dict[str, Any] = outer["content"]
        stated = outer[CHECKSUM]
    except FileNotFoundError:
        raise Damaged(f"{path} is missing") from None
    except (ValueError, KeyError, OSError, TypeError, RecursionError) as problem:
        raise Damaged(f"{path} cannot be read ({problem})") from None
    if not isinstance(content, dict) or stated != _text_digest(json.dumps(content, sort_keys=True)):
        raise Damaged(f"{path} does not match its checksum")
    return content


def _text_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    """Of names, shapes, kinds and bytes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
    return digest.hexdigest()
