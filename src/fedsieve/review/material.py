"""What a reader looks at: an image, the cells of a table, or a text, as the owner has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image, ImageOps

from fedsieve.base.errors import DataError
from fedsieve.data.sources import MANIFEST, DataOptions
from fedsieve.data.sources.base import Window
from fedsieve.data.sources.csv_rows import ABOUT, read_columns
from fedsieve.data.sources.files import file_column
from fedsieve.data.sources.pictures import BROKEN, check_pixels, eight_bit, open_picture, unlimited_head

Kind = Literal["image", "table", "text"]
LARGE, SMALL = 900, 144
"""Longest sides, in pixels, of an image alone and of one among many."""
EXACT, QUALITY = 64, 90
"""Side up to which images are encoded without loss, and the quality of the others."""
KEPT = 2048
"""Encoded images that are kept in memory."""


@dataclass(frozen=True, eq=False)
class Material:
    """The samples of one owner, by their number among the judged rows."""

    samples: np.ndarray
    """As the nets saw them."""
    where: list[str]
    root: Path | None = None
    """Where the files of images are, if they are files."""
    cells: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Of a CSV file: the named cells of each row, by where it stands."""
    texts: Sequence[str] | None = None
    """What each row says, where samples are texts."""
    max_megapixels: float = DataOptions.max_megapixels
    window: Window | None = None
    """Values of images with more than 256 levels that are black and white."""

    @property
    def kind(self) -> Kind:
        if self.texts is not None:
            return "text"
        return "image" if self.samples.dtype == np.uint8 else "table"

    @lru_cache(maxsize=KEPT)  # noqa: B019  # lives as long as the process
    def picture(self, row: int, side: int) -> tuple[bytes, str]:
        """An image file and its kind: of the owner's own file where there is one, otherwise of the pixels that nets
        saw. Small ones keep every pixel."""
        picture = self._original(row)
        if picture is None:
            pixels = self.samples[row]
            picture = Image.fromarray(np.ascontiguousarray(pixels[:, :, 0] if pixels.shape[-1] == 1 else pixels))
        picture.thumbnail((side, side))
        kind = "PNG" if max(picture.size) <= EXACT else "JPEG"
        content = BytesIO()
        picture.save(content, kind, quality=QUALITY)
        return content.getvalue(), f"image/{kind.lower()}"

    def named_cells(self, row: int) -> dict[str, str]:
        """The row of a table, by the names of its columns; of a text, what stands beside it."""
        if self.kind != "table" or self.where[row] in self.cells:
            return dict(self.cells.get(self.where[row], {}))
        return {f"x{i}": f"{value:.6g}" for i, value in enumerate(self.samples[row].tolist())}

    def text(self, row: int) -> str | None:
        return None if self.texts is None else self.texts[row]

    def _original(self, row: int) -> Image.Image | None:
        """Decoded anew within the limits: nothing of a file reaches the browser as it is."""
        if self.root is None:
            return None
        try:
            with unlimited_head(), open_picture(self.root / self.where[row], self.max_megapixels) as picture:
                check_pixels(picture, self.where[row], self.max_megapixels)
                picture.draft("RGB", (LARGE, LARGE))  # a large JPEG need not be decoded in full
                upright = eight_bit(ImageOps.exif_transpose(picture), self.window)
                return upright if upright.mode in ("L", "RGB") else upright.convert("RGB")
        except (*BROKEN, DataError):
            return None  # it was there when the run read it; what the run kept is shown


def material_of(
    samples: np.ndarray,
    where: list[str],
    texts: list[str] | None,
    data: str,
    options: DataOptions,
    window: Window | None = None,
) -> Material:
    """What can be shown of rows of `data=`, as far as the owner's files are there."""
    path = Path(data).expanduser()
    table = path / MANIFEST if (path / MANIFEST).is_file() else path
    if table.suffix == ".csv" and table.is_file():
        columns = read_columns(table, options.max_gb)
        if file_column(columns, options) is not None:
            return Material(samples, where, table.parent, max_megapixels=options.max_megapixels, window=window)
        left_out = {*ABOUT, options.label, options.client, options.text}
        shown = [(i, name) for i, name in enumerate(columns.header) if name not in left_out]
        mine = set(where)
        cells = {
            place: {name: row[i] for i, name in shown}
            for line, row in zip(columns.lines, columns.rows, strict=True)
            if (place := f"{table.name}:{line}") in mine
        }
        return Material(samples, where, cells=cells, texts=texts)
    root = path if path.is_dir() and samples.dtype == np.uint8 else None
    return Material(samples, where, root, texts=texts, max_megapixels=options.max_megapixels, window=window)
