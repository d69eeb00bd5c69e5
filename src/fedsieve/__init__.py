"""FedSieve: federated learning when part of the labels are wrong.

    import fedsieve
    result = fedsieve.run(method="fedavg", noise="symmetric", rounds=5)
    result.test_accuracy, result.to_frame(), result.model()

`run` trains with one method, `compare` with every combination of several, `leaderboard` ranks methods over comparisons,
`pretrain` learns an encoder without labels, `resume` goes on with a run, `load` reads one, `federation` gives the data
as they would be split, `recommend` says which method to take for them, `predict` classifies new samples.

The functions load what they need when first used: importing the package is cheap.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

from fedsieve.base.errors import ConfigError, DataError, FedSieveError, RunError
from fedsieve.base.version import VERSION

if TYPE_CHECKING:
    from fedsieve.api import audit, compare, federation, leaderboard, load, predict, pretrain, recommend, resume, run

__version__ = VERSION
__all__ = [
    "ConfigError",
    "DataError",
    "FedSieveError",
    "RunError",
    "audit",
    "compare",
    "federation",
    "leaderboard",
    "load",
    "predict",
    "pretrain",
    "recommend",
    "resume",
    "run",
]


def __dir__() -> list[str]:
    """For `dir`, `help` and the tab key: what is there once it is asked for, too, and nothing that only serves here."""
    own = {name for name, value in globals().items() if name.startswith("__") or isinstance(value, ModuleType)}
    return sorted({*own, *__all__})


def __getattr__(name: str) -> Any:
    if name in __all__:  # errors are here already
        from fedsieve import api

        return getattr(api, name)
    raise AttributeError(f"module 'fedsieve' has no attribute '{name}'")
