"""Named choices and their options.

A method, a partition, a noise or a model is chosen by name and tuned by options (`fedprox.mu=0.1`,
`partition.alpha=0.5`). The options of a choice are the fields of its frozen dataclass, or the parameters of its
function; a parameter that is itself such a dataclass contributes its fields, under the parameter's own name if the
class is `nested` (`fedcr.server.epochs`). So a default, a type, a bound and a sentence of documentation stand in one
place, and every other place reads them there.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import cache
from importlib import import_module
from typing import Any, ClassVar, TypeGuard, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from fedsieve.base.errors import ConfigError, nearest

REQUIRED: Any = MISSING
SETTLED = "settled"


@dataclass(frozen=True)
class Option:
    """One setting of a choice."""

    name: str
    """With the parameter's name before a dot, if the class of the parameter is nested."""
    type: Any
    default: Any
    doc: str
    owner: str
    """The parameter of the function that takes it, or "" for a parameter or field of the choice itself."""
    settled: bool = False
    """Whether whoever writes the method decides it, so that it is checked but no setting."""

    @property
    def field(self) -> str:
        """Its name where it is taken."""
        return self.name.rpartition(".")[2]

    def check(self, value: Any, label: str) -> Any:
        """The value in its declared type, or FS002 naming the key."""
        try:
            return _adapter(self.type).validate_python(value)
        except ValidationError as problem:
            reason = problem.errors()[0]["msg"].lower()
            advice = several(value) or "Give a value of that kind"
            raise ConfigError("FS002", f"{label}{self.name}={value!r}: {reason}. {advice}") from None


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Base of everything that is chosen by name: frozen, without state, its fields checked when made."""

    nested: ClassVar[bool] = False
    """Whether its options, as those of a function's parameter, stand behind the parameter's name."""

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for option in _fields(kind).values():
            value = option.check(getattr(self, option.name), f"{kind.__name__}.")
            object.__setattr__(self, option.name, value)


def several(value: Any) -> str:
    """The way to a comparison, if somebody gave several values where one is taken."""
    lists = isinstance(value, list | tuple) or (isinstance(value, str) and "," in value)
    return "Give one value; several are for `fedsieve compare`" if lists else ""


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    if is_dataclass(kind) or (isinstance(kind, type) and hasattr(kind, "__pydantic_config__")):
        return TypeAdapter(kind)
    config = ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=False, coerce_numbers_to_str=True)
    return TypeAdapter(kind, config=config)


def settled(default: Any) -> Any:
    """A field that whoever writes a method decides: no option of it."""
    return field(default=default, metadata={SETTLED: True})


def options_of(target: Any) -> Mapping[str, Option]:
    """The options of a choice, by name, in the order they are written."""
    return _options_of(target)


@cache
def _options_of(target: Any) -> Mapping[str, Option]:
    if _holds_options(target):
        return {name: option for name, option in _fields(target).items() if not option.settled}
    hints = get_type_hints(target, include_extras=True)
    found: dict[str, Option] = {}
    for parameter in inspect.signature(target).parameters.values():
        kind = hints.get(parameter.name, Any)
        if _holds_options(kind):
            mine = _parameter_fields(kind, parameter)
            if twice := mine.keys() & found.keys():
                raise ConfigError("FS006", f"{target.__name__}: two parts have an option '{min(twice)}'. Rename one")
            found |= mine
        else:
            default = REQUIRED if parameter.default is parameter.empty else parameter.default
            found[parameter.name] = Option(parameter.name, kind, default, "", owner="")
    return found


def unknown_key(label: str, name: str, known: Mapping[str, Option]) -> ConfigError:
    hint = nearest(name, known) if known else f"'{label}' has no options."
    return ConfigError("FS001", f"unknown key '{label}.{name}'. {hint}")


def build(target: Callable[..., Any], values: Mapping[str, Any], label: str) -> Any:
    """Call a choice with the given options; `label` is what stands before the dot in the user's keys."""
    known = options_of(target)
    grouped: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        if name not in known:
            raise unknown_key(label, name, known)
        option = known[name]
        grouped.setdefault(option.owner, {})[option.field] = option.check(value, f"{label}.")
    if isinstance(target, type):
        return target(**grouped.get("", {}))
    owners = {name: kind for name, kind in get_type_hints(target).items() if _holds_options(kind) and name != "return"}
    given = {name: parameter.default for name, parameter in inspect.signature(target).parameters.items()}
    arguments = {
        name: replace(given[name], **grouped.get(name, {}))
        if isinstance(given[name], kind)
        else kind(**grouped.get(name, {}))
        for name, kind in owners.items()
    }
    return target(**grouped.get("", {}), **arguments)


def import_object(reference: str, what: str) -> Any:
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


def _parameter_fields(kind: type, parameter: inspect.Parameter) -> dict[str, Option]:
    """The options that a parameter contributes; its default, if it has one, has theirs."""
    before = f"{parameter.name}." if getattr(kind, "nested", False) else ""
    found = {}
    for option in options_of(kind).values():
        default = getattr(parameter.default, option.name) if isinstance(parameter.default, kind) else option.default
        name = before + option.name
        found[name] = replace(option, name=name, default=default, owner=parameter.name)
    return found


@cache
def _fields(kind: type) -> Mapping[str, Option]:
    hints = get_type_hints(kind, include_extras=True)
    docs = field_docs(kind)
    found = {}
    for each in fields(kind):
        if not each.init or get_origin(hints[each.name]) is ClassVar:
            continue
        default = each.default
        if default is MISSING and each.default_factory is not MISSING:
            default = each.default_factory()
        doc, is_settled = docs.get(each.name, ""), SETTLED in each.metadata
        found[each.name] = Option(each.name, hints[each.name], default, doc, "", is_settled)
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
        for line, below in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(line, ast.AnnAssign)
                and isinstance(line.target, ast.Name)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
                and isinstance(below.value.value, str)
            ):
                docs[line.target.id] = inspect.cleandoc(below.value.value)
    return {each.name: docs[each.name] for each in fields(kind) if each.name in docs}
