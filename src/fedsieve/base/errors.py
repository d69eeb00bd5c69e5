"""Every error a user can meet: what happened, where, and what to do, with a code that has a page.

The exit code of the command line belongs to the class: 2 configuration, 3 data, 4 run.
`docs/reference/errors.md` explains each code; a test keeps it complete.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

LISTED = 60
"""Known names that a message lists."""


class FedSieveError(Exception):
    """Base of all errors raised on purpose. `str(error)` is one line and ends with the code."""

    exit_code = 4

    def __init__(self, code: str, message: str) -> None:
        message = one_line(message)
        super().__init__(f"{message} [{code}]")
        self.code = code
        self.message = message

    def __reduce__(self) -> tuple[type[FedSieveError], tuple[str, str]]:
        return type(self), (self.code, self.message)


class ConfigError(FedSieveError):
    """A key, a value, a name or a file of settings is wrong."""

    exit_code = 2


class CompositionError(ConfigError):
    """Parts or methods that do not fit together; raised when built, before anything runs."""


class DataError(FedSieveError):
    """The data cannot be used as they are; names the file, the client or the row."""

    exit_code = 3


class RunError(FedSieveError):
    """A run cannot go on. What was computed up to the last checkpoint is kept."""

    exit_code = 4


def one_line(text: str) -> str:
    """Text of others as a terminal may show it: line breaks as blanks, what would steer the terminal written out."""
    flat = re.sub(r"\s*[\r\n\v\f\x85\u2028\u2029]+\s*", " ", text)
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), flat)


_STEERING = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f\u061c\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
"""Control characters, those that turn the direction of writing, those that cannot be seen, and half characters."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a misspelt name: the closest known one, or the list of all."""
    names = sorted(known)
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f"Did you mean '{close[0]}'?"
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return f"Known: {', '.join(names[:LISTED])}{more}."
