"""The loop, and all that the author of a method needs from it."""

from fedsieve.core.client import Client
from fedsieve.core.combiners import Mean
from fedsieve.core.layout import ALL, Names
from fedsieve.core.net import Batch, Net, Out
from fedsieve.core.part import Method, Part, Sampler, Share, Stage, defines
from fedsieve.core.plan import Plan
from fedsieve.core.samplers import Grouped, Nobody, Sweep, Uniform, WithServer
from fedsieve.core.schedules import Const, Ramp
from fedsieve.core.sent import Declared, Sent, at_least_zero, flags, orthonormal, probabilities, proportion
from fedsieve.core.server import Models, Server
from fedsieve.core.types import Answers, Ask, Exhibit, Labels, Moment, Payload, Reads, Role, Talk, Topic, Ups, Weights

__all__ = [
    "ALL",
    "Answers",
    "Ask",
    "Batch",
    "Client",
    "Const",
    "Declared",
    "Exhibit",
    "Grouped",
    "Labels",
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
    "Ramp",
    "Reads",
    "Role",
    "Sampler",
    "Sent",
    "Server",
    "Share",
    "Stage",
    "Sweep",
    "Talk",
    "Topic",
    "Uniform",
    "Ups",
    "Weights",
    "WithServer",
    "at_least_zero",
    "defines",
    "flags",
    "orthonormal",
    "probabilities",
    "proportion",
]
