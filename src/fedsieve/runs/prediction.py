"""Using a trained model on new samples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import UnidentifiedImageError

from fedsieve.base.errors import ConfigError, DataError, nearest, one_line
from fedsieve.data.samples import Preprocess
from fedsieve.data.sources import checked_images
from fedsieve.data.sources.arrays import BROKEN
from fedsieve.data.sources.csv_rows import read_columns
from fedsieve.data.sources.limits import MAX_GB, MAX_MEGAPIXELS, check_arrays, regular
from fedsieve.data.sources.pictures import BROKEN as UNREADABLE
from fedsieve.data.sources.pictures import check_pixels, open_picture, unlimited_head
from fedsieve.data.sources.text_rows import checked_texts, vectors
from fedsieve.data.texts import TextForm, is_known, text_map
from fedsieve.evaluate.schema import File
from fedsieve.models.saved import SavedModels

BATCH = 500


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
    saved = _saved(run)
    card, shape = saved.card, saved.shape
    if not card.get("classifies", True):
        raise ConfigError(
            "FS007",
            f"{run}: the run trained no classifier, only features. Write these with "
            f"`fedsieve features DATA --map {saved.file}`",
        )
    samples, texts = [samples] if isinstance(samples, str) else samples, None
    if np.ndim(samples) == 1 and len(samples) and isinstance(samples[0], str):
        texts = checked_texts(samples, lambda row: f"text {row}")
        samples = _numbers(saved, texts, encoder)
    elif encoder is not None:
        raise ConfigError("FS002", f"--encoder {encoder} has no effect on samples that are no texts. Leave it out")
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
    broken = np.flatnonzero(~np.isfinite(probabilities).all(axis=1))
    if len(broken):
        raise DataError("FS304", f"{saved.file}: gives no number for sample {broken[0]}. Take another run")
    labels = probabilities.argmax(1)
    return {
        "label": labels.tolist(),
        "name": [card["class_names"][label] for label in labels],
        "probability": probabilities[np.arange(len(labels)), labels].round(6).tolist(),
        **({} if texts is None else {"text": texts}),
    }


def _numbers(saved: SavedModels, texts: list[str], encoder: str | None) -> np.ndarray:
    """Texts by the very map that the model was trained with, which its key proves."""
    form = text_form(saved)
    if form is None:
        raise DataError("FS309", f"{saved.file}: the model was not trained on texts. Give an array or a file")
    if encoder is None and not is_known(form.features):
        raise ConfigError(
            "FS010",
            f"{saved.file}: its texts were encoded by '{one_line(form.features)}', and what only a file names is not "
            "loaded. Look at it; then name it with --encoder hf:FOLDER",
        )
    name = encoder or form.features
    if text_map(name).key != form.key:
        raise DataError("FS310", f"{name}: not the encoder that {saved.file} was trained with. Name that one")
    return vectors(texts, name)


def text_form(saved: SavedModels) -> TextForm | None:
    """How texts became numbers, where the model was trained on texts."""
    card = saved.card.get("text")
    return None if card is None else TextForm(**card)


def read_new(given: str, run: Path) -> np.ndarray | list[str]:
    """What is to be classified: a file, or for a model of texts the text itself."""
    saved = _saved(run)
    form, path = text_form(saved), Path(given)
    if form is None or path.suffix in (".npz", ".npy"):
        return read_samples(path, saved.shape)
    if path.suffix == ".csv":
        return _column(path, form.column)
    if _is_file(path):
        raise DataError("FS302", f"{path}: not a CSV file. Give one with a column '{form.column}', or the text itself")
    return [given]


def _column(path: Path, name: str) -> list[str]:
    columns = read_columns(path)
    if name not in columns.header:
        hint = nearest(name, columns.header)
        raise DataError("FS302", f"{path}: has no column '{name}'. {hint} Rename the right one")
    return checked_texts(columns.texts(name), lambda row: f"{path}: {columns.place(row)}: column '{name}'")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a text too long for a name
        return False


def read_samples(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """Samples of an .npz or .npy file (arrays `x_test`, `x`, or the only one), or one image file."""
    regular(path)
    if path.suffix in (".npz", ".npy"):
        return _array(path)
    if len(shape) != 3:
        raise DataError("FS309", f"{path}: the model takes rows of {shape[0]} numbers. Give an .npz or .npy file")
    try:
        with unlimited_head(), open_picture(path) as image:
            check_pixels(image, str(path), MAX_MEGAPIXELS)
            fitted = image.convert("L" if shape[0] == 1 else "RGB").resize((shape[2], shape[1]))
    except UNREADABLE as problem:
        reason = "neither an array file nor an image" if isinstance(problem, UnidentifiedImageError) else problem
        raise DataError("FS302", f"{path}: {reason}. Give .npz, .npy or an image") from None
    return np.array(fitted)[None]


def _array(path: Path) -> np.ndarray:
    try:
        check_arrays(path, MAX_GB)
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded:
            names = [name for name in ("x", "images", "x_test") if name in loaded.files] or loaded.files
            if not names:
                raise ValueError("it holds no array")
            array: np.ndarray = loaded[names[0]]
            return array
    except BROKEN as problem:
        raise DataError("FS302", f"{path}: not a readable array file ({problem}). Write it with numpy.save") from None


def _saved(run: Path) -> SavedModels:
    path = run / File.MODEL
    if not path.is_file():
        raise ConfigError("FS007", f"{run}: has no model.safetensors. Finish the run with `fedsieve resume {run}`")
    return SavedModels.read(path)
