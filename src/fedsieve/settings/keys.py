"""The keys of a run as types, so that editors complete them and mypy checks them.

What a key means and its default stand in `Settings`; a test holds these lists to it. A section of options is a mapping
(`fedprox={"mu": 0.1}`). What is a key already or no name in Python is written with a dot: `**{"noise.rate": 0.4}`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar

Combine: TypeAlias = Literal["mean", "median", "trimmed-mean", "krum", "geometric-median"]
Norm: TypeAlias = Literal["average", "local", "batch", "group"]
Optimizer: TypeAlias = Literal["sgd", "adam", "adamw"]
Options: TypeAlias = Mapping[str, Any]
Precision: TypeAlias = Literal["fp32", "bf16"]
Runtime: TypeAlias = Literal["pool", "serial", "flower"]
Schedule: TypeAlias = Literal["none", "cosine", "exponential", "steps"]

V = TypeVar("V")
OneOrMore: TypeAlias = V | Sequence[V]
"""One value, or several to be compared."""


class Sections(TypedDict, total=False):
    """Options by what stands before their dot: sections that are no keys themselves, and methods."""

    admit: Options
    flower: Options
    server: Options
    audit: Options
    averaged: Options
    byol: Options
    clipfl: Options
    dividemix: Options
    fedanchor: Options
    fedavg: Options
    fedcon: Options
    fedcorr: Options
    fedcr: Options
    feddiv: Options
    fedds: Options
    fedelc: Options
    fedema: Options
    fedlsr: Options
    fedmatch: Options
    fednoro: Options
    fedprox: Options
    fedrn: Options
    fedu: Options
    fixmatch: Options
    fl2: Options
    focus: Options
    gce: Options
    ifca: Options
    joint: Options
    ksim: Options
    logitclip: Options
    moon: Options
    rhfl: Options
    rscfed: Options
    scaffold: Options
    selfie: Options
    semifl: Options
    sieve: Options
    simclr: Options
    ssfl: Options
    symce: Options
    uda: Options


class FreeKeys(TypedDict, total=False):
    """Those that do not alter a result, and so may change when a run is resumed."""

    workers: int
    runtime: Runtime
    device: str
    checkpoint_every: int
    track: str
    watch: bool


class Keys(FreeKeys, Sections, total=False):
    """Those of one run."""

    data: str | Path
    clients: int
    fraction: float
    rounds: int
    epochs: int
    batch: int
    lr: float
    momentum: float
    weight_decay: float
    optimizer: Optimizer
    schedule: Schedule
    clip: float
    model: str
    init: str | Path | None
    norm: Norm
    method: str
    combine: Combine | None
    partition: str
    noise: str
    client_labels: bool
    augment: str
    validation: float
    seed: int
    precision: Precision
    dropout: float
    stragglers: float
    secure_aggregation: bool
    eval_every: int
    out: str | Path
    overwrite: bool


class SeveralKeys(Sections, total=False):
    """Those of a comparison: every combination of the values is a run. Where it goes is one place."""

    data: OneOrMore[str | Path]
    clients: OneOrMore[int]
    fraction: OneOrMore[float]
    rounds: OneOrMore[int]
    epochs: OneOrMore[int]
    batch: OneOrMore[int]
    lr: OneOrMore[float]
    momentum: OneOrMore[float]
    weight_decay: OneOrMore[float]
    optimizer: OneOrMore[Optimizer]
    schedule: OneOrMore[Schedule]
    clip: OneOrMore[float]
    model: OneOrMore[str]
    init: OneOrMore[str | Path | None]
    norm: OneOrMore[Norm]
    method: OneOrMore[str]
    combine: OneOrMore[Combine | None]
    partition: OneOrMore[str]
    noise: OneOrMore[str]
    client_labels: OneOrMore[bool]
    augment: OneOrMore[str]
    validation: OneOrMore[float]
    seed: OneOrMore[int]
    runtime: OneOrMore[Runtime]
    workers: OneOrMore[int]
    device: OneOrMore[str]
    precision: OneOrMore[Precision]
    dropout: OneOrMore[float]
    stragglers: OneOrMore[float]
    secure_aggregation: OneOrMore[bool]
    eval_every: OneOrMore[int]
    checkpoint_every: OneOrMore[int]
    watch: OneOrMore[bool]
    track: OneOrMore[str]
    out: str | Path
    overwrite: bool
