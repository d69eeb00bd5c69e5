"""Errors on their way from one process to another, as words: a kind, a code and a message. No code travels."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from traceback import extract_tb
from typing import Any

from fedsieve.base import errors
from fedsieve.base.ending import as_typed
from fedsieve.base.errors import FedSieveError, RunError

CODE = re.compile(r"FS\d{3}")
UNEXPECTED = "FS210"
OTHERS = (Path(__file__).parents[1], *(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")))
"""Where code that is nobody's own lies."""
KINDS = {
    kind.__name__: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, FedSieveError)
}


def as_ours(problem: Exception) -> FedSieveError:
    """Whatever was raised as one of our errors; what nobody foresaw is FS210 with its kind and text."""
    if isinstance(problem, FedSieveError):
        return problem
    return as_typed(problem) or RunError(UNEXPECTED, f"{type(problem).__name__}: {problem}{place_of(problem)}")


def place_of(problem: BaseException) -> str:
    """Where code of one's own raised it, or let it pass: the last such line of its traceback; empty if there is none.

    Files below the current folder are named from there, others by their name alone.
    """
    own = [frame for frame in extract_tb(problem.__traceback__) if _is_own(frame.filename)]
    if isinstance(problem, SyntaxError) and problem.filename and _is_own(problem.filename):
        return f" ({_short(problem.filename)}, line {problem.lineno})"
    return f" ({_short(own[-1].filename)}, line {own[-1].lineno}, in {own[-1].name})" if own else ""


def _is_own(file: str) -> bool:
    """Neither ours nor of an installed package nor of Python itself."""
    path = Path(file)
    return path.suffix == ".py" and not any(path.is_relative_to(root) for root in OTHERS)


def _short(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else path.name


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
