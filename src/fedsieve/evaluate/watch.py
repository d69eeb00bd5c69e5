"""How the model treats rightly and wrongly labelled training samples. Only the evaluator knows which is which.

It looks on from outside: models are run on some of the clients' rows as they are stored, and nothing of that goes back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedsieve.base.errors import DataError
from fedsieve.core.net import Out, joined
from fedsieve.core.server import Models, Server
from fedsieve.core.types import Mail
from fedsieve.data.federation import Federation
from fedsieve.data.truth import GroundTruth
from fedsieve.evaluate.serving import delivered, own_model, serving

MOST_WATCHED = 2_000
"""Most rows that are watched; of more, evenly spaced ones."""
BIAS = "head.bias"


class Inspector(Protocol):
    """What of a tester is needed here."""

    def inspect(self, models: Models, which: str, rows: Tensor) -> Out: ...

    def inspect_own(self, messages: Iterator[tuple[int, Mail, Models, Tensor]]) -> Iterator[Out]: ...


@dataclass(frozen=True)
class Rows:
    """Some rows of the clients."""

    client: np.ndarray
    row: np.ndarray
    """Among all training samples."""
    given: np.ndarray
    true: np.ndarray

    def __len__(self) -> int:
        return len(self.row)

    def __getitem__(self, which: slice | np.ndarray) -> Rows:
        return Rows(self.client[which], self.row[which], self.given[which], self.true[which])

    @property
    def labelled(self) -> np.ndarray:
        return self.given >= 0

    @property
    def wrong(self) -> np.ndarray:
        """Which have a label that is not the true one."""
        wrong: np.ndarray = self.labelled & (self.given != self.true)
        return wrong

    def spaced(self, most: int) -> Rows:
        """At most so many, evenly spaced."""
        return self[:: -(-len(self) // most) or 1]


class Watch:
    """Some of the clients' rows, followed through a run."""

    def __init__(self, federation: Federation, truth: GroundTruth) -> None:
        if truth.labels is None:
            raise DataError("FS307", "watch=true: nobody knows which of the clients' labels are right. Leave watch out")
        sizes = [len(rows) for rows in federation.rows]
        owners = np.repeat(np.arange(federation.clients), sizes)
        everything = Rows(owners, *map(np.concatenate, (federation.rows, federation.given, truth.labels)))
        self.rows = everything.spaced(MOST_WATCHED)

    def scores(self, s: Server, tester: Inspector) -> dict[str, float | None]:
        """Mean cross entropy towards the given label and mean norm of the head's gradient, of right and wrong ones."""
        rows = self.rows[self.rows.labelled]
        if not len(rows):
            return {}
        seen, given = _inspect(s, tester, rows), torch.from_numpy(rows.given)
        with_bias = any(entry.name == BIAS for entry in s.plan.layout.entries)
        loss, gradient = cross_entropies(seen.logits, given), head_gradients(*seen, given, with_bias=with_bias)
        return {
            "loss_right": _mean(loss[~rows.wrong]),
            "loss_wrong": _mean(loss[rows.wrong]),
            "gradient_right": _mean(gradient[~rows.wrong]),
            "gradient_wrong": _mean(gradient[rows.wrong]),
        }

    def features(self, s: Server, tester: Inspector, most: int) -> tuple[Rows, Tensor] | None:
        """Rows and their features by the model that serves most clients; none where each client has its own."""
        if s.plan.method.test == "clients":
            return None
        models, served = serving(s)
        group = Counter(served.values()).most_common(1)[0][0]
        clients = [k for k, g in served.items() if g == group]
        rows = self.rows[np.isin(self.rows.client, clients)].spaced(most)
        return (rows, tester.inspect(models[group], "training", torch.from_numpy(rows.row)).features) if rows else None


def cross_entropies(logits: Tensor, given: Tensor) -> np.ndarray:
    """−log p_y, one a row."""
    chosen = logits.double().log_softmax(1).gather(1, given[:, None])
    return (-chosen).flatten().numpy()


def head_gradients(logits: Tensor, features: Tensor, given: Tensor, *, with_bias: bool) -> np.ndarray:
    """The norm of each row's own gradient of −log p_y with respect to the linear classifier's weights and bias.

    The gradient is (p − e_y) zᵀ for the weights and p − e_y for the bias, so its norm is ‖p − e_y‖ √(‖z‖² + 1).
    """
    residual = logits.double().softmax(1)
    residual[torch.arange(len(given)), given] -= 1.0
    square = features.double().square().sum(1) + float(with_bias)
    norms: np.ndarray = (residual.norm(dim=1) * square.sqrt()).numpy()
    return norms


def _inspect(s: Server, tester: Inspector, rows: Rows) -> Out:
    """Logits and features of each row by the model that its owner is tested with, in the order of the rows."""
    if s.plan.method.test == "clients":
        places = {k: np.flatnonzero(rows.client == k) for k in np.unique(rows.client).tolist()}
        sent = delivered(s)
        messages = ((k, *own_model(s, k, sent), torch.from_numpy(rows.row[at])) for k, at in places.items())
        found = list(tester.inspect_own(messages))
    else:
        models, served = serving(s)
        group_of = np.array([served[k] for k in s.clients])[rows.client]
        places = {g: np.flatnonzero(group_of == g) for g in np.unique(group_of).tolist()}
        found = [tester.inspect(models[g], "training", torch.from_numpy(rows.row[at])) for g, at in places.items()]
    back = torch.from_numpy(np.argsort(np.concatenate(list(places.values()))))
    seen = joined(found)
    return Out(seen.logits[back], seen.features[back])


def _mean(values: np.ndarray) -> float | None:
    """Where there is any, and where it is a number."""
    mean = float(values.mean()) if len(values) else np.nan
    return mean if np.isfinite(mean) else None
