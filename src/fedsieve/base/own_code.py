"""Code of one's own, named as `package.module:name`: who may name it, and where it is looked for.

It belongs to the person at the keyboard: named on the command line or in Python, in a file only where that person says
`allow_code`, and never in a message or on the card of a model. Naming it imports it, so that permission is asked at the
very place of the import; whoever forgot to pass it on is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedsieve.base.error_words import place_of
from fedsieve.base.errors import ConfigError, FedSieveError
from fedsieve.base.options import import_object

AllowCode = bool | Collection[str]
"""Every name, none, or these very names."""


def is_own(name: str) -> bool:
    return ":" in name


def allowed_names(names: Iterable[str], allow_code: AllowCode) -> frozenset[str]:
    """Those of the names that stand for code of one's own and may be imported."""
    own = frozenset(name for name in names if is_own(name))
    if isinstance(allow_code, bool):
        return own if allow_code else frozenset()
    return own & frozenset(allow_code)


def own_object(reference: str, what: str, allow_code: AllowCode) -> Any:
    """What `package.module:name` stands for, if it is allowed; the current folder is searched last."""
    if reference not in allowed_names([reference], allow_code):
        raise ConfigError(
            "FS010",
            f"{what}={reference}: names code that would run here, and does not come from you. Look at it; then name it "
            "on the command line or in Python, or say --allow-code (on a Flower node: list it in the node's `allow`)",
        )
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)
    with named_place(f"{what}={reference}: cannot be imported"):
        return import_object(reference, what)


@contextmanager
def named_place(doing: str) -> Iterator[None]:
    """Whatever goes wrong in code of one's own becomes FS006 with its file and line."""
    try:
        yield
    except FedSieveError:
        raise
    except Exception as problem:
        raise ConfigError(
            "FS006", f"{doing} ({type(problem).__name__}: {problem}{place_of(problem)}). Mend it"
        ) from problem
