"""Settings of runs that judge labels and train nothing afterwards, where they differ from those of other runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsieve.settings.config import flatten

AUDIT = "audit"
"""The method without which a run is no audit; others may be added to it, with rounds to train in."""
AUDITING: Mapping[str, Any] = {"method": AUDIT, "rounds": 0}
"""Rows that a source holds back for tests are not judged: how many is the key `data.test_fraction`."""


NOTHING_TO_TRAIN: Mapping[str, Any] = {"model": "mlp", "model.hidden": []}
"""A net that any samples fit, images or tables, where none is trained."""


def for_auditing(settings: Mapping[str, Any]) -> dict[str, Any]:
    """These settings, and those of an audit where they say nothing."""
    given = dict(flatten(settings))
    trains = "rounds" in given or "model" in given or given.get("audit.features") == "model"
    return dict(AUDITING) | ({} if trains else dict(NOTHING_TO_TRAIN)) | given
