"""What may stand behind a key, where that is a choice: for lists, for completion. Nothing here loads PyTorch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from fedsieve.base.errors import ConfigError, nearest
from fedsieve.base.options import Choice, Option, options_of
from fedsieve.data.federation import ServerOptions
from fedsieve.data.noise import NOISES
from fedsieve.data.partition import PARTITIONS
from fedsieve.data.rates import RATES
from fedsieve.data.sources import DataOptions, cache_folder
from fedsieve.methods import METHODS
from fedsieve.models import MODELS
from fedsieve.report.tracking import TRACKERS
from fedsieve.settings.config import AdmitOptions, FlowerOptions, ScheduleOptions, Settings

AUGMENTATIONS = ("none", "flip", "weak", "strong", "contrastive", "colour")
"""As `fedsieve.data.augment` has them, which loads PyTorch."""
OPEN = ("data", "method", "model", "augment", "track", "device")
"""Keys that take other values too: paths, compositions, code of one's own."""
DEVICES = ("auto", "cpu", "cuda", "mps")
SECTIONS: dict[str, type[Choice]] = {
    "data": DataOptions,
    "server": ServerOptions,
    "schedule": ScheduleOptions,
    "admit": AdmitOptions,
    "flower": FlowerOptions,
}
"""Sections whose options do not depend on what is chosen."""


def choices(key: str, option: Option) -> tuple[str, ...]:
    """The values that a key may take by name; none where it takes a number, a path or any text."""
    named: dict[str, Iterable[str]] = {
        "method": METHODS,
        "model": MODELS,
        "partition": PARTITIONS,
        "noise": NOISES,
        "noise.rates": RATES,
        "track": TRACKERS,
        "device": DEVICES,
        "augment": AUGMENTATIONS,
    }
    if key in named:
        return tuple(named[key])
    if key == "data":
        return ("embedded", *sorted(path.stem for path in cache_folder().glob("*.npz")))
    return _literals(option.type)


def _literals(kind: Any) -> tuple[str, ...]:
    if kind is bool:
        return ("true", "false")
    origin = get_origin(kind)
    if origin is Literal:
        return tuple(map(str, get_args(kind)))
    if origin is Annotated:
        return _literals(get_args(kind)[0])
    if origin in (Union, UnionType):
        return tuple(value for part in get_args(kind) for value in _literals(part))
    return ()


def known_keys() -> dict[str, Option]:
    """Every key that needs no method, no model and no combiner to be known, with its option."""
    found = dict(options_of(Settings))
    for section, kind in SECTIONS.items():
        found |= {f"{section}.{name}": option for name, option in options_of(kind).items()}
    for section, kinds in (("partition", PARTITIONS), ("noise", NOISES), ("noise", RATES)):
        for chosen in kinds.values():
            found |= {f"{section}.{name}": option for name, option in options_of(chosen).items()}
    return found | {"noise.rates": Option("rates", str, "fixed", "How each client's rate is drawn.", "")}


def listed_options(name: str | None) -> Mapping[str, Mapping[str, Option]]:
    """The options of a section by what must be chosen for them, those of one key alone, or all top keys."""
    if name is None:
        return {"": options_of(Settings)}
    if name == "combine":
        from fedsieve.core.combiners import COMBINERS  # loads PyTorch

        return _by_choice({"combine": COMBINERS})
    if name in SECTIONS:
        return {name: options_of(SECTIONS[name])}
    chosen: dict[str, dict[str, Mapping[str, Any]]] = {
        "partition": {"partition": PARTITIONS},
        "noise": {"noise": NOISES, "noise.rates": RATES},
    }
    if name in chosen:
        return _by_choice(chosen[name])
    known, sections = known_keys(), ("combine", *SECTIONS, *chosen)
    section, _, option = name.rpartition(".")
    found = listed_options(section) if section in sections else {}
    if having := {label: {option: options[option]} for label, options in found.items() if option in options}:
        return having
    if name not in known:
        raise ConfigError("FS001", f"no section or key '{name}'. {nearest(name, {*sections, *known})}")
    return {section: {option: known[name]}}


def _by_choice(tables: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Mapping[str, Option]]:
    return {f"{key}={name}": options_of(kind) for key, table in tables.items() for name, kind in table.items()}
