"""The data as split: what each client holds, what the server holds, and the test images.

Built once from the settings and hashed, so that every method sees the same labels. True labels are not in here: they
go to a `GroundTruth` that only the evaluator receives.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from fedsieve.base.options import Choice
from fedsieve.data.origins import indices
from fedsieve.data.texts import TextForm
from fedsieve.data.truth import GroundTruth

Amount = Annotated[float, Field(ge=0)]
HASHED_WHOLE = 2 << 30
"""Images beyond this many bytes are hashed by a sample of rows."""
UNLABELLED = -1
"""Stands for the label of a row that has none."""
SHARED = "clean"
"""Methods that read the labels of the server's set and methods that do not can then be compared on one split."""


@dataclass(frozen=True, kw_only=True)
class ServerOptions(Choice):
    """What the server holds itself, taken from the training set before it is split; never from the test set."""

    unlabelled: Amount = 0
    """Images without labels at the server: a number, or a fraction of the training set if below 1."""
    unlabelled_from: str | None = None
    """Where they come from: the training set if not given, `clean` (those of `server.clean`, without their labels),
    another data set by name or path, or `generated` ones."""
    clean: Amount | str = 0
    """Correctly labelled samples at the server: a number, a fraction, or data of their own that somebody verified."""
    clean_noise: Annotated[float, Field(ge=0, le=1)] = 0.0
    """How many of `server.clean` are wrong after all, to see what a method makes of it; the noise is `server.noise`."""
    noisy: Amount = 0
    """Samples at the server whose labels are partly wrong: a number, or a fraction."""
    noisy_rate: Annotated[float, Field(ge=0, le=1)] = 0.2
    """How many of `server.noisy` are wrong; the noise is `server.noise`."""
    noise: Literal["symmetric", "symmetric-self", "pair", "asymmetric", "superclass"] | None = None
    """How the server's labels are made wrong; as the clients' if not given, symmetric if they have none or tasks."""
    noise_options: dict[str, Any] = field(default_factory=dict)
    """Options of `server.noise`, as those behind `noise.`: {count: bernoulli}."""
    balanced: bool = False
    """Whether the server's sets hold as many samples of each class, as far as the classes go; in proportion if not."""
    public: Amount = 0
    """Images without labels that the clients hold too: a number, or a fraction."""

    def amount(self, name: str) -> float:
        """How much of the training set one of the server's sets takes; nothing where it comes from elsewhere."""
        asked = getattr(self, name)
        elsewhere = isinstance(asked, str) or (name == "unlabelled" and bool(self.unlabelled_from))
        return 0.0 if elsewhere else float(asked)

    @property
    def verified(self) -> str | None:
        """The data of `clean`, where these are no part of the training set."""
        return self.clean if isinstance(self.clean, str) else None


@dataclass(frozen=True)
class Holding:
    """Some of the server's own samples: row numbers, and labels where it has them."""

    rows: np.ndarray
    labels: np.ndarray | None = None


@dataclass(frozen=True)
class Federation:
    images: np.ndarray
    """All training samples: N x H x W x channels in uint8, or a float32 table."""
    test_images: np.ndarray
    rows: tuple[np.ndarray, ...]
    """Per client, its rows of `images`."""
    given: tuple[np.ndarray, ...]
    """Per client, the labels as delivered; -1 where there is none."""
    server: Mapping[str, Holding]
    """By name: unlabelled, clean, noisy, public. Empty ones are left out."""
    validation: np.ndarray
    """Rows of `images` kept for tuning."""
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    data: str = ""
    tasks: tuple[tuple[int, ...], ...] | None = None
    """Per client, the classes of its task, where the partition has tasks."""
    served: tuple[np.ndarray, ...] | None = None
    """Which rows are rightly labelled: filled by the evaluator for upper bounds, for no other method."""
    declared: tuple[int, ...] | None = field(default=None, compare=False)
    """Per client, how many labels it says to have, where `given` does not show them."""
    client_names: tuple[str, ...] | None = field(default=None, compare=False)
    """Per client, its name, where clients are those of the data."""
    origins: Sequence[str] | None = field(default=None, compare=False)
    """Where each row of `images` came from; its number in them if None."""
    texts: tuple[str, ...] | None = field(default=None, compare=False)
    """What each row of `images` says, where the samples are texts; for people, never for training. Rows that the server
    has from elsewhere stand behind them and have none."""
    test_texts: tuple[str, ...] | None = field(default=None, compare=False)
    text_form: TextForm | None = field(default=None, compare=False)
    reading: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """How samples were read, for whoever reads others alike: see `Source.reading`."""
    notes: tuple[str, ...] = field(default=(), compare=False)

    @property
    def clients(self) -> int:
        return len(self.rows)

    @property
    def n_classes(self) -> int:
        return len(self.class_names)

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """(channels, height, width), or (features,)."""
        shape = self.images.shape[1:]
        return (shape[2], shape[0], shape[1]) if len(shape) == 3 else tuple(shape)

    def owner(self, client: int) -> str:
        """The client's name, or its number where the data name none."""
        return self.client_names[client] if self.client_names is not None else str(client)

    def places(self, client: int) -> list[str]:
        """Where each of the client's rows came from."""
        origins = indices(self.data, len(self.images)) if self.origins is None else self.origins
        return [origins[row] for row in self.rows[client]]

    def class_counts(self) -> np.ndarray:
        """Clients x classes, by given label."""
        return np.array([np.bincount(g[g >= 0], minlength=self.n_classes) for g in self.given], np.int64)

    def labelled_counts(self) -> list[int]:
        """Per client, how many of its rows have a label."""
        return [int((g >= 0).sum()) for g in self.given] if self.declared is None else list(self.declared)

    @cached_property
    def hash(self) -> str:
        """Of everything that training or testing sees; equal hashes mean comparable results."""
        return self._hash_with(self.images, self.test_images)

    @cached_property
    def training_hash(self) -> str:
        """Of everything that training sees."""
        return self._hash_with(self.images)

    def _hash_with(self, *arrays: np.ndarray) -> str:
        digest = hashlib.sha256()
        for array in arrays:
            sample = array if array.nbytes <= HASHED_WHOLE else array[:: max(1, len(array) // 1000)]
            digest.update(f"{array.shape}{array.dtype}".encode())
            digest.update(np.ascontiguousarray(sample).data)
        for rows, given in zip(self.rows, self.given, strict=True):
            digest.update(len(rows).to_bytes(8, "little") + rows.tobytes() + given.tobytes())
        for name, holding in sorted(self.server.items()):
            digest.update(name.encode() + holding.rows.tobytes())
            digest.update(b"" if holding.labels is None else holding.labels.tobytes())
        digest.update(self.validation.tobytes())
        digest.update(repr((self.class_names, self.mean, self.std, self.tasks)).encode())
        return digest.hexdigest()

    def serving(self, masks: tuple[np.ndarray, ...]) -> Federation:
        """The same federation with the evaluator's masks: see `served`."""
        return replace(self, served=masks)


def describe(federation: Federation, truth: GroundTruth | None) -> dict[str, Any]:
    """The federation as `federation.json` shows it; the noise is known only with the truth."""
    counts, labelled_counts = federation.class_counts(), federation.labelled_counts()
    labelled_sets = {name: held.labels for name, held in federation.server.items() if held.labels is not None}
    clients: list[dict[str, Any]] = []
    transitions = np.zeros((federation.n_classes, federation.n_classes), np.int64)
    for k, given in enumerate(federation.given):
        realised = truth.noise(k, given) if truth else None
        nominal = truth.nominal[k] if truth is not None and truth.nominal is not None else np.nan
        labelled = given >= 0
        clients.append(
            {
                "client": k,
                "name": federation.client_names[k] if federation.client_names else None,
                "rows": len(given),
                "labelled": labelled_counts[k],
                "classes": counts[k].tolist(),
                "noise_nominal": None if np.isnan(nominal) else round(float(nominal), 6),
                "noise_realised": None if realised is None else round(realised, 6),
                "task": list(federation.tasks[k]) if federation.tasks else None,
            }
        )
        if truth is not None and truth.labels is not None:
            np.add.at(transitions, (truth.labels[k][labelled], given[labelled]), 1)
    return {
        "hash": federation.hash,
        "data": federation.data,
        "n_classes": federation.n_classes,
        "class_names": list(federation.class_names),
        "image_shape": list(federation.images.shape[1:]),
        "mean": list(federation.mean),
        "std": list(federation.std),
        "test": len(federation.test_images),
        "validation": len(federation.validation),
        "server": {name: len(holding.rows) for name, holding in federation.server.items()},
        "server_labels": {
            name: {
                "classes": np.bincount(labels, minlength=federation.n_classes).tolist(),
                "noise_realised": truth.server_noise(name, labels) if truth else None,
            }
            for name, labels in labelled_sets.items()
        },
        "notes": list(federation.notes),
        "clients": clients,
        "transitions": transitions.tolist() if transitions.any() else None,
    }
