"""Local training: the one loop that clients, and the server on its own data, run. It names no method."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedsieve.base.rng import stream
from fedsieve.core.client import Client
from fedsieve.core.layout import Names
from fedsieve.core.net import Batch, Net
from fedsieve.core.part import Hooks
from fedsieve.core.plan import Fit, check_declared
from fedsieve.core.types import Payload


def local_training(c: Client, h: Hooks) -> tuple[dict[str, Payload], float]:
    """Train `c.nets` in place; returns the notes for the server and the mean training loss."""
    losses: list[Tensor] = []
    smallest = max(h.smallest_batch, c.plan.smallest_batch)
    if h.loss[0].labels and not bool((c.labels.given >= 0).any()):
        c.skip("no labelled sample")
    with _seeded(c):
        for part in h.start:
            part.start(c)
        for net in c.nets:
            net.begun = net.vector.clone() if h.start else net.received
            net.module.train()
        step = Stepper(c.nets, c.fit, c.lr, c.sections)
        for epoch in range(c.fit.epochs):
            c.epoch = epoch
            for net in c.nets:
                for part in h.relabel:
                    if epoch == 0 or part.every == "epoch":
                        net.labels = part.relabel(c, net, net.labels)
            for nets in c.turns():
                for batch in c.batches(nets, smallest):
                    with step.autocast():
                        total = torch.stack([_objective(c, h, net, batch) for net in nets]).sum()
                    step.zero_grad(nets)
                    total.backward()  # type: ignore[no-untyped-call]
                    losses.append(total.detach())
                    for net in nets:
                        net.forget()
                        for part in h.gradient:
                            part.gradient(c, net, batch)
                    step(nets)
                    for net in nets:
                        for part in h.stepped:
                            part.stepped(c, net, batch)
        notes = {part.name: check_declared(part.finish(c), part.up, part, "finish") for part in h.finish}
    return notes, float(torch.stack(losses).mean()) if losses else 0.0


def _objective(c: Client, h: Hooks, net: Net, batch: Batch) -> Tensor:
    """The stage's one loss, averaged by the rows' weights, and every term."""
    total = _mean(h.loss[0].loss(c, net, batch), net, batch)
    for part in h.term:
        total = total + part.term(c, net, batch)
    return total


def _mean(loss: Tensor, net: Net, batch: Batch) -> Tensor:
    if loss.dim() == 0:
        return loss
    weight = net.weight(batch)
    return (loss * weight).sum() / weight.sum()


class _seeded:  # noqa: N801  # reads as a statement
    """Layers that draw by themselves (dropout) follow the client's stream; the caller's generator is left as it was."""

    def __init__(self, c: Client) -> None:
        self._seed = stream(c.plan.seed, *c.key, "layers")
        devices = [c.nets[0].device.index or 0] if c.nets[0].device.type == "cuda" else []
        self._fork = torch.random.fork_rng(devices=devices)

    def __enter__(self) -> None:
        self._fork.__enter__()
        torch.random.manual_seed(self._seed)

    def __exit__(self, *exception: object) -> None:
        self._fork.__exit__(None, None, None)


def open_sections(nets: Sequence[Net], train: Names) -> None:
    """Of these nets only the chosen sections have gradients, so that no backward pass is longer than it must be."""
    chosen = {entry.name for entry in nets[0].layout.select(train)}
    for net in nets:
        for name, parameter in net.module.named_parameters():
            parameter.requires_grad_(name in chosen)


class Stepper:
    """Optimisers on flat vectors: the same bits as tensor by tensor, in a fraction of the calls."""

    def __init__(self, nets: Sequence[Net], fit: Fit, lr: float, train: Names) -> None:
        self._clip = fit.clip
        self._bf16 = fit.precision == "bf16"
        self._device = nets[0].device.type
        self._slices = nets[0].layout.slices(train, trainable_only=True)
        self._optimizers = {net.index: self._optimizer(net, fit, lr) for net in nets}

    def _optimizer(self, net: Net, fit: Fit, lr: float) -> torch.optim.Optimizer:
        flat = [net.vector[part] for part in self._slices]
        for vector, part in zip(flat, self._slices, strict=True):
            vector.grad = net.grad[part]
        if fit.optimizer == "sgd":
            return torch.optim.SGD(flat, lr, momentum=fit.momentum, weight_decay=fit.weight_decay)
        if fit.optimizer == "adamw":
            return torch.optim.AdamW(flat, lr, weight_decay=fit.weight_decay)
        return torch.optim.Adam(flat, lr, weight_decay=fit.weight_decay)

    def autocast(self) -> torch.autocast:
        return torch.autocast(self._device, torch.bfloat16, enabled=self._bf16)

    def zero_grad(self, nets: Sequence[Net]) -> None:
        for net in nets:
            net.grad.zero_()

    def __call__(self, nets: Sequence[Net]) -> None:
        for net in nets:
            if self._clip:
                norm = net.grad.norm()
                net.grad.mul_(torch.clamp(self._clip / (norm + 1e-12), max=1.0))
            self._optimizers[net.index].step()
