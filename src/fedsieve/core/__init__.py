"""The loop, and all that the author of a method needs from it."""

from fedsieve.core.client import Client
from fedsieve.core.combiners import Mean
from fedsieve.core.layout import ALL, Layout, Names
from fedsieve.core.net import Batch, Net, Out
from fedsieve.core.part import Method, Part, Sampler, Share, Stage, defines
from fedsieve.core.passes import mean_loss, train_on
from fedsieve.core.plan import ANY, Plan
from fedsieve.core.samplers import Grouped, Nobody, Sweep, Uniform, WithServer, ends_lap
from fedsieve.core.schedules import Const, Ramp, rise
from fedsieve.core.sent import (
    LARGEST,
    UNEVEN,
    Declared,
    Sent,
    at_least_zero,
    flags,
    orthonormal,
    probabilities,
    proportion,
    sums_to_one,
)
from fedsieve.core.server import GROUP, Models, Server
from fedsieve.core.types import (
    Answers,
    Ask,
    Exhibit,
    Labels,
    Moment,
    Payload,
    Reads,
    Role,
    Talk,
    Told,
    Topic,
    Ups,
    Weights,
)
from fedsieve.models.heads import Head, Projector, SideHead

__all__ = [
    "ALL",
    "ANY",
    "GROUP",
    "LARGEST",
    "UNEVEN",
    "Answers",
    "Ask",
    "Batch",
    "Client",
    "Const",
    "Declared",
    "Exhibit",
    "Grouped",
    "Head",
    "Labels",
    "Layout",
    "Mean",
    "Method",
    "Models",
    "Moment",
    "Names",
    "Net",
    "Nobody",
    "Out",
    "Part",
    "Payload",
    "Plan",
    "Projector",
    "Ramp",
    "Reads",
    "Role",
    "Sampler",
    "Sent",
    "Server",
    "Share",
    "SideHead",
    "Stage",
    "Sweep",
    "Talk",
    "Told",
    "Topic",
    "Uniform",
    "Ups",
    "Weights",
    "WithServer",
    "at_least_zero",
    "defines",
    "ends_lap",
    "flags",
    "mean_loss",
    "orthonormal",
    "probabilities",
    "proportion",
    "rise",
    "sums_to_one",
    "train_on",
]
