"""Arrays in .npz files: FedSieve's own names, and those of MedMNIST."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedsieve.base.array_files import BROKEN
from fedsieve.base.errors import DataError
from fedsieve.data.federation import UNLABELLED
from fedsieve.data.sources.base import (
    UNTESTED,
    DataOptions,
    Source,
    check_pair,
    check_same_shape,
    checked_images,
    checked_labels,
    require_classes,
)
from fedsieve.data.sources.limits import check_arrays, check_classes, regular
from fedsieve.data.sources.records import alike_notes, digests, is_missing, overlap_notes, refuse_twice, sorted_names

ARRAYS = ("x_train", "y_train", "x_test", "y_test")
OPTIONAL = ("class_names", "client", "group", "y_true")
MEDMNIST = ("train_images", "train_labels", "test_images", "test_labels")
FASHION_NAMES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
CLASS_NAMES = {
    "embedded": FASHION_NAMES,
    "fashion-mnist": FASHION_NAMES,
    "cifar10": ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
}


def names_in(path: Path) -> tuple[str, ...]:
    """The names of the arrays, without reading them."""
    try:
        regular(path)
        with np.load(path, allow_pickle=False) as file:
            return tuple(file.files)
    except BROKEN:
        return ()


def read_npz(
    path: Path, name: str, options: DataOptions = DataOptions(), *, own: bool = True, labels: bool = True
) -> Source:
    """A file of x_train, y_train, x_test, y_test; if it has them, class_names, client, group and y_true.

    The labels are taken as right, unless the file names clients: then they are real, and right only as y_true says.
    What people made themselves (`own`) is also looked through for test samples among the training samples.
    Where no labels are needed, some or all may be missing: y_train may be -1 or not there, and so may the test set,
    which may also be missing where nothing is to be tested.
    """
    arrays = loaded_arrays(path, options.max_gb)
    notes: list[str] = []
    if MEDMNIST[0] in arrays and ARRAYS[0] not in arrays:
        arrays, notes = _from_medmnist(path, arrays)
    tests = labels and options.test_fraction > 0
    arrays = arrays if labels else _without_labels(arrays)
    if not tests and not {"x_test", "y_test"} & arrays.keys():
        arrays, notes = _without_tests(arrays), [*notes, *([UNTESTED] if labels else [])]
    missing = [key for key in ARRAYS if key not in arrays]
    if missing:
        raise DataError("FS302", f"{path}: lacks {', '.join(missing)}. It must hold {', '.join(ARRAYS)}")
    names = tuple(str(n) for n in arrays["class_names"]) if "class_names" in arrays else CLASS_NAMES.get(name, ())
    refuse_twice(names, f"{path}: class_names")
    train = checked_labels(arrays["y_train"], f"{path}: y_train", len(names) or None, missing=not labels)
    test = arrays["y_test"]
    if tests or len(test):
        test = checked_labels(test, f"{path}: y_test", len(names) or None)
    top, top_test = int(train.max()), int(test.max(initial=UNLABELLED))
    n_classes = len(names) or max(top, top_test) + 1
    largest = f"y_train row {train.argmax()}" if top >= top_test else f"y_test row {test.argmax()}"
    check_classes(n_classes, f"{path}: {largest} makes", options.max_classes)
    if labels or n_classes:
        require_classes(n_classes, str(path), max(top, top_test))
    images = checked_images(arrays["x_train"], f"{path}: x_train")
    test_images = checked_images(arrays["x_test"], f"{path}: x_test")
    check_pair(images, train, f"{path}: x_train and y_train")
    check_pair(test_images, test, f"{path}: x_test and y_test")
    check_same_shape(images, test_images, str(path))
    owners, owner_names = _named(path, arrays, "client", len(train))
    groups, _ = _named(path, arrays, "group", len(train))
    true = train if owners is None and train.min() > UNLABELLED else None
    if "y_true" in arrays:
        true = checked_labels(arrays["y_true"], f"{path}: y_true", n_classes)
        check_pair(true, train, f"{path}: y_true and y_train")
    notes += [*alike_notes("classes", names), *alike_notes("clients", owner_names)]
    if own:
        notes += _unused_notes(arrays)
        notes += overlap_notes(digests(images), digests(test_images))
    return Source(
        name=name,
        images=images,
        labels=train,
        true=true,
        test_images=test_images,
        test_labels=test,
        class_names=names or tuple(str(c) for c in range(n_classes)),
        owners=owners,
        owner_names=owner_names,
        groups=groups,
        notes=tuple(notes),
    )


def _unused_notes(arrays: Mapping[str, np.ndarray]) -> list[str]:
    """A name that is nearly right would be passed over in silence."""
    unused = sorted(arrays.keys() - {*ARRAYS, *OPTIONAL})
    listed = ", ".join(repr(name[:40]) for name in unused[:5]) + (", ..." if len(unused) > 5 else "")
    return [f"of {listed} nothing is made. Known names: {', '.join((*ARRAYS, *OPTIONAL))}"] if unused else []


def _without_labels(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Rows without a label, where the file leaves labels out."""
    missing = {"y_train": np.full(len(arrays["x_train"]), UNLABELLED, np.int64)} if "x_train" in arrays else {}
    return missing | dict(arrays)


def _without_tests(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A test set without rows."""
    none = {"x_test": arrays["x_train"][:0], "y_test": np.empty(0, np.int64)} if "x_train" in arrays else {}
    return dict(arrays) | none


def loaded_arrays(path: Path, max_gb: float) -> dict[str, np.ndarray]:
    """All arrays of an .npz file."""
    try:
        check_arrays(path, max_gb)
        with np.load(path, allow_pickle=False) as file:
            return {key: file[key] for key in file.files}
    except BROKEN as problem:
        raise DataError("FS302", f"{path}: not a readable .npz file ({problem}). Write it with numpy.savez") from None


def _from_medmnist(path: Path, arrays: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], list[str]]:
    """MedMNIST's arrays under our names; its labels are N x 1."""
    missing = [key for key in MEDMNIST if key not in arrays]
    if missing:
        raise DataError("FS302", f"{path}: lacks {', '.join(missing)}. Take the file as MedMNIST publishes it")
    renamed = {ours: arrays[theirs] for ours, theirs in zip(ARRAYS, MEDMNIST, strict=True)}
    for key in ("y_train", "y_test"):
        labels = renamed[key]
        if labels.ndim == 2 and labels.shape[1] > 1:
            raise DataError(
                "FS309", f"{path}: has {labels.shape[1]} labels a row. FedSieve takes data with one label a row"
            )
        renamed[key] = labels.reshape(-1)
    left = len(arrays.get("val_images", ()))
    return renamed, [f"the {left} images that MedMNIST keeps for validation are left aside"] if left else []


def _named(
    path: Path, arrays: Mapping[str, np.ndarray], key: str, rows: int
) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """The clients or groups of the training rows as numbers, and their names."""
    if key not in arrays:
        return None, ()
    texts = [str(value) for value in arrays[key].reshape(-1)]
    if len(texts) != rows:
        raise DataError("FS309", f"{path}: {key} and y_train have {len(texts)} and {rows} rows. They must be equal")
    missing = next((row for row, text in enumerate(texts) if is_missing(text)), None)
    if missing is not None:
        raise DataError(
            "FS307", f"{path}: {key} row {missing} is '{texts[missing]}', which names none. Fill it in, or drop the row"
        )
    names = sorted_names(set(texts))
    number = {name: code for code, name in enumerate(names)}
    return np.array([number[text] for text in texts], np.int64), names
