"""FedSieve: federated learning when part of the labels are wrong.

    import fedsieve
    result = fedsieve.run(method="fedavg", noise="symmetric", rounds=5)

The functions load what they need when first used: importing the package is cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedsieve.base.errors import ConfigError, DataError, FedSieveError, RunError
from fedsieve.base.version import VERSION

if TYPE_CHECKING:
    from fedsieve.api import audit, compare, federation, load, predict, pretrain, resume, run

__version__ = VERSION
FUNCTIONS = ("audit", "compare", "federation", "load", "predict", "pretrain", "resume", "run")
__all__ = [
    "ConfigError",
    "DataError",
    "FedSieveError",
    "RunError",
    "audit",
    "compare",
    "federation",
    "load",
    "predict",
    "pretrain",
    "resume",
    "run",
]


def __getattr__(name: str) -> Any:
    if name in FUNCTIONS:
        from fedsieve import api

        return getattr(api, name)
    raise AttributeError(f"module 'fedsieve' has no attribute '{name}'")
