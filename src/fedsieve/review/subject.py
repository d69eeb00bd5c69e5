"""What is reviewed: one owner's judged labels, with the samples that they belong to."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedsieve.base.errors import ConfigError, DataError
from fedsieve.data import decisions
from fedsieve.data.corrections import Corrections
from fedsieve.data.decisions import DECISIONS
from fedsieve.data.federation import Federation
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
        federation, _ = federation_of(config)
        client = _client(federation, chosen)
    else:
        if "data" not in settings:
            raise ConfigError("FS002", f"{folder}: does not say where the data are. Add data=PATH, as the node has it")
        config, client = resolve(settings), 0
        federation = _own_federation(config)
    names = federation.class_names
    judged = labels.of(chosen, names)
    rows = federation.rows[client][_matched(labels, judged, federation, client)]
    texts = None if federation.texts is None else [federation.texts[row] for row in rows]
    window = federation.reading.get("window")
    material = material_of(
        federation.images[rows], judged.where, texts, config.top.data, config.data(), tuple(window) if window else None
    )
    model = labels.file.parent / File.MODEL
    hashes = decisions.Judged(labels=labels.sha256, model=_sha256(model) if model.is_file() else None)
    return Subject(chosen, names, judged, material, hashes, labels.file.parent / DECISIONS)


def _client(federation: Federation, owner: str) -> int:
    known = [federation.owner(client) for client in range(federation.clients)]
    if owner not in known:
        raise DataError("FS331", f"the data have no owner '{owner}'. Give those of the run with data=PATH")
    return known.index(owner)


def _own_federation(config: Config) -> Federation:
    """A node's data: all rows are its only client's."""
    options = config.data() if takes_options(config.top.data) else config.data().for_all()
    source = load_source(config.top.data, replace(options, test_fraction=0), config.top.seed)
    federation = Federation(
        images=source.images, test_images=source.images[:0], rows=(np.arange(len(source.labels)),),
        given=(source.labels,), server={}, validation=np.empty(0, np.int64), class_names=source.class_names,
        mean=(), std=(), data=source.name, origins=source.origins, texts=source.texts, reading=source.reading,
    )  # fmt: skip
    if options.corrections is None:
        return federation
    return Corrections(options.corrections, federation).applied(federation)[0]


def _matched(labels: JudgedLabels, judged: Judged, federation: Federation, client: int) -> np.ndarray:
    """Places of the judged rows among the client's; FS331 for one that is not there, or is labelled otherwise."""
    place = {text: row for row, text in enumerate(federation.places(client))}
    names, given = federation.class_names, federation.given[client]
    for text, label in zip(judged.where, judged.given, strict=True):
        if text not in place:
            raise DataError("FS331", f"{labels.file}: {text} is not in the data. Give those of the run with data=PATH")
        if given[place[text]] != label:
            raise DataError(
                "FS331",
                f"{labels.file}: {text} was labelled '{names[label]}', and is '{names[given[place[text]]]}' in the "
                "data. Give those of the run with data=PATH, or run again",
            )
    return np.array([place[text] for text in judged.where], np.int64)


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
