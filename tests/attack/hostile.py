"""Replies that a client could send to do harm, drawn at random from a seed."""

import random
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from fedsieve.core.sent import plain
from fedsieve.core.types import Answer, Up

HUGE = 10**400
LONE = "\ud800" * 3
ODD_NUMBERS = (
    *(float("nan"), float("inf"), -float("inf"), -1.0, -1e-9, 1.0 + 1e-6, 2.0, 1e6, 1.1e6, 1e30, -1e30, 3e38, 1e-320),
    *(0.0, 1.0, 0, 1, -1, 7, 10**12, HUGE, -HUGE, True, False, None, "high", LONE, "x" * 100_000, (), [1.0], {"a": 1}),
)
ODD_INTEGERS = (-1, 0, 1, 2, 3, 999, 10**12, HUGE, -HUGE, 2.5, float("nan"), True, None, "7", LONE, (1,))
ODD_TEXTS = (LONE, "\x1b[2J" * 50, "long " * 50_000, None, 7, "=1+1")

OTHER_TYPES = ("float64", "float16", "bfloat16", "int64", "int8", "bool", "complex64")


def _one(change):
    """A tensor with one number changed."""

    def changed(x, rng):
        flat = x.clone().flatten()
        if len(flat):
            flat[rng.randrange(len(flat))] = change
        return flat.view(x.shape)

    return changed


def _drawn(x, rng, size):
    return size * torch.randn(x.shape, generator=torch.Generator().manual_seed(rng.randrange(2**31)))


TENSORS = {
    **{f"one {value}": _one(value) for value in (float("nan"), float("inf"), 1e30, -1e30, 3e38, -1.0, 1e6, 1.5)},
    "all NaN": lambda x, rng: torch.full_like(x, torch.nan),
    "all 1e30": lambda x, rng: torch.full_like(x, 1e30),
    "all 1e6": lambda x, rng: torch.full_like(x, 1e6),
    "all zero": lambda x, rng: torch.zeros_like(x),
    "all one": lambda x, rng: torch.ones_like(x),
    "negative": lambda x, rng: -x,
    "tiny": lambda x, rng: x * 1e-42,
    **{f"{factor:g} times": lambda x, rng, f=factor: x * f for factor in (-1, -10, 10, 1e3, 1e30)},
    **{f"drawn {size:g}": lambda x, rng, s=size: _drawn(x, rng, s) for size in (1e-3, 1, 10, 1e3, 1e9)},
    "permuted": lambda x, rng: x.flatten()[torch.randperm(x.numel())].view(x.shape),
    "flat": lambda x, rng: x.flatten(),
    "an axis more": lambda x, rng: x[None],
    "empty": lambda x, rng: x.flatten()[:0],
    "without columns": lambda x, rng: x[..., :0] if x.dim() else x,
    "wider": lambda x, rng: torch.cat([x, x], -1) if x.dim() else x,
    "longer": lambda x, rng: torch.cat([x, x], 0) if x.dim() else x,
    "shorter": lambda x, rng: x[1:] if x.dim() else x,
    "huge and shared": lambda x, rng: torch.zeros(1).expand(10**12),
    **{name: lambda x, rng, d=name: x.to(getattr(torch, d)) for name in OTHER_TYPES},
    "sparse": lambda x, rng: x.to_sparse(),
    "quantised": lambda x, rng: torch.quantize_per_tensor(x.float(), 0.1, 0, torch.qint8),
    "meta": lambda x, rng: torch.empty_like(x, device="meta"),
    "nested": lambda x, rng: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "a number": lambda x, rng: 1.0,
    "text": lambda x, rng: LONE,
    "nothing": lambda x, rng: None,
}


def hostile_tensor(x, rng):
    """Of a tensor that is still an honest one."""
    fresh = plain(x, torch.float32) and x.numel() < 10**6
    return TENSORS[rng.choice(list(TENSORS))](x, rng) if fresh else x


def hostile_value(value, rng):
    if isinstance(value, Tensor):
        return hostile_tensor(value, rng)
    if rng.random() < 0.2 and isinstance(value, float):
        return hostile_tensor(torch.tensor(float(value)), rng)
    return rng.choice(ODD_NUMBERS)


def hostile_payload(payload, rng):
    """One value replaced, a name more or less, or no payload at all."""
    kind = rng.random()
    if kind < 0.75 and payload:
        name = rng.choice(sorted(payload, key=str))
        return {**payload, name: hostile_value(payload[name], rng)}
    if kind < 0.82:
        return {**payload, rng.choice(["more", LONE, "m" * 10_000]): hostile_value(1.0, rng)}
    if kind < 0.9 and payload:
        return {name: value for name, value in payload.items() if name != min(payload, key=str)}
    return rng.choice([None, 3, "payload", (), [], {}, {1: 2}, {"a": {"b": 1}}])


def hostile_notes(notes, rng):
    if rng.random() < 0.8 and all(isinstance(each, Mapping) for each in notes.values()) and notes:
        part = rng.choice(sorted(notes, key=str))
        return {**notes, part: hostile_payload(notes[part], rng)}
    return rng.choice([{}, {**notes, "Other": {}}, {**notes, LONE: {}}, None, 7, "notes", {1: {}}, [1]])


def hostile_models(models, sent, rng):
    """What is sent for a model, or the update turned round and lengthened, which only the length gives away."""
    kind = rng.random()
    if kind < 0.3 and [(m.shape, m.dtype, m.layout) for m in sent] == [(m.shape, m.dtype, m.layout) for m in models]:
        factor = rng.choice((-1, -10, 10, -100, 1e4, 1e30))
        return tuple(a + factor * (b - a) for a, b in zip(sent, models, strict=True))
    if kind < 0.9:
        at = rng.randrange(len(models))
        return tuple(hostile_tensor(m, rng) if i == at else m for i, m in enumerate(models))
    return rng.choice([(), models * 2, list(models), None, "models", 5, (None,), ("a",), {0: models[0]}])


FIELDS = dict.fromkeys(("client", "round", "n", "group", "version"), ODD_INTEGERS)


def hostile_report(up: Up, sent: tuple[Tensor, ...], rng: random.Random):
    """A report in which one thing is wrong, or now and then two."""
    for _ in range(rng.choice((1, 1, 1, 2))):
        kind = rng.random()
        if kind < 0.4 and isinstance(up.models, tuple) and all(isinstance(m, Tensor) for m in up.models) and up.models:
            up = replace(up, models=hostile_models(up.models, sent, rng))
        elif kind < 0.7 and isinstance(up.notes, Mapping):
            up = replace(up, notes=hostile_notes(up.notes, rng))
        elif kind < 0.9:
            field = rng.choice(sorted(FIELDS))
            up = replace(up, **{field: rng.choice(FIELDS[field])})
        elif kind < 0.95:
            up = replace(up, loss=rng.choice(ODD_NUMBERS))
        else:
            up = replace(up, skipped=rng.choice(ODD_TEXTS), models=rng.choice([None, up.models]))
    return up if rng.random() < 0.97 else rng.choice([None, 7, "report", Answer(up.client, {}, 0)])


def hostile_answer(answer: Answer, rng: random.Random):
    kind = rng.random()
    if kind < 0.8:
        return replace(answer, payload=hostile_payload(answer.payload, rng))
    if kind < 0.97:
        field = rng.choice(("client", "version"))
        return replace(answer, **{field: rng.choice(ODD_INTEGERS)})
    return rng.choice([None, 7, "answer", ()])
