"""One model in training: a module whose numbers are views of one flat vector, and the batches it sees."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedsieve.base.errors import CompositionError, nearest
from fedsieve.core.layout import Layout
from fedsieve.core.types import Labels
from fedsieve.models.heads import FEATURES, LOGITS, standing_heads


class Out(NamedTuple):
    logits: Tensor
    features: Tensor


def joined(outs: Iterable[Out]) -> Out:
    """One after the other, as of one batch."""
    logits, features = zip(*outs, strict=True)
    return Out(torch.cat(logits), torch.cat(features))


class _Made(NamedTuple):
    value: Tensor
    with_grad: bool


class Batch:
    """Some rows of a client. Views of their images, and what is made of these, are shared by loss and terms."""

    def __init__(self, rows: Tensor, view: Callable[[Tensor, str], Tensor]) -> None:
        self.rows = rows
        self._view = view
        self._once: dict[object, Tensor] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def images(self, view: str = "train") -> Tensor:
        """The rows as the net sees them: `train` is augmented, `clean` is not."""
        return self.once(("images", view), lambda: self._view(self.rows, view))

    def once(self, what: object, make: Callable[[], Tensor]) -> Tensor:
        """Something that is made of these rows once and shared by all who ask for it."""
        if what not in self._once:
            self._once[what] = make()
        return self._once[what]


class Net:
    """`vector` is trainable parameters, then float buffers; `grad` belongs to the first `len(grad)` of it.

    `received` is what arrived from the server, `begun` what the `start` hooks left: penalties on drift use the first,
    control variates the second. Never change weights between a forward and its backward: evaluate other weights on a
    net from `Client.borrow`.
    """

    def __init__(self, module: nn.Module, index: int = 0, device: torch.device | None = None) -> None:
        device = device or torch.device("cpu")
        self.index = index
        self.module = module.to(device)
        self.layout = Layout.of(module)
        self.vector = torch.empty(self.layout.size, device=device)
        self.grad = torch.zeros(self.layout.trainable, device=device)
        self.received = self.vector
        self.begun = self.vector
        self.labels: Labels
        tensors = dict(module.named_parameters()) | dict(module.named_buffers())
        for entry in self.layout.entries:
            home = entry.view(self.vector)
            home.copy_(tensors[entry.name].detach())
            tensors[entry.name].data = home
            if entry.trainable:
                tensors[entry.name].grad = entry.view(self.grad)
        self._counters = [(b, b.clone()) for b in module.buffers() if not b.is_floating_point()]
        self._heads = standing_heads(module)
        self._seen: Batch | None = None
        self._made: dict[tuple[str, str], _Made] = {}

    @property
    def weights(self) -> Tensor:
        """The trainable parameters, flat."""
        return self.vector[: len(self.grad)]

    @property
    def device(self) -> torch.device:
        return self.vector.device

    def load(self, vector: Tensor) -> None:
        """Take over a full vector, as a net fresh from the server."""
        self.vector.copy_(vector)
        for counter, initial in self._counters:
            counter.copy_(initial)
        self.received = self.begun = self.vector.clone()
        self.forget()

    def out(self, batch: Batch, view: str = "train", head: str = FEATURES) -> Out:
        """Logits and features (or what a head returns) of a batch, computed once per view, shared by loss and terms."""
        return Out(self.logits(batch, view), self.head(head, batch, view))

    def logits(self, batch: Batch, view: str = "train") -> Tensor:
        return self._once(LOGITS, batch, view)

    def features(self, batch: Batch, view: str = "train") -> Tensor:
        """What the classifier stands on."""
        return self._once(FEATURES, batch, view)

    def head(self, name: str, batch: Batch, view: str = "train") -> Tensor:
        """What one of the model's heads returns, computed once per view from what it shares with the others."""
        return self._once(name, batch, view)

    def _once(self, what: str, batch: Batch, view: str) -> Tensor:
        """Nothing is computed that nobody asks for; what was made without gradients is made again where they count."""
        if self._seen is not batch:
            self._seen = batch
            self._made.clear()
        found = self._made.get((what, view))
        if found is None or (torch.is_grad_enabled() and not found.with_grad):
            value = self._computed(what, batch, view)
            found = self._made[what, view] = _Made(value, torch.is_grad_enabled())
        return found.value

    def _computed(self, what: str, batch: Batch, view: str) -> Tensor:
        if what == FEATURES:
            features: Tensor = self.module.features(batch.images(view))  # type: ignore[operator]  # every model has it
            return features
        if what == LOGITS:
            logits: Tensor = self.module.head(self.features(batch, view))  # type: ignore[operator]
            return logits
        if what not in self._heads:
            raise CompositionError("FS116", f"the model has no head '{what}'. {nearest(what, self._heads)}")
        standing = self._heads[what]
        if standing.in_line:
            return self.features(batch, view)
        result: Tensor = self.module.get_submodule(what)(self._once(standing.base, batch, view))
        return result

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Evaluation mode for a while: running statistics stay as they are."""
        was_training = self.module.training
        self.module.eval()
        try:
            yield
        finally:
            self.module.train(was_training)

    @contextmanager
    def holding(self, vector: Tensor) -> Iterator[None]:
        """Other weights for a while; then everything is as it was before."""
        held, received, begun = self.vector.clone(), self.received, self.begun
        counters = [(counter, counter.clone()) for counter, _ in self._counters]
        self.load(vector)
        try:
            yield
        finally:
            self.load(held)
            self.received, self.begun = received, begun
            for counter, count in counters:
                counter.copy_(count)

    @torch.no_grad()
    def respond(self, x: Tensor) -> Tensor:
        """The logits of one ready-made input, in evaluation mode."""
        with self.evaluating():
            logits: Tensor = self.module(x.to(self.device))[0].float().cpu()
        return logits

    def given(self, batch: Batch) -> Tensor:
        return self.labels.given[batch.rows].to(self.device)

    def target(self, batch: Batch) -> Tensor:
        return self.labels.target[batch.rows].to(self.device)

    def weight(self, batch: Batch) -> Tensor:
        return self.labels.weight[batch.rows].to(self.device)

    def forget(self) -> None:
        """Drop shared outputs once their graph is gone."""
        self._seen = None
        self._made.clear()

    def gradient_of(self, loss: Tensor) -> Tensor:
        """The flat gradient of another scalar; `grad` keeps what it had."""
        held = self.grad.clone()
        self.grad.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        result = self.grad.clone()
        self.grad.copy_(held)
        return result
