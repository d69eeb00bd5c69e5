"""What a shell may complete: keys, the values of those that are choices, and names. Loads no PyTorch without need."""

from __future__ import annotations

from collections.abc import Iterable


def complete_settings(args: list[str], incomplete: str) -> list[str]:
    """Keys with their `=`, and values behind it.

    Bash takes `=` for a word of its own, so that key and value may come apart; then the value alone is completed.
    """
    before = [*args, incomplete] if incomplete == "=" else args
    if incomplete == "=" or (before and before[-1] == "="):
        key = before[-2] if len(before) > 1 else ""
        return _values(key, "" if incomplete == "=" else incomplete)
    key, equals, value = incomplete.partition("=")
    if equals:
        return [f"{key}={found}" for found in _values(key, value)]
    return _beginning(incomplete, (f"{known}=" for known in _keys(incomplete)))


def complete_method(incomplete: str) -> list[str]:
    from fedsieve.methods import METHODS

    return _joined(incomplete, METHODS)


def complete_model(incomplete: str) -> list[str]:
    from fedsieve.models import MODELS

    return _beginning(incomplete, MODELS)


def complete_section(incomplete: str) -> list[str]:
    from fedsieve.settings.choices import known_keys
    from fedsieve.settings.config import SECTIONS

    return _beginning(incomplete, dict.fromkeys((*(one for one in SECTIONS if one != "model"), *known_keys())))


def _keys(incomplete: str) -> Iterable[str]:
    """The options of a method once its name and the dot are there: they need PyTorch."""
    from fedsieve.methods import METHODS, method_options
    from fedsieve.settings.choices import known_keys

    section, dot, _ = incomplete.partition(".")
    if dot and section in METHODS:
        return [f"{section}.{name}" for name in method_options(section)[section]]
    return known_keys()


def _values(key: str, value: str) -> list[str]:
    from fedsieve.methods import METHODS
    from fedsieve.settings.choices import choices, known_keys

    if key == "method":
        return _joined(value, METHODS)
    option = known_keys().get(key)
    return [] if option is None else _beginning(value, choices(key, option))


def _joined(text: str, names: Iterable[str]) -> list[str]:
    """`a+b` and `a,b` go on behind the last sign."""
    cut = max(text.rfind("+"), text.rfind(",")) + 1
    return [text[:cut] + name for name in _beginning(text[cut:], names)]


def _beginning(text: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(text)]
