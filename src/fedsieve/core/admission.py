"""Which reports are let in: checked against what the stage's parts declare, before anything is learnt from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedsieve.core.part import Hooks, Part
from fedsieve.core.plan import Plan, fits, shape_of
from fedsieve.core.server import Event
from fedsieve.core.types import Payload, Shape, Up


def refusal(up: Up, plan: Plan, h: Hooks, expected_round: int, groups: Sequence[int]) -> Event | None:
    """Why a report is refused, or None. A refused report is logged with its client; the round goes on."""
    if up.round != expected_round:
        return Event("FS204", f"the report is of round {up.round + 1}, not {expected_round + 1}", up.client)
    if up.group not in groups:
        return Event("FS202", f"group {up.group} instead of one of {list(groups)}", up.client)
    if up.models is not None:
        size = plan.sizes["U"]
        shapes = [tuple(model.shape) for model in up.models]
        if shapes != [(size,)] * plan.nets:
            return Event("FS202", f"models of shape {shapes} instead of {plan.nets} x ({size},)", up.client)
        if not all(_finite(model) for model in up.models):
            return Event("FS203", "the model holds NaN or infinity", up.client)
        if {part.name for part in h.finish} != set(up.notes):
            return Event(
                "FS202", f"notes of {sorted(up.notes)} instead of {sorted(p.name for p in h.finish)}", up.client
            )
    elif up.notes:
        return Event("FS202", f"notes of {sorted(up.notes)} without a model", up.client)
    if not isinstance(up.n, int) or up.n < (up.models is not None):
        return Event("FS202", f"{up.n} samples", up.client)
    if not math.isfinite(up.loss):
        return Event("FS203", f"the training loss is {up.loss}", up.client)
    sizes = {**plan.sizes, "G": len(groups), "n": up.n}
    for part in h.finish:
        if part.name in up.notes and (event := payload_fault(up.notes[part.name], part, part.up, sizes, up.client)):
            return event
    return None


def payload_fault(
    payload: Payload, part: Part, declared: Mapping[str, Shape], sizes: Mapping[str, int], client: int
) -> Event | None:
    """FS202 for names and shapes that were not declared, FS203 for numbers that are not finite."""
    if payload.keys() != declared.keys():
        return Event("FS202", f"{part.name} reports {sorted(payload)} instead of {sorted(declared)}", client)
    for name, shape in declared.items():
        value = payload[name]
        found = tuple(value.shape) if isinstance(value, Tensor) else ()
        if not fits(found, shape, part, sizes):
            wanted = shape_of(shape, part, sizes)
            return Event("FS202", f"{part.name}.{name} has the shape {found} instead of {wanted}", client)
        if isinstance(value, Tensor) and not _finite(value):
            return Event("FS203", f"{part.name}.{name} holds NaN or infinity", client)
        if isinstance(value, str):
            return Event("FS202", f"{part.name}.{name} is text instead of a number", client)
        if isinstance(value, float) and not math.isfinite(value):
            return Event("FS203", f"{part.name}.{name} is {value}", client)
    return None


def _finite(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or bool(torch.isfinite(tensor).all())
