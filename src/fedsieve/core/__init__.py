"""The loop, and all that the author of a method needs from it."""

from fedsieve.core.client import Client
from fedsieve.core.combiners import Mean
from fedsieve.core.net import Batch, Net, Out
from fedsieve.core.part import Method, Part, Share, Stage, defines
from fedsieve.core.plan import Plan
from fedsieve.core.samplers import Nobody, Sweep, Uniform
from fedsieve.core.schedules import Const, Ramp
from fedsieve.core.sent import Declared, Sent, at_least_zero, flags, orthonormal, probabilities, proportion
from fedsieve.core.server import Models, Server
from fedsieve.core.types import Answers, Ask, Exhibit, Labels, Moment, Payload, Reads, Role, Talk, Topic, Ups, Weights
from fedsieve.models.heads import Head, Projector, SideHead

__all__ = [
    "Answers",
    "Ask",
    "Batch",
    "Client",
    "Const",
    "Declared",
    "Exhibit",
    "Head",
    "Labels",
    "Mean",
    "Method",
    "Models",
    "Moment",
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
    "Sent",
    "Server",
    "Share",
    "SideHead",
    "Stage",
    "Sweep",
    "Talk",
    "Topic",
    "Uniform",
    "Ups",
    "Weights",
    "at_least_zero",
    "defines",
    "flags",
    "orthonormal",
    "probabilities",
    "proportion",
]
