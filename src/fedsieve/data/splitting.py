"""The federation that settings describe."""

from __future__ import annotations

from fedsieve.config import Config
from fedsieve.data.elsewhere import with_images_from_elsewhere
from fedsieve.data.federation import SHARED, Federation, split
from fedsieve.data.sources import load_source
from fedsieve.evaluate.truth import GroundTruth


def federation_of(config: Config) -> tuple[Federation, GroundTruth]:
    noise, rates = config.noise()
    server, seed = config.server(), config.top.seed
    federation, truth = split(
        load_source(config.top.data, config.data(), seed),
        clients=config.top.clients,
        partition=config.partition(),
        noise=noise,
        rates=rates,
        server=server,
        validation=config.top.validation,
        seed=seed,
    )
    if server.unlabelled and server.unlabelled_from not in ("", SHARED):
        federation = with_images_from_elsewhere(federation, server, seed)
    return federation, truth
