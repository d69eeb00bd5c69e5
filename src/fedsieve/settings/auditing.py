"""Settings of runs that judge labels and train nothing afterwards, where they differ from those of other runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedsieve.data.sources import takes_options
from fedsieve.methods import METHODS
from fedsieve.settings.config import Settings, flatten

AUDIT = "audit"
"""The method without which a run is no audit; others may be added to it, with rounds to train in."""
AUDITING: Mapping[str, Any] = {"method": AUDIT, "rounds": 0}
NOTHING_TO_TRAIN: Mapping[str, Any] = {"model": "mlp", "model.hidden": []}
"""A net that any samples fit, images or tables, where none is trained."""
NOTHING_TO_TEST: Mapping[str, Any] = {"data.test_fraction": 0}
"""Rows that are held back for tests would not be judged."""


TRAINING = frozenset({"method", "rounds", "epochs", "fraction", "model", "out", "overwrite"})
"""Keys that say how to train, not on what."""


def about_data(settings: Mapping[str, Any]) -> dict[str, Any]:
    """These settings without those of training and of methods, but for the audit's."""
    skipped = {*TRAINING, *METHODS} - {AUDIT}
    return {key: value for key, value in flatten(settings) if key.partition(".")[0] not in skipped}


def audit_options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Of these settings the options of the audit, by their own names."""
    mine = {key.removeprefix(f"{AUDIT}."): value for key, value in flatten(settings) if key.startswith(f"{AUDIT}.")}
    return {name: value for name, value in mine.items() if name != "rounds"}


def for_auditing(settings: Mapping[str, Any]) -> dict[str, Any]:
    """These settings, and those of an audit where they say nothing."""
    given = dict(flatten(settings))
    trains = "rounds" in given or "model" in given or given.get("audit.features") == "model"
    name = str(given.get("data", Settings.data))
    own = takes_options(name) or Path(name).suffix == ".npz"
    quiet = {} if trains else {**NOTHING_TO_TRAIN, **(NOTHING_TO_TEST if own else {})}
    return {**AUDITING, **quiet, **given}
