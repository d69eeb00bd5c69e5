"""The client's side: from a message and the node's own data to the reply. Labels and their judgements stay here."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsieve.base.errors import ConfigError, RunError
from fedsieve.base.files import Damaged, private_folder, read_tensors, write_bytes, write_tensors
from fedsieve.core.client_states import ClientStates
from fedsieve.core.host import Host
from fedsieve.data.corrections import Corrections
from fedsieve.data.federation import UNLABELLED, Federation, Holding
from fedsieve.data.sources import load_source, takes_options
from fedsieve.evaluate.evaluator import Evaluator
from fedsieve.evaluate.labels import judged_labels, labels_csv
from fedsieve.evaluate.schema import File
from fedsieve.flower.briefing import Briefing, Introduction
from fedsieve.flower.identity import sign
from fedsieve.flower.vetting import NodeConfig, vet
from fedsieve.flower.virtual import simulated_states
from fedsieve.flower.weights import own_files, without_files
from fedsieve.settings.config import Config
from fedsieve.settings.planning import config_of, plan_of, reads_truth
from fedsieve.settings.splitting import federation_of

DATA, NAME, STATE, PARTITION = "data", "name", "state", "partition-id"


def introduce(node: NodeConfig, briefing: Briefing, challenge: str) -> Introduction:
    """Read and check the node's data, and say of them what the others must agree with."""
    if simulated_states() is not None:
        client = int(node[PARTITION])
        return Introduction.of(_simulated(_key(briefing.settings)), client, str(client))
    config = vet(without_files(briefing), node)
    alone = own_federation(node, replace(briefing, client=0, clients=1), config)
    key, signature = sign(state_folder(node), greeting(briefing, challenge))
    said = Introduction.of(alone, 0, node_name(node))
    return replace(said, client=-1, key=key, signature=signature)


def greeting(briefing: Briefing, challenge: str) -> str:
    """What a node signs to show that it is who it was: of this run alone, and of this very question."""
    return f"fedsieve greeting {briefing.run} {challenge}"


def host_of(node: NodeConfig, briefing: Briefing, samples: Tensor | None = None) -> Host:
    """What serves the node's client; kept where the process serves several messages, as in a simulation.

    `samples` are the server's test samples, where the node has none itself.
    """
    torch.set_num_threads(1)
    if (states := simulated_states()) is not None:
        return _simulated_host(_key(briefing.settings), states)
    config = vet(briefing.settings, node, own_files(node, state_folder(node), briefing))
    federation = own_federation(node, briefing, config)
    if "public" in briefing.server:
        federation = with_public(federation, _public(node, briefing))
    if samples is not None:
        federation = replace(federation, test_images=samples.numpy())
    plan = plan_of(config, federation, labelled=briefing.labelled)
    return Host(plan, federation, ClientStates(run_folder(node, briefing)))


def run_folder(node: NodeConfig, briefing: Briefing) -> Path:
    """Where the node keeps what it must remember of a run, and writes what it found about its labels."""
    if not briefing.run:
        raise RunError("FS224", "the briefing names no run. Install the same fedsieve on server and nodes")
    return private_folder(private_folder(state_folder(node)) / briefing.run)


def state_folder(node: NodeConfig) -> Path:
    chosen = node.get(STATE)
    return Path(str(chosen)).expanduser() if chosen else Path.home() / ".fedsieve" / node_name(node)


def node_name(node: NodeConfig) -> str:
    """As the owner calls it, or as its data folder is called."""
    return str(node.get(NAME) or Path(_data(node)).stem)


def write_labels(node: NodeConfig, briefing: Briefing, host: Host, version: int) -> None:
    """Leave the judged labels beside the node's state, if a method judged them; they never leave the node."""
    client = briefing.client
    if judged := judged_labels(host.federation, client, host.states.load(client, version), host.plan.method.name):
        write_bytes(run_folder(node, briefing) / File.LABELS, labels_csv(judged), private=True)


def own_federation(node: NodeConfig, briefing: Briefing, config: Config) -> Federation:
    """The federation as a node sees it: its own samples as its client's, and nothing of the others.

    A run whose clients have no labels gets none of the node's either, and its classes are those of the server.
    """
    path, options, labelled = _data(node), config.data(), config.top.client_labels
    limited = options if takes_options(path) else options.for_all()
    source = load_source(path, replace(limited, test_fraction=0), config.top.seed, labels=labelled)
    nobody = np.empty(0, np.int64)
    mine, labels = np.arange(len(source.labels)), source.labels.astype(np.int64)
    if not labelled:
        labels = np.full_like(labels, UNLABELLED)
    federation = Federation(
        images=source.images,
        test_images=source.images[:0],
        rows=tuple(mine if k == briefing.client else nobody for k in range(briefing.clients)),
        given=tuple(labels if k == briefing.client else nobody for k in range(briefing.clients)),
        server={name: Holding(nobody) for name in briefing.server},
        validation=nobody,
        class_names=source.class_names if labelled else briefing.class_names,
        mean=briefing.mean,
        std=briefing.std,
        data=source.name,
        client_names=tuple(node_name(node) if k == briefing.client else str(k) for k in range(briefing.clients)),
        origins=source.origins,
        texts=source.texts,
        text_form=source.text_form,
    )
    if options.corrections is None:
        return federation
    return Corrections(options.corrections, federation).applied(federation)[0]


def keep_public(node: NodeConfig, briefing: Briefing, samples: Tensor) -> dict[str, Any]:
    write_tensors(_public(node, briefing), {"samples": samples})
    return {}


def with_public(federation: Federation, file: Path) -> Federation:
    """The public samples stand behind the node's own."""
    try:
        samples = read_tensors(file)["samples"].numpy()
    except Damaged as problem:
        raise RunError("FS226", f"no public samples: {problem}. Start the app again, which sends them again") from None
    own = len(federation.images)
    if samples.shape[1:] != federation.images.shape[1:] or samples.dtype != federation.images.dtype:
        raise RunError("FS226", f"public samples are {samples.dtype} of {samples.shape[1:]}, not as the node's own are")
    held = {**federation.server, "public": Holding(np.arange(own, own + len(samples)))}
    return replace(federation, images=np.concatenate([federation.images, samples]), server=held)


def _public(node: NodeConfig, briefing: Briefing) -> Path:
    return run_folder(node, briefing) / "public.safetensors"


def _data(node: NodeConfig) -> str:
    if DATA not in node:
        raise ConfigError(
            "FS221",
            "the node does not know where its data are. Start flower-supernode with --node-config 'data=\"PATH\"'",
        )
    return str(node[DATA])


def _key(settings: dict[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True)


@lru_cache(maxsize=1)
def _split(settings: str) -> Any:
    return federation_of(config_of(json.loads(settings), allow_code=True))


def _simulated(settings: str) -> Federation:
    federation: Federation = _split(settings)[0]
    return federation


@lru_cache(maxsize=1)
def _simulated_host(settings: str, states: Path) -> Host:
    federation, truth = _split(settings)
    config, where = config_of(json.loads(settings), allow_code=True), ClientStates(states)
    plan = plan_of(config, federation)
    if reads_truth(plan.method):
        federation = federation.serving(Evaluator(federation, truth, where).masks())
    return Host(plan, federation, where)
