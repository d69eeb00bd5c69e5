"""A column of texts as samples: what people read is kept beside the numbers that nets get."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from fedsieve.base.errors import DataError
from fedsieve.data.sources.base import DataOptions, Source
from fedsieve.data.sources.counting import counting
from fedsieve.data.sources.csv_rows import Columns
from fedsieve.data.sources.limits import check_bytes
from fedsieve.data.sources.records import Records, check_records, table_store, to_source, training_first
from fedsieve.data.texts import TextForm, has_weights, text_map
from fedsieve.data.texts.cleaning import is_steering, readable


def read_texts(
    columns: Columns, options: DataOptions, class_names: tuple[str, ...] | None, name: str, seed: int, labels: bool
) -> Source:
    """The texts of the column `data.text`; columns without a meaning of their own are left alone."""
    assert options.text is not None
    records = columns.records(options, class_names, labels)
    return text_source(name, records, columns.texts(options.text), options, seed)


def text_source(name: str, records: Records, cells: Sequence[str], options: DataOptions, seed: int) -> Source:
    """The source of records and their texts."""
    assert options.text is not None
    names = check_records(records, options.max_classes)
    texts = checked_texts(cells, lambda row: f"{records.where(row)}: column '{options.text}'")
    chosen = text_map(options.text_features)
    what = f"{records.origin}: the table of its texts by {chosen.name}"
    check_bytes(4 * chosen.width * len(texts), what, options.max_gb)
    order = training_first(records)
    described = replace(records, texts=texts, notes=(*records.notes, *_notes(cells, options.text, chosen.name)))
    ordered = described.in_order(order)
    store = table_store(vectors(ordered.texts or (), options.text_features), ordered)
    source = to_source(name, ordered, store, names, test_fraction=options.test_fraction, seed=seed)
    return replace(source, text_form=TextForm(options.text, chosen.name, chosen.key))


def checked_texts(cells: Sequence[str] | np.ndarray, where: Callable[[int], str]) -> list[str]:
    """Texts as people and maps get to see them; FS304 for one of which nothing is left."""
    found = []
    for row, cell in enumerate(cells):
        text = readable(cell) if isinstance(cell, str) else ""
        if not text:
            raise DataError("FS304", f"{where(row)} is empty. Fill it in or drop the row")
        found.append(text)
    return found


def vectors(texts: Sequence[str], name: str) -> np.ndarray:
    """(n, d) in float32; those of slow maps are kept in the cache folder."""
    chosen = text_map(name)
    if not has_weights(name):
        return chosen(texts)
    from fedsieve.data.features.cache import features_of  # loads PyTorch, as such a map does too

    return np.asarray(features_of(np.array(texts, object), chosen, progress=counting))


def _notes(cells: Sequence[str], column: str, features: str) -> list[str]:
    notes = [f"samples are the texts of the column '{column}', as numbers by {features}"]
    steering = sum(map(is_steering, cells))
    if steering:
        notes.append(f"control characters or marks that turn the direction of writing are left out of {steering} texts")
    return notes
