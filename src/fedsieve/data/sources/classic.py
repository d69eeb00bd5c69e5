"""Data sets in the files their authors publish: MNIST and its kin (idx), CIFAR (binary) and SVHN (.mat)."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from fedsieve.base.errors import DataError
from fedsieve.data.sources.arrays import CLASS_NAMES
from fedsieve.data.sources.base import (
    DataOptions,
    Source,
    check_pair,
    check_same_shape,
    checked_images,
    checked_labels,
    require_classes,
)
from fedsieve.data.sources.limits import MAX_GB, check_bytes, check_classes, read_limited, regular
from fedsieve.data.sources.mat_file import read_mat

Arrays = dict[str, np.ndarray]
IDX_TYPES: Mapping[int, np.dtype[Any]] = {0x08: np.dtype(np.uint8), 0x0D: np.dtype(">f4"), 0x0E: np.dtype(">f8")}
IDX = {
    "x_train": "train-images-idx3-ubyte",
    "y_train": "train-labels-idx1-ubyte",
    "x_test": "t10k-images-idx3-ubyte",
    "y_test": "t10k-labels-idx1-ubyte",
}
CIFAR10_TRAIN = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
CIFAR_PIXELS = 3 * 32 * 32


def published_files(folder: Path) -> Callable[[DataOptions], Source] | None:
    """How to read the data set whose files are in the folder, if it is one that we know."""
    below = [folder, *(folder / name for name in ("cifar-10-batches-bin", "cifar-100-binary", "raw"))]
    for place in below:
        for marks, read in READERS.items():
            if all(_file(place, mark) for mark in marks):
                return partial(_as_source, folder, place, read)
        if (place / "data_batch_1").is_file():
            raise DataError(
                "FS302",
                f"{place}: holds CIFAR as Python pickles, which are not opened because they may run code. "
                "Take the binary version, or `fedsieve data get cifar10`",
            )
    return None


def read_idx_files(folder: Path, max_gb: float = MAX_GB) -> Arrays:
    return {key: read_idx(_file(folder, name) or folder / name, max_gb) for key, name in IDX.items()}


def read_idx(path: Path, max_gb: float = MAX_GB) -> np.ndarray:
    """An idx file, plain or .gz: two zeros, type, number of axes, their lengths, then the values."""
    regular(path)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            kind, axes = file.read(4)[2:4]
            shape = struct.unpack(f">{axes}I", file.read(4 * axes))
            size = prod(shape) * IDX_TYPES[kind].itemsize
            check_bytes(size, str(path), max_gb)
            raw = file.read(size)
            if file.read(1):
                raise ValueError("more values than its header says")
        values = np.frombuffer(raw, IDX_TYPES[kind])
        native: np.ndarray = values.reshape(shape).astype(values.dtype.newbyteorder("="), copy=False)
        return native
    except (OSError, EOFError, zlib.error, struct.error, IndexError, KeyError, ValueError) as problem:
        raise DataError("FS302", f"{path}: not a whole idx file ({problem}). Take it from its source again") from None


def read_cifar10(folder: Path, max_gb: float = MAX_GB) -> Arrays:
    train = [cifar_records(read_limited(folder / name, max_gb), 1, str(folder / name)) for name in CIFAR10_TRAIN]
    test = cifar_records(read_limited(folder / "test_batch.bin", max_gb), 1, "test_batch.bin")
    arrays = cifar_arrays(train, test)
    return arrays | _class_names(folder / "batches.meta.txt")


def read_cifar100(folder: Path, max_gb: float = MAX_GB) -> Arrays:
    parts = {name: cifar_records(read_limited(folder / name, max_gb), 2, str(folder / name)) for name in CIFAR100}
    return cifar_arrays([parts["train.bin"]], parts["test.bin"]) | _class_names(folder / "fine_label_names.txt")


CIFAR100 = ("train.bin", "test.bin")


def cifar_records(raw: bytes, label_bytes: int, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Images N x 32 x 32 x 3 and labels of a binary file; of two label bytes the last is the fine class."""
    length = label_bytes + CIFAR_PIXELS
    if not raw or len(raw) % length:
        raise DataError(
            "FS302", f"{where}: {len(raw)} bytes are no whole number of {length}. Take it from its source again"
        )
    records = np.frombuffer(raw, np.uint8).reshape(-1, length)
    images = records[:, label_bytes:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), records[:, label_bytes - 1].astype(np.int64)


def cifar_arrays(train: list[tuple[np.ndarray, np.ndarray]], test: tuple[np.ndarray, np.ndarray]) -> Arrays:
    images, labels = (np.concatenate(parts) for parts in zip(*train, strict=True))
    return {"x_train": images, "y_train": labels, "x_test": test[0], "y_test": test[1]}


def read_svhn(folder: Path, max_gb: float = MAX_GB) -> Arrays:
    train, test = (_svhn_file(folder / name, max_gb) for name in SVHN)
    return cifar_arrays([train], test)


SVHN = ("train_32x32.mat", "test_32x32.mat")


def _svhn_file(path: Path, max_gb: float) -> tuple[np.ndarray, np.ndarray]:
    """X is 32 x 32 x 3 x N; the digit 0 is labelled 10."""
    try:
        content = read_mat(path, max_gb)
        images = np.ascontiguousarray(content["X"].transpose(3, 0, 1, 2))
        return images, content["y"].reshape(-1).astype(np.int64) % 10
    except (ValueError, KeyError, zlib.error) as problem:
        raise DataError("FS302", f"{path}: not SVHN's file ({problem}). Take it from its source again") from None


READERS: Mapping[tuple[str, ...], Callable[[Path, float], Arrays]] = {
    tuple(IDX.values()): read_idx_files,
    (*CIFAR10_TRAIN, "test_batch.bin"): read_cifar10,
    CIFAR100: read_cifar100,
    SVHN: read_svhn,
}


def _as_source(folder: Path, place: Path, read: Callable[[Path, float], Arrays], options: DataOptions) -> Source:
    arrays = read(place, options.max_gb)
    labels = checked_labels(arrays["y_train"], f"{folder}: training labels", None)
    test_labels = checked_labels(arrays["y_test"], f"{folder}: test labels", None)
    images = checked_images(arrays["x_train"], f"{folder}: training images")
    test_images = checked_images(arrays["x_test"], f"{folder}: test images")
    check_pair(images, labels, f"{folder}: training images and labels")
    check_pair(test_images, test_labels, f"{folder}: test images and labels")
    check_same_shape(images, test_images, str(folder))
    n_classes = int(max(labels.max(), test_labels.max())) + 1
    require_classes(n_classes, str(folder), int(labels[0]))
    check_classes(n_classes, f"{folder}: its largest label makes", options.max_classes)
    names = tuple(str(name) for name in arrays.get("class_names", CLASS_NAMES.get(folder.name, ())))
    return Source(
        name=folder.name,
        images=images,
        labels=labels,
        true=labels,
        test_images=test_images,
        test_labels=test_labels,
        class_names=names if len(names) >= n_classes else tuple(map(str, range(n_classes))),
    )


def _class_names(path: Path) -> Arrays:
    if not path.is_file():
        return {}
    return {"class_names": np.array([line.strip() for line in path.read_text().splitlines() if line.strip()])}


def _file(folder: Path, name: str) -> Path | None:
    """The file, plain or compressed; MNIST's names also circulate with a dot before `idx`."""
    dotted = name.replace("-idx", ".idx")
    return next((folder / n for n in (name, f"{name}.gz", dotted, f"{dotted}.gz") if (folder / n).is_file()), None)
