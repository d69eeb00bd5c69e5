"""What the clients' states say of their labels, for the owners of the data: `labels.csv`, and `suspects.npz`, by which
a report shows the worst of them."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from torch import Tensor

from fedsieve.base.disk import write_bytes
from fedsieve.base.sheets import write_rows
from fedsieve.data.federation import Federation
from fedsieve.evaluate.neighbours import small
from fedsieve.evaluate.schema import LABEL_COLUMNS, MOST_BYTES, MOST_OWNERS, MOST_SHOWN, File

MOST_VALUES = 8
"""Of a row of a table, so many are shown."""


class Flagged(Protocol):
    """What is asked of a label here, wherever it was read from."""

    @property
    def owner(self) -> str: ...

    @property
    def flagged(self) -> bool: ...


_L = TypeVar("_L", bound=Flagged)


class JudgedLabel(NamedTuple):
    """A row of labels.csv."""

    owner: str
    where: str
    given: str
    suggested: str
    """Another class than the given one where flagged, or "" if the method flags without one."""
    score: float
    flagged: bool
    method: str
    twin: str
    """Where another row of the owner is that is nearly the same and labelled otherwise; "" for none."""
    client: int
    row: int
    """Of the client's; these two are not in the file."""


def judged_labels(federation: Federation, client: int, state: Mapping[str, Tensor], method: str) -> list[JudgedLabel]:
    """What a client's state says of its labels, worst first; nothing where no method judged them.

    A row without a label has none that could be wrong.
    """
    if "judged/score" not in state:
        return []
    given = federation.given[client]
    score, suggested, kept = (state[f"judged/{name}"].numpy() for name in ("score", "suggested", "kept"))
    flagged = ~kept.astype(bool) | (suggested != given)
    score = np.where(np.isnan(score), ~flagged, score)  # a method that flags without a score is sure
    opinion = state["judged/opinion"].numpy() if "judged/opinion" in state else np.full_like(given, -1)
    suggested = np.where(flagged & (suggested == given), opinion, suggested)
    named = dict(enumerate(map(_writable, federation.class_names))) | {-1: ""}
    suggested = np.where(flagged & (suggested == given), -1, suggested)
    where, owner = federation.places(client), _writable(federation.owner(client))
    twin = state["judged/twin"].numpy() if "judged/twin" in state else np.full_like(given, -1)
    return [
        JudgedLabel(
            owner=owner,
            where=_writable(where[row]),
            given=named[given[row]],
            suggested=named[suggested[row]],
            score=float(score[row]),
            flagged=bool(flagged[row]),
            method=method,
            twin=_writable(where[twin[row]]) if twin[row] >= 0 else "",
            client=client,
            row=int(row),
        )
        for row in np.argsort(score, kind="stable")
        if given[row] >= 0
    ]


def _writable(text: str) -> str:
    """What no UTF-8 can hold, as a file's name may, with backslashes."""
    return text.encode(errors="backslashreplace").decode()


def labels_csv(judged: Iterable[JudgedLabel]) -> bytes:
    text = io.StringIO()
    cells = ([*one[:4], f"{one.score:.6g}", str(one.flagged).lower(), one.method, one.twin] for one in judged)
    write_rows(text, [LABEL_COLUMNS, *cells])
    return text.getvalue().encode()


def flagged_by_owner(labels: Iterable[_L]) -> dict[str, list[_L]]:
    """The flagged labels of each owner in their order, the owner with the most first."""
    found: dict[str, list[_L]] = {}
    for one in labels:
        found.setdefault(one.owner, []).extend([one] if one.flagged else [])
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def shown_suspects(labels: Iterable[_L]) -> dict[str, list[_L]]:
    """What a report shows of them."""
    found = {owner: flagged[:MOST_SHOWN] for owner, flagged in flagged_by_owner(labels).items() if flagged}
    return dict(list(found.items())[:MOST_OWNERS])


def counts_by_owner(judged: Iterable[JudgedLabel]) -> list[dict[str, Any]]:
    """Of each owner, in the order of clients: how many labels were judged, and how many flagged."""
    counts: dict[str, dict[str, Any]] = {}
    for one in judged:
        mine = counts.setdefault(one.owner, {"owner": one.owner, "judged": 0, "flagged": 0})
        mine["judged"] += 1
        mine["flagged"] += one.flagged
    return list(counts.values())


def write_suspects(folder: Path, federation: Federation, judged: Iterable[JudgedLabel]) -> None:
    """`index` is JSON: owner and origin of each, and the values of a row of a table; `images` are in its order."""
    shown = [one for mine in shown_suspects(judged).values() for one in mine]
    if not shown:
        return
    samples = np.stack([federation.images[federation.rows[one.client][one.row]] for one in shown])
    pictures = small(samples) if samples.ndim == 4 else None
    values = [_values(sample) for sample in samples] if samples.ndim == 2 else [""] * len(shown)
    index = [{"owner": one.owner, "where": one.where, "values": text} for one, text in zip(shown, values, strict=True)]
    arrays = {} if pictures is None or pictures.nbytes > MOST_BYTES else {"images": pictures}
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, index=np.array(json.dumps(index)), **arrays)
    write_bytes(folder / File.SUSPECTS, content.getvalue())


def _values(sample: np.ndarray) -> str:
    more = f" and {len(sample) - MOST_VALUES} more" if len(sample) > MOST_VALUES else ""
    return ", ".join(f"{value:.4g}" for value in sample[:MOST_VALUES]) + more
