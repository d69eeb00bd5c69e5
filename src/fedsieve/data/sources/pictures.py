"""Image files as one array: every picture brought to one size and one number of channels."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from fedsieve.base.errors import ConfigError, DataError
from fedsieve.data.sources import dicom
from fedsieve.data.sources.base import DataOptions, Window
from fedsieve.data.sources.limits import MAX_MEGAPIXELS, regular

DEEP_MODES = frozenset({"I", "F", "I;16", "I;16B", "I;16L", "I;16N"})
"""Of pictures with more than 256 levels of grey, such as scans."""
GREY_MODES = DEEP_MODES | {"1", "L", "LA"}
STRETCH = (0.5, 99.5)
"""Per cent of the values, in pictures with more than 256 levels, that become black and white without a window."""
LOOKED_AT, PIXELS = 500, 10_000
"""Pictures, evenly spaced, and pixels of each from which these values are taken."""
GLANCE = 10
"""Pictures that show whether there are such, where nothing else need be known of them."""
ORIENTATION, TURNED = 0x0112, frozenset({5, 6, 7, 8})
BROKEN = (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError, UnidentifiedImageError)


class Pictures(Protocol):
    """A sequence of pictures that are opened one at a time."""

    def __len__(self) -> int: ...

    def open(self, row: int) -> Image.Image: ...

    def where(self, row: int) -> str: ...

    def key(self) -> str:
        """Changes whenever the content does."""
        ...


def open_picture(file: Path, max_megapixels: float = MAX_MEGAPIXELS) -> Image.Image:
    """The head of an image file; its pixels are counted before they are decoded, by `check_pixels`."""
    if file.suffix.lower() in dicom.SUFFIXES:
        return dicom.open_dicom(file, max_megapixels)
    regular(file)
    return Image.open(file)


def check_pixels(picture: Image.Image, where: str, max_megapixels: float) -> None:
    width, height = picture.size
    if width * height > max_megapixels * 1e6:
        raise DataError(
            "FS320",
            f"{where}: has {width} x {height} pixels, more than data.max_megapixels={max_megapixels:g}. "
            "Raise it if that is right",
        )


@dataclass(frozen=True)
class ImageFiles:
    """Pictures in files."""

    files: Sequence[Path]
    place: Callable[[int], str]
    max_megapixels: float = MAX_MEGAPIXELS

    def __len__(self) -> int:
        return len(self.files)

    def open(self, row: int) -> Image.Image:
        return open_picture(self.files[row], self.max_megapixels)

    def where(self, row: int) -> str:
        return self.place(row)

    def key(self) -> str:
        """Of paths, sizes and times of change: reading a million files to know whether one changed takes too long."""
        digest = hashlib.blake2b(digest_size=16)
        for file in self.files:
            state = file.stat()
            digest.update(f"{file}\0{state.st_size}\0{state.st_mtime_ns}\n".encode())
        return digest.hexdigest()


@dataclass(frozen=True)
class Frame:
    """What every picture is brought to."""

    height: int
    width: int
    channels: int
    fit: str
    window: Window | None = None
    """Values of pictures with more than 256 levels that become 0 and 255."""

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.height, self.width, self.channels

    def __call__(self, picture: Image.Image) -> np.ndarray:
        """The pixels, in uint8."""
        upright = eight_bit(ImageOps.exif_transpose(picture), self.window).convert("L" if self.channels == 1 else "RGB")
        size = (self.width, self.height)
        if upright.size != size:
            resample = Image.Resampling.BILINEAR
            crop = self.fit == "crop"
            upright = ImageOps.fit(upright, size, resample) if crop else upright.resize(size, resample)
        return np.asarray(upright, np.uint8).reshape(self.shape)


def frame_of(pictures: Pictures, options: DataOptions) -> Frame:
    """The common size, channels and window. Looks at the head of every picture, unless the options say size and colour.

    Where they do, whether pictures have more than 256 levels is seen from some of them.
    """
    if options.size is None and options.fit != DataOptions.fit:
        raise ConfigError("FS002", f"data.fit={options.fit} has no effect without data.size. Set data.size too")
    known = options.size is not None and options.colour != "auto"
    grey, size, deep = True, None, []
    for row in _evenly(len(pictures), GLANCE) if known else range(len(pictures)):
        with open_row(pictures, row, options) as picture:
            grey = grey and picture.mode in GREY_MODES
            found = _upright_size(picture)
            deep += [row] if picture.mode in DEEP_MODES else []
        size = size or found
        if options.size is None and found != size:
            raise DataError(
                "FS309",
                f"{pictures.where(row)} is {found[0]} x {found[1]} pixels, the first image {size[0]} x {size[1]}. "
                "Bring all to one size with data.size, for instance data.size=32",
            )
    assert size is not None
    width, height = (options.size, options.size) if options.size is not None else size
    channels = {"grey": 1, "colour": 3, "auto": 1 if grey else 3}[options.colour]
    window = _stretched(pictures, deep, options) if options.window is None and deep else options.window
    if window and not deep and not known:
        raise ConfigError("FS002", "data.window has no effect: no image has more than 256 levels. Remove it")
    return Frame(height, width, channels, options.fit, window)


def _stretched(pictures: Pictures, deep: Sequence[int], options: DataOptions) -> Window:
    """The window between the percentiles of the values in pictures with more than 256 levels."""
    seen = []
    for place in _evenly(len(deep), LOOKED_AT):
        with open_row(pictures, deep[place], options) as picture:
            values = np.asarray(picture, np.float64).ravel()
            seen.append(values[np.isfinite(values)][_evenly(int(np.isfinite(values).sum()), PIXELS)])
    low, high = np.percentile(np.concatenate(seen), STRETCH) if any(map(len, seen)) else (0.0, 1.0)
    return float(low), float(max(high, low + 1.0))


def _evenly(count: int, most: int) -> list[int]:
    """Numbers below a count, at most so many of them."""
    return list(range(0, count, -(-count // most) or 1))


@contextmanager
def open_row(pictures: Pictures, row: int, options: DataOptions) -> Iterator[Image.Image]:
    """A picture; whatever is wrong with its file becomes FS301, FS302, FS320 or FS321 with its place."""
    try:
        with unlimited_head(), pictures.open(row) as picture:
            check_pixels(picture, pictures.where(row), options.max_megapixels)
            yield picture
    except DataError as problem:
        if problem.code in ("FS301", "FS321"):
            raise DataError(problem.code, f"{pictures.where(row)}: {problem.message}, or drop the row") from None
        raise
    except FileNotFoundError:
        raise DataError("FS301", f"{pictures.where(row)}: no such file. Restore it, or drop the row") from None
    except BROKEN as problem:
        reason = "not an image" if isinstance(problem, UnidentifiedImageError) else str(problem).split("\n")[0]
        raise DataError(
            "FS302", f"{pictures.where(row)}: cannot be read ({reason}). Replace the image, or drop the row"
        ) from None


@contextmanager
def unlimited_head() -> Iterator[None]:
    """Pillow's own limit of pixels is a warning first, and a fixed number; ours is an error, and an option."""
    before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = before


def _upright_size(picture: Image.Image) -> tuple[int, int]:
    """Width and height as the camera was held."""
    width, height = picture.size
    return (height, width) if picture.getexif().get(ORIENTATION) in TURNED else (width, height)


def eight_bit(picture: Any, window: Window | None) -> Image.Image:
    """Pictures with more than 256 levels by the window, which a plain conversion would clip."""
    kept: Image.Image = picture
    if kept.mode not in DEEP_MODES:
        return kept
    if window is None:
        raise ValueError("it has more than 256 levels, for which no window is known; set data.window=LOW,HIGH")
    values = np.asarray(kept, np.float64)
    if not np.isfinite(values).all():
        raise ValueError("it holds NaN or infinity")
    low, high = window
    return Image.fromarray(((values - low) * (255.0 / (high - low))).round().clip(0, 255).astype(np.uint8))
