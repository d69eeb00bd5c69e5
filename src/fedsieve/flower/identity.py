"""A node's own key: made once, kept in its state folder, and all that tells a member that returns from a stranger."""

from __future__ import annotations

from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedsieve.base.disk import locked, private_folder, write_bytes
from fedsieve.base.errors import RunError

FILE = "node.key"
LENGTH = 32
"""Bytes of a key."""


def sign(folder: Path, text: str) -> tuple[str, str]:
    """The node's public key and its signature under the text, both in hexadecimal digits."""
    key = _own_key(private_folder(folder) / FILE)
    return key.public_key().public_bytes_raw().hex(), key.sign(text.encode()).hex()


def is_signed(key: str, signature: str, text: str) -> bool:
    """Whether who has the private half of the key signed the text."""
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(bytes.fromhex(signature), text.encode())
    except (InvalidSignature, ValueError):
        return False
    return True


def _own_key(file: Path) -> Ed25519PrivateKey:
    with locked(file.with_suffix(".lock")):
        if not file.exists():
            write_bytes(file, Ed25519PrivateKey.generate().private_bytes_raw(), private=True)
        content = file.read_bytes()
    if len(content) != LENGTH:
        raise RunError("FS229", f"{file}: is not the node's key. Restore it, or remove it and join the next run anew")
    return Ed25519PrivateKey.from_private_bytes(content)
