"""Methods for tests: slow, deadly or failing clients."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from fedsieve.core.part import Method, Part, Stage
from fedsieve.core.samplers import Grouped, Nobody, WithServer
from fedsieve.parts.losses import CrossEntropy
from fedsieve.parts.server_fit import ServerFit


@dataclass(frozen=True, kw_only=True)
class Dawdle(Part):
    """The first clients take longest, so that reports are completed in the reverse order."""

    seconds: float = 0.15

    def start(self, c):
        time.sleep(self.seconds * (c.plan.clients - c.id))


@dataclass(frozen=True, kw_only=True)
class Die(Part):
    """The worker that serves this client dies; with a file's name, only until the file exists."""

    client: int = 1
    once: str = ""

    def start(self, c):
        if c.id == self.client and not (self.once and Path(self.once).exists()):
            if self.once:
                Path(self.once).touch()
            os._exit(9)


@dataclass(frozen=True, kw_only=True)
class Fail(Part):
    def start(self, c):
        if c.id == 2:
            raise ValueError("this client's disk is full")


def dawdle(part: Dawdle) -> Method:
    return Method("dawdle", (Stage(parts=(part,)),))


def die(part: Die) -> Method:
    return Method("die", (Stage(parts=(part,)),))


def fail(part: Fail) -> Method:
    return Method("fail", (Stage(parts=(part,)),))


def pretrained() -> Method:
    """Three rounds of the server alone come on top of the experiment's."""
    fit = ServerFit(parts=(CrossEntropy(),))
    return Method("pretrained", (Stage("pretrain", rounds=3, parts=(fit,), sampler=Nobody(), extra=True), Stage()))


def participating() -> Method:
    """The server takes part in two groups of models that are dealt anew each round; they are tested by their mean."""
    sampler = WithServer(sampler=Grouped(groups=2))
    return Method("participating", (Stage(sampler=sampler, base="equal"),), test="mean")
