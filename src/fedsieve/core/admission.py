"""Which replies are let in: checked against what was asked and declared, before anything is learnt from them.

Whatever a client sends, these functions answer with a reason or with None; none of them raises.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedsieve.core.part import Hooks, Part
from fedsieve.core.plan import Plan, any_axes, fits, shape_of
from fedsieve.core.sent import Declared, finite, in_full, kind_of, names, plain, short
from fedsieve.core.server import Event
from fedsieve.core.types import SERVER, Answer, Mail, Payload, Up

LARGEST_LOSS = 1e12
"""Of the training loss, which only the record takes: some methods sum squares over rows and features."""


def refusal(up: Any, plan: Plan, h: Hooks, client: int, mail: Mail, groups: int) -> Event | None:
    """Why the reply to a round's message is refused, or None. It is logged with its client; the round goes on."""

    def because(reason: str, code: str = "FS202") -> Event:
        return Event(code, reason, client)

    if not isinstance(up, Up):
        return because(f"the reply is {short(type(up).__name__)} instead of a report")
    if type(up.client) is not int or up.client != client:
        return because(f"a report of client {short(up.client)} instead of {client}")
    if type(up.round) is not int or up.round != mail.round:
        return because(f"the report is of round {_round_number(up.round)}, not {mail.round + 1}", "FS204")
    if type(up.group) is not int or up.group != mail.group:
        return because(f"group {short(up.group)} instead of {mail.group}")
    if reason := _state_fault(up.version, mail):
        return because(reason)
    if not isinstance(up.skipped, str):
        return because(f"the reason for skipping is {type(up.skipped).__name__} instead of text")
    if type(up.loss) is not float or not abs(up.loss) <= LARGEST_LOSS:
        return because(f"the training loss is {short(up.loss)}", "FS203")
    rows = plan.rows[client] if plan.rows and client > SERVER else None
    if type(up.n) is not int or up.n < (up.models is not None) or (rows is not None and up.n > rows):
        return because(f"{short(up.n)} samples" + ("" if rows is None else f", where the client has {rows}"))
    return _model_fault(up.models, plan, client) or _notes_fault(up, plan, h, groups)


def answer_fault(
    answer: Any, part: Part, declared: Declared, sizes: Mapping[str, int], client: int, mail: Mail
) -> Event | None:
    """Why the answer to a question is refused, or None."""
    if not isinstance(answer, Answer) or type(answer.client) is not int or answer.client != client:
        return Event("FS202", f"the reply is no answer of client {client}", client)
    if reason := _state_fault(answer.version, mail):
        return Event("FS202", reason, client)
    return payload_fault(answer.payload, part, declared, sizes, client)


def payload_fault(payload: Any, part: Part, declared: Declared, sizes: Mapping[str, int], client: int) -> Event | None:
    """FS202 for names, types and shapes that were not declared, FS203 for numbers outside their range."""
    if not isinstance(payload, Mapping):
        return Event("FS202", f"{part.name} reports {type(payload).__name__} instead of named values", client)
    if payload.keys() != declared.keys():
        return Event("FS202", f"{part.name} reports {names(payload)} instead of {sorted(declared)}", client)
    for name, declaration in declared.items():
        wanted, value = in_full(declaration), payload[name]
        where = f"{part.name}.{name}"
        if isinstance(value, Tensor) and value.is_nested:
            return Event("FS202", f"{where} holds {kind_of(value)}", client)
        found = tuple(value.shape) if isinstance(value, Tensor) else ()
        if not fits(found, wanted.shape, part, sizes):
            shape = shape_of(wanted.shape, part, sizes)
            return Event("FS202", f"{where} has the shape {short(found)} instead of {shape}", client)
        if fault := wanted.type_fault(value):
            return Event("FS202", f"{where} {fault}", client)
        if fault := wanted.range_fault(value):
            return Event("FS203", f"{where} {fault}", client)
    return None


def bound_axes(payload: Payload, declared: Declared, part: Part, sizes: Mapping[str, int]) -> dict[str, int]:
    """Lengths that a message gives to axes which nothing else decides."""
    found: dict[str, int] = {}
    for name, declaration in declared.items():
        value = payload[name]
        for place, symbol in any_axes(in_full(declaration).shape, part, sizes).items():
            if isinstance(value, Tensor):
                found[symbol] = value.shape[place]
    return found


def misfits(
    answers: Mapping[int, Payload], part: Part, declared: Declared, sizes: Mapping[str, int]
) -> dict[int, Event]:
    """Answers that disagree with most others about a length that only clients know; of equals the first wins."""
    lengths = {k: tuple(sorted(bound_axes(a, declared, part, sizes).items())) for k, a in answers.items()}
    if len(set(lengths.values())) < 2:
        return {}
    usual = Counter(lengths.values()).most_common(1)[0][0]
    return {
        k: Event("FS202", f"{part.name} answers with {dict(mine)} where most have {dict(usual)}", k)
        for k, mine in lengths.items()
        if mine != usual
    }


def _model_fault(models: Any, plan: Plan, client: int) -> Event | None:
    if models is None:
        return None
    size = plan.sizes["U"]
    if not isinstance(models, tuple) or not all(isinstance(model, Tensor) for model in models):
        return Event("FS202", "the models are no tuple of tensors", client)
    odd = [model for model in models if not plain(model, torch.float32)]
    if odd:
        return Event("FS202", f"models hold {kind_of(odd[0])} instead of float32", client)
    shapes = [tuple(model.shape) for model in models]
    if shapes != [(size,)] * plan.nets:
        return Event("FS202", f"models of shape {short(shapes)} instead of {plan.nets} x ({size},)", client)
    if not all(finite(model) for model in models):
        return Event("FS203", "the model holds NaN or infinity", client)
    if any(bool((model[plan.variances] < 0).any()) for model in models):
        return Event("FS203", "the model holds a negative variance", client)
    return None


def _notes_fault(up: Up, plan: Plan, h: Hooks, groups: int) -> Event | None:
    if not isinstance(up.notes, Mapping):
        return Event("FS202", f"the notes are {type(up.notes).__name__} instead of one payload per part", up.client)
    if up.models is None:
        return Event("FS202", f"notes of {names(up.notes)} without a model", up.client) if up.notes else None
    wanted = {part.name for part in h.finish}
    if wanted != set(up.notes):
        return Event("FS202", f"notes of {names(up.notes)} instead of {sorted(wanted)}", up.client)
    sizes = {**plan.sizes, "G": groups, "n": up.n}
    for part in h.finish:
        if event := payload_fault(up.notes[part.name], part, part.sends(), sizes, up.client):
            return event
    return None


def _state_fault(version: Any, mail: Mail) -> str:
    """A client's state is empty, or stored under the version it was told."""
    if type(version) is int and version in (0, mail.saves):
        return ""
    return f"version {short(version)} of its state instead of {mail.saves}"


def _round_number(round: Any) -> str:
    return short(round + 1) if type(round) is int else short(round)
