"""Data sets of Hugging Face: by their name on the hub, or saved to a folder."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import numpy as np
from PIL import Image

from fedsieve.base.errors import ConfigError, DataError, nearest
from fedsieve.data.origins import indices
from fedsieve.data.sources.base import DataOptions, Source
from fedsieve.data.sources.csv_rows import ABOUT
from fedsieve.data.sources.decoding import picture_store
from fedsieve.data.sources.limits import folders_below, regular
from fedsieve.data.sources.records import Records, check_records, table_store, to_source
from fedsieve.data.sources.text_rows import text_source

PREFIX = "hf:"
HUB = "https://huggingface.co"
PATIENCE = 3.0
"""Seconds for the hub to answer."""
OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
TEST_SPLITS = ("test", "validation", "valid", "val")
"""Where a test set may be, the best first."""


@dataclass(frozen=True)
class HubPictures:
    """The image column of a data set, one split after the other."""

    parts: Sequence[Any]
    column: str
    records: Records

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    def open(self, row: int) -> Image.Image:
        train, *test = self.parts
        part, at = (train, row) if row < len(train) else (test[0], row - len(train))
        picture: Image.Image = part[at][self.column]
        return picture

    def where(self, row: int) -> str:
        return self.records.where(row)

    def key(self) -> str:
        return " ".join(str(part._fingerprint) for part in self.parts)


def read_hub(reference: str, options: DataOptions, seed: int) -> Source:
    parts = [part for part in splits(reference) if part is not None]
    features = parts[0].features
    for option, column in (("label", options.label), ("client", options.client), ("text", options.text)):
        if column is not None and column not in features and (option != "client" or column != DataOptions.client):
            raise DataError(
                "FS302",
                f"{PREFIX}{reference}: has no column '{column}'. {nearest(column, features)} "
                f"Name the right one with data.{option}",
            )
    label_names = class_label_names(features[options.label])
    records = Records(
        origin=f"{PREFIX}{reference}",
        place=lambda row: _place(parts, row),
        origins=indices(str(parts[0].split or "train"), sum(map(len, parts))),
        labels=column_texts(parts, options.label),
        clients=column_texts(parts, options.client) if options.client in features else None,
        true=column_texts(parts, "true_label") if "true_label" in features else None,
        groups=column_texts(parts, "group") if "group" in features else None,
        test=np.arange(sum(map(len, parts))) >= len(parts[0]) if len(parts) > 1 else None,
        class_names=label_names,
    )
    name = Path(reference).name
    if options.text is not None:
        return text_source(name, records, column_texts(parts, options.text), options, seed)
    class_names = check_records(records, options.max_classes)
    pictures = next((name for name, kind in features.items() if type(kind).__name__ == "Image"), None)
    if pictures is not None:
        store = picture_store(HubPictures(parts, pictures, records), records, options)
    else:
        store = table_store(_table(parts, options, records), records)
    return to_source(name, records, store, class_names, test_fraction=options.test_fraction, seed=seed)


def hub_has_clients(reference: str, options: DataOptions) -> bool:
    return options.client in splits(reference)[0].features


@cache
def hub_answers() -> bool:
    """Whether the hub, or the proxy on the way to it, can be reached; asked once and without patience."""
    address = os.environ.get("HF_ENDPOINT") or HUB
    way = urlsplit(getproxies().get("https") or address)
    try:
        with socket.create_connection((way.hostname or "", way.port or 443), PATIENCE):
            return True
    except OSError:
        return False


def stay_offline() -> None:
    """What was downloaded before is still found; what was not fails at once, and not after a minute of retries."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    for module, names in (("huggingface_hub.constants", ("HF_HUB_OFFLINE",)), ("datasets.config", OFFLINE)):
        if loaded := sys.modules.get(module):  # the environment is read when they are first imported
            for name in names:
                setattr(loaded, name, True)


@cache
def splits(reference: str) -> tuple[Any, Any | None]:
    """The training split and, if there is one, the test split."""
    path = Path(reference).expanduser()
    if not path.is_dir() and not hub_answers():
        stay_offline()
    try:
        from datasets import load_dataset, load_from_disk
    except ImportError:
        raise ConfigError(
            "FS008", f"data={PREFIX}{reference} needs the package datasets. Run `pip install fedsieve[hf]`"
        ) from None
    if path.is_dir():
        for parts, _, names in folders_below(path):
            for name in names:
                regular(path.joinpath(*parts, name))
    try:
        found = load_from_disk(str(path)) if path.is_dir() else load_dataset(reference)
    except Exception as problem:  # the package raises many kinds, depending on its version
        reason = str(problem).split("\n")[0]
        raise DataError(
            "FS312" if not path.exists() else "FS302",
            f"{PREFIX}{reference}: cannot be loaded ({type(problem).__name__}: {reason}). Check the name and the "
            "network, or save the data set with save_to_disk and give hf:FOLDER",
        ) from None
    if not isinstance(found, dict):
        return found, None
    if "train" not in found:
        raise DataError("FS302", f"{PREFIX}{reference}: has no split 'train', only {', '.join(found)}. Rename one")
    return found["train"], next((found[name] for name in TEST_SPLITS if name in found), None)


def column_texts(parts: Sequence[Any], column: str) -> list[str]:
    names = class_label_names(parts[0].features[column])
    found = []
    for part in parts:
        for value in part[column]:
            if value is None or (names is not None and isinstance(value, int) and value < 0):
                found.append("")
            else:
                found.append(names[value] if names is not None else str(value).strip())
    return found


def class_label_names(feature: Any) -> tuple[str, ...] | None:
    names = getattr(feature, "names", None)
    return None if names is None else tuple(map(str, names))


def _table(parts: Sequence[Any], options: DataOptions, records: Records) -> np.ndarray:
    """All columns of numbers, and of lists of numbers, side by side."""
    left_out = {*ABOUT, options.label, options.client}
    columns = []
    for name, kind in parts[0].features.items():
        inner = getattr(kind, "feature", kind)
        if name in left_out or not str(getattr(inner, "dtype", "")).startswith(("int", "uint", "float", "bool")):
            continue
        values = np.concatenate([np.asarray(part.with_format("numpy")[name][:], np.float32) for part in parts])
        columns.append(values.reshape(len(values), -1))
    if not columns:
        raise DataError("FS302", f"{records.origin}: has neither images nor numbers. Add what to learn from")
    table = np.hstack(columns)
    broken = np.flatnonzero(~np.isfinite(table).all(axis=1))
    if len(broken):
        raise DataError("FS304", f"{records.where(int(broken[0]))} holds NaN or infinity. Clean or drop the row")
    return table


def _place(parts: Sequence[Any], row: int) -> str:
    if row < len(parts[0]):
        return f"train row {row}"
    return f"test row {row - len(parts[0])}"
