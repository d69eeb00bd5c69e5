"""Texts as rows of numbers, without labels and without training. See docs/how-to/my-text.md.

Naming a map loads neither PyTorch nor scikit-learn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np

from fedsieve.base.errors import ConfigError, nearest

NGRAMS, MINILM, HUB = "ngrams", "minilm", "hf:"
NARROWEST, WIDTH, WIDEST = 16, 4096, 65_536
"""Numbers of a text by n-grams: the fewest, those of `ngrams` alone, the most."""


class TextMap(Protocol):
    """From texts to rows of numbers, always the same for the same text, whatever stands beside it."""

    @property
    def name(self) -> str:
        """What stands behind `data.text_features=`."""

    @property
    def key(self) -> str:
        """Stands for everything that decides the numbers: kind, settings, weights."""

    @property
    def width(self) -> int:
        """How many numbers a text becomes."""

    def __call__(self, texts: Sequence[str] | np.ndarray) -> np.ndarray:
        """(n, width) in float32, each row of length one."""


@dataclass(frozen=True)
class TextForm:
    """Where the texts of some data stand, and how they became numbers."""

    column: str
    features: str
    """The map's name."""
    key: str
    """The map's key."""


@lru_cache(maxsize=2)
def text_map(name: str) -> TextMap:
    """The map that a name stands for: ngrams, ngrams:WIDTH, minilm, hf:NAME or hf:FOLDER. Loaded once a process."""
    kind, _, width = name.partition(":")
    if kind == NGRAMS:
        from fedsieve.data.texts.ngrams import Ngrams

        if not is_known(name):
            raise ConfigError(
                "FS002", f"data.text_features={name}: give a width from {NARROWEST} to {WIDEST}, as {NGRAMS}:{WIDTH}"
            )
        return Ngrams(int(width or WIDTH))
    if name == MINILM:
        from fedsieve.data.texts.sentences import minilm

        return minilm()
    if name.startswith(HUB):
        from fedsieve.data.texts.sentences import hub_sentences

        return hub_sentences(name.removeprefix(HUB))
    raise ConfigError(
        "FS004", f"data.text_features={name}: unknown. {nearest(name, (NGRAMS, MINILM, 'hf:NAME', 'hf:FOLDER'))}"
    )


def is_known(name: str) -> bool:
    """Whether a name stands for a map that opens no file and loads nothing but what is installed here under it."""
    kind, colon, width = name.partition(":")
    if kind != NGRAMS or not colon:
        return name in (NGRAMS, MINILM)
    return width.isdecimal() and width.isascii() and len(width) < 6 and NARROWEST <= int(width) <= WIDEST


def has_weights(name: str) -> bool:
    """Whether a map's numbers depend on weights, which may differ from machine to machine."""
    return name == MINILM or name.startswith(HUB)
