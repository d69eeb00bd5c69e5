"""What a node takes from a message, and what only its own configuration says.

From a message: methods and models that FedSieve knows, their checked options, and numbers. Files, downloads, columns,
code of one's own, the device and whatever else says where and how this machine works are the node's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from fedsieve.base.errors import ConfigError
from fedsieve.base.options import Option, options_of, unknown_key
from fedsieve.data.augment import augmentation
from fedsieve.data.features import is_registered
from fedsieve.data.sources import DataOptions
from fedsieve.data.texts import is_known
from fedsieve.methods import method_options
from fedsieve.models import options_of_model
from fedsieve.parts.frozen import AUTO, MODEL
from fedsieve.settings.config import Config
from fedsieve.settings.planning import config_of
from fedsieve.settings.weights import INIT, TEXTS

NodeConfig = Mapping[str, Any]
"""What the owner of the node has said when starting it."""
ALLOW, DEVICE = "allow", "device"
TAKEN = frozenset(
    {
        "method", "model", "init", "norm", "rounds", "fraction", "epochs", "batch", "lr", "momentum", "weight_decay",
        "optimizer", "schedule", "clip", "augment", "seed", "precision", "secure_aggregation",
        "client_labels",
    }
)  # fmt: skip
"""The keys of a run that all who take part in it must agree on."""
AGREED = frozenset({"size", "fit", "colour", "window", "text_features"})
"""Of the options behind `data.`, those that all who take part must agree on."""
SERVERS = frozenset({"partition", "noise", "server", "flower", "admit", "combine"})
"""Sections that are the server's business."""


def allowed(node: NodeConfig) -> frozenset[str]:
    """What the owner lets a run name."""
    return frozenset(str(node.get(ALLOW, "")).replace(",", " ").split())


def vet(settings: Mapping[str, Any], node: NodeConfig, files: Mapping[str, str] = {}) -> Config:
    """The settings of a run as this node carries them out; FS001 or FS228 for a key or a text that it does not know.

    `files` are the node's own in place of those that the settings name, by key.
    """
    listed = allowed(node) | frozenset(files.values())
    flat = {key: value for key, value in {**settings, **files}.items() if _is_taken(key)}
    flat |= {f"data.{name}": node[name] for name in options_of(DataOptions) if name not in AGREED and name in node}
    config = config_of(flat | {DEVICE: str(node.get(DEVICE, "auto"))}, allow_code=listed)
    if config.top.init is not None and config.top.init not in listed:
        raise not_allowed(INIT, config.top.init)
    texts = config.data().text_features
    if texts not in listed and not is_known(texts):
        raise not_allowed(TEXTS, texts)
    known = method_options(config.top.method, config.code)
    known["model"] = options_of_model(config.top.model, config.code)
    for section, options in known.items():
        for name, value in config.of(section).items():
            if name not in options:
                raise unknown_key(section, name, options)
            for text in _texts(value) if _takes_any_text(options[name].type) else ():
                _check_text(text, options[name], f"{section}.{name}", listed)
    return config


def _is_taken(key: str) -> bool:
    section, dot, name = key.partition(".")
    if not dot:
        return key in TAKEN
    return name in AGREED if section == "data" else section not in SERVERS


def _check_text(text: str, option: Option, key: str, listed: frozenset[str]) -> None:
    if text != option.default and text not in listed and not _is_registered(text):
        raise not_allowed(key, text)


def not_allowed(key: str, text: str) -> ConfigError:
    return ConfigError(
        "FS228",
        f"{key}={text}: a node opens no file and loads nothing that only a message names. "
        f"If it is right, list it in the node's `{ALLOW}`",
    )


def _is_registered(text: str) -> bool:
    """Whether it is a feature map that FedSieve knows by name, or an augmentation."""
    try:
        return text in (AUTO, MODEL) or is_registered(text) or augmentation(text) is not None
    except ConfigError:
        return False


def _takes_any_text(kind: Any) -> bool:
    """Whether a type has room for texts beyond a fixed choice of them."""
    if get_origin(kind) is Annotated:
        return _takes_any_text(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType, list, tuple, dict):
        return any(_takes_any_text(inner) for inner in get_args(kind))
    return kind in (str, Any)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for pair in value.items():
            yield from _texts(pair)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
