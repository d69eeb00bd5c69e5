"""The federation that settings describe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedsieve.base.errors import DataError
from fedsieve.base.rng import numpy_rng
from fedsieve.data.corrections import corrected, kept_for_test
from fedsieve.data.dealing import spread_order
from fedsieve.data.elsewhere import with_images_from_elsewhere, with_verified_samples
from fedsieve.data.federation import Federation
from fedsieve.data.sources import Source, load_source
from fedsieve.data.split import split
from fedsieve.data.truth import GroundTruth
from fedsieve.settings.config import Config


def limit_rows(source: Source, limit: int, seed: int) -> Source:
    """The same data with at most so many training samples."""
    rows = np.arange(len(source.labels)) if source.rows is None else source.rows
    labels = source.labels if source.true is None else source.true
    order = spread_order(labels[rows], numpy_rng(seed, "federation", "limit"))
    return replace(source, rows=np.sort(rows[order[:limit]]))


def federation_of(config: Config) -> tuple[Federation, GroundTruth]:
    noise, rates = config.noise()
    server, seed = config.server(), config.top.seed
    options = config.data()
    source = load_source(config.top.data, replace(options, limit=None), seed, labels=config.top.client_labels)
    if not len(source.test_labels) and options.test_fraction:
        raise DataError("FS307", f"data={config.top.data}: has no labelled samples to test on. Add a test set")
    federation, truth = split(
        source if options.limit is None else limit_rows(source, options.limit, seed),
        clients=config.top.clients,
        partition=config.partition(),
        noise=noise,
        rates=rates,
        server=server,
        validation=config.top.validation,
        seed=seed,
        client_labels=config.top.client_labels,
    )
    if options.corrections is not None:
        federation, truth = corrected(federation, truth, options.corrections, kept_for_test=kept_for_test(source))
    federation, truth = with_verified_samples(federation, truth, server, options, seed)
    return with_images_from_elsewhere(federation, server, seed), truth
