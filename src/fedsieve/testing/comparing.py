"""What must be the same: payloads as declared, as stated and as in another run, and states of servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedsieve.core.part import Part
from fedsieve.core.plan import AT_MOST, fits
from fedsieve.core.sent import Declared, in_full
from fedsieve.core.server import ServerState
from fedsieve.core.types import Payload, value_bytes


def same_names(found: Mapping[str, Any], wanted: set[str], what: str) -> None:
    assert set(found) == wanted, f"{what} of {sorted(found)}, the parts define {sorted(wanted)}"


def same_payload(payload: Payload, declared: Declared, part: Part, sizes: Mapping[str, int]) -> None:
    same_names(payload, set(declared), part.name)
    for name, declaration in declared.items():
        value, shape = payload[name], in_full(declaration).shape
        found = tuple(value.shape) if isinstance(value, Tensor) else ()
        assert fits(found, shape, part, sizes), f"{part.name}.{name} has the shape {found}, declared is {shape}"


def in_range(payload: Payload, declared: Declared, part: Part) -> None:
    """The server would refuse anything else."""
    for name, declaration in declared.items():
        says = in_full(declaration)
        fault = says.type_fault(payload[name]) or says.range_fault(payload[name])
        assert not fault, f"{part.name}.{name} {fault}"


def same_bytes(
    payload: Payload,
    declared: Declared,
    stated: Mapping[tuple[str, ...], int | None],
    where: tuple[str, str, str],
) -> None:
    """Exactly what the disclosure says, or at most that where an axis may be shorter; scalars weigh next to nothing."""
    for name, value in payload.items():
        said = stated.get((*where, name))
        if not isinstance(value, Tensor) or value.dim() == 0 or said is None:
            continue
        size = value_bytes(value)
        shorter = any(isinstance(axis, str) and axis.startswith(AT_MOST) for axis in in_full(declared[name]).shape)
        same = size <= said if shorter else size == said
        assert same, f"{where[1]}.{name} weighs {size} bytes, the disclosure says {said}"


def same_notes(one: Mapping[Any, Payload], two: Mapping[Any, Payload], message: str) -> None:
    """Payloads by who sent or keeps them."""
    assert one.keys() == two.keys(), message
    for who, payload in one.items():
        assert payload.keys() == two[who].keys(), f"{message} ({who})"
        for name, value in payload.items():
            same = torch.equal(*(torch.as_tensor(found).nan_to_num(-1) for found in (value, two[who][name])))
            assert same, f"{message} ({who}: {name})"


def same_state(one: ServerState, two: ServerState, message: str) -> None:
    assert one.models.keys() == two.models.keys(), message
    for group, nets in one.models.items():
        assert all(torch.equal(a, b) for a, b in zip(nets, two.models[group], strict=True)), message
    assert one.columns.keys() == two.columns.keys(), message
    assert one.norms.keys() == two.norms.keys(), message
    assert all(torch.equal(past, two.norms[name]) for name, past in one.norms.items()), f"{message} (norms)"
    for name, column in one.columns.items():
        assert torch.equal(column.nan_to_num(-1), two.columns[name].nan_to_num(-1)), f"{message} (column {name})"
    for key, memory in one.memory.items():
        for name, tensor in memory.items():
            assert torch.equal(tensor, two.memory[key][name]), f"{message} ({key[0]}.{name})"
