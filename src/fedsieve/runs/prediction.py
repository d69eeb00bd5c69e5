"""Using a trained model on new samples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedsieve.base.errors import ConfigError, DataError
from fedsieve.data.samples import Preprocess
from fedsieve.data.sources import checked_images
from fedsieve.data.sources.text_rows import checked_texts
from fedsieve.evaluate.schema import File
from fedsieve.models.saved import SavedModels
from fedsieve.runs.folder import is_run
from fedsieve.runs.inputs import ARRAYS, Inputs, Taken
from fedsieve.runs.text_inputs import TextInputs, encoded, is_of_texts

BATCH = 500


def predict_files(
    run: Path,
    given: Sequence[str | Path],
    group: int = 0,
    own_model: str | None = None,
    encoder: str | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """Where each sample came from, its class, the class's name and probability and those of all classes, and what it
    says if it is a text; and what of the files could not be read. FS302 if nothing could.

    For a model of texts a string is a text and a path a file; for others both are files.
    """
    saved = _classifier(run)
    inputs = _inputs(saved, given, encoder)
    model = saved_model(saved, group, own_model)
    found = _joined([{"where": list(taken.where)} | _predicted(saved, model, taken) for taken in inputs])
    if not found["where"]:
        why = inputs.unread[0].message if inputs.unread else "there is no sample. Give other files"
        raise DataError("FS302", f"nothing to predict: {why}")
    return found, [problem.message for problem in inputs.unread]


def _inputs(saved: SavedModels, given: Sequence[str | Path], encoder: str | None) -> Inputs:
    texts = is_of_texts(saved)
    if not texts or all(isinstance(one, Path) and one.suffix.lower() in ARRAYS for one in given):
        _refuse_encoder(encoder)
    if texts:
        return TextInputs(given, saved, encoder=encoder)
    return Inputs(given, saved)


def _refuse_encoder(encoder: str | None) -> None:
    if encoder is not None:
        raise ConfigError("FS002", f"--encoder {encoder} has no effect on samples that are no texts. Leave it out")


def predict_samples(
    run: Path,
    samples: np.ndarray | Sequence[str],
    group: int = 0,
    own_model: str | None = None,
    encoder: str | None = None,
) -> dict[str, Any]:
    """Class, its name and its probability for each sample, by the model that a run left in its folder; texts with what
    was read of them.

    Where that is a class of one's own, or its texts were encoded by a model from elsewhere, the caller names it: the
    card is not believed.
    """
    saved = _classifier(run)
    texts = None
    if np.ndim(samples) == 1 and len(samples) and isinstance(samples[0], str):
        texts = checked_texts(samples, lambda row: f"text {row}")
        samples = encoded(saved, texts, encoder)
    else:
        _refuse_encoder(encoder)
    array = checked_images(np.asarray(samples), "the samples")
    places = [str(row) for row in range(len(array))]
    return _predicted(saved, saved_model(saved, group, own_model), Taken(places, array, texts))


def saved_model(saved: SavedModels, group: int, own_model: str | None) -> nn.Module:
    """The net in evaluation mode; a class of one's own must be named."""
    return saved.model(group, {own_model} if own_model else False)


def _predicted(saved: SavedModels, model: nn.Module, taken: Taken) -> dict[str, Any]:
    card, shape, samples = saved.card, saved.shape, taken.samples
    stored = (*shape[1:], shape[0]) if len(shape) == 3 else shape
    if samples.shape[1:] != stored:
        raise DataError(
            "FS309", f"the samples are {samples.shape[1:]}, the model was trained on {stored}. Convert them"
        )
    ready = Preprocess(card["mean"], card["std"], "none", torch.device("cpu"))
    with torch.no_grad():
        parts = [model(ready(part, "clean", None)).softmax(1) for part in torch.split(torch.from_numpy(samples), BATCH)]
    probabilities = torch.cat(parts).double().numpy() if parts else np.empty((0, len(card["class_names"])))
    broken = np.flatnonzero(~np.isfinite(probabilities).all(axis=1))
    if len(broken):
        raise DataError("FS304", f"{saved.file}: gives no number for sample {taken.where[broken[0]]}. Take another run")
    labels = probabilities.argmax(1)
    return {
        "label": labels.tolist(),
        "name": [card["class_names"][label] for label in labels],
        "probability": probabilities[np.arange(len(labels)), labels].round(6).tolist(),
        "probabilities": probabilities.round(6).tolist(),
        **({} if taken.texts is None else {"text": list(taken.texts)}),
    }


def _joined(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """All parts one after the other; where some have texts, the others have empty ones."""
    names = ["where", "label", "name", "probability", "probabilities"]
    names += ["text"] if any("text" in part for part in parts) else []
    return {name: [value for part in parts for value in part.get(name, [""] * len(part["where"]))] for name in names}


def class_names(run: Path) -> list[str]:
    return list(read_saved(run).card["class_names"])


def _classifier(run: Path) -> SavedModels:
    saved = read_saved(run)
    if not saved.card.get("classifies", True):
        raise ConfigError(
            "FS007",
            f"{run}: the run trained no classifier, only features. Write these with "
            f"`fedsieve features DATA --map {saved.file}`",
        )
    return saved


def read_saved(run: Path) -> SavedModels:
    """The models of a finished run."""
    path = run / File.MODEL
    if path.is_file():
        return SavedModels.read(path)
    if is_run(run):
        raise ConfigError("FS007", f"{run}: has no model.safetensors. Finish the run with `fedsieve resume {run}`")
    there = "is not the folder of a run: it has no config.yaml" if run.is_dir() else "no such folder"
    raise ConfigError("FS007", f"{run}: {there}. Check the path")
