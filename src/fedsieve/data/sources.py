"""Where samples come from: the embedded set, an .npz file, or a name in the cache folder."""

from __future__ import annotations

import hashlib
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedsieve.errors import DataError

EMBEDDED = Path(__file__).parent / "embedded" / "fashion-mnist-small.npz"
EMBEDDED_SHA256 = "84fec304642e2eef5a6564d4bc80b5d3bc038eee73aadf4cd26babbf6a92c778"
FASHION_NAMES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
CLASS_NAMES = {
    "embedded": FASHION_NAMES,
    "fashion-mnist": FASHION_NAMES,
    "cifar10": ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
}
ARRAYS = ("x_train", "y_train", "x_test", "y_test")


@dataclass(frozen=True)
class Source:
    """Samples before they are split. Images are N x H x W x channels in uint8; tables N x D in float32."""

    name: str
    images: np.ndarray
    labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    class_names: tuple[str, ...]

    @property
    def n_classes(self) -> int:
        return len(self.class_names)


def cache_folder() -> Path:
    return Path(os.environ.get("FEDSIEVE_DATA") or Path.home() / ".cache" / "fedsieve")


def load_source(name: str) -> Source:
    """`embedded`, a path of an .npz file, or NAME of NAME.npz in the cache folder."""
    if name == "embedded":
        found = hashlib.sha256(EMBEDDED.read_bytes()).hexdigest()
        if found != EMBEDDED_SHA256:
            raise DataError(
                "FS310", f"{EMBEDDED}: the embedded data are damaged (sha256 {found[:12]}). Reinstall fedsieve"
            )
        return read_npz(EMBEDDED, name)
    path = Path(name).expanduser()
    if path.suffix == ".npz" or path.exists():
        return read_npz(path, path.stem)
    cached = cache_folder() / f"{name}.npz"
    if cached.exists():
        return read_npz(cached, name)
    there = sorted(p.stem for p in cache_folder().glob("*.npz"))
    raise DataError(
        "FS301",
        f"data={name}: no such file, and no {cached}. In the cache folder: {', '.join(there) or 'nothing'}. "
        "Give a path of an .npz file, put the file there, or take data=embedded",
    )


def read_npz(path: Path, name: str) -> Source:
    """A file with x_train, y_train, x_test, y_test and, if it has them, class_names."""
    if not path.is_file():
        raise DataError("FS301", f"{path}: no such file. Check the path")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except (ValueError, OSError, zipfile.BadZipFile) as problem:
        raise DataError("FS302", f"{path}: not a readable .npz file ({problem}). Write it with numpy.savez") from None
    missing = [key for key in ARRAYS if key not in arrays]
    if missing:
        raise DataError("FS302", f"{path}: lacks {', '.join(missing)}. It must hold {', '.join(ARRAYS)}")
    names = tuple(str(n) for n in arrays["class_names"]) if "class_names" in arrays else CLASS_NAMES.get(name, ())
    train = checked_labels(arrays["y_train"], f"{path}: y_train", len(names) or None)
    test = checked_labels(arrays["y_test"], f"{path}: y_test", len(names) or None)
    n_classes = len(names) or int(max(train.max(initial=0), test.max(initial=0))) + 1
    if n_classes < 2:
        raise DataError("FS306", f"{path}: all labels are {int(train[0])}. At least two classes are needed")
    source = Source(
        name,
        checked_images(arrays["x_train"], f"{path}: x_train"),
        train,
        checked_images(arrays["x_test"], f"{path}: x_test"),
        test,
        names or tuple(str(c) for c in range(n_classes)),
    )
    for images, labels, what in (
        (source.images, train, "x_train and y_train"),
        (source.test_images, test, "x_test and y_test"),
    ):
        if len(images) != len(labels):
            raise DataError("FS309", f"{path}: {what} have {len(images)} and {len(labels)} rows. They must be equal")
    if source.images.shape[1:] != source.test_images.shape[1:]:
        raise DataError(
            "FS309",
            f"{path}: training samples are {source.images.shape[1:]}, test samples {source.test_images.shape[1:]}. "
            "Bring both to one shape",
        )
    return source


def checked_labels(labels: np.ndarray, where: str, n_classes: int | None) -> np.ndarray:
    """Labels as int64, all within range; errors name the row."""
    if labels.ndim != 1 or not len(labels):
        raise DataError("FS309", f"{where} has the shape {labels.shape}. Give one label a row, at least one row")
    if labels.dtype.kind == "f":
        broken = np.flatnonzero(~np.isfinite(labels) | (labels != np.floor(labels)))
        if len(broken):
            raise DataError("FS304", f"{where} row {broken[0]} is {labels[broken[0]]}. Labels are whole numbers from 0")
    elif labels.dtype.kind not in "iu":
        raise DataError("FS302", f"{where} holds {labels.dtype}. Labels are whole numbers from 0")
    whole = labels.astype(np.int64)
    outside = np.flatnonzero((whole < 0) | (whole >= (n_classes or np.iinfo(np.int64).max)))
    if len(outside):
        limit = f"0 to {n_classes - 1}" if n_classes else "0 upwards"
        raise DataError("FS303", f"{where} row {outside[0]} is {whole[outside[0]]}. Labels go from {limit}")
    return whole


def checked_images(images: np.ndarray, where: str) -> np.ndarray:
    """uint8 images with a channel axis, or a float32 table; NaN is refused with its row."""
    if images.dtype == np.uint8 and images.ndim in (3, 4):
        return images[..., None] if images.ndim == 3 else images
    if images.dtype.kind == "f" and images.ndim == 2:
        broken = np.flatnonzero(~np.isfinite(images).all(axis=1))
        if len(broken):
            raise DataError("FS304", f"{where} row {broken[0]} holds NaN or infinity. Clean or drop the row")
        return images.astype(np.float32, copy=False)
    raise DataError(
        "FS302",
        f"{where} holds {images.dtype} of shape {images.shape}. Give uint8 images N x H x W (x channels), "
        "or a float table N x D",
    )
