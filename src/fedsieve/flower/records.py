"""Messages as Flower's records and back, bit for bit.

Numbers of the message itself go into a MetricRecord, tensors into an ArrayRecord, and the rest, with references to the
tensors, as JSON into a ConfigRecord. No code travels, and nothing is pickled.
"""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from fedsieve.runtime.wire import MESSAGES, decode, encode

ARRAYS, NUMBERS, TREE = "arrays", "numbers", "tree"
UNKNOWN_TO_NUMPY = {"bfloat16": torch.int16}
"""Types that travel as another of the same width."""


class Packer:
    """Makes records; a tensor that goes to several nodes is serialised only once."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[Tensor, Array]] = {}

    def pack(self, message: Any) -> RecordDict:
        tensors: list[Tensor] = []
        tree = encode(message, tensors)
        numbers: dict[str, Any] = {}
        if is_dataclass(message):
            for field in fields(message):
                value = getattr(message, field.name)
                if isinstance(value, int | float) and not isinstance(value, bool):
                    numbers[field.name] = tree["fields"].pop(field.name)
        arrays = {f"{place}.{_name(tensor)}": self._array(tensor) for place, tensor in enumerate(tensors)}
        return RecordDict(
            {
                ARRAYS: ArrayRecord(arrays),
                NUMBERS: MetricRecord(numbers),
                TREE: ConfigRecord({"json": json.dumps(tree)}),
            }
        )

    def _array(self, tensor: Tensor) -> Array:
        if id(tensor) not in self._made:
            plain = tensor.detach().cpu().contiguous()
            same_width = UNKNOWN_TO_NUMPY.get(_name(tensor))
            if same_width is not None:
                plain = plain.view(same_width)
            self._made[id(tensor)] = (tensor, Array(plain.numpy()))
        return self._made[id(tensor)][1]


def unpack(records: RecordDict) -> Any:
    """The message of some records. Whatever is wrong with them raises: callers refuse the sender, not the run."""
    tensors = []
    for key, array in records.array_records[ARRAYS].items():
        name = key.partition(".")[2]
        tensor = torch.from_numpy(array.numpy())
        tensors.append(tensor.view(getattr(torch, name)) if name in UNKNOWN_TO_NUMPY else tensor)
    tree = json.loads(str(records.config_records[TREE]["json"]))
    numbers = dict(records.metric_records[NUMBERS])
    if numbers and tree["message"] in MESSAGES:
        tree["fields"] |= numbers
    return decode(tree, tensors)


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
