"""What leaves each client: the union of what the parts declare, said before a run starts and stored with it."""

from __future__ import annotations

from typing import Any

from fedsieve.core.part import Part, defines, sees_single_reports
from fedsieve.core.plan import ANY, Plan, shape_of
from fedsieve.core.sent import Sent, Shape, in_full

FLOAT_BYTES = 4
REPORTED = ("number of samples", "training loss", "why it skipped, if it did")
"""What every report says besides the model."""


def disclosure(plan: Plan) -> list[dict[str, Any]]:
    """A row for everything that travels: stage, part, direction, name, shape, range (of what goes up) and bytes."""
    rows = []
    for stage in plan.stages:
        if stage.rounds and stage.sampler is not None and stage.sampler.trains():
            weights = (("down", ("N", "M")), ("up", ("N", "U")))
            rows += [_row(stage.name, "model", way, "weights", shape, None, plan) for way, shape in weights]
            rows += [_row(stage.name, "report", "up", n, (), None, plan) for n in REPORTED]
        for part in stage.parts:
            for direction, declared in (("down", part.down), ("up", part.sends())):
                rows += [_row(stage.name, part.name, direction, n, s, part, plan) for n, s in declared.items()]
            for name, topic in part.topics.items():
                for direction, declared in (("down", topic.question), ("up", topic.answer)):
                    rows += [
                        _row(stage.name, f"{part.name} ({name})", direction, n, s, part, plan)
                        for n, s in declared.items()
                    ]
    return [row for row in rows if row["bytes"] != 0]


def secure_aggregation(plan: Plan) -> bool:
    """Whether the server could work with sums of reports alone."""
    parts = [part for stage in plan.stages for part in stage.parts]
    sums = all(stage.combine is not None and stage.combine.streams for stage in plan.stages)
    return sums and not any(sees_single_reports(part) for part in parts)


def messages(plan: Plan) -> str:
    """Messages per client and round."""
    talking = sorted({part.name for stage in plan.stages for part in stage.parts if defines(part, "talk")})
    return "1" if not talking else f"1 (+ {', '.join(talking)})"


def _row(
    stage: str, part: str, direction: str, name: str, declared: Shape | Sent, owner: Part | None, plan: Plan
) -> dict[str, Any]:
    shape = in_full(declared).shape
    sizes = plan.sizes | {"G": 1}
    numbers = shape_of(shape, owner, sizes) if owner is not None else tuple(sizes[str(axis)] for axis in shape)
    size = 8 if not shape else FLOAT_BYTES
    for axis in numbers:
        size *= axis
    return {
        "stage": stage,
        "part": part,
        "direction": direction,
        "name": name,
        "shape": " x ".join(str(axis) for axis in shape) or "scalar",
        "range": in_full(declared).says() if direction == "up" and owner is not None else None,
        "bytes": None if ANY in numbers or "G" in shape else size,
    }
