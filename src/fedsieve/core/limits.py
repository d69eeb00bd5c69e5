"""How far a client may move the model: its update is compared with those of its round and of past rounds.

One finite report of 1e30 would otherwise end a run for good. Weights and running statistics of each net are measured
apart, since statistics move further; so is every note that a part declares as `paced`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from statistics import median_low
from typing import NamedTuple

import torch
from torch import Tensor

from fedsieve.core.layout import pack
from fedsieve.core.part import Hooks
from fedsieve.core.plan import Plan
from fedsieve.core.sent import finite, in_full
from fedsieve.core.server import Models
from fedsieve.core.types import SERVER, Payload, Up

Norms = dict[str, float]
"""By what is measured: `weights.0` and `statistics.0` of net 0, `Part.name` of a note."""
PAST = 10
"""Rounds whose medians are remembered."""
FEWEST = 3
"""Reports from which a median means something: of two, one may be anything."""
HELD = 32
"""Reports held back until their median is known; fewer where they would take more than `HELD_BYTES`."""
HELD_BYTES = 512 << 20
SMALL = 0.02
"""A change of this share of what was sent counts as usual, however little the others changed."""
STATISTICS = "statistics"
LEEWAY = 2.0
"""Running statistics differ more between clients than weights do, by this factor."""
ROUNDING = 1.001
"""A mean of updates is no longer than the longest, but for rounding."""


class Passed(NamedTuple):
    """A report, and what is wrong with the length of its update."""

    up: Up
    excess: str = ""


class Usual(NamedTuple):
    """How far the reports of a round move one thing."""

    all: float
    """The median of all."""
    moved: float
    """The median of those that move it at all; infinite if they are too few for one."""


class Limits:
    """One round's reports on their way to the server: the first are held back until it is clear what is usual.

    Too long is what exceeds `factor` times the median of the reports held back, or of the past rounds' medians if that
    is larger. Who takes more steps may go further by the root of their number. A round of fewer than three reports says
    nothing of itself: there an update may also be `factor` times as long as what was sent. So may that of the server
    itself, where it takes part: clients may learn next to nothing yet.

    Clients that learnt nothing at all say nothing of those that did. The latter have their own median, which counts up
    to the length of what was sent, so that a few who mean harm among still clients do not make their own law.
    """

    def __init__(self, plan: Plan, h: Hooks, models: Mapping[int, Models], past: Mapping[str, Tensor]) -> None:
        self.on = plan.factor > 0
        self._plan, self._past = plan, past
        self._paced = [(p.name, name) for p in h.finish for name, says in p.sends().items() if in_full(says).paced]
        self._base = {g: tuple(pack(net, plan.up_slices) for net in nets) for g, nets in models.items()}
        self._held: list[tuple[Up, Norms]] = []
        self._usual: dict[str, Usual] | None = None
        self._usual_steps = 1
        self._seen: list[Norms] = []
        self._longest: Norms = {}
        report_bytes = max(1, 4 * plan.sizes["U"] * plan.nets)
        self._room = max(FEWEST, min(HELD, HELD_BYTES // report_bytes))

    def add(self, up: Up) -> Iterator[Passed]:
        """Reports that can be judged by now, in the order in which they came."""
        if not self.on:
            yield Passed(up)
            return
        norms = self._norms(up)
        if self._usual is not None:
            yield self._judge(up, norms)
            return
        self._held.append((up, norms))
        if sum(bool(each) for _, each in self._held) >= self._room:
            yield from self.close()

    def close(self) -> Iterator[Passed]:
        """Those still held back, when the round has no more."""
        known = [(self._steps(up), norms) for up, norms in self._held if norms]
        if self._usual is None and known:
            self._usual = {key: _usual([norms[key] for _, norms in known]) for key in known[0][1]}
            self._usual_steps = median_low(steps for steps, _ in known)
        held, self._held = self._held, []
        for up, norms in held:
            yield self._judge(up, norms)

    def medians(self) -> dict[str, Tensor]:
        """The past rounds' medians, with that of this round's admitted reports."""
        now = _medians(self._seen) if self._seen else {}
        fresh = {key: torch.tensor([norm], dtype=torch.float64) for key, norm in now.items()}
        longer = {key: torch.cat([self._past[key], one])[-PAST:] for key, one in fresh.items() if key in self._past}
        return {**self._past, **fresh, **longer}

    def too_far(self, group: int, models: Models) -> str:
        """What is wrong with a group's combined model; empty if it may replace the old one."""
        sections = tuple(pack(net, self._plan.up_slices) for net in models)
        if not all(finite(net) for net in sections):
            return "holds NaN or infinity"
        change = self._measure(sections, self._base[group]) if self._longest else {}
        for key, norm in change.items():
            if norm > ROUNDING * self._longest[key]:
                return f"lies {norm:.3g} from the old one in {key}, {self._longest[key]:.3g} is the most"
        return ""

    def clip(self, up: Up) -> Up:
        """The report with an update as long as it may be."""
        assert up.models is not None
        limit, norms = self._limit(up), self._norms(up)
        ratio = {key: min(1.0, limit[key] / norm) if norm else 1.0 for key, norm in norms.items()}
        models = []
        for index, (net, base) in enumerate(zip(up.models, self._base[up.group], strict=True)):
            mine = base.double()
            for key, section in self._parts(index):
                mine[section] += ratio[key] * (net[section].double() - mine[section])
            models.append(mine.float())
        notes = {part: dict(payload) for part, payload in up.notes.items()}
        for owner, name in self._paced:
            notes[owner][name] = _tensor(up.notes[owner], name) * ratio[f"{owner}.{name}"]
        return replace(up, models=tuple(models), notes=notes)

    def _judge(self, up: Up, norms: Norms) -> Passed:
        if not norms:
            return Passed(up)
        limit = self._limit(up)
        for key, most in limit.items():
            self._longest[key] = max(self._longest.get(key, 0.0), most)
        over = {key: norm / limit[key] for key, norm in norms.items() if norm > limit[key]}
        if not over or self._plan.excess == "clip":
            self._seen.append({key: min(norm, limit[key]) for key, norm in norms.items()})
        if not over:
            return Passed(up)
        worst = max(over, key=over.__getitem__)
        return Passed(up, f"its update is {norms[worst]:.3g} long in {worst}, {limit[worst]:.3g} is the most")

    def _limit(self, up: Up) -> Norms:
        assert self._usual is not None
        room = self._plan.factor * math.sqrt(max(1.0, self._steps(up) / self._usual_steps))
        small = SMALL if up.client > SERVER else 1.0
        sizes, limit = self._sizes(up), {}
        for key, now in self._usual.items():
            past = float(self._past[key].median()) if key in self._past else 0.0
            usual = max(now.all, past, min(now.moved, sizes[key]), small * sizes[key])
            limit[key] = room * usual * (LEEWAY if key.startswith(STATISTICS) else 1.0)
        return limit

    def _steps(self, up: Up) -> int:
        """Of a local epoch."""
        return max(1, math.ceil(up.n / self._plan.fit.batch))

    def _sizes(self, up: Up) -> Norms:
        """The length of what was sent; where it was nothing, that of a one in each place."""
        notes = {f"{part}.{name}": math.sqrt(_tensor(up.notes[part], name).numel()) for part, name in self._paced}
        return notes | {
            key: _norm(base[part]) or math.sqrt(part.stop - part.start)
            for index, base in enumerate(self._base[up.group])
            for key, part in self._parts(index)
        }

    def _norms(self, up: Up) -> Norms:
        """How far a report moves everything that is measured; empty for one without a model."""
        if up.models is None:
            return {}
        notes = {f"{part}.{name}": _norm(_tensor(up.notes[part], name)) for part, name in self._paced}
        return self._measure(up.models, self._base[up.group]) | notes

    def _measure(self, models: Models, base: Models) -> Norms:
        return {
            key: _norm(net[part] - then[part])
            for index, (net, then) in enumerate(zip(models, base, strict=True))
            for key, part in self._parts(index)
        }

    def _parts(self, index: int) -> Iterable[tuple[str, slice]]:
        """Where weights and statistics of a net lie among the sections that travel up."""
        trainable, size = self._plan.up_trainable, self._plan.sizes["U"]
        if trainable:
            yield f"weights.{index}", slice(0, trainable)
        if trainable < size:
            yield f"{STATISTICS}.{index}", slice(trainable, size)


def _norm(values: Tensor) -> float:
    return float(torch.linalg.vector_norm(values, dtype=torch.float64))


def _usual(norms: list[float]) -> Usual:
    moved = [norm for norm in norms if norm > 0]
    return Usual(
        median_low(norms) if len(norms) >= FEWEST else 0.0,
        median_low(moved) if len(moved) >= FEWEST else math.inf,
    )


def _medians(norms: list[Norms]) -> Norms:
    """Of an even number the lower of the middle two."""
    return {key: median_low([each[key] for each in norms]) for key in norms[0]}


def _tensor(payload: Payload, name: str) -> Tensor:
    value = payload[name]
    return value if isinstance(value, Tensor) else torch.tensor(float(value))
