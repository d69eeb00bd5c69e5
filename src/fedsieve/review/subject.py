"""What is reviewed: one owner's judged labels, with the samples that they belong to."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedsieve.base.errors import ConfigError, DataError
from fedsieve.data import decisions
from fedsieve.data.decisions import DECISIONS
from fedsieve.data.origins import indices
from fedsieve.data.sources import load_source, takes_options
from fedsieve.evaluate.schema import File
from fedsieve.review.labels import JudgedLabels, find_labels, read_judged
from fedsieve.review.material import Material, material_of
from fedsieve.review.queue import Judged
from fedsieve.runs.folder import read_config
from fedsieve.settings.config import Config, resolve
from fedsieve.settings.splitting import federation_of


@dataclass(frozen=True)
class Subject:
    owner: str
    class_names: tuple[str, ...]
    judged: Judged
    material: Material
    hashes: decisions.Judged
    file: Path
    """Where decisions go: beside the judged labels."""


def open_subject(folder: Path, owner: str | None = None, settings: Mapping[str, Any] = {}) -> Subject:
    """From the folder of a run, whose settings say where the data are, or from that of a node, with `data=PATH`.

    `settings` go before those of the run: where the data were moved to, for instance.
    """
    labels = read_judged(find_labels(folder))
    chosen = labels.chosen_owner(owner)
    if (folder / File.CONFIG).is_file():
        config = resolve(read_config(folder).flat() | dict(settings))
        found = _of_run(config, chosen)
    else:
        if "data" not in settings:
            raise ConfigError("FS002", f"{folder}: does not say where the data are. Add data=PATH, as the node has it")
        config = resolve(settings)
        found = _of_source(config)
    judged = labels.of(chosen, found.class_names)
    rows = _matched(labels, judged, found)
    texts = None if found.texts is None else [found.texts[row] for row in rows]
    material = material_of(found.samples[rows], judged.where, texts, config.top.data, config.data())
    model = labels.file.parent / File.MODEL
    hashes = decisions.Judged(labels=labels.sha256, model=_sha256(model) if model.is_file() else None)
    return Subject(chosen, found.class_names, judged, material, hashes, labels.file.parent / DECISIONS)


class _Rows(NamedTuple):
    """One owner's data."""

    samples: np.ndarray
    where: Sequence[str]
    given: np.ndarray
    class_names: tuple[str, ...]
    texts: Sequence[str] | None


def _of_run(config: Config, owner: str) -> _Rows:
    federation, _ = federation_of(config)
    known = [federation.owner(client) for client in range(federation.clients)]
    if owner not in known:
        raise DataError("FS331", f"the data have no owner '{owner}'. Give those of the run with data=PATH")
    client = known.index(owner)
    rows = federation.rows[client]
    texts = None if federation.texts is None else [federation.texts[row] for row in rows]
    given, names = federation.given[client], federation.class_names
    return _Rows(federation.images[rows], federation.places(client), given, names, texts)


def _of_source(config: Config) -> _Rows:
    """All rows, as a node trains on all of its own."""
    options = config.data() if takes_options(config.top.data) else config.data().for_all()
    source = load_source(config.top.data, replace(options, test_fraction=0), config.top.seed)
    where = indices(source.name, len(source.images)) if source.origins is None else source.origins
    return _Rows(source.images, where, source.labels, source.class_names, source.texts)


def _matched(labels: JudgedLabels, judged: Judged, found: _Rows) -> np.ndarray:
    """The rows of the data that were judged; FS331 for one that is not there, or is labelled otherwise."""
    place, names = {text: row for row, text in enumerate(found.where)}, found.class_names
    for text, label in zip(judged.where, judged.given, strict=True):
        if text not in place:
            raise DataError("FS331", f"{labels.file}: {text} is not in the data. Give those of the run with data=PATH")
        standing = found.given[place[text]]
        if standing != label:
            raise DataError(
                "FS331",
                f"{labels.file}: {text} was labelled '{names[label]}', and is '{names[standing]}' in the "
                "data. Give those of the run with data=PATH, or run again",
            )
    return np.array([place[text] for text in judged.where], np.int64)


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
