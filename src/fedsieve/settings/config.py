"""Settings: top keys, options behind a dot, YAML files and `key=value`. Nothing here loads PyTorch."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field

from fedsieve.base.ending import load_pytorch
from fedsieve.base.errors import ConfigError, nearest
from fedsieve.base.options import Choice, build, options_of, several
from fedsieve.base.own_code import AllowCode, allowed_names
from fedsieve.base.yaml_file import UNREADABLE, load_yaml
from fedsieve.data.federation import ServerOptions
from fedsieve.data.noise import NOISES, Noise
from fedsieve.data.partition import PARTITIONS, Partition
from fedsieve.data.rates import RATES, Rates
from fedsieve.data.sources import DataOptions, names_clients, takes_options
from fedsieve.methods import METHODS, canonical, label
from fedsieve.report.tracking import TRACKERS
from fedsieve.settings.effects import idle, refuse_idle

Positive = Annotated[int, Field(ge=1)]
Probability = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True, kw_only=True)
class Settings(Choice):
    """The top keys."""

    data: str = "embedded"
    """`embedded`, a path (.npz, .csv, folder), NAME of NAME.npz in the cache folder, or hf:NAME of Hugging Face."""
    clients: Positive = 20
    """Number of clients the training set is split over."""
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the clients that take part in a round."""
    rounds: Annotated[int, Field(ge=0)] = 20
    """Rounds of training."""
    epochs: Annotated[int, Field(ge=0)] = 5
    """Local epochs a round."""
    batch: Positive = 50
    """Local batch size."""
    lr: Annotated[float, Field(gt=0)] = 0.05
    """Local learning rate."""
    momentum: Probability = 0.5
    """Momentum of SGD; the optimiser's state is new in every round."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Weight decay of the local optimiser."""
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    """Local optimiser."""
    schedule: Literal["none", "cosine", "exponential", "steps"] = "none"
    """How the learning rate changes with the round; `schedule.decay` for exponential."""
    clip: Annotated[float, Field(ge=0)] = 0.0
    """Largest norm of a gradient; 0 does not clip."""
    model: str = "cnn-lite"
    """A model's name (`fedsieve models`), or one's own as package.module:Class."""
    init: str | None = None
    """FILE.safetensors whose encoder the model starts from: a run's, or a ResNet that others trained."""
    norm: Literal["average", "local", "batch", "group"] = "average"
    """Normalisation: BatchNorm averaged like weights, kept at each client (FedBN), batch statistics only, GroupNorm."""
    method: str = "fedavg"
    """A method's name (`fedsieve methods`), several joined by +, or one's own as package.module:function."""
    combine: Literal["mean", "median", "trimmed-mean", "krum", "geometric-median"] | None = None
    """How reports become the next model; the method's own way, which is mostly the mean, if not given."""
    partition: str = "iid"
    """How the training set is split over the clients."""
    noise: str = "none"
    """How labels are made wrong; the rate of each client is `noise.rates`."""
    client_labels: bool = True
    """Whether clients have labels; if not, they have samples only, and labels are the server's alone."""
    augment: str = "flip"
    """Augmentation of training images."""
    validation: Annotated[float, Field(ge=0)] = 0.0
    """Training samples kept for tuning: a number, or a fraction if below 1. Taken before the split."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Everything random follows from it: split, noise, initial weights, sampling, batches."""
    runtime: Literal["pool", "serial", "flower"] = "pool"
    """Worker processes, everything in this process, or Flower's simulation. All give the same bytes."""
    workers: Positive = os.cpu_count() or 1
    """Worker processes of the pool."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Arithmetic of local training."""
    dropout: Probability = 0.0
    """Simulated: probability that a chosen client never reports."""
    stragglers: Probability = 0.0
    """Simulated: probability that a chosen client manages only some of its epochs."""
    secure_aggregation: bool = False
    """Refuse methods whose server half would need single reports."""
    eval_every: Positive = 1
    """Test every so many rounds, and at the end."""
    checkpoint_every: Positive = 1
    """Save every so many rounds."""
    watch: bool = False
    """Look inside: losses of right and wrong labels in each test, a map of the features and neighbours at the end."""
    track: str = ""
    """Trackers that get the numbers of each round: tensorboard, mlflow, wandb, several joined by +."""
    out: str = ""
    """Folder of the run, ~ is home; if not given runs/DATA-METHOD-sSEED, with six digits for other settings."""
    overwrite: bool = False
    """Replace an existing folder."""


@dataclass(frozen=True, kw_only=True)
class ScheduleOptions(Choice):
    decay: Annotated[float, Field(gt=0, le=1)] = 0.99
    """Factor a round of the exponential schedule."""


@dataclass(frozen=True, kw_only=True)
class AdmitOptions(Choice):
    """What happens to reports that would move the model much further than the others do."""

    factor: Annotated[float, Field(ge=0)] = 7.0
    """How many times as long as the median of its round or of past rounds a client's update may be; 0 compares none."""
    excess: Literal["refuse", "clip"] = "refuse"
    """Refuse a report whose update is longer, or shorten the update to that length."""


@dataclass(frozen=True, kw_only=True)
class FlowerOptions(Choice):
    """How long a run on Flower waits, and for whom."""

    min_nodes: Positive = 1
    """Fewest connected nodes with which a round begins; the first one begins when all `clients` are there."""
    wait: Annotated[float, Field(gt=0)] = 300.0
    """Seconds to wait for that many nodes before the run ends."""
    timeout: Annotated[float, Field(gt=0)] = 1800.0
    """Seconds to wait for the replies to a message; the round then goes on without those that are missing."""


PLACES = ("out", "overwrite")
"""Keys that say where a run goes, not what it is."""
FREE = ("workers", "runtime", "device", "checkpoint_every", "track", "watch")
"""Keys that do not alter a result; they may change when a run is resumed."""
SECTIONS = ("data", "partition", "noise", "server", "schedule", "admit", "combine", "model", "flower")


@dataclass(frozen=True)
class Config:
    """Checked settings: top keys, and options by what stands before their dot."""

    top: Settings
    options: Mapping[str, Mapping[str, Any]]
    code: frozenset[str] = frozenset()
    """Names of methods and models of one's own that may be imported."""

    def of(self, section: str) -> Mapping[str, Any]:
        return self.options.get(section, {})

    def data(self) -> DataOptions:
        made: DataOptions = build(DataOptions, self.of("data"), "data")
        return made

    def partition(self) -> Partition:
        kind = _one_of(PARTITIONS, "partition", self.top.partition)
        for name in sorted(self.of("partition").keys() - options_of(kind).keys()):
            _refuse_of_others("partition", name, {"partition": (PARTITIONS, self.top.partition)})
        made: Partition = build(kind, self.of("partition"), "partition")
        return made

    def noise(self) -> tuple[Noise, Rates]:
        """Options behind `noise.` go to the noise or to the rates, whichever knows them."""
        given = dict(self.of("noise"))
        kind = _one_of(NOISES, "noise", self.top.noise)
        rates = _one_of(RATES, "noise.rates", str(given.pop("rates", "fixed")))
        for name in given:
            if name not in options_of(kind) and name not in options_of(rates):
                _refuse_of_others(
                    "noise",
                    name,
                    {"noise.rates": (RATES, self.of("noise").get("rates", "fixed")), "noise": (NOISES, self.top.noise)},
                )
                known = {"rates", *options_of(kind), *options_of(rates)}
                raise ConfigError("FS001", f"unknown key 'noise.{name}'. {nearest(name, known)}")
        of_kind = {name: value for name, value in given.items() if name in options_of(kind)}
        of_rates = {name: value for name, value in given.items() if name in options_of(rates)}
        return build(kind, of_kind, "noise"), build(rates, of_rates, "noise")

    def server(self) -> ServerOptions:
        made: ServerOptions = build(ServerOptions, self.of("server"), "server")
        return made

    def schedule(self) -> ScheduleOptions:
        made: ScheduleOptions = build(ScheduleOptions, self.of("schedule"), "schedule")
        return made

    def admit(self) -> AdmitOptions:
        made: AdmitOptions = build(AdmitOptions, self.of("admit"), "admit")
        return made

    def flower(self) -> FlowerOptions:
        made: FlowerOptions = build(FlowerOptions, self.of("flower"), "flower")
        return made

    def trackers(self) -> list[str]:
        names = self.top.track.split("+") if self.top.track else []
        for name in names:
            _one_of(TRACKERS, "track", name)
        return names

    def folder(self) -> Path:
        if "\0" in self.top.out:
            raise ConfigError("FS002", "out holds a zero byte. Give the path of a folder")
        if self.top.out:
            return Path(self.top.out).expanduser()
        data = Path(self.top.data).stem.replace(":", "-")
        method = "+".join(label(part) for part in self.top.method.split("+"))
        return Path("runs") / f"{data}-{method}-s{self.top.seed}{self._mark()}"

    def _mark(self) -> str:
        """A few digits that stand for what else alters the result and is not as it is by default; often nothing."""
        named = {key: getattr(self.top, key) for key in ("data", "method", "seed", "runtime")}
        mine, usual = self, resolve(named, allow_code=self.code)
        if self.options.keys() - usual.options.keys():
            load_pytorch()
            from fedsieve.settings.planning import spell_out  # knows the defaults of methods and models, and uses it

            mine, usual = spell_out(self), spell_out(usual)
        defaults = usual.flat()
        chosen = {k: v for k, v in mine.flat().items() if k not in FREE and (k not in defaults or defaults[k] != v)}
        text = json.dumps(chosen, sort_keys=True, default=str)
        return f"-{hashlib.sha256(text.encode()).hexdigest()[:6]}" if chosen else ""

    def flat(self) -> dict[str, Any]:
        """As `config.yaml` shows it: every key that says what the run is."""
        top = {f.name: getattr(self.top, f.name) for f in fields(self.top) if f.name not in PLACES}
        return top | {
            f"{section}.{name}": value for section, values in self.options.items() for name, value in values.items()
        }

    def with_keys(self, **top: Any) -> Config:
        """The same with other top keys; options that these leave without effect are dropped."""
        places = {place: getattr(self.top, place) for place in PLACES}
        changed = self.flat() | places | top
        return resolve({key: value for key, value in changed.items() if not idle(key, changed)}, allow_code=self.code)


def resolve(raw: Mapping[str, Any], *, allow_code: AllowCode = False) -> Config:
    """Check keys and values; nested mappings are joined by dots. Nothing is imported here."""
    try:
        flat = dict(flatten(raw))
    except RecursionError:
        raise ConfigError("FS002", "a setting contains itself. Write it out without YAML aliases") from None
    known = options_of(Settings)
    methods = canonical(str(flat.get("method", Settings.method)))
    labels = [label(part) for part in methods.split("+")]
    options: dict[str, dict[str, Any]] = {}
    for key, value in flat.items():
        section, dot, name = key.partition(".")
        if dot and section in (*SECTIONS, *labels):
            options.setdefault(section, {})[name] = value
        elif dot and section in METHODS:
            raise ConfigError(
                "FS001",
                f"{key} is an option of the method {section}, which this run does not have (method={methods}). "
                f"Set method={section}, or leave the option out",
            )
        elif dot:
            hint = nearest(section, (*SECTIONS, *labels))
            raise ConfigError("FS001", f"unknown key '{key}': this run has no '{section}'. {hint}")
        elif key not in known:
            raise ConfigError("FS001", f"unknown key '{key}'. {nearest(key, known)}")
    top = {key: known[key].check(value, "") for key, value in flat.items() if "." not in key}
    refuse_idle(flat)
    settings = Settings(**(top | {"method": methods}))
    config = Config(settings, options, allowed_names([*methods.split("+"), settings.model], allow_code))
    config.trackers()
    if "partition" not in flat and names_clients(config.top.data, config.data(), config.top.client_labels):
        config = replace(config, top=replace(config.top, partition="natural"))
    return _fill(config)


def _fill(config: Config) -> Config:
    """The same with the options of every section written out, checked and with their defaults."""
    noise, rates = config.noise()
    spoils: dict[str, Any] = {}
    if config.top.noise != "none":
        spoils = {"rates": config.of("noise").get("rates", "fixed")} | _values(noise) | _values(rates)
    filled: dict[str, Mapping[str, Any]] = {
        "data": _values(config.data()) if takes_options(config.top.data) else config.of("data"),
        "partition": _values(config.partition()),
        "noise": spoils,
        "server": _values(config.server()),
        "schedule": _values(config.schedule()) if config.top.schedule == "exponential" else {},
        "admit": _values(config.admit()),
        "flower": _values(config.flower()) if config.top.runtime == "flower" else {},
    }
    rest = {section: values for section, values in config.options.items() if section not in filled}
    options = {section: dict(values) for section, values in (filled | rest).items() if values}
    return replace(config, options=options)


def _values(choice: Choice) -> dict[str, Any]:
    return {name: getattr(choice, name) for name in options_of(type(choice))}


def read_settings(file: Path | None, pairs: Iterable[str]) -> dict[str, Any]:
    """A YAML file, if given, with `key=value` arguments over it; options of what they replace are left out."""
    settings: dict[str, Any] = {}
    if file is not None:
        try:
            loaded = load_yaml(file)
        except FileNotFoundError:
            raise ConfigError("FS003", f"{file}: no such file. Give a .yaml file or key=value arguments") from None
        except (OSError, *UNREADABLE) as problem:
            reason = str(problem).replace("\n", " ")
            raise ConfigError(
                "FS003", f"{file}: cannot be read as YAML ({reason}). Write one `key: value` a line"
            ) from None
        if loaded is not None and not isinstance(loaded, dict):
            raise ConfigError("FS003", f"{file}: holds a {type(loaded).__name__}. Write one `key: value` a line")
        settings = dict(flatten(loaded or {}))
    given: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise ConfigError("FS001", f"'{pair}' is neither a .yaml file nor key=value. Write for instance rounds=10")
        given[key] = parse(text)
    replaced = {"noise."} if given.get("noise") == "none" else set()
    if "method" in given:
        replaced |= {f"{name}." for name in _labels(settings.get("method")) - _labels(given["method"])}
    return {key: value for key, value in settings.items() if not key.startswith(tuple(replaced))} | given


def _labels(methods: Any) -> set[str]:
    """Of one method, or of several as a list or with commas."""
    listed = methods if isinstance(methods, list) else str(methods).split(",")
    return {label(part.strip()) for method in listed for part in str(method).split("+")}


def parse(text: str) -> Any:
    """A value as YAML reads it; what is no YAML stays text."""
    try:
        value = yaml.safe_load(text)
    except UNREADABLE:
        return text
    return text if value is None and text != "null" else value


def flatten(raw: Mapping[Any, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Keys and values with nested mappings joined by dots."""
    for key, value in raw.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and name not in MAPPING_VALUES:
            yield from flatten(value, f"{name}.")
        else:
            yield name, str(value) if isinstance(value, Path) else value


MAPPING_VALUES = frozenset({"noise.map", "server.noise_options"})
"""Options whose value is itself a mapping."""


def _refuse_of_others(section: str, name: str, tables: Mapping[str, tuple[Mapping[str, Any], str]]) -> None:
    """FS001 for an option of something that could have been chosen by these keys, and was not."""
    for key, (table, chosen) in tables.items():
        owners = [f"{key}={one}" for one, kind in table.items() if name in options_of(kind)]
        if owners:
            raise ConfigError(
                "FS001",
                f"{section}.{name} is an option of {' or '.join(owners)}, but {key} is {chosen}. "
                "Set that too, or leave the option out",
            )


def _one_of(table: Mapping[str, Any], key: str, name: str) -> Any:
    if name not in table:
        raise ConfigError("FS004", f"{key}={name}: unknown. {several(name) or nearest(name, table)}")
    return table[name]
