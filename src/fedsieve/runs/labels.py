"""The judged labels of a run, or of a node's folder, for people and scripts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedsieve.base.errors import ConfigError, DataError, nearest
from fedsieve.evaluate.schema import LABEL_COLUMNS, File
from fedsieve.report.folder import read_labels

CLEANLAB: Mapping[str, str] = {
    "owner": "owner",
    "where": "where",
    "flagged": "is_label_issue",
    "score": "label_quality",
    "given": "given_label",
    "suggested": "predicted_label",
}
"""Our columns under the names that cleanlab's `find_label_issues` gives its own, in its order."""


def columns(cleanlab: bool) -> Mapping[str, str]:
    """Our columns, and how they are called."""
    return CLEANLAB if cleanlab else {name: name for name in LABEL_COLUMNS}


def labels_of(
    folder: Path, *, owner: str | None = None, flagged: bool = False, cleanlab: bool = False
) -> list[dict[str, Any]]:
    """The rows of labels.csv, or those of one owner, or the flagged ones; FS311 where there is no such file."""
    labels = read_labels(folder / File.LABELS)
    if labels is None:
        raise DataError(
            "FS311",
            f"{folder / File.LABELS}: not found. Give the folder of a finished run whose method judges labels; "
            "a Flower node keeps its own in its state folder",
        )
    owners = dict.fromkeys(label.owner for label in labels)
    if owner is not None and owner not in owners:
        raise ConfigError("FS002", f"no owner '{owner}' in {folder / File.LABELS}. {nearest(owner, owners)}")
    names = columns(cleanlab)
    return [
        {name: getattr(label, ours) for ours, name in names.items()}
        for label in labels
        if (owner is None or label.owner == owner) and (label.flagged or not flagged)
    ]
