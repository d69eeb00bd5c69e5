"""Pictures that parts offer at the end of a run, as arrays in the run's folder: `exhibits.npz`."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np

from fedsieve.base.disk import write_bytes
from fedsieve.core.part import defines
from fedsieve.core.server import Server
from fedsieve.core.types import SERVER, Exhibit
from fedsieve.evaluate.schema import File


def write_exhibits(folder: Path, s: Server) -> None:
    """`index` is JSON: part, kind and title of each; `0`, `1`, ... are the values, `0/clients` whom they stand for."""
    parts = {part.name: part for stage in s.plan.stages for part in stage.parts if defines(part, "show")}
    shown = [(part.name, _of_clients(exhibit)) for part in parts.values() for exhibit in part.show(s.by(part))]
    if not shown:
        return
    arrays: dict[str, np.ndarray] = {}
    for number, (_, exhibit) in enumerate(shown):
        arrays[f"{number}"] = exhibit.values.float().cpu().numpy()
        arrays[f"{number}/clients"] = np.array(exhibit.clients, np.int64)
    index = [{"part": name, "kind": exhibit.kind, "title": exhibit.title} for name, exhibit in shown]
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, index=np.array(json.dumps(index)), **arrays)
    write_bytes(folder / File.EXHIBITS, content.getvalue())


def _of_clients(exhibit: Exhibit) -> Exhibit:
    """Without the server, where it took part."""
    kept = [i for i, client in enumerate(exhibit.clients) if client > SERVER]
    if len(kept) == len(exhibit.clients):
        return exhibit
    values = exhibit.values[kept][:, kept] if exhibit.kind == "pairs" else exhibit.values[kept]
    return exhibit._replace(values=values, clients=tuple(exhibit.clients[i] for i in kept))
