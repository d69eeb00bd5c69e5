"""Errors on their way from one process to another, as words: a kind, a code and a message. No code travels."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fedsieve.base import errors
from fedsieve.base.ending import as_typed
from fedsieve.base.errors import FedSieveError, RunError

CODE = re.compile(r"FS\d{3}")
UNEXPECTED = "FS210"
KINDS = {
    kind.__name__: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, FedSieveError)
}


def as_ours(problem: Exception) -> FedSieveError:
    """Whatever was raised as one of our errors; what nobody foresaw is FS210 with its kind and text."""
    if isinstance(problem, FedSieveError):
        return problem
    return as_typed(problem) or RunError(UNEXPECTED, f"{type(problem).__name__}: {problem}")


def to_words(error: FedSieveError) -> dict[str, str]:
    return {"error": type(error).__name__, "code": error.code, "message": error.message}


def from_words(words: Mapping[str, Any], most: int | None = None) -> FedSieveError:
    """The error again, whoever sent the words: an unknown kind is a RunError, an odd code FS210, the text cut."""
    kind = KINDS.get(str(words.get("error")), RunError)
    code, text = str(words.get("code")), str(words.get("message"))
    cut = text if most is None or len(text) <= most else f"{text[:most]}..."
    return kind(code if CODE.fullmatch(code) else UNEXPECTED, cut)


def about(client: int, problem: Exception) -> FedSieveError:
    """The same error, naming the client whose work it ended."""
    error = as_ours(problem)
    return type(error)(error.code, f"client {client}: {error.message}")
