"""Decisions in the forms that other tools read."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable
from typing import Any

from fedsieve.base.sheets import write_rows
from fedsieve.data.decisions import Standing

LABEL = "label"
"""Name of the question that is answered, in label tools."""


def as_csv(standing: Iterable[Standing]) -> str:
    header = ["owner", "where", "before", "after", "action", "who", "when"]
    return _table([header, *([*one.decision.key, *_decided(one)] for one in standing)])


def as_cleanlab(standing: Iterable[Standing]) -> str:
    """The columns of cleanlab's `get_issues("label")`; a person's class stands where a model's would."""
    header = ["where", "is_label_issue", "given_label", "predicted_label"]
    rows = []
    for one in standing:
        said = one.decision
        if said.action != "unsure":
            rows.append([said.sample.where, str(bool(said.wrong)), said.before, said.after or ""])
    return _table([header, *rows])


def as_label_studio(standing: Iterable[Standing]) -> str:
    """A list of tasks, each with what its reader chose and what it was before."""

    def choice(name: str) -> list[dict[str, Any]]:
        value = {"choices": [name]}
        return [{"from_name": LABEL, "to_name": "sample", "type": "choices", "value": value}]

    tasks = []
    for one in standing:
        said = one.decision
        annotation = {
            "result": choice(said.after) if said.after is not None else [],
            "was_cancelled": said.after is None,
        }
        about = {"created_username": said.who, "created_at": said.when}
        tasks.append(
            {
                "data": {"sample": said.sample.where, "owner": said.sample.owner},
                "meta": {"action": said.action},
                "annotations": [annotation | about],
                "predictions": [{"model_version": "given", "result": choice(said.before)}],
            }
        )
    return json.dumps(tasks, indent=1, ensure_ascii=False) + "\n"


def as_argilla(standing: Iterable[Standing]) -> str:
    """A list of records of Argilla 2. What was decided is a suggestion by its reader: responses need users there."""
    records = []
    for one in standing:
        said = one.decision
        about = {"owner": said.sample.owner, "given": said.before, "action": said.action, "when": said.when}
        decided = {LABEL: {"value": said.after, "score": None, "agent": said.who}}
        records.append(
            {
                "id": f"{said.sample.owner}/{said.sample.where}",
                "fields": {"sample": said.sample.where},
                "metadata": about,
                "suggestions": decided if said.after is not None else {},
            }
        )
    return json.dumps(records, indent=1, ensure_ascii=False) + "\n"


FORMATS: dict[str, Callable[[Iterable[Standing]], str]] = {
    "label-studio": as_label_studio,
    "cleanlab": as_cleanlab,
    "argilla": as_argilla,
    "csv": as_csv,
}


def _decided(one: Standing) -> list[str]:
    said = one.decision
    return [said.before, said.after or "", said.action, said.who, said.when]


def _table(rows: list[list[Any]]) -> str:
    text = io.StringIO(newline="")
    write_rows(text, rows)
    return text.getvalue()
