"""What a source delivers, the options behind `data.`, and the checks that every array passes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field

from fedsieve.base.errors import ConfigError, DataError
from fedsieve.base.options import Choice, options_of
from fedsieve.data.federation import UNLABELLED
from fedsieve.data.sources.limits import MAX_CLASSES, MAX_GB, MAX_MEGAPIXELS
from fedsieve.data.texts import NGRAMS, TextForm

MOST_COLOURS = 4
"""Channels of an ordinary picture; an image that is no higher than that and has more channels stands on its head."""
LIMITS = ("max_classes", "max_gb", "max_megapixels")
FOR_ALL = (*LIMITS, "corrections")
"""Options that hold for all data; the others for those that are not ready-made arrays."""
Window = tuple[float, float]
UNTESTED = "no rows are kept for testing (data.test_fraction=0): nothing is tested"


def _two_numbers(given: Any) -> Any:
    """`0,4095` as the command line has it."""
    return given.split(",") if isinstance(given, str) else given


@dataclass(frozen=True, kw_only=True)
class DataOptions(Choice):
    """How one's own data are read."""

    size: Annotated[int, Field(ge=1, le=8192)] | None = None
    """Side of the images in pixels; without it all image files must have one size."""
    fit: Literal["resize", "crop"] = "resize"
    """How an image becomes a square of `data.size`: squeezed, or cut out of the middle without distortion."""
    colour: Literal["auto", "grey", "colour"] = "auto"
    """Channels of image files; auto is grey where every image is grey."""
    window: Annotated[Window | None, BeforeValidator(_two_numbers)] = None
    """Values of images with more than 256 levels (16-bit, DICOM) that become black and white, as LOW,HIGH; where not
    given, the 0.5th and 99.5th percentile of all of them."""
    test_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """Share of each client's rows kept for testing, where the data bring no test set; with 0 all are trained on and
    judged, and nothing is tested."""
    label: str = "label"
    """Column of the labels, in CSV files and Hugging Face data sets."""
    client: str = "client"
    """Column that names the client of a row, in CSV files and Hugging Face data sets."""
    text: str | None = None
    """Column of texts to learn from, in CSV files and Hugging Face data sets."""
    text_features: str = NGRAMS
    """How a text becomes numbers: ngrams or ngrams:WIDTH (hashed), minilm (extra `text`), hf:NAME or hf:FOLDER."""
    file: str | None = None
    """Column of a CSV file that names images; if not given `file`, or one whose cells are images below its folder."""
    categories: str = ""
    """Columns of a table that hold categories, joined by +; `auto` takes those without numbers and of few values."""
    missing: Literal["refuse", "drop", "mean", "zero"] = "refuse"
    """Gaps in a table: refused, their rows dropped, or filled by the mean of the training rows or by zero."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Training samples to use, drawn from all classes in proportion; every one if not given."""
    corrections: str | None = None
    """A file of decisions (`fedsieve review`): labels that people corrected, and rows that they excluded."""
    in_memory: Annotated[int, Field(ge=0)] = 256
    """Megabytes of decoded images kept in memory; more are decoded once into a file of the cache folder and mapped."""
    max_classes: Annotated[int, Field(ge=2)] = MAX_CLASSES
    """Most classes that are taken; more are refused, as a wrong column or a wrong label makes them."""
    max_gb: Annotated[float, Field(gt=0)] = MAX_GB
    """Most gigabytes that arrays or a table may claim to hold; more are refused before they are read."""
    max_megapixels: Annotated[float, Field(gt=0)] = MAX_MEGAPIXELS
    """Most million pixels of one image; larger ones are refused before they are decoded."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window is not None and not self.window[0] < self.window[1]:
            raise ConfigError("FS002", f"data.window={self.window}: the first must be below the second. Turn them")

    def for_all(self) -> DataOptions:
        """What holds for all data, and everything else as it is by default."""
        return DataOptions(**{name: getattr(self, name) for name in FOR_ALL})


@dataclass(frozen=True, kw_only=True)
class Source:
    """Samples before they are split. Images are N x H x W x channels in uint8; tables N x D in float32."""

    name: str
    images: np.ndarray
    labels: np.ndarray
    """As delivered; -1 for a row without one, where data without labels were asked for."""
    true: np.ndarray | None
    """The true labels where known; the very array `labels` where those are taken as right, as in benchmark sets."""
    test_images: np.ndarray
    test_labels: np.ndarray
    class_names: tuple[str, ...]
    rows: np.ndarray | None = None
    """The rows for training, where others were taken out for testing; all of them if None."""
    owners: np.ndarray | None = None
    """The number of each row's client in `owner_names`, where the data name clients."""
    owner_names: tuple[str, ...] = ()
    groups: np.ndarray | None = None
    """The number of each row's group (a patient, say), where the data have groups."""
    origins: Sequence[str] | None = None
    """Where each row of `images` came from; its number in them if None."""
    texts: tuple[str, ...] | None = None
    """What each row of `images` says, where the samples are texts; for people, never for training."""
    test_texts: tuple[str, ...] | None = None
    text_form: TextForm | None = None
    reading: Mapping[str, Any] = field(default_factory=dict)
    """What somebody must know of how samples were read to read others alike; empty where there was no choice."""
    notes: tuple[str, ...] = ()

    @property
    def n_classes(self) -> int:
        return len(self.class_names)

    @property
    def trusted(self) -> bool:
        """Whether the delivered labels are the true ones."""
        return self.true is self.labels


def cache_folder() -> Path:
    return Path(os.environ.get("FEDSIEVE_DATA") or Path.home() / ".cache" / "fedsieve")


def refuse_options(options: DataOptions, what: str, allowed: tuple[str, ...] = ()) -> None:
    """FS002 for an option that these data would silently ignore."""
    for name, option in options_of(DataOptions).items():
        if name not in (*allowed, *FOR_ALL) and getattr(options, name) != option.default:
            raise ConfigError("FS002", f"data.{name} has no effect on {what}. Remove it")


def checked_labels(labels: np.ndarray, where: str, n_classes: int | None, missing: bool = False) -> np.ndarray:
    """Labels as int64, all within range, or -1 where they may be missing; errors name the row."""
    if labels.ndim != 1 or not len(labels):
        raise DataError("FS309", f"{where} has the shape {labels.shape}. Give one label a row, at least one row")
    if labels.dtype.kind == "f":
        broken = np.flatnonzero(~np.isfinite(labels) | (labels != np.floor(labels)))
        if len(broken):
            raise DataError("FS304", f"{where} row {broken[0]} is {labels[broken[0]]}. Labels are whole numbers from 0")
    elif labels.dtype.kind not in "iu":
        raise DataError("FS302", f"{where} holds {labels.dtype}. Labels are whole numbers from 0")
    whole = labels.astype(np.int64)
    lowest, beyond = UNLABELLED if missing else 0, n_classes or np.iinfo(np.int64).max
    outside = np.flatnonzero((whole < lowest) | (whole >= beyond))
    if len(outside):
        limit = f"0 to {n_classes - 1}" if n_classes else "0 upwards"
        limit += ", and -1 is none" if missing else ""
        raise DataError("FS303", f"{where} row {outside[0]} is {whole[outside[0]]}. Labels go from {limit}")
    return whole


def checked_images(images: np.ndarray, where: str) -> np.ndarray:
    """uint8 images with a channel axis, or a float32 table; NaN is refused with its row."""
    if images.dtype == np.uint8 and images.ndim in (3, 4):
        if images.ndim == 4 and images.shape[1] <= MOST_COLOURS < images.shape[3]:
            raise DataError(
                "FS309",
                f"{where} has the shape {images.shape}, which is {images.shape[1]} channels before the pixels. "
                "Channels stand last: turn it with x.transpose(0, 2, 3, 1)",
            )
        return images[..., None] if images.ndim == 3 else images
    if images.dtype.kind == "f" and images.ndim == 2:
        with np.errstate(over="ignore"):  # what float32 cannot hold is refused as infinity
            table = images.astype(np.float32, copy=False)
        broken = np.flatnonzero(~np.isfinite(table).all(axis=1))
        if len(broken):
            raise DataError("FS304", f"{where} row {broken[0]} holds NaN or infinity. Clean or drop the row")
        return table
    raise DataError(
        "FS302",
        f"{where} holds {images.dtype} of shape {images.shape}. Give uint8 images N x H x W (x channels), "
        "or a float table N x D",
    )


def check_pair(images: np.ndarray, labels: np.ndarray, where: str) -> None:
    if len(images) != len(labels):
        raise DataError("FS309", f"{where} have {len(images)} and {len(labels)} rows. They must be equal")


def check_same_shape(images: np.ndarray, test_images: np.ndarray, where: str) -> None:
    if images.shape[1:] != test_images.shape[1:]:
        raise DataError(
            "FS309",
            f"{where}: training samples are {images.shape[1:]}, test samples {test_images.shape[1:]}. "
            "Bring both to one shape",
        )


def require_classes(n_classes: int, where: str, only: object) -> None:
    if n_classes < 2:
        raise DataError("FS306", f"{where}: all labels are {only}. At least two classes are needed")
