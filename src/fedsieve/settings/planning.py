"""From settings to a run: the federation, the plan that both sides share, and the folder a run leaves behind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedsieve.base.errors import CompositionError, ConfigError
from fedsieve.base.options import REQUIRED, build, options_of
from fedsieve.base.own_code import AllowCode
from fedsieve.core.combiners import COMBINERS
from fedsieve.core.part import Combine, Method
from fedsieve.core.plan import Fit, Plan
from fedsieve.core.schedules import Paused, Schedule, learning_rate
from fedsieve.core.types import Reads
from fedsieve.data.federation import Federation
from fedsieve.methods import build_method, method_options
from fedsieve.methods.compose import Surroundings, check, check_plan, complete
from fedsieve.models import build_model, options_of_model
from fedsieve.models.initial import FirstWeights
from fedsieve.settings.config import Config, Settings, resolve

NAMING = ("data", "method", "model", "partition", "noise", "noise.rates", "schedule", "combine", "runtime")
"""Keys whose values have options of their own."""


def config_of(flat: Mapping[str, Any], *, allow_code: AllowCode = False) -> Config:
    """Checked settings, with the defaults of the method's and the model's options written out."""
    return spell_out(resolve(flat, allow_code=allow_code))


def spell_out(config: Config) -> Config:
    """The same settings, with the defaults of the method's and the model's options written out."""
    of_model = {"model": options_of_model(config.top.model, config.code)}
    known = method_options(config.top.method, config.code) | of_model
    if config.top.combine is not None:
        known["combine"] = options_of(COMBINERS[config.top.combine])
    options = dict(config.options)
    for section, choices in known.items():
        defaults = {name: option.default for name, option in choices.items() if option.default is not REQUIRED}
        given = {n: choices[n].check(v, f"{section}.") if n in choices else v for n, v in config.of(section).items()}
        if defaults or given:
            options[section] = defaults | given
    return replace(config, options=options)


def chosen_keys(config: Config) -> list[str]:
    """The keys of spelt-out settings that are not as they would be by default, given what else is chosen by name."""
    flat = config.flat()
    named = {key: flat[key] for key in NAMING if key in flat}
    defaults = spell_out(resolve(named, allow_code=config.code)).flat() | {"noise.rates": "fixed"}
    defaults |= {key: option.default for key, option in options_of(Settings).items()}
    return [key for key, value in flat.items() if key not in defaults or defaults[key] != value]


def complete_method(config: Config, clients: int, method: Method | None = None) -> Method:
    """The method of these settings, or the one that is given, with nothing left open."""
    top = config.top
    method = method or build_method(top.method, config.options, config.code)
    if combine := combiner_of(config):
        method = replace(method, stages=tuple(replace(stage, combine=combine) for stage in method.stages))
    return complete(method, rounds=top.rounds, fraction=top.fraction, clients=clients, local_norm=top.norm == "local")


def combiner_of(config: Config) -> Combine | None:
    """The combiner that is asked for in place of the method's own."""
    if config.top.combine is None:
        return None
    made: Combine = build(COMBINERS[config.top.combine], config.of("combine"), "combine")
    return made


def rounds_of(method: Method) -> int:
    """Of all stages; some methods add their own to the key `rounds`."""
    return sum(stage.rounds or 0 for stage in method.stages)


def schedule_of(method: Method, config: Config) -> Schedule:
    """The learning rate by round; it spans the rounds of all stages but those that come on top."""
    top, spans = config.top, tuple((stage.rounds or 0, not stage.extra) for stage in method.stages)
    counted = sum(length for length, counts in spans if counts)
    schedule = learning_rate(top.schedule, top.lr, counted, config.schedule().decay)
    return Paused(schedule, spans) if any(stage.extra for stage in method.stages) else schedule


def plan_of(
    config: Config, federation: Federation, method: Method | None = None, *, labelled: bool | None = None
) -> Plan:
    """What server and clients agree on; refuses what cannot work. A `Method` may be given in place of its name.

    Who does not see the clients' labels says by `labelled` whether they have any.
    """
    top = config.top
    method = complete_method(config, federation.clients, method)
    method = replace(method, heads=tuple(head.filled(federation.sample_shape) for head in method.heads))
    present = [Reads[name.upper()] for name in federation.server]
    if labelled is None:
        labelled = any(bool((given >= 0).any()) for given in federation.given)
    held = Reads.NONE
    for flag in present:
        held |= flag
    if top.combine is not None and method.share is not None and not method.share.up:
        raise CompositionError(
            "FS114", f"combine={top.combine}, but {method.name} combines nothing (Share.up is empty). Leave it out"
        )
    check(method, Surroundings(held, labelled, top.secure_aggregation))

    first = FirstWeights.read(Path(top.init).expanduser()) if top.init else None

    def model() -> nn.Module:
        drawn = build_model(
            top.model,
            federation.sample_shape,
            federation.n_classes,
            norm=top.norm,
            heads=method.heads,
            options=config.of("model"),
            allow_code=config.code,
        )
        return first.into(drawn, config.of("model")) if first else drawn

    public = federation.server.get("public")
    plan = Plan(
        method=method,
        fit=Fit(
            epochs=top.epochs,
            batch=top.batch,
            lr=schedule_of(method, config),
            momentum=top.momentum,
            weight_decay=top.weight_decay,
            optimizer=top.optimizer,
            clip=top.clip,
            precision=top.precision,
            augment=top.augment if len(federation.sample_shape) == 3 else "none",
        ),
        seed=top.seed,
        model=model,
        clients=federation.clients,
        n_classes=federation.n_classes,
        sample_shape=federation.sample_shape,
        public_rows=len(public.rows) if public else 0,
        device=device_of(top.device),
        rows=tuple(len(rows) for rows in federation.rows),
        factor=0.0 if top.secure_aggregation else config.admit().factor,
        excess=config.admit().excess,
    )
    check_plan(plan)
    return plan


def device_of(name: str) -> torch.device:
    """`auto` takes an accelerator where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as problem:
        reason = str(problem).splitlines()[0]
        raise ConfigError("FS002", f"device={name}: cannot be used here ({reason}). Take device=auto") from None
    return device


def reads_truth(method: Method) -> bool:
    """Whether a part asks the evaluator which labels are right."""
    return any(part.data() & Reads.TRUTH for stage in method.stages for part in stage.parts)
