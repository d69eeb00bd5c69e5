"""What a damaged .npz or .npy file makes NumPy and zipfile raise."""

from __future__ import annotations

import tokenize
import zipfile
import zlib

BROKEN = (
    ValueError, TypeError, KeyError, IndexError, AttributeError, OSError, EOFError, NotImplementedError, RuntimeError,
    OverflowError, SyntaxError, tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""TypeError for a single array, not a file of them; SyntaxError and TokenError for its header."""
