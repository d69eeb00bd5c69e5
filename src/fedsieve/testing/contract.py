"""A method as the contract tries it: by its name and settings, on the tiny federation."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from fedsieve.core.part import Method
from fedsieve.core.plan import Plan
from fedsieve.core.server import ServerState
from fedsieve.data.federation import Federation
from fedsieve.settings.config import Config
from fedsieve.settings.planning import config_of, plan_of, reads_truth
from fedsieve.testing.tiny import Trap, tiny_federation
from fedsieve.testing.trial import Trial

TINY = {"clients": 4, "rounds": 2, "epochs": 1, "batch": 8, "workers": 1}


class Tried(NamedTuple):
    """A trial that ran to its end, and what it left behind at server and clients."""

    trial: Trial
    state: ServerState
    kept: dict[int, dict[str, Tensor]]


@dataclass(frozen=True)
class Contract:
    """A method by its name and settings, and the trials that show what it keeps."""

    config: Config
    method: Method | None

    @staticmethod
    def of(name: str | Method, settings: Mapping[str, Any]) -> Contract:
        own = name if isinstance(name, Method) else None
        flat = {**TINY, "method": "fedavg" if isinstance(name, Method) else name, **settings}
        return Contract(config_of(flat, allow_code=True), own)

    def plan(self, federation: Federation, **top: Any) -> Plan:
        config = config_of(self.config.flat() | {"clients": federation.clients} | top, allow_code=self.config.code)
        return plan_of(config, federation, self.method)

    @contextmanager
    def trial(
        self, federation: Federation | None = None, edit: Callable[[Method], Method] | None = None, **top: Any
    ) -> Iterator[Trial]:
        federation = federation or tiny_federation()
        plan = self.plan(federation, **top)
        if edit is not None:
            plan = replace(plan, method=edit(plan.method))
        if not reads_truth(plan.method):
            federation = federation.serving(Trap())  # type: ignore[arg-type]  # that is the point
        with tempfile.TemporaryDirectory() as folder:
            yield Trial(plan, federation, Path(folder))

    @cached_property
    def tried(self) -> Tried:
        """The method as it is, run once for all checks that only look at what came of it. Nobody changes it."""
        with self.trial() as trial:
            state = trial.run()
            kept = {client: trial.states.load(client, version) for client, version in state.versions.items()}
        return Tried(trial, state, kept)
