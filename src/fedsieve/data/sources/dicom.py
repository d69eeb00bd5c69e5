"""DICOM images: their pixels and what these mean, and nothing else. What tells of a patient is never read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fedsieve.base.errors import ConfigError, DataError
from fedsieve.data.sources.limits import regular

SUFFIXES = frozenset({".dcm", ".dicom"})
READ = (
    "Rows", "Columns", "NumberOfFrames", "SamplesPerPixel", "PhotometricInterpretation", "PlanarConfiguration",
    "BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation", "PixelData", "RescaleSlope", "RescaleIntercept",
)  # fmt: skip
"""The only elements that are looked at; the values of all others are passed over in the file."""


def open_dicom(file: Path, max_megapixels: float) -> Image.Image:
    """One image: grey ones in the scanner's units (Hounsfield in CT), colour ones as they are."""
    try:
        import pydicom
        from pydicom.pixels.utils import pixel_array
    except ImportError:
        raise ConfigError(
            "FS008", f"{file}: DICOM needs the package pydicom. Run `pip install fedsieve[dicom]`"
        ) from None
    regular(file)
    try:
        found: Any = pydicom.dcmread(file, specific_tags=list(READ))
        width, height, frames = int(found.Columns), int(found.Rows), int(found.get("NumberOfFrames") or 1)
        if width * height * frames > max_megapixels * 1e6:
            raise DataError(
                "FS320",
                f"{file}: has {width} x {height} x {frames} pixels, more than data.max_megapixels={max_megapixels:g}. "
                "Raise it if that is right",
            )
        if frames > 1:
            raise ValueError(f"it holds {frames} frames; write each into a file of its own")
        pixels = pixel_array(found)
    except DataError:
        raise
    except Exception as problem:  # the package and its decoders raise many kinds
        reason = str(problem).split("\n")[0]
        raise DataError("FS302", f"{file}: cannot be read as DICOM ({reason}). Replace the image") from None
    return _picture(pixels, found)


def _picture(pixels: np.ndarray, found: Any) -> Image.Image:
    if pixels.ndim == 3:
        return Image.fromarray(pixels.astype(np.uint8))
    values = pixels.astype(np.float64)
    if found.PhotometricInterpretation == "MONOCHROME1":  # 0 is white
        values = (1 << int(found.BitsStored)) - 1 - values
    slope, intercept = (
        float(found.get(name) or usual) for name, usual in (("RescaleSlope", 1), ("RescaleIntercept", 0))
    )
    return Image.fromarray((values * slope + intercept).astype(np.float32))
