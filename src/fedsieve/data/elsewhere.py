"""Samples for the server that are no part of the clients' data: unlabelled ones of another data set or generated, and
labelled ones that somebody verified."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from PIL import Image

from fedsieve.base.errors import ConfigError, DataError, nearest
from fedsieve.base.rng import numpy_rng
from fedsieve.data.federation import SHARED, Federation, Holding, ServerOptions
from fedsieve.data.sources import DataOptions, Source, load_source, takes_options
from fedsieve.data.sources.records import digests, overlap_notes
from fedsieve.data.truth import GroundTruth

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


def with_verified_samples(
    federation: Federation, truth: GroundTruth, server: ServerOptions, options: DataOptions, seed: int
) -> tuple[Federation, GroundTruth]:
    """The same federation, whose server holds the samples and labels of the data that `server.clean` names, if it does.

    They are read as the clients' are, and their labels are taken as right.
    """
    if server.verified is None:
        return federation, truth
    name, where = server.verified, f"server.clean={server.verified}"
    if server.clean_noise:
        raise ConfigError("FS002", f"{where}: samples that somebody verified stay right. Remove server.clean_noise")
    source = load_source(name, _alike(name, federation, options), seed, labels=False)
    samples, labels = source.images, _by_name(source, federation.class_names, where)
    if samples.shape[1:] != federation.images.shape[1:] or samples.dtype != federation.images.dtype:
        raise DataError(
            "FS309",
            f"{where}: its samples are {samples.shape[1:]}, the clients' are {federation.images.shape[1:]}. "
            "Bring them to one shape",
        )
    for part in ("columns", "categories"):
        if source.reading.get(part) != federation.reading.get(part):
            raise DataError("FS309", f"{where}: its {part} are not those of the clients' data. Write them alike")
    rows = np.arange(len(federation.images), len(federation.images) + len(samples))
    holdings = {"clean": Holding(rows, labels)} | ({"unlabelled": Holding(rows)} if _shares(server) else {})
    twice = overlap_notes(digests(samples), digests(federation.test_images))
    joined = replace(
        federation,
        images=np.concatenate([federation.images, samples]),
        server={**federation.server, **holdings},
        notes=(*federation.notes, *(f"{where}: {note}" for note in twice)),
    )
    return joined, replace(truth, server={**truth.server, "clean": labels})


def _shares(server: ServerOptions) -> bool:
    return server.unlabelled_from == SHARED


def _alike(name: str, federation: Federation, options: DataOptions) -> DataOptions:
    """How to read data as the clients' were read."""
    if not takes_options(name):
        return replace(options.for_all(), corrections=None, test_fraction=0)
    shape = federation.images.shape[1:]
    usual = replace(options, limit=None, test_fraction=0.0)  # however few they are, none is tested
    if len(shape) == 1:
        return usual
    window = federation.reading.get("window")
    return replace(usual, colour="grey" if shape[2] == 1 else "colour", window=tuple(window) if window else None)


def _by_name(source: Source, class_names: tuple[str, ...], where: str) -> np.ndarray:
    """The labels as numbers of these classes; numbers without names are taken as they are."""
    number = {name: code for code, name in enumerate(class_names)}
    unnamed = source.class_names == tuple(map(str, range(source.n_classes)))
    if unnamed and source.n_classes <= len(class_names):
        number = {str(code): code for code in range(len(class_names))} | number
    for name in source.class_names:
        if name not in number:
            raise DataError("FS303", f"{where}: has the unknown class '{name}'. {nearest(name, class_names)}")
    if (source.labels < 0).any():
        row = int((source.labels < 0).argmax())
        place = f"row {row}" if source.origins is None else source.origins[row]
        raise DataError("FS303", f"{where}: {place} has no label. Verified samples have one each")
    codes = np.array([number[name] for name in source.class_names], np.int64)
    found: np.ndarray = codes[source.labels]
    return found


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
