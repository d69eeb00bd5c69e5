"""Which models serve which client, and are therefore what it is tested with."""

from __future__ import annotations

from collections.abc import Mapping

from fedsieve.core.layout import mean_models, pack
from fedsieve.core.server import Models, Server
from fedsieve.core.types import Mail


def serving(s: Server) -> tuple[Mapping[int, Models], dict[int, int]]:
    """The models of the groups as they are tested, and for each client the group whose models serve it."""
    models = delivered(s)
    if s.plan.method.test == "mean":
        models = dict.fromkeys(models, mean_models(models))
    return models, {k: _representative(models, s.state.group_of(k)) for k in s.clients}


def delivered(s: Server) -> dict[int, Models]:
    """Each group's models as they are tested and saved."""
    return {group: s.of(group).delivered() for group in s.state.groups()}


def own_model(s: Server, client: int, models: Mapping[int, Models]) -> tuple[Mail, Models]:
    """What a client needs to evaluate its own net, of the groups' delivered models; no state is written."""
    state = s.state
    stage = min(state.stage, len(s.plan.stages) - 1)
    group = state.group_of(client)
    mail = Mail(stage, state.round, state.t, group, state.versions.get(client, 0), 0, ())
    return mail, tuple(pack(model, s.plan.down_slices) for model in models[group])


def _representative(models: Mapping[int, Models], group: int) -> int:
    """The first group that has the very same models."""
    return next(g for g, nets in models.items() if nets is models[group])
