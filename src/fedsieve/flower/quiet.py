"""Nothing that we start tells anybody about itself."""

from __future__ import annotations

import os

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # or Ray warns in every run
}
"""Telemetry, update check and usage statistics off; the SuperLink installs nothing by itself."""


def hush() -> None:
    """For this process and its children. Flower reads its variable when it is imported: call this before."""
    os.environ.update(QUIET)
