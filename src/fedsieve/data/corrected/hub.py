"""Hugging Face data sets after the decisions, saved to a folder that `data=hf:FOLDER` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedsieve.data.corrected.base import Outcome, Verdicts
from fedsieve.data.origins import indices
from fedsieve.data.sources.base import DataOptions
from fedsieve.data.sources.hub import class_label_names, column_texts, splits


def correct_hub(reference: str, verdicts: Verdicts, out: Path, options: DataOptions) -> Outcome:
    """The training split after the decisions; the test split, if there is one, as it was."""
    from datasets import DatasetDict

    train, test = splits(reference)
    texts = column_texts([train], options.label)
    where = indices(str(train.split or "train"), len(train))
    names = class_label_names(train.features[options.label])
    verdicts.check(where, names or set(texts))
    after = [verdicts.after(at, label) for at, label in zip(where, texts, strict=True)]
    changed = _with_labels(train, options.label, after, names)
    made = changed.select([row for row, label in enumerate(after) if label is not None])
    DatasetDict({"train": made} | ({} if test is None else {"test": test})).save_to_disk(str(out))
    return Outcome(out, len(made), verdicts.changed, verdicts.left_out)


def _with_labels(train: Any, column: str, labels: list[str | None], names: tuple[str, ...] | None) -> Any:
    """The column written anew where a label changed; the others keep their value and kind."""
    feature, old = train.features[column], list(train[column])
    texts = column_texts([train], column)
    kind = type(next((value for value in old if value is not None), ""))

    def value(label: str) -> Any:
        return names.index(label) if names is not None else kind(label)

    pairs = zip(old, texts, labels, strict=True)
    new = [before if label in (None, text) else value(str(label)) for before, text, label in pairs]
    order = list(train.column_names)
    return train.remove_columns(column).add_column(column, new).cast_column(column, feature).select_columns(order)
