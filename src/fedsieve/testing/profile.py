"""What a method judges, needs, sends and costs, from what its parts declare: the table that helps to choose one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from fedsieve.base.errors import ConfigError
from fedsieve.base.own_code import AllowCode
from fedsieve.core.part import defines
from fedsieve.core.plan import Plan
from fedsieve.core.types import Reads
from fedsieve.evaluate.disclosure import REPORTED, disclosure, secure_aggregation
from fedsieve.methods import METHODS
from fedsieve.report.tables import UNKNOWN, Table
from fedsieve.settings.planning import config_of, plan_of
from fedsieve.testing.contract import TINY
from fedsieve.testing.tiny import tiny_federation

WHOLE = frozenset("MUVW")
"""Axes as long as a model."""


@dataclass(frozen=True)
class Profile:
    """With its usual options."""

    judges: bool
    """Whether clients are told which of their labels look wrong."""
    suggests: bool
    """Whether they are told other labels."""
    needs: tuple[str, ...]
    """Labels of clients, sets of the server, or the truth."""
    helped_by: tuple[str, ...]
    """Sets of the server that it also uses where there are some."""
    sends: tuple[str, ...]
    """What leaves a client besides the model."""
    models_down: float
    """Models, or what is as long, that a client receives in a round of training."""
    models_up: float
    nets: int
    """Models that a client trains."""
    talks: bool
    """Whether there are messages besides those of training."""
    secure_aggregation: bool

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def needed(self) -> str:
        """In words."""
        return "; ".join([", ".join(self.needs) or "nothing", *(f"{one} helps" for one in self.helped_by)])


def profile(name: str, allow_code: AllowCode = False) -> Profile:
    plan = plan_of(config_of({**TINY, "rounds": 20, "method": name}, allow_code=allow_code), tiny_federation())
    parts = [part for stage in plan.stages for part in stage.parts]
    rows = disclosure(plan)
    sent = dict.fromkeys(row["name"] for row in rows if row["direction"] == "up" and row["part"] != "model")
    return Profile(
        judges=any((defines(part, "relabel") or "labels" in part.writes) and not part.guesses for part in parts),
        suggests=any(part.corrects for part in parts),
        needs=(needs := _needs(plan)),
        helped_by=tuple(dict.fromkeys(one for part in parts for one in _sets(part.may_read) if one not in needs)),
        sends=tuple(one for one in sent if one not in REPORTED),
        models_down=_models(rows, "down", plan),
        models_up=_models(rows, "up", plan),
        nets=plan.nets,
        talks=any(defines(part, "talk") for part in parts),
        secure_aggregation=secure_aggregation(plan),
    )


def needed(name: str) -> str:
    """What a method needs, in words; unknown of code of one's own, which is not imported for it."""
    try:
        return profile(name).needed()
    except ConfigError:
        return UNKNOWN


def _needs(plan: Plan) -> tuple[str, ...]:
    """What must be there; a loss that only the server computes needs no labels of clients."""
    read, labels = Reads.NONE, False
    for stage in plan.stages:
        trains = bool(stage.rounds) and stage.sampler is not None and stage.sampler.trains()
        for part in stage.parts:
            read |= part.data()
            labels |= part.labels and (trains or bool(part.topics))
        if stage.sampler is not None and (kind := stage.sampler.holding()):
            read |= Reads[kind.upper()]
    truth = ["true labels"] if read & Reads.TRUTH else []
    return (*(["client labels"] if labels else []), *_sets(read), *truth)


def _sets(read: Reads) -> tuple[str, ...]:
    """What the server must hold, by the names of the settings."""
    return tuple(f"server.{str(flag.name).lower()}" for flag in Reads if flag & read and flag is not Reads.TRUTH)


def _models(rows: Iterable[dict[str, Any]], way: str, plan: Plan) -> float:
    """Of all that travels in a round of the stage that sends most, what is as long as models are."""
    size = 4 * plan.layout.size
    by_stage: dict[str, float] = {}
    for row in rows:
        if row["direction"] == way and WHOLE & set(row["shape"].split(" x ")) and "(" not in row["part"]:
            by_stage[row["stage"]] = by_stage.get(row["stage"], 0.0) + (row["bytes"] or 0) / size
    return round(max(by_stage.values(), default=0.0), 1)


def method_table(names: Iterable[str] = tuple(METHODS)) -> Table:
    """One row a method, as the documentation has it."""
    header = (
        "method", "judges labels", "suggests labels", "needs", "sends besides the model", "models down / up", "nets",
        "secure aggregation",
    )  # fmt: skip
    rows = []
    for name in names:
        told = profile(name)
        rows.append(
            (
                name,
                "yes" if told.judges else "",
                "yes" if told.suggests else "",
                told.needed(),
                ", ".join(told.sends) or "nothing",
                f"{told.models_down:g} / {told.models_up:g}" + (" + talk" if told.talks else ""),
                str(told.nets),
                "yes" if told.secure_aggregation else "",
            )
        )
    return Table(header, tuple(rows))
