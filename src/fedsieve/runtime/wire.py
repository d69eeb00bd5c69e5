"""Messages as plain data: a JSON tree and a list of tensors. Never code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

from fedsieve.core.types import Answer, Down, Mail, Question, Up

DEEPEST = 32
"""Levels of a message's tree."""
MESSAGES = {kind.__name__: kind for kind in (Answer, Down, Mail, Question, Up)}


def encode(value: Any, tensors: list[Tensor]) -> Any:
    """The JSON form of a message; tensors are appended to the list and referred to by their place."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return {"tensor": len(tensors) - 1}
    if is_dataclass(value):
        body = {field.name: encode(getattr(value, field.name), tensors) for field in fields(value)}
        return {"message": type(value).__name__, "fields": body}
    if isinstance(value, Mapping):
        return {"map": {key: encode(item, tensors) for key, item in value.items()}}
    if isinstance(value, list | tuple):
        return [encode(item, tensors) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{type(value).__name__} cannot travel; payloads hold tensors, numbers, text and truth values")


def decode(tree: Any, tensors: Sequence[Tensor], depth: int = 0) -> Any:
    """The inverse of `encode`; sequences come back as tuples. What no message looks like raises."""
    if depth > DEEPEST:
        raise ValueError(f"more than {DEEPEST} levels; a message has a handful")
    if isinstance(tree, list):
        return tuple(decode(item, tensors, depth + 1) for item in tree)
    if not isinstance(tree, dict):
        return tree
    if "tensor" in tree:
        place = tree["tensor"]
        if type(place) is not int or not 0 <= place < len(tensors):
            raise ValueError(f"a reference to another tensor than the {len(tensors)} that came along")
        return tensors[place]
    if "map" in tree:
        return {key: decode(item, tensors, depth + 1) for key, item in tree["map"].items()}
    body = {name: decode(item, tensors, depth + 1) for name, item in tree["fields"].items()}
    return MESSAGES[tree["message"]](**body)
