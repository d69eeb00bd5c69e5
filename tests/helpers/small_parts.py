"""Parts that several tests need."""

from dataclasses import dataclass

import torch

from fedsieve.core import Part


@dataclass(frozen=True, kw_only=True)
class Halves(Part):
    """Two groups of models after the first round."""

    writes = frozenset({"group"})

    def talk(self, s, moment):
        if moment == "round_end" and s.t == 0:
            s.split({k: k % 2 for k in s.clients})
        return
        yield

    def answer(self, c, topic, question):
        return {}


@dataclass(frozen=True, kw_only=True)
class Counting(Part):
    """Keeps the number of times it trained."""

    keeps = {"times": ()}

    def finish(self, c):
        kept = c.keep(self)
        kept["times"] = kept.get("times", torch.tensor(0)) + 1
        return {}
