"""What server and clients agree on before the first message. Both sides build it from the same settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from fedsieve.base.errors import RunError
from fedsieve.base.rng import stream
from fedsieve.core.layout import Layout, pack
from fedsieve.core.part import Hooks, Method, Part, Share, Stage, defines
from fedsieve.core.schedules import Schedule
from fedsieve.core.sent import Declared, Shape
from fedsieve.core.types import Payload
from fedsieve.models.heads import standing_heads
from fedsieve.models.norm import normalises_batches


@dataclass(frozen=True)
class Fit:
    """How local training steps, for every method alike."""

    epochs: int
    batch: int
    lr: Schedule
    momentum: float = 0.0
    weight_decay: float = 0.0
    optimizer: str = "sgd"
    clip: float = 0.0
    precision: str = "fp32"
    augment: str = "none"


class Clock(NamedTuple):
    """A part's own time, by which it warms up and by which its weights rise."""

    t: int
    """Its rounds so far."""
    rounds: int
    """Its rounds in all."""


@dataclass(frozen=True)
class Plan:
    method: Method
    """Composed and complete: no field is None."""
    fit: Fit
    seed: int
    model: Callable[[], nn.Module]
    clients: int
    n_classes: int
    sample_shape: tuple[int, ...]
    public_rows: int = 0
    device: torch.device = torch.device("cpu")
    rows: tuple[int, ...] = ()
    """Per client, how many samples it declared; empty where the plan was made without knowing."""
    factor: float = 0.0
    """How many times as long as usual an update may be; 0 compares none."""
    excess: Literal["refuse", "clip"] = "refuse"
    """What happens to a longer one."""

    @property
    def stages(self) -> tuple[Stage, ...]:
        return self.method.stages

    @property
    def nets(self) -> int:
        assert self.method.nets is not None
        return self.method.nets

    @property
    def share(self) -> Share:
        assert self.method.share is not None
        return self.method.share

    @cached_property
    def hooks(self) -> tuple[Hooks, ...]:
        return tuple(Hooks(stage.parts) for stage in self.stages)

    @cached_property
    def verdict(self) -> str:
        """The column in which the method says how good a client is; of several, that of a part that weighs clients."""
        judges = [part for stage in self.stages for part in stage.parts if part.verdict]
        judges.sort(key=lambda part: not defines(part, "weigh"))
        return judges[0].verdict if judges else ""

    def part(self, stage: int, name: str) -> Part:
        """A part by its name; another stage may have it with other settings."""
        return next(part for part in self.stages[stage].parts if part.name == name)

    def clock(self, part: Part, stage: int, t: int) -> Clock:
        """Round t of a stage as this part counts: through all stages that have it, so that it warms up only once.

        A part of training at the server, which is in no stage, counts the rounds of the stage.
        """
        lengths = {i: each.rounds or 0 for i, each in enumerate(self.stages) if part.name in each.names()}
        if stage not in lengths:
            return Clock(t, self.stages[stage].rounds or 0)
        return Clock(sum(length for i, length in lengths.items() if i < stage) + t, sum(lengths.values()))

    def build(self, index: int, group: int = 0) -> nn.Module:
        """The model of net `index` with the initial weights of a group, from their own stream."""
        with torch.random.fork_rng(devices=[]):
            torch.random.manual_seed(stream(self.seed, "init", index, group))
            return self.model()

    @cached_property
    def smallest_batch(self) -> int:
        """The smallest batch that the model can be trained on: normalising over a batch needs two values a channel."""
        return 2 if normalises_batches(self.build(0), self.sample_shape) else 1

    @cached_property
    def layout(self) -> Layout:
        return Layout.of(self.build(0))

    @cached_property
    def initial(self) -> tuple[Tensor, ...]:
        """The vector each net starts from."""
        return self.fresh(0)

    def fresh(self, group: int) -> tuple[Tensor, ...]:
        """Initial vectors for a group of models."""
        vectors = []
        for index in range(self.nets):
            module = self.build(index, group)
            named = dict(module.named_parameters()) | dict(module.named_buffers())
            vectors.append(self.layout.flat({name: tensor.detach() for name, tensor in named.items()}))
        return tuple(vectors)

    @cached_property
    def down_slices(self) -> list[slice]:
        return self.layout.slices(self.share.down)

    @cached_property
    def up_slices(self) -> list[slice]:
        return self.layout.slices(self.share.up)

    @cached_property
    def up_trainable(self) -> int:
        """Trainable floats that travel up; they stand before the statistics."""
        return self.layout.count(self.share.up, trainable_only=True)

    @cached_property
    def variances(self) -> Tensor:
        """Where running variances lie among the sections that travel up."""
        vector = torch.zeros(self.layout.size, dtype=torch.bool)
        for entry in self.layout.entries:
            if entry.norm and not entry.trainable and entry.name.endswith("running_var"):
                vector[entry.start : entry.stop] = True
        return pack(vector, self.up_slices).nonzero().flatten()

    @cached_property
    def keep_slices(self) -> list[slice]:
        return self.layout.slices(self.share.keep)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """What the symbols of declared shapes stand for, but for those that depend on a client or a group."""
        model = self.build(0)
        return {
            "M": self.layout.count(self.share.down),
            "U": self.layout.count(self.share.up),
            "V": self.layout.size,
            "W": self.layout.trainable,
            "C": self.n_classes,
            "K": self.clients,
            "N": self.nets,
            "P": self.public_rows,
            "d": int(getattr(model.head, "in_features", 0)),
            **{name: head.width for name, head in standing_heads(model).items()},
        }


ANY = -1
"""An axis whose length only the clients know: at least one, and the same in all answers to a question."""
AT_MOST = "<="
"""Before a symbol: an axis that may also be shorter."""


def shape_of(shape: Shape, part: Part, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """A declared shape in numbers, the largest it may be: symbols from `sizes`, then attributes of the part."""
    return tuple(_axis(axis, part, sizes) for axis in shape)


def fits(found: tuple[int, ...], shape: Shape, part: Part, sizes: Mapping[str, int]) -> bool:
    """Whether a tensor's shape is the declared one."""
    if len(found) != len(shape):
        return False
    for length, axis in zip(found, shape, strict=True):
        wanted = _axis(axis, part, sizes)
        within = isinstance(axis, str) and axis.startswith(AT_MOST) and length <= wanted
        if not within and length != wanted and (wanted != ANY or not length):
            return False
    return True


def any_axes(shape: Shape, part: Part, sizes: Mapping[str, int]) -> dict[int, str]:
    """The symbols of a shape whose length nothing decides yet, by their place."""
    return {i: str(axis) for i, axis in enumerate(shape) if _axis(axis, part, sizes) == ANY}


def _axis(axis: int | str, part: Part, sizes: Mapping[str, int]) -> int:
    if isinstance(axis, int):
        return axis
    symbol = axis.removeprefix(AT_MOST)
    if symbol in sizes:
        return sizes[symbol]
    return ANY if symbol == "n" else int(getattr(part, symbol))


def check_declared(payload: Payload, declared: Declared, part: Part, hook: str) -> Payload:
    """FS206 if a hook returns names that the part does not declare, or leaves declared ones out."""
    if payload.keys() != declared.keys():
        raise RunError(
            "FS206",
            f"{part.name}.{hook} returned {sorted(payload)}, but the part declares {sorted(declared)}. "
            "Declare exactly what travels",
        )
    return payload
