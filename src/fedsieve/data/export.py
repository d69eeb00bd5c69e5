"""A federation written as folders of images, as a table or as texts, which `data=FOLDER` reads back as it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from PIL import Image

from fedsieve.base.errors import ConfigError, DataError
from fedsieve.base.sheets import write_rows
from fedsieve.data.federation import Federation
from fedsieve.data.sources import MANIFEST
from fedsieve.data.sources.files import CLASS_LIST, TEST
from fedsieve.data.truth import GroundTruth

MODES = {1: "L", 3: "RGB"}
TEXT = "text"
"""The column of texts."""


def refuse_existing(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError("FS005", f"{folder} exists. Choose another folder, or remove it")


def export_federation(federation: Federation, truth: GroundTruth, folder: Path) -> list[str]:
    """Writes the clients' rows and the test set; returns what a person should know about it."""
    refuse_existing(folder)
    table = federation.images.ndim == 2
    if not table and federation.images.shape[-1] not in MODES:
        raise DataError(
            "FS309", f"images of {federation.images.shape[-1]} channels cannot be written as PNG. Give 1 or 3 channels"
        )
    if any(bool((given < 0).any()) for given in federation.given):
        raise DataError("FS307", "some rows have no label, and what is written would need one. Set client_labels=true")
    folder.mkdir(parents=True, exist_ok=True)
    entries = _rows(federation, truth)
    if federation.texts is not None:
        header = [TEXT]
        rows = ([*about, text] for (about, *_), text in zip(entries, _texts(federation), strict=True))
    elif table:
        header = [f"x{i}" for i in range(federation.images.shape[1])]
        rows = ([*about, *map(str, sample)] for about, _, sample in entries)
    else:
        header = ["file"]
        rows = ([*about, _write(folder, file, sample)] for about, file, sample in entries)
    known = truth.labels is not None
    with (folder / MANIFEST).open("w", newline="", encoding="utf-8") as file:
        write_rows(file, [["client", "split", "label", *(["true_label"] if known else []), *header]])
        write_rows(file, rows)
    (folder / CLASS_LIST).write_text("".join(f"{name}\n" for name in federation.class_names), encoding="utf-8")
    return [
        f"{sum(map(len, federation.rows))} rows of {federation.clients} clients and "
        f"{len(federation.test_images)} test rows: {folder / MANIFEST}",
        *_left_out(federation),
        " ".join([f"use them with data={folder}", *_keys(federation)]),
    ]


def client_folders(federation: Federation) -> list[str]:
    """Names that sort in the order of the clients."""
    if federation.client_names is not None:
        return list(federation.client_names)
    digits = len(str(max(0, federation.clients - 1)))
    return [f"client-{k:0{digits}d}" for k in range(federation.clients)]


def _rows(federation: Federation, truth: GroundTruth) -> Iterator[tuple[list[Any], Path, np.ndarray]]:
    """Of each row: what the manifest says about it, its file, its sample."""
    names = federation.class_names
    digits = len(str(max(len(federation.images), len(federation.test_images))))
    for k, client in enumerate(client_folders(federation)):
        true = truth.labels[k] if truth.labels is not None else None
        for i, (row, label) in enumerate(zip(federation.rows[k], federation.given[k], strict=True)):
            about = [client, "train", names[label], *([names[true[i]]] if true is not None else [])]
            file = Path(_folder(client), _folder(names[label]), f"{row:0{digits}d}.png")
            yield about, file, federation.images[row]
    for row, label in enumerate(truth.test):
        about = ["", "test", names[label], *([names[label]] if truth.labels is not None else [])]
        yield about, Path(TEST, _folder(names[label]), f"{TEST}-{row:0{digits}d}.png"), federation.test_images[row]


def _texts(federation: Federation) -> Iterator[str]:
    """What the rows say, in the order of `_rows`."""
    for rows in federation.rows:
        yield from ((federation.texts or ())[row] for row in rows)
    yield from federation.test_texts or ()


def _folder(name: str) -> str:
    """A name as one folder: whatever a file system would not take is written as %XX."""
    quoted = quote(name, safe=" ()+,;=@~", encoding="utf-8")
    return f"%2E{quoted[1:]}" if quoted.startswith(".") else quoted


def _write(folder: Path, file: Path, sample: np.ndarray) -> str:
    target = folder / file
    target.parent.mkdir(parents=True, exist_ok=True)
    pixels = sample[:, :, 0] if sample.shape[-1] == 1 else sample
    Image.fromarray(np.ascontiguousarray(pixels)).save(target)
    return file.as_posix()


def _keys(federation: Federation) -> list[str]:
    """What else must be said to read them as they are."""
    texts = [f"data.text={TEXT}"] if federation.texts is not None else []
    return texts if len(federation.test_images) else [*texts, "data.test_fraction=0"]


def _left_out(federation: Federation) -> list[str]:
    held = {**{name: len(holding.rows) for name, holding in federation.server.items()}}
    held |= {"validation": len(federation.validation)} if len(federation.validation) else {}
    if not held:
        return []
    return [f"left out: {', '.join(f'{name} {count}' for name, count in held.items())} (no client holds them)"]
