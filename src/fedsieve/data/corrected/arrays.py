"""Arrays in an .npz file after the decisions."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from fedsieve.base.disk import write_bytes
from fedsieve.base.errors import DataError
from fedsieve.data.corrected.base import Outcome, Verdicts
from fedsieve.data.origins import indices
from fedsieve.data.sources.arrays import MEDMNIST, loaded_arrays, read_npz
from fedsieve.data.sources.base import DataOptions

OF_TRAINING = ("x_train", "y_train", "y_true", "client", "group", *MEDMNIST[:2])
"""Arrays with an entry for each training row."""
LABELS = ("y_train", MEDMNIST[1])


def correct_arrays(file: Path, name: str, verdicts: Verdicts, out: Path, options: DataOptions) -> Outcome:
    """The same arrays under the same names; rows that are excluded are taken out of all that belong to them."""
    if out.suffix != ".npz":
        raise DataError("FS302", f"{out}: the data are an .npz file. Give a name that ends with .npz")
    source = read_npz(file, name, options.for_all(), own=False)
    names = source.class_names
    where = indices(name, len(source.labels))
    verdicts.check(where, names)
    after = [verdicts.after(at, names[label]) for at, label in zip(where, source.labels.tolist(), strict=True)]
    stays = np.array([label is not None for label in after], bool)
    number = {text: code for code, text in enumerate(names)}
    labels = np.array([number[label] for label in after if label is not None])
    arrays = loaded_arrays(file, options.max_gb)
    for key in OF_TRAINING:
        if key in arrays:
            arrays[key] = arrays[key][stays]
    for key in LABELS:
        if key in arrays:
            arrays[key] = labels.astype(arrays[key].dtype).reshape(arrays[key].shape)
    if "class_names" not in arrays:  # they may have been known by the name of the file, or be fewer now
        arrays["class_names"] = np.array(names)
    content = io.BytesIO()
    np.savez_compressed(content, allow_pickle=False, **arrays)
    write_bytes(out, content.getvalue())
    return Outcome(out, int(stays.sum()), verdicts.changed, verdicts.left_out)
