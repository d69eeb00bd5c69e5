"""Unlabelled images for the server that are not the clients' own kind: of another data set, or generated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from PIL import Image

from fedsieve.base.errors import DataError
from fedsieve.base.rng import numpy_rng
from fedsieve.data.federation import SHARED, Federation, Holding, ServerOptions
from fedsieve.data.sources import DataOptions, load_source, takes_options

GENERATED = "generated"


def with_images_from_elsewhere(federation: Federation, server: ServerOptions, seed: int) -> Federation:
    """The same federation, whose server holds `server.unlabelled` samples from `server.unlabelled_from`, if it names
    anything but the federation's own data."""
    if not server.unlabelled or not server.unlabelled_from or server.unlabelled_from == SHARED:
        return federation
    own = sum(map(len, federation.rows)) + len(federation.validation)
    own += sum(len(holding.rows) for holding in federation.server.values())
    count = round(server.unlabelled * own) if server.unlabelled < 1 else int(server.unlabelled)
    rng = numpy_rng(seed, "federation", "elsewhere")
    if server.unlabelled_from == GENERATED:
        samples = generate(federation, count, rng)
    else:
        samples = _take(server.unlabelled_from, federation, count, seed, rng)
    rows = np.arange(len(federation.images), len(federation.images) + len(samples))
    return replace(
        federation,
        images=np.concatenate([federation.images, samples]),
        server={**federation.server, "unlabelled": Holding(rows)},
    )


def generate(federation: Federation, count: int, rng: np.random.Generator) -> np.ndarray:
    """Random samples with the clients' mean and spread; images are smooth, as a sum of noise at four scales."""
    shape = federation.images.shape[1:]
    if len(shape) == 1:
        return rng.normal(federation.mean, federation.std, (count, *shape)).astype(federation.images.dtype)
    height, width, channels = shape
    images = np.zeros((count, height, width, channels), np.float32)
    for cells in (2, 4, 8, 16):
        rough = rng.normal(size=(count, cells, cells, channels)).astype(np.float32)
        images += rough[:, np.arange(height) * cells // height][:, :, np.arange(width) * cells // width] / 2
    pixels = (np.array(federation.mean) + np.array(federation.std) * images) * 255
    return np.clip(pixels, 0, 255).astype(np.uint8)


def _take(name: str, federation: Federation, count: int, seed: int, rng: np.random.Generator) -> np.ndarray:
    """Some training samples of another data set, brought to the shape of one's own; texts stand in a column of the same
    name and become numbers in the same way."""
    own, form, options = federation.images, federation.text_form, DataOptions()
    if form is not None and takes_options(name):
        options = DataOptions(text=form.column, text_features=form.features)
    source = load_source(name, options, seed=seed)
    usable = np.arange(len(source.labels)) if source.rows is None else source.rows
    if len(usable) < count:
        raise DataError(
            "FS308",
            f"server.unlabelled={count}: {name} has only {len(usable)} training samples. Ask for fewer",
        )
    chosen = source.images[np.sort(rng.permutation(usable)[:count])]
    if chosen.ndim != own.ndim or (own.ndim == 2 and chosen.shape[1:] != own.shape[1:]):
        raise DataError(
            "FS309",
            f"server.unlabelled_from={name}: its samples are {chosen.shape[1:]}, the clients' are {own.shape[1:]}. "
            "Take data of the same kind",
        )
    return chosen.astype(own.dtype) if own.ndim == 2 else reshape(chosen, own.shape[1:])


def reshape(images: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Images as (height, width, channels): scaled bilinearly; grey ones repeated, coloured ones averaged."""
    height, width, channels = shape
    if images.shape[3] != channels:
        grey = images.astype(np.float32).mean(axis=3, keepdims=True).round().astype(np.uint8)
        images = np.repeat(grey, channels, axis=3)
    if images.shape[1:3] == (height, width):
        return images
    scaled = np.empty((len(images), height, width, channels), np.uint8)
    for i, image in enumerate(images):
        for channel in range(channels):
            plane = Image.fromarray(np.ascontiguousarray(image[:, :, channel]))
            scaled[i, :, :, channel] = np.asarray(plane.resize((width, height), Image.Resampling.BILINEAR))
    return scaled
