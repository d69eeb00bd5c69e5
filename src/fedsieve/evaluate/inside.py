"""What a watched run shows at its end, as arrays in its folder: `inside.npz`."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np

from fedsieve.base.disk import write_bytes
from fedsieve.core.server import Server
from fedsieve.data.federation import Federation
from fedsieve.data.truth import GroundTruth
from fedsieve.evaluate.embedding import MOST_MAPPED, flat_map
from fedsieve.evaluate.neighbours import retrieved
from fedsieve.evaluate.schema import File
from fedsieve.evaluate.watch import Inspector, Watch


def write_inside(
    folder: Path, watch: Watch, s: Server, federation: Federation, truth: GroundTruth, tester: Inspector
) -> None:
    """`index` is JSON: how the map was made, and for each part with neighbours how many; the arrays are named by it."""
    arrays: dict[str, np.ndarray] = {}
    index: dict[str, object] = {"map": None, "neighbours": []}
    if (seen := watch.features(s, tester, MOST_MAPPED)) is not None:
        rows, features = seen
        finite = features.isfinite().all(1).numpy()
        points, index["map"] = flat_map(features[finite])
        rows = rows[finite]
        arrays |= {"map/points": points, "map/true": rows.true, "map/wrong": rows.wrong}
    found = list(retrieved(s.plan, federation, truth))
    index["neighbours"] = [{"part": one.part, "near": one.near} for one in found]
    for number, one in enumerate(found):
        names = ("clients", "images", "given", "true")
        arrays |= {f"neighbours/{number}/{name}": getattr(one, name) for name in names}
    content = io.BytesIO()
    np.savez_compressed(content, allow_pickle=False, index=np.array(json.dumps(index)), **arrays)
    write_bytes(folder / File.INSIDE, content.getvalue())
