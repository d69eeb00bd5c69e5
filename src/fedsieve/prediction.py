"""Using a trained model on new samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError

from fedsieve.core.samples import Preprocess
from fedsieve.data.sources import checked_images
from fedsieve.errors import ConfigError, DataError
from fedsieve.models.saved import SavedModels

BATCH = 500


def predicted(run: Path, samples: np.ndarray, group: int = 0, own_model: str | None = None) -> dict[str, Any]:
    """Class, its name and its probability for each sample, by the model that a run left in its folder.

    Where that is a class of one's own, the caller names it: the card is not believed.
    """
    saved = _saved(run)
    card, shape = saved.card, saved.shape
    samples = checked_images(np.asarray(samples), "the samples")
    stored = (*shape[1:], shape[0]) if len(shape) == 3 else shape
    if samples.shape[1:] != stored:
        raise DataError(
            "FS309", f"the samples are {samples.shape[1:]}, the model was trained on {stored}. Convert them"
        )
    model = saved.model(group, {own_model} if own_model else False)
    ready = Preprocess(card["mean"], card["std"], "none", torch.device("cpu"))
    with torch.no_grad():
        parts = [model(ready(part, "clean", None)).softmax(1) for part in torch.split(torch.from_numpy(samples), BATCH)]
    probabilities = torch.cat(parts).double().numpy()
    labels = probabilities.argmax(1)
    return {
        "label": labels.tolist(),
        "name": [card["class_names"][label] for label in labels],
        "probability": probabilities[np.arange(len(labels)), labels].round(6).tolist(),
    }


def read_samples(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """Samples of an .npz or .npy file (arrays `x_test`, `x`, or the only one), or one image file."""
    if not path.exists():
        raise DataError("FS301", f"{path}: no such file. Check the path")
    if path.suffix in (".npz", ".npy"):
        try:
            loaded = np.load(path, allow_pickle=False)
        except ValueError as problem:
            raise DataError("FS302", f"{path}: not a readable array file ({problem})") from None
        if isinstance(loaded, np.ndarray):
            return loaded
        names = [name for name in ("x", "images", "x_test") if name in loaded.files] or loaded.files
        array: np.ndarray = loaded[names[0]]
        return array
    try:
        image = Image.open(path)
    except UnidentifiedImageError:
        raise DataError("FS302", f"{path}: neither an array file nor an image. Give .npz, .npy or an image") from None
    fitted = image.convert("L" if shape[0] == 1 else "RGB").resize((shape[2], shape[1]))
    return np.array(fitted)[None]


def sample_shape(run: Path) -> tuple[int, ...]:
    return _saved(run).shape


def _saved(run: Path) -> SavedModels:
    path = run / "model.safetensors"
    if not path.is_file():
        raise ConfigError("FS007", f"{run}: has no model.safetensors. Finish the run with `fedsieve resume {run}`")
    return SavedModels.read(path)
