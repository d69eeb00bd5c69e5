"""Whether a run could begin, found out without beginning it: what a comparison looks at before its first run."""

from __future__ import annotations

from typing import Any

from fedsieve.base.errors import DataError, FedSieveError
from fedsieve.data.federation import Federation
from fedsieve.data.truth import GroundTruth
from fedsieve.settings.config import Config, resolve
from fedsieve.settings.planning import plan_of, reads_truth
from fedsieve.settings.splitting import federation_of

DECIDES = ("data", "clients", "partition", "client_labels", "validation")
"""Top keys on which the split depends, besides the sections of the same names and `server`."""
PLAIN = {"noise": "symmetric", "noise.rates": "fixed", "noise.rate": 0.0}
"""In place of any noise: that labels are made wrong matters, and how does not."""


class Feasibility:
    """Looks at one run after the other; those that share their data share the look at them. Seeds do not matter."""

    def __init__(self) -> None:
        self._known: tuple[str, tuple[Federation, GroundTruth] | FedSieveError] | None = None

    def why_not(self, config: Config) -> str | None:
        """Why a run cannot begin; None where it can."""
        try:
            federation, truth = self._federation(config)
            plan = plan_of(config, federation)
            if reads_truth(plan.method) and truth.labels is None:
                raise DataError("FS307", "the method needs to know which labels are right, and these data do not say")
        except FedSieveError as problem:
            return str(problem)
        return None

    def _federation(self, config: Config) -> tuple[Federation, GroundTruth]:
        settings = _of_data(config)
        key = repr(sorted(settings.items(), key=str))
        if self._known is None or self._known[0] != key:  # one at a time: data may be large
            try:
                self._known = key, federation_of(resolve(settings))
            except FedSieveError as problem:
                self._known = key, problem
        found = self._known[1]
        if isinstance(found, FedSieveError):
            raise found
        return found


def _of_data(config: Config) -> dict[str, Any]:
    """What decides how data are split, in its simplest form."""
    flat = config.flat()
    sections = ("data.", "partition.", "server.")
    kept = {key: value for key, value in flat.items() if key in DECIDES or key.startswith(sections)}
    return kept | (PLAIN if config.top.noise != "none" else {})
