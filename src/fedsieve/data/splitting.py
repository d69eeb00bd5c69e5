"""The federation that settings describe."""

from __future__ import annotations

from fedsieve.config import Config
from fedsieve.data.federation import Federation, split
from fedsieve.data.sources import load_source
from fedsieve.evaluate.truth import GroundTruth


def federation_of(config: Config) -> tuple[Federation, GroundTruth]:
    noise, rates = config.noise()
    return split(
        load_source(config.top.data, config.data(), config.top.seed),
        clients=config.top.clients,
        partition=config.partition(),
        noise=noise,
        rates=rates,
        server=config.server(),
        validation=config.top.validation,
        seed=config.top.seed,
    )
