"""SCAFFOLD: control variates against client drift (Karimireddy et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsieve.base.errors import ConfigError
from fedsieve.core import Batch, Client, Method, Net, Part, Payload, Plan, Sent, Server, Stage, Ups, Weights


def count_of_gradients(steps: int, momentum: float) -> float:
    """Σ_t (1 − m^t) / (1 − m), t = 1 ... M: heavy-ball momentum m makes a gradient count once more, m times, in each
    step that follows. Without momentum it is M."""
    return sum((1.0 - momentum**t) / (1.0 - momentum) for t in range(1, steps + 1))


def travelling(plan: Plan) -> Tensor:
    """(W,) 1 for each trainable parameter that travels up, 0 for what stays with a client."""
    whole = torch.zeros(plan.layout.size)
    for part in plan.up_slices:
        whole[part] = 1.0
    return whole[: plan.layout.trainable]


@dataclass(frozen=True, kw_only=True)
class ControlVariates(Part):
    """Each local step follows g − c_k + c; c_k is renewed from the way travelled (option II).

    Only trainable parameters that travel have control variates: running statistics and what stays with a client do not.
    Weight decay is part of g.
    """

    weighted: bool = False
    """Weigh the clients' changes of c like their models. The paper takes the plain mean in either case."""
    down = {"c": ("N", "W")}
    up = {"dc": Sent(("N", "W"), paced=True)}
    keeps = {"c": ("N", "W")}
    remembers = {"c": ("N", "W")}
    sees = "sum"
    combined = True

    def check(self, plan: Plan) -> None:
        if plan.fit.optimizer != "sgd":
            raise ConfigError(
                "FS002", f"optimizer={plan.fit.optimizer}: scaffold measures gradients by SGD steps. Take optimizer=sgd"
            )

    def recall(self, s: Server) -> dict[str, Tensor]:
        return {"c": torch.zeros(s.plan.nets, s.plan.sizes["W"])}

    def brief(self, s: Server, client: int) -> Payload:
        return {"c": s.memory["c"]}

    def start(self, c: Client) -> None:
        whole = c.brief(self).tensor("c")
        own = c.keep(self).get("c", torch.zeros_like(whole))
        c.scratch(self).update(c=whole, own=own, correction=(whole - own).to(c.nets[0].device), steps=[0] * len(c.nets))

    def gradient(self, c: Client, net: Net, batch: Batch) -> None:
        net.grad.add_(c.scratch(self)["correction"][net.index])  # y ← y − η (g − c_k + c)

    def stepped(self, c: Client, net: Net, batch: Batch) -> None:
        c.scratch(self)["steps"][net.index] += 1

    def finish(self, c: Client) -> Payload:
        note = c.scratch(self)
        renewed = note["own"].clone()
        for net, steps in zip(c.nets, note["steps"], strict=True):
            if not steps:
                continue
            way = (net.begun - net.vector)[: len(net.grad)].cpu()
            # Option II: c_k⁺ = c_k − c + (w_t − y) / (M_k η); with momentum M_k is how often gradients count.
            counted = count_of_gradients(steps, c.fit.momentum)
            renewed[net.index] = note["own"][net.index] - note["c"][net.index] + way / (counted * c.lr)
        renewed *= travelling(c.plan)
        c.keep(self)["c"] = renewed
        return {"dc": renewed - note["own"]}

    def learn(self, s: Server, ups: Ups, w: Weights) -> None:
        notes, total = s.notes(ups), s.memory["c"].clone()
        for client, note in notes.items():  # c ← c + (1/K) Σ Δc
            count = w[client] * len(notes) if self.weighted else 1.0
            total += note.tensor("dc") * (count / len(s.members()))
        s.memory["c"] = total


def scaffold(variates: ControlVariates) -> Method:
    """SCAFFOLD with a global step of 1; models are averaged with the experiment's weights."""
    return Method("scaffold", (Stage(parts=(variates,)),))
