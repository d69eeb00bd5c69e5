"""A client's images, turned into what a net takes: gathered, scaled, augmented and standardised batch by batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedsieve.data.augment import augmentation

EVALUATION_BATCH = 50
"""Samples to evaluate at once, on every device: with `norm=batch` their number changes what a model answers. On a
processor the activations of so few stay in its cache."""


class Preprocess:
    """From stored samples to a net's input. The view `train` is the experiment's augmentation, `clean` is none; any
    other view is an augmentation by name. What follows a `#` tells draws of one view apart: `train#2`."""

    def __init__(self, mean: Sequence[float], std: Sequence[float], train: str, device: torch.device) -> None:
        self.device = device
        self._train = train
        self._mean = torch.tensor(mean, device=device)
        self._inverse = 1.0 / torch.tensor(std, device=device)
        self._transforms = {"clean": None, "train": augmentation(train)}

    def __call__(self, stored: Tensor, view: str, generator: torch.Generator | None) -> Tensor:
        """Images (B, H, W, channels) become (B, channels, H, W) in channels-last order; tables stay (B, D)."""
        x = stored.to(self.device)
        if x.dtype != torch.uint8:
            return (x - self._mean) * self._inverse
        name = view.partition("#")[0]
        if name not in self._transforms:
            self._transforms[name] = augmentation(name)
        transform = self._transforms[name]
        x = x.float().mul_(1.0 / 255.0)
        if transform is not None:
            assert generator is not None, "an augmented view needs its stream"
            x = transform(x.permute(0, 3, 1, 2), generator).permute(0, 2, 3, 1)
        return x.sub_(self._mean).mul_(self._inverse).permute(0, 3, 1, 2)

    def undone(self, images: Tensor) -> Tensor:
        """What ready images (B, channels, H, W) show, as it would be stored: (B, H, W, channels) in 256 levels."""
        shown = images.permute(0, 2, 3, 1) / self._inverse + self._mean
        return shown.mul(255.0).round().clamp(0, 255).to(torch.uint8)


class Samples:
    """Some rows of a store of samples, numbered from 0."""

    def __init__(self, store: Tensor, rows: Tensor, preprocess: Preprocess) -> None:
        self._store = store
        self._rows = rows
        self._preprocess = preprocess

    def __len__(self) -> int:
        return len(self._rows)

    def view(self, rows: Tensor, view: str = "clean", generator: torch.Generator | None = None) -> Tensor:
        return self._preprocess(self._store[self._rows[rows]], view, generator)

    @property
    def are_images(self) -> bool:
        return self._store.dtype == torch.uint8

    def as_stored(self, images: Tensor) -> Tensor:
        """What a view of them shows, in the form in which they are kept."""
        return self._preprocess.undone(images)

    @property
    def origin(self) -> tuple[Tensor, bytes]:
        """The store that they come from, and which of its rows they are: the same for the same samples."""
        return self._store, self._rows.numpy().tobytes()

    def stored(self) -> Tensor:
        """All of them as they are kept: images (n, H, W, channels) in uint8, or a table."""
        return self._store[self._rows]
