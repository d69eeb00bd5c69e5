"""Named choices and their options.

A method, a partition, a noise or a model is chosen by name and tuned by options (`fedprox.mu=0.1`,
`partition.alpha=0.5`). The options of a choice are the fields of its frozen dataclass, or the parameters of its
function; a parameter that is itself such a dataclass contributes its fields. So a default, a type, a bound and a
sentence of documentation stand in one place, and every other place reads them there.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from importlib import import_module
from typing import Any, ClassVar, TypeGuard, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from fedsieve.base.errors import ConfigError, nearest

REQUIRED: Any = MISSING


@dataclass(frozen=True)
class Option:
    """One setting of a choice."""

    name: str
    type: Any
    default: Any
    doc: str
    owner: str
    """The parameter of the function that takes it, or "" for a parameter or field of the choice itself."""

    def check(self, value: Any, label: str) -> Any:
        """The value in its declared type, or FS002 naming the key."""
        try:
            return _adapter(self.type).validate_python(value)
        except ValidationError as problem:
            reason = problem.errors()[0]["msg"].lower()
            raise ConfigError("FS002", f"{label}{self.name}={value!r}: {reason}. Give a value of that kind") from None


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Base of everything that is chosen by name: frozen, without state, its fields checked when made."""

    def __post_init__(self) -> None:
        for option in options_of(type(self)).values():
            value = option.check(getattr(self, option.name), f"{type(self).__name__}.")
            object.__setattr__(self, option.name, value)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    if is_dataclass(kind) or (isinstance(kind, type) and hasattr(kind, "__pydantic_config__")):
        return TypeAdapter(kind)
    config = ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=False, coerce_numbers_to_str=True)
    return TypeAdapter(kind, config=config)


def options_of(target: Any) -> Mapping[str, Option]:
    """The options of a choice, by name, in the order they are written."""
    return _options_of(target)


@cache
def _options_of(target: Any) -> Mapping[str, Option]:
    if _holds_options(target):
        return _fields(target, owner="")
    hints = get_type_hints(target, include_extras=True)
    found: dict[str, Option] = {}
    for parameter in inspect.signature(target).parameters.values():
        kind = hints.get(parameter.name, Any)
        if _holds_options(kind):
            mine = _fields(kind, owner=parameter.name)
            if twice := mine.keys() & found.keys():
                raise ConfigError("FS006", f"{target.__name__}: two parts have an option '{min(twice)}'. Rename one")
            found |= mine
        else:
            default = REQUIRED if parameter.default is parameter.empty else parameter.default
            found[parameter.name] = Option(parameter.name, kind, default, "", owner="")
    return found


def build(target: Callable[..., Any], values: Mapping[str, Any], label: str) -> Any:
    """Call a choice with the given options; `label` is what stands before the dot in the user's keys."""
    known = options_of(target)
    grouped: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        if name not in known:
            hint = nearest(name, known) if known else f"'{label}' has no options."
            raise ConfigError("FS001", f"unknown key '{label}.{name}'. {hint}")
        option = known[name]
        grouped.setdefault(option.owner, {})[name] = option.check(value, f"{label}.")
    if isinstance(target, type):
        return target(**grouped.get("", {}))
    owners = {name: kind for name, kind in get_type_hints(target).items() if _holds_options(kind) and name != "return"}
    arguments = {name: kind(**grouped.get(name, {})) for name, kind in owners.items()}
    return target(**grouped.get("", {}), **arguments)


def imported(reference: str, what: str) -> Any:
    """The object that `package.module:name` refers to; FS006 when there is none."""
    module, _, name = reference.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError, TypeError) as problem:
        raise ConfigError(
            "FS006",
            f"{what}={reference}: cannot be imported ({problem}). Write package.module:name of something importable",
        ) from problem


def _holds_options(kind: Any) -> TypeGuard[type]:
    return isinstance(kind, type) and is_dataclass(kind)


def _fields(kind: type, owner: str) -> dict[str, Option]:
    hints = get_type_hints(kind, include_extras=True)
    docs = field_docs(kind)
    found = {}
    for field in fields(kind):
        if not field.init or get_origin(hints[field.name]) is ClassVar:
            continue
        default = field.default
        if default is MISSING and field.default_factory is not MISSING:
            default = field.default_factory()
        found[field.name] = Option(field.name, hints[field.name], default, docs.get(field.name, ""), owner)
    return found


@cache
def field_docs(kind: type) -> Mapping[str, str]:
    """The string under each field of a class, inherited ones included."""
    docs: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not is_dataclass(base):
            continue
        try:
            body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        except (OSError, TypeError, SyntaxError):
            continue
        assert isinstance(body, ast.ClassDef)
        for field, below in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
                and isinstance(below.value.value, str)
            ):
                docs[field.target.id] = inspect.cleandoc(below.value.value)
    return docs
