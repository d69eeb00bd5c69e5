"""Putting methods together, and refusing what does not fit when it is built instead of in round 40.

1. Methods made only of stages without rounds are inserted: first, or after the stage named in `where`, or each stage
   after the one named in its `after`.
2. At most one method may have several stages: it is the frame.
3. The others' single stage is merged into each of the frame's stages in which clients train, or those in `where`.
4. Parts keep the written order; equal parts are merged.
5. A field left None yields to one that is set; two different values need an explicit choice.
6. Defaults are filled last, then everything is checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from fedsieve.base.errors import CompositionError
from fedsieve.core import Head, Mean, Method, Part, Plan, Reads, Sampler, Share, Stage, Uniform, defines
from fedsieve.core.part import sees_single_reports
from fedsieve.parts.losses import CrossEntropy

STAGE_FIELDS = ("rounds", "sampler", "combine", "base", "epochs")
FRAME_FIELDS = ("name", "rounds", "fraction", "laps", "extra")
METHOD_FIELDS = ("nets", "turns", "share", "test")
ROUNDING = 1e-9
"""Keeps 5 / 0.1 from costing more than fifty rounds."""


def compose(*methods: Method, **choices: Any) -> Method:
    """One method out of several; `choices` (sampler=..., base=...) decide where two of them disagree."""
    if not methods:
        raise CompositionError("FS101", "nothing to compose: give at least one method")
    preludes = [m for m in methods if all(stage.rounds == 0 for stage in m.stages)]
    frames = [m for m in methods if m not in preludes and len(m.stages) > 1]
    if len(frames) > 1:
        a, b = frames[:2]
        raise CompositionError(
            "FS106",
            f"{a.name} and {b.name} both have several stages; one may frame the other, not both. "
            "Take the parts you need from one of them",
        )
    singles = [m for m in methods if m not in preludes and m not in frames]
    stages = _framed(frames, singles, choices)
    if not stages:
        stages = [m.alone or Stage() for m in preludes[:1]]
    for prelude in reversed(preludes):
        stages = _inserted(stages, prelude)
    settings = {name: _agreed(methods, name, choices) for name in METHOD_FIELDS}
    return Method("+".join(m.name for m in methods), tuple(stages), heads=_heads(methods), **settings)


def complete(method: Method, *, rounds: int, fraction: float, clients: int, local_norm: bool) -> Method:
    """Fill what every method left open. `local_norm` keeps normalisation layers at the clients (FedBN)."""
    everyday = Uniform(fraction=fraction)
    per_round = everyday.size(clients) / clients
    sized = [_sized(stage, rounds, per_round, clients) for stage in method.stages]
    open_stages = [stage.name for stage, _ in sized if stage.rounds is None]
    if len(open_stages) > 1:
        raise CompositionError(
            "FS111",
            f"{method.name}: stages {open_stages} leave 'rounds' open; the experiment's rounds can go to one. "
            "Set the others' rounds",
        )
    endless = [stage.name for stage, _ in sized if stage.extra and stage.rounds is None]
    if endless:
        raise CompositionError(
            "FS111", f"{method.name}: stage '{endless[0]}' is extra but leaves 'rounds' open. Set its rounds"
        )
    spent = sum(0 if stage.extra else cost for stage, cost in sized)
    stages = tuple(
        replace(
            stage,
            rounds=max(rounds - spent, 0) if stage.rounds is None else stage.rounds,
            parts=_with_loss(stage),
            sampler=everyday if stage.sampler is None else stage.sampler.filled(everyday),
            combine=stage.combine or Mean(),
            base=stage.base or "size",
        )
        for stage, _ in sized
    )
    share, test = method.share or Share(), method.test or "groups"
    if local_norm and share.down:
        if test == "probe":
            raise CompositionError(
                "FS101",
                f"norm=local sets test='clients', but {method.name} is tested by a probe of the server's model. "
                "Take another norm",
            )
        out = ("-@norm",)
        share = replace(share, down=share.down + out, up=share.up + out, keep=(*share.keep, "@norm"))
        test = "clients"
    return replace(
        method, stages=stages, nets=method.nets or 1, turns=method.turns or "together", share=share, test=test
    )


def _sized(stage: Stage, rounds: int, per_round: float, clients: int) -> tuple[Stage, int]:
    """The stage with its length, if that can be known, and how many of the experiment's rounds it costs.

    `per_round` is the share of the clients that an ordinary round visits.
    """
    if stage.rounds is None and stage.laps is not None:
        turns = None if stage.sampler is None else stage.sampler.turns(clients)
        if turns is None:
            raise CompositionError(
                "FS101",
                f"stage '{stage.name}' counts laps, which only a sampler with turns has, such as Sweep. Set such a one",
            )
        fewest, most = stage.laps
        fitting = most if stage.fraction is None else int(stage.fraction * rounds * per_round + ROUNDING)
        laps = min(most, max(fewest, fitting))
        return replace(stage, rounds=laps * turns), ceil(laps / per_round - ROUNDING)
    if stage.fraction is not None:  # a part of the experiment's rounds, so never more than these
        length = ceil(stage.fraction * rounds) if stage.rounds is None else min(stage.rounds, rounds)
        stage = replace(stage, rounds=length)
    return stage, stage.rounds or 0


def _with_loss(stage: Stage) -> tuple[Part, ...]:
    """A stage whose clients train without a loss of its own takes cross entropy; others need none."""
    if not _trains(stage) or any(defines(part, "loss") for part in stage.parts):
        return stage.parts
    return (*stage.parts, CrossEntropy())


@dataclass(frozen=True)
class Surroundings:
    """What the checks must know of the experiment."""

    server_data: Reads = Reads.NONE
    labelled: bool = True
    secure_aggregation: bool = False


def check(method: Method, around: Surroundings) -> None:
    """Everything that can be known to be wrong before the first round; raises the first fault found."""
    written: set[str] = {"group"}
    group_writers: list[Part | Sampler] = []
    for stage in method.stages:
        _check_parts(stage, method)
        _check_losses(stage, around)
        _check_weights(stage, method)
        _check_data(stage, around)
        _check_server(stage)
        if stage.sampler is not None and stage.sampler.group_count() > 1 and stage.sampler not in group_writers:
            group_writers.append(stage.sampler)
        writers: dict[str, Part] = {}
        for part in stage.parts:
            for column in part.writes:
                rival = writers.setdefault(column, part)
                if rival != part:
                    raise _two_writers(rival, part, column)
            if "group" in part.writes and part not in group_writers:
                group_writers.append(part)
            written |= part.writes
        if len(group_writers) > 1:
            raise _two_writers(group_writers[0], group_writers[1], "group")
        for part in stage.parts:
            if part.needs - written:
                raise CompositionError(
                    "FS109",
                    f"stage '{stage.name}': {part.name} needs client column {sorted(part.needs - written)}, "
                    "which no part of this or an earlier stage writes. Add a part that does",
                )


def check_plan(plan: Plan) -> None:
    """What the parts themselves demand of the experiment."""
    if not plan.layout.count(plan.share.train, trainable_only=True):
        raise CompositionError("FS116", f"{plan.method.name}: Share.train chooses nothing of the model. Name a section")
    for stage in plan.stages:
        for part in stage.parts:
            part.check(plan)


def _framed(frames: list[Method], singles: list[Method], choices: dict[str, Any]) -> list[Stage]:
    if not frames:
        together = [_merged([(m.name, m.stages[0]) for m in singles], choices)] if singles else []
        if len(singles) > 1 and not _trains(together[0]):
            raise _nobody_trains(singles[0], singles[1:])
        return together
    frame = frames[0]
    if singles and not any(map(_trains, frame.stages)):
        raise _nobody_trains(frame, singles)
    names = [stage.name for stage in frame.stages]
    for single in singles:
        _known_stages(single, names)
    stages = []
    for stage in frame.stages:
        joining = [m for m in singles if (stage.name in m.where if m.where else _trains(stage))]
        merged = _merged(
            [(frame.name, stage), *((m.name, replace(m.stages[0], rounds=None)) for m in joining)], choices
        )
        own = {field: getattr(stage, field) for field in FRAME_FIELDS}
        stages.append(replace(merged, **own))
    return stages


def _nobody_trains(frame: Method, others: Sequence[Method]) -> CompositionError:
    names = " and ".join(method.name for method in (frame, *others))
    return CompositionError(
        "FS107", f"{names}: the server trains alone, and there is no stage with clients to join. Leave one out"
    )


def _trains(stage: Stage) -> bool:
    """Whether clients train in it."""
    return stage.rounds != 0 and (stage.sampler is None or stage.sampler.trains())


def _inserted(stages: list[Stage], prelude: Method) -> list[Stage]:
    _known_stages(prelude, [stage.name for stage in stages])
    for talk in reversed(prelude.stages):
        places = [i for i, stage in enumerate(stages) if stage.name in (prelude.where or talk.after)]
        after = max(places) + 1 if places else 0
        stages = [*stages[:after], talk, *stages[after:]]
    return stages


def _known_stages(method: Method, names: list[str]) -> None:
    for name in method.where:
        if name not in names:
            raise CompositionError("FS107", f"{method.name}: no stage '{name}'; the stages are {names}")


def _merged(named: Sequence[tuple[str, Stage]], choices: dict[str, Any]) -> Stage:
    """Several stages as one."""
    parts: list[Part] = []
    for _, stage in named:
        for part in stage.parts:
            twin = next((other for other in parts if other.name == part.name), None)
            if twin is None:
                parts.append(part)
            elif twin != part:
                raise CompositionError(
                    "FS102", f"stage '{named[0][1].name}' has {twin} and {part}: the same part with different settings"
                )
    fields = {field: _one(named, field, choices) for field in STAGE_FIELDS}
    return Stage(name=named[0][1].name, parts=tuple(parts), extra=any(stage.extra for _, stage in named), **fields)


def _heads(methods: Iterable[Method]) -> tuple[Head, ...]:
    """Those of all methods, each once."""
    found: dict[str, tuple[Method, Head]] = {}
    for method in methods:
        for head in method.heads:
            owner, twin = found.setdefault(head.name, (method, head))
            if twin != head:
                raise CompositionError(
                    "FS102",
                    f"{owner.name} and {method.name} bring the head '{head.name}' with different settings "
                    f"({twin} / {head}). Give both the same",
                )
    return tuple(head for _, head in found.values())


def _agreed(methods: Iterable[Method], field: str, choices: dict[str, Any]) -> Any:
    return _one([(m.name, m) for m in methods], field, choices)


def _one(named: Sequence[tuple[str, Any]], field: str, choices: dict[str, Any]) -> Any:
    """The one value of a field among several owners, or the caller's choice."""
    if field in choices:
        return choices[field]
    set_by = [(name, getattr(owner, field)) for name, owner in named if getattr(owner, field) is not None]
    for name, value in set_by[1:]:
        if value != set_by[0][1]:
            raise CompositionError(
                "FS101",
                f"{set_by[0][0]} and {name} both set '{field}' ({set_by[0][1]} / {value}). "
                f"Exactly one is possible: compose({set_by[0][0]}, {name}, {field}=...)",
            )
    return set_by[0][1] if set_by else None


def _check_parts(stage: Stage, method: Method) -> None:
    for part in stage.parts:
        if part.nets is not None and part.nets != method.nets:
            raise CompositionError(
                "FS108", f"{part.name} works on {part.nets} models per client, the method carries {method.nets}"
            )
        for head in part.heads:
            if head not in method.head_names():
                raise CompositionError("FS116", f"{part.name} needs the head '{head}'. Add it to the method's heads")
        halves = (("talk", "answer"), ("answer", "talk"))
        for one, other in halves:
            if defines(part, one) and not defines(part, other):
                raise CompositionError("FS110", f"{part.name} defines {one} but not {other}. Write the other half")
        for declared, hook in ((part.down, "brief"), (part.up, "finish"), (part.topics, "talk")):
            if declared and not defines(part, hook):
                raise CompositionError("FS110", f"{part.name} declares {sorted(declared)} but does not define {hook}")
        if defines(part, "brief") and not part.down:
            raise CompositionError("FS110", f"{part.name} defines brief but declares nothing in `down`")


def _check_losses(stage: Stage, around: Surroundings) -> None:
    losses = [part for part in stage.parts if defines(part, "loss")]
    if len(losses) > 1:
        raise CompositionError(
            "FS103",
            f"stage '{stage.name}' has two losses, {losses[0].name} and {losses[1].name}. "
            "A stage trains on exactly one; keep one, or turn the other into a term",
        )
    trains = _trains(stage)
    for part in stage.parts:
        if part.labels and not around.labelled and (trains or defines(part, "answer")):
            raise CompositionError(
                "FS115",
                f"{part.name} reads client labels; the clients of this federation have none. "
                "Take a method that reads none",
            )


def _check_weights(stage: Stage, method: Method) -> None:
    weighers = [part for part in stage.parts if defines(part, "weigh")]
    replacing = [part for part in weighers if part.weighs == "replace"]
    if len(replacing) > 1:
        raise CompositionError(
            "FS104",
            f"stage '{stage.name}': {replacing[0].name} and {replacing[1].name} both replace the aggregation weights. "
            "Keep one, or use a weigher that scales",
        )
    if weighers and method.share is not None and not method.share.up:
        raise CompositionError(
            "FS114", f"{weighers[0].name} weighs reports, but nothing is averaged (Share.up is empty). Leave one out"
        )
    stepping = [part for part in stage.parts if defines(part, "step")]
    if stepping and method.share is not None and not method.share.up:
        raise CompositionError(
            "FS114", f"{stepping[0].name} steps to what is combined, but nothing is (Share.up is empty). Leave one out"
        )
    joint = [part for part in stage.parts if part.combined]
    if joint and method.share is not None and not method.share.up:
        raise CompositionError(
            "FS114",
            f"{joint[0].name} works with the model that clients have in common, but each keeps its own (Share.up is "
            "empty). Leave one out",
        )
    if weighers and stage.combine is not None and not stage.combine.weighted:
        raise CompositionError(
            "FS114",
            f"{weighers[0].name} weighs reports, but {type(stage.combine).__name__} ignores weights. Leave one out",
        )


def _check_data(stage: Stage, around: Surroundings) -> None:
    readers = [(part.name, part.data()) for part in stage.parts]
    if stage.sampler is not None and (kind := stage.sampler.holding()):
        readers.append((type(stage.sampler).__name__, Reads[kind.upper()]))
    for reader, reads in readers:
        missing = reads & ~around.server_data & ~Reads.TRUTH
        if missing:
            names = [str(flag.name).lower() for flag in Reads if flag in missing]
            raise CompositionError(
                "FS112",
                f"{reader} reads {' and '.join(names)} server data; this federation has none. "
                f"Set {', '.join(f'server.{name}' for name in names)}",
            )
    for part in stage.parts:
        if around.secure_aggregation and sees_single_reports(part):
            raise CompositionError("FS117", f"secure aggregation is on, but {part.name} sees single reports")
    if around.secure_aggregation and stage.combine is not None and not stage.combine.streams:
        raise CompositionError(
            "FS117", f"secure aggregation is on, but {type(stage.combine).__name__} sees single reports"
        )


def _check_server(stage: Stage) -> None:
    """Where the server takes part, no part may look it up in the client table."""
    if stage.sampler is None or not stage.sampler.holding():
        return
    for part in stage.parts:
        columns = (part.needs | part.writes) - {"labels"}
        if columns and defines(part, "brief"):
            raise CompositionError(
                "FS118",
                f"stage '{stage.name}': {part.name} tells each client of its columns {sorted(columns)}, but the "
                "server, which takes part, has none. Leave one out",
            )


def _two_writers(one: Part | Sampler, two: Part | Sampler, column: str) -> CompositionError:
    first, second = (type(writer).__name__ for writer in (one, two))
    return CompositionError(
        "FS105", f"{first} and {second} both write client column '{column}': the second would undo the first"
    )
