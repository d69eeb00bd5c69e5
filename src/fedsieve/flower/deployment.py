"""A run on Flower nodes of their own: the server knows its own data, and of the nodes' data only what they say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from flwr.serverapp import Grid
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from fedsieve.base.errors import ConfigError, DataError
from fedsieve.base.files import Damaged, read_json, write_json
from fedsieve.core.client_states import ClientStates
from fedsieve.core.host import Host
from fedsieve.data.elsewhere import with_images_from_elsewhere, with_verified_samples
from fedsieve.data.federation import UNLABELLED, Federation
from fedsieve.data.noise import NOISES
from fedsieve.data.partition import PARTITIONS
from fedsieve.data.rates import RATES
from fedsieve.data.sources import load_source
from fedsieve.data.split import split
from fedsieve.data.truth import GroundTruth
from fedsieve.evaluate.schema import File
from fedsieve.flower.briefing import Briefing
from fedsieve.flower.delivery import agree_on_weights
from fedsieve.flower.roster import Member, Roster, check_same_data, gather
from fedsieve.flower.runtime import FlowerRuntime
from fedsieve.report.progress import Progress
from fedsieve.runs.folder import check_free, read_config
from fedsieve.runs.session import run_session
from fedsieve.runs.venue import Carrier, Venue
from fedsieve.settings.config import Config, parse, resolve
from fedsieve.settings.planning import spell_out
from fedsieve.settings.weights import weight_files, weight_hashes

MAY_CHANGE = ("workers", "device", "checkpoint_every", "track", "flower.")
"""Keys that may differ when a run is gone on with."""
MEMBERS = TypeAdapter(list[Member])


class StatesElsewhere(ClientStates):
    """The server's own states are here, the clients' are on their nodes."""

    def load(self, client: int, version: int) -> dict[str, Tensor]:
        return {} if client >= 0 else super().load(client, version)

    def verify(self, client: int, version: int) -> None:
        if client < 0:
            super().verify(client, version)


def serve(grid: Grid, run_config: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Begin the run that an app's configuration describes, or go on with it if its folder is there already."""
    settings = {key: parse(value) if isinstance(value, str) else value for key, value in run_config.items()}
    config = resolve({**settings, "runtime": "flower"}, allow_code=True)  # an app is itself code
    if config.top.noise != "none":
        raise ConfigError("FS002", f"noise={config.top.noise}: the nodes' labels are what they are. Leave noise out")
    folder = config.folder()
    resuming = (folder / File.NODES).is_file() and not (folder / File.SUMMARY).exists()
    if resuming:
        _check_same_settings(folder, config)
    else:
        check_free(folder, config.top.overwrite)
    return run_session(config, folder, Nodes(grid, progress.note, resuming), progress, resuming=resuming)


class Nodes(Venue):
    """Nodes on machines of their own, the ones that answer, or those that the run began with."""

    def __init__(self, grid: Grid, say: Callable[[str], None], resuming: bool) -> None:
        self._grid, self._say, self._resuming = grid, say, resuming

    def open(self, config: Config, folder: Path) -> None:
        self._options, self._file = config.flower(), folder / File.NODES
        self._own, truth = _server_side(config)
        self._files, self._weights = weight_files(config), weight_hashes(config)
        if self._resuming:
            self._run, self._members = saved_members(self._file)
        else:
            self._run = uuid4().hex
            briefing = _briefing(config, self._own, self._run, 0, True, self._weights)
            self._members = _gather_alike(self._grid, config, self._own, briefing, self._say)
        self.federation = replace(
            self._own,
            rows=tuple(_unknown(member.samples) for member in self._members),
            given=tuple(_unknown(member.samples) for member in self._members),
            declared=tuple(member.labelled for member in self._members),
            client_names=tuple(member.name for member in self._members),
        )
        self.truth = replace(truth, labels=None, nominal=None)
        self.states = StatesElsewhere(folder / File.CHECKPOINT / "server")
        self.labelled = any(member.labelled for member in self._members)
        self._briefing = _briefing(config, self._own, self._run, len(self._members), self.labelled, self._weights)

    def carrier(self, host: Callable[[], Host], served: Federation) -> Carrier:
        roster = Roster(self._grid, self._options, self._members, self._briefing)
        write_json(self._file, {"run": self._run, "members": roster.saved()})
        if "public" in self._own.server:
            roster.hand_out(torch.from_numpy(self._own.images[self._own.server["public"].rows]))
        if self._weights:
            agree_on_weights(self._grid, roster, self._briefing, self._files, self._options.timeout)
        return FlowerRuntime(self._grid, roster, self._briefing, host, self._options.timeout)


def _gather_alike(
    grid: Grid, config: Config, own: Federation, briefing: Briefing, say: Callable[[str], None]
) -> list[Member]:
    members, first = gather(grid, config.top.clients, config.flower(), briefing, say)
    shape = tuple(own.images.shape[1:])
    check_same_data(first, f"node {first.name}", own.class_names, shape, f"the server's data ({own.data})")
    return members


def _briefing(
    config: Config, own: Federation, run: str, clients: int, labelled: bool, weights: dict[str, str]
) -> Briefing:
    return Briefing(
        settings=config.flat(),
        client=-1,
        run=run,
        clients=clients,
        class_names=own.class_names,
        mean=own.mean,
        std=own.std,
        server=tuple(own.server),
        labelled=labelled,
        weights=weights,
    )


def _server_side(config: Config) -> tuple[Federation, GroundTruth]:
    """The server's own data, its test set, and the mean and spread of its samples, by which all nodes scale theirs."""
    server, seed = config.server(), config.top.seed
    federation, truth = split(
        load_source(config.top.data, config.data(), seed),
        clients=1,
        partition=PARTITIONS["iid"](),
        noise=NOISES["none"](),
        rates=RATES["fixed"](),
        server=server,
        validation=config.top.validation,
        seed=seed,
    )
    federation, truth = with_verified_samples(federation, truth, server, config.data(), seed)
    federation = with_images_from_elsewhere(federation, server, seed)
    return replace(federation, notes=()), truth


def saved_members(file: Path) -> tuple[str, list[Member]]:
    """The name of an unfinished run, and who its clients are."""
    try:
        saved = read_json(file)
        return str(saved["run"]), MEMBERS.validate_python(saved["members"])
    except (Damaged, KeyError, ValidationError) as problem:
        reason = str(problem).splitlines()[0]
        raise DataError("FS311", f"{file}: cannot be read ({reason}). Restore it, or start the run anew") from None


def _unknown(count: int) -> np.ndarray:
    """Rows or labels that the server does not see; only their number is known, and takes no memory."""
    return np.broadcast_to(np.int64(UNLABELLED), count)


def _check_same_settings(folder: Path, config: Config) -> None:
    begun = spell_out(read_config(folder, allow_code=config.code)).flat()
    now = spell_out(config).flat()
    for key in {*begun, *now}:
        if begun.get(key) != now.get(key) and not key.startswith(MAY_CHANGE):
            raise ConfigError(
                "FS005",
                f"{folder} holds an unfinished run with {key}={begun.get(key)}, not {now.get(key)}. "
                "Go on with the same settings, or choose another out",
            )
