"""The only place where true labels are looked at. It measures; it cannot influence a run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from fedsieve.base.errors import DataError
from fedsieve.core.client_states import ClientStates
from fedsieve.core.net import Out
from fedsieve.core.server import GROUP, Models, Server
from fedsieve.core.types import Mail
from fedsieve.data.features import Hog, Pixels
from fedsieve.data.federation import Federation
from fedsieve.data.truth import GroundTruth
from fedsieve.evaluate.metrics import (
    accuracy,
    adjusted_rand_index,
    balanced_accuracy,
    confusion,
    guessing,
    macro_f1,
    rank_correlation,
    ranking_auc,
    recalls,
    repair,
    selection,
)
from fedsieve.evaluate.probe import Probed, nearest_neighbours, probe
from fedsieve.evaluate.schema import PROBE_ROWS
from fedsieve.evaluate.serving import delivered, own_model, serving
from fedsieve.evaluate.watch import Watch

MOST_PROBED = 5_000
"""Most labelled rows that a probe learns from; of more, evenly spaced ones."""
MOST_SHOWN = 100
"""Most classes whose confusion is kept."""
FIRST = slice(0, 1)
"""Where clients carry several nets, the first is the headline."""


Predict = Callable[[Models, Tensor], Tensor]
"""From models and rows of the test set to classes."""


class Judged(NamedTuple):
    """How well one client's labels were chosen, corrected and guessed; None where there was nothing of the kind."""

    label_precision: float | None = None
    label_recall: float | None = None
    repair_precision: float | None = None
    repair_recall: float | None = None
    guess_accuracy: float | None = None
    guess_precision: float | None = None
    guess_share: float | None = None
    guess_entropy: float | None = None


class Tester(Protocol):
    """Predictions, wherever the runtime makes them."""

    def predict(self, models: Models, which: str, rows: Tensor) -> Tensor:
        """Of some rows of the test or validation set."""

    def features(self, models: Models, which: str, rows: Tensor) -> Tensor:
        """Of some rows of the test, validation or training set, by the first of the models."""

    def inspect(self, models: Models, which: str, rows: Tensor) -> Out:
        """Logits and features of such rows, by the first of the models."""

    def test(self, messages: Iterator[tuple[int, Mail, Models, Tensor]]) -> Iterator[Tensor | None]:
        """Each client's own predictions of some test rows; None where a client does not reply."""

    def inspect_own(self, messages: Iterator[tuple[int, Mail, Models, Tensor]]) -> Iterator[Out]:
        """Logits and features of some training rows by each client's own first net; only of clients on this machine."""


class Evaluator:
    def __init__(
        self, federation: Federation, truth: GroundTruth, states: ClientStates, *, watch: bool = False
    ) -> None:
        self._federation = federation
        self._truth = truth
        self.tester: Tester
        self._states = states
        self.watch = Watch(federation, truth) if watch else None
        self._rows_by_classes: dict[tuple[int, ...], Tensor] = {}

    def masks(self) -> tuple[np.ndarray, ...]:
        """Which labels are right, for methods that declare to be served with the truth."""
        if self._truth.labels is None:
            raise DataError(
                "FS307",
                "the method needs to know which labels are right, and these data do not say. Take another method",
            )
        return tuple(true == given for true, given in zip(self._truth.labels, self._federation.given, strict=True))

    def probe_set(self) -> tuple[str, Tensor, np.ndarray]:
        """Labelled rows for a probe, and their classes: those for validation, or the clients' if there are none."""
        if len(self._federation.validation):
            which, rows, labels = "validation", np.arange(len(self._truth.validation)), self._truth.validation
        elif self._truth.labels is not None:
            which, rows = "training", np.concatenate(self._federation.rows)
            labels = np.concatenate(self._truth.labels)
        else:
            raise DataError(
                "FS307",
                "the method is tested by a probe, which needs labelled rows; nobody knows the clients' true labels. "
                "Set validation",
            )
        some = slice(None, None, -(-len(rows) // MOST_PROBED) or 1)
        return which, torch.from_numpy(np.ascontiguousarray(rows[some])), labels[some]

    def scores(self, s: Server) -> dict[str, Any]:
        """The metrics of the test set now, with one accuracy per client; of watched rows, if there are any.

        Where there is nothing to test on, no accuracy is known.
        """
        scores: dict[str, Any] = {"client_accuracy": [None] * len(s.clients), "confusion": None}
        if s.plan.method.test == "probe":
            return self._probed(s) if self.tests else scores
        if self.tests:
            scores = self._scores(s, self._test(s, FIRST, self._classified))
        return scores | self._validated(s) | (self.watch.scores(s, self.tester) if self.watch else {})

    @property
    def tests(self) -> bool:
        """Whether there is a test set."""
        return len(self._truth.test) > 0

    def _probed(self, s: Server) -> dict[str, Any]:
        which, bank, labels = self.probe_set()
        probed: dict[tuple[int, int], Probed] = {}

        def predictions(models: Models, rows: Tensor) -> Probed:
            key = id(models[0]), id(rows)
            if key not in probed:
                known, asked = self.tester.features(models, which, bank), self.tester.features(models, "test", rows)
                probed[key] = probe(known, labels, asked)
            return probed[key]

        knn = self._test(s, FIRST, lambda models, rows: torch.from_numpy(predictions(models, rows).knn))
        linear = self._test(s, FIRST, lambda models, rows: torch.from_numpy(predictions(models, rows).linear))
        scores = self._scores(s, knn)
        return scores | {
            "knn_accuracy": scores["test_accuracy"],
            "linear_accuracy": _mean([accuracy(c) for c in _headline(s, linear)]),
            "feature_spread": _mean([one.spread for one in probed.values()]),
            "feature_rank": _mean([one.rank for one in probed.values()]),
            PROBE_ROWS: which,
        }

    def reference_probes(self) -> dict[str, float]:
        """What nearest neighbours reach without any learning, on the very rows of the probe: of pixels and of HOG."""
        which, bank, labels = self.probe_set()
        rows = self._federation.validation[bank] if which == "validation" else bank.numpy()
        known, asked = self._federation.images[rows], self._federation.test_images
        found = {}
        for encode in (Pixels(), Hog()) if known.ndim == 4 and Hog().fits(known.shape) else (Pixels(),):
            near = nearest_neighbours(torch.from_numpy(encode(known)), labels, torch.from_numpy(encode(asked)))
            found[encode.name] = float((near == self._truth.test).mean())
        return found

    def _scores(self, s: Server, counts: dict[int, np.ndarray]) -> dict[str, Any]:
        per_client = [self._client_accuracy(k, counts[k]) if k in counts else None for k in s.clients]
        spread = np.array([a for a in per_client if a is not None])
        headline = _headline(s, counts)
        result: dict[str, Any] = {
            "test_accuracy": _mean([accuracy(c) for c in headline]),
            "macro_f1": _mean([macro_f1(c) for c in headline]),
            "balanced_accuracy": _mean([balanced_accuracy(c) for c in headline]),
            "client_accuracy": per_client,
            "confusion": _together(headline),
            "client_accuracy_mean": float(spread.mean()) if len(spread) else None,
            "client_accuracy_std": float(spread.std()) if len(spread) else None,
            "client_accuracy_min": float(spread.min()) if len(spread) else None,
        }
        if s.plan.nets > 1 and s.plan.method.test == "groups":
            every = [slice(i, i + 1) for i in range(s.plan.nets)]
            result["test_accuracy_nets"] = [self._accuracy(s, one) for one in every]
            result["test_accuracy_ensemble"] = self._accuracy(s, slice(None))
        return result

    def _validated(self, s: Server) -> dict[str, float]:
        if not len(self._federation.validation) or s.plan.method.test == "clients":
            return {}
        rows, models = torch.arange(len(self._federation.validation)), delivered(s).values()
        found = [self.tester.predict(nets[FIRST], "validation", rows) for nets in models]
        return {"validation_accuracy": _mean([float((f.numpy() == self._truth.validation).mean()) for f in found])}

    def _accuracy(self, s: Server, nets: slice) -> float:
        """What `test_accuracy` would be if these of the clients' nets were the headline, by their mean logits."""
        return _mean([accuracy(c) for c in _headline(s, self._test(s, nets, self._classified))])

    def selections(self, versions: Mapping[int, int]) -> dict[int, Judged]:
        """How well each client's method chose rows, corrected labels and guessed them, where it did."""
        found: dict[int, Judged] = {}
        for client, version in versions.items():
            audit, given = self._states.load(client, version), self._federation.given[client]
            correct = self._truth.correct(client, given)
            if "judged/kept" in audit and correct is not None and self._truth.labels is not None:
                labelled = given >= 0
                kept, suggested = (audit[f"judged/{name}"].numpy()[labelled] for name in ("kept", "suggested"))
                chosen = selection(kept, correct[labelled])
                repaired = repair(given[labelled], suggested, self._truth.labels[client][labelled])
                found[client] = Judged(*chosen, *repaired)
            if "judged/guessed" in audit and self._truth.labels is not None:
                guessed, used = (audit[f"judged/{name}"].numpy() for name in ("guessed", "used"))
                told = guessing(guessed, used, self._truth.labels[client], self._federation.n_classes)
                known = dict(zip(Judged._fields[-len(told) :], told, strict=True))
                found[client] = found.get(client, Judged())._replace(**known)
        if all(one.repair_precision is None for one in found.values()):  # it chooses rows and corrects nothing
            found = {client: one._replace(repair_recall=None) for client, one in found.items()}
        return found

    def client_noise(self, s: Server, reported: Collection[int]) -> dict[str, float | None]:
        """How well the method's client scores find the noisy clients, of all and among those of this round."""
        auc = rank = None
        if s.plan.verdict in s.columns and self._truth.labels is not None:
            shares = [self._truth.noise(k, given) for k, given in enumerate(self._federation.given)]
            noise = np.array([np.nan if share is None else share for share in shares])
            score, now = s.columns[s.plan.verdict].numpy(), sorted(reported)
            auc, rank = ranking_auc(score, noise), rank_correlation(score[now], noise[now])
        return {"client_noise_auc": auc, "client_noise_rank": rank}

    def clustering(self, s: Server) -> float | None:
        """How far the groups are the tasks, where clients have tasks and the method puts them into groups."""
        grouping = any(GROUP in part.writes for stage in s.plan.stages for part in stage.parts)
        if self._federation.tasks is None or not grouping:
            return None
        tasks = np.unique(np.array([repr(task) for task in self._federation.tasks]), return_inverse=True)[1]
        return adjusted_rand_index(s.columns[GROUP].numpy(), tasks)

    def _test(self, s: Server, nets: slice, predict: Predict) -> dict[int, np.ndarray]:
        """For each client, the confusion counts of the models that serve it, on the classes of its task."""
        if s.plan.method.test == "clients":
            rows, sent = [self._rows([k]) for k in s.clients], delivered(s)
            asked = ((k, *own_model(s, k, sent), mine) for k, mine in zip(s.clients, rows, strict=True))
            replies = self.tester.test(asked)
            tested = zip(s.clients, rows, replies, strict=True)
            return {k: self._counts(mine, found) for k, mine, found in tested if found is not None}
        models, served = serving(s)
        by_group = {
            g: self._predictions(models[g][nets], [k for k in s.clients if served[k] == g], predict)
            for g in dict.fromkeys(served.values())
        }
        if self._federation.tasks is None:
            everything = self._rows([])
            shared = {g: self._counts(everything, found) for g, found in by_group.items()}
            return {k: shared[g] for k, g in served.items()}
        return {k: self._counts(mine := self._rows([k]), by_group[g][mine]) for k, g in served.items()}

    def _rows(self, clients: Sequence[int]) -> Tensor:
        """The test rows whose classes are in the task of one of these clients; all if there are no tasks.

        The very same tensor for the same classes, so that runtimes send it only once.
        """
        tasks = self._federation.tasks
        classes = tuple(
            range(self._federation.n_classes) if tasks is None else sorted({c for k in clients for c in tasks[k]})
        )
        if classes not in self._rows_by_classes:
            self._rows_by_classes[classes] = torch.from_numpy(np.flatnonzero(np.isin(self._truth.test, classes)))
        return self._rows_by_classes[classes]

    def _predictions(self, models: Models, clients: Sequence[int], predict: Predict) -> Tensor:
        """For all test rows, those left out that these clients are not tested on."""
        rows = self._rows(clients)
        found = torch.full((len(self._truth.test),), -1, dtype=torch.int32)
        found[rows] = predict(models, rows).to(torch.int32)
        return found

    def _classified(self, models: Models, rows: Tensor) -> Tensor:
        return self.tester.predict(models, "test", rows)

    def _counts(self, rows: Tensor, predicted: Tensor) -> np.ndarray:
        return confusion(self._truth.test[rows.numpy()], predicted.numpy(), self._federation.n_classes)

    def _client_accuracy(self, client: int, counts: np.ndarray) -> float | None:
        """On the client's own true mix of classes: Σ_c share_c · recall_c."""
        if self._truth.labels is None or not len(self._truth.labels[client]):
            return None
        share = np.bincount(self._truth.labels[client], minlength=self._federation.n_classes)
        recall = recalls(counts)
        known = (share > 0) & np.isfinite(recall)
        return float((share[known] * recall[known]).sum() / share[known].sum()) if known.any() else None


def _headline(s: Server, counts: Mapping[int, np.ndarray]) -> Collection[np.ndarray]:
    """What a run is judged by: each client's counts, or the one that all share."""
    distinct = list({id(c): c for c in counts.values()}.values())
    return counts.values() if s.plan.method.test == "clients" or len(distinct) > 1 else distinct


def _together(counts: Collection[np.ndarray]) -> list[list[int]] | None:
    """True by predicted classes, of all models that count, as far as that can be read."""
    if not counts or len(next(iter(counts))) > MOST_SHOWN:
        return None
    total: list[list[int]] = np.sum(list(counts), axis=0).tolist()
    return total


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else 0.0
