"""The context that a hook receives, made up, so that a part can be tried hook by hook and by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedsieve.core.client import Client
from fedsieve.core.client_states import ClientStates
from fedsieve.core.host import Host
from fedsieve.core.part import Method, Part, Stage
from fedsieve.core.plan import Plan
from fedsieve.core.server import Models, Server, ServerState
from fedsieve.core.types import Mail, Payload, Up, Ups
from fedsieve.data.federation import Federation
from fedsieve.models.base import Classifier
from fedsieve.models.heads import Projector, SideHead
from fedsieve.testing.contract import Contract
from fedsieve.testing.tiny import tiny_federation


class Echo(Classifier):
    """A model whose logits of a sample are the sample."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(classes, classes)
        nn.init.eye_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def features(self, x: Tensor) -> Tensor:
        return x


def fake_client(
    part: Part,
    given: Sequence[int] | None = None,
    says: Sequence[Sequence[float]] | None = None,
    *,
    brief: Payload | None = None,
    keep: Mapping[str, Tensor] | None = None,
    plan: Plan | None = None,
    federation: Federation | None = None,
    id: int = 0,
    stage: int = 0,
    t: int = 0,
    models: Models | None = None,
    **settings: Any,
) -> Client:
    """A client in round `t` of a stage, as a hook of this part receives it.

    With `given` and `says`, one label and one row of logits for each sample, it holds these labels and its model
    answers these logits. Otherwise it is a client of the federation, the tiny one if none is given. The plan is that
    of a method of this part alone, with these settings, unless it is given. `brief` is what the server told the part,
    `keep` what the part kept at its last visit, and `models` what came from the server instead of the first weights.
    """
    if given is not None and says is not None:
        federation = _table(given, np.asarray(says, np.float32))
        settings |= {"model": "mlp"}
    federation = federation or tiny_federation()
    plan = plan or _plan_of(part, federation, settings)
    if says is not None:
        classes = federation.n_classes
        plan = replace(plan, model=lambda: Echo(classes))
    host = Host(plan, federation, ClientStates(Path()))
    c = host.client(id, _mail(stage, t), models or plan.initial, {part.name: brief or {}})
    c.keep(part).update(keep or {})
    return c


def fake_server(
    part: Part,
    *,
    columns: Mapping[str, Sequence[float]] | None = None,
    rows: Mapping[str, Mapping[int, Tensor]] | None = None,
    memory: Mapping[str, Tensor] | None = None,
    plan: Plan | None = None,
    federation: Federation | None = None,
    stage: int = 0,
    t: int = 0,
    **settings: Any,
) -> Server:
    """The server in round `t` of a stage, as a hook of this part receives it.

    `columns` is the client table, a number per client; `rows` and `memory` are what the part remembers per client and
    per group, where it is not what `recall` begins with. Federation, plan and settings are as for `fake_client`.
    """
    federation = federation or tiny_federation()
    plan = plan or _plan_of(part, federation, settings)
    host = Host(plan, federation, ClientStates(Path()))
    state = ServerState.fresh(plan)
    state.stage, state.round, state.t = stage, t, t
    s = Server(state, plan, lambda: host).by(part)
    s.prepare()
    state.columns |= {name: torch.tensor(values, dtype=torch.float64) for name, values in (columns or {}).items()}
    s.memory.update(memory or {})
    for name, values in (rows or {}).items():
        s.rows(name).update(values)
    return s


def fake_reports(part: Part, notes: Mapping[int, Payload], *, n: int = 24, models: Models = ()) -> Ups:
    """One report for each client, of so many samples, with what the part's `finish` said."""
    return {k: Up(k, 0, n, 0, models, {part.name: note}, 0, 0.0) for k, note in notes.items()}


def _plan_of(part: Part, federation: Federation, settings: Mapping[str, Any]) -> Plan:
    heads = tuple(Projector() if name == Projector().name else SideHead(name=name) for name in part.heads)
    method = Method(part.name, (Stage(parts=(part,)),), nets=part.nets, heads=heads)
    return Contract.of(method, settings).plan(federation)


def _mail(stage: int, t: int) -> Mail:
    return Mail(stage, round=t, t=t, group=0, version=0, saves=1, retain=())


def _table(given: Sequence[int], samples: np.ndarray) -> Federation:
    """One client with these rows."""
    classes = samples.shape[1]
    return Federation(
        images=samples,
        test_images=samples[:0],
        rows=(np.arange(len(samples)),),
        given=(np.asarray(given, np.int64),),
        server={},
        validation=np.empty(0, np.int64),
        class_names=tuple(str(c) for c in range(classes)),
        mean=(0.0,) * classes,
        std=(1.0,) * classes,
        data="made up",
    )
