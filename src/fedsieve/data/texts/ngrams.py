"""Texts by the pieces of their words, hashed: no download, no training, no word list, the same in every language."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CHUNK = 1000
"""Texts at a time: their pieces, before they are hashed, take far more memory than the numbers."""
LENGTHS = (2, 5)
"""Characters of the shortest and the longest piece."""
VERSION = 1
"""Part of the key: changes when the same text would give other numbers."""


@dataclass(frozen=True)
class Ngrams:
    """Runs of 2 to 5 characters within words, with a blank at either end of a word, in lower case.

    A piece is hashed (MurmurHash3) to one of `width` places and a sign; equal pieces are counted. A count c becomes
    sign(c) · (1 + log|c|), and the row is brought to length one.
    """

    width: int

    @property
    def name(self) -> str:
        return f"ngrams:{self.width}"

    @property
    def key(self) -> str:
        return f"{self.name} version {VERSION}"

    def __call__(self, texts: Sequence[str] | np.ndarray) -> np.ndarray:
        from sklearn.feature_extraction.text import HashingVectorizer
        from sklearn.preprocessing import normalize

        hashing = HashingVectorizer(analyzer="char_wb", ngram_range=LENGTHS, n_features=self.width, norm=None)
        table = np.empty((len(texts), self.width), np.float32)
        for start in range(0, len(texts), CHUNK):
            counts = hashing.transform(texts[start : start + CHUNK])
            counts.eliminate_zeros()  # pieces of opposite signs in one place
            counts.data = np.sign(counts.data) * (1 + np.log(np.abs(counts.data)))
            table[start : start + counts.shape[0]] = normalize(counts).toarray()
        return table
