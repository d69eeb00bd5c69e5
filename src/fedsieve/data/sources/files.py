"""Images in folders, or listed in a CSV file, with the clients they belong to."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedsieve.base.errors import DataError, nearest
from fedsieve.data.origins import Origins
from fedsieve.data.sources.base import DataOptions, Source
from fedsieve.data.sources.csv_rows import ABOUT, Columns
from fedsieve.data.sources.decoding import picture_store
from fedsieve.data.sources.dicom import SUFFIXES as DICOM
from fedsieve.data.sources.limits import folders_below, read_limited
from fedsieve.data.sources.pictures import ImageFiles
from fedsieve.data.sources.records import Records, check_records, sorted_names, to_source, training_first

SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".jfif", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm", ".pnm", *DICOM}
)
BESIDE = frozenset({".csv", ".txt", ".md", ".json", ".yaml", ".yml", ".html", ".ini", ".db"})
"""Files that people keep beside images; others that are no images are mentioned in a note."""
TEST, TRAIN = "test", "train"
FILE = "file"
"""The column of a list that names images, where no other is named."""
CLASS_LIST = "classes.txt"
CLASS_LIST_GB = 0.1


def read_folder(root: Path, options: DataOptions, seed: int, labels: bool) -> Source:
    """CLIENT/CLASS/image, or CLASS/image without clients; test/CLASS/image if there is a test set.

    Without `labels` images may also stand beside the folders of the classes, or where these would be.
    """
    files, others = _image_files(root)
    train = [parts for parts in files if parts[0] != TEST]
    test = [parts for parts in files if parts[0] == TEST]
    before = _before_class(train, _known_classes(root, test), labels)
    if labels:
        _check_depth(root, train, {2, 3}, "CLIENT/CLASS/image, or CLASS/image for data without clients")
    else:
        _check_unlabelled(root, train, before)
    _check_depth(root, test, {3}, "test/CLASS/image")
    named = _named(train, before)
    if named:
        _refuse_empty_clients(root, {parts[0] for parts in train})
    order = [*train, *test]
    records = Records(
        origin=str(root),
        place=lambda row: f"file {Path(*order[row])}",
        origins=Origins(len(order), lambda row: "/".join(order[row])),
        labels=[parts[-2] if len(parts) > 1 + (before or parts[0] == TEST) else "" for parts in order],
        clients=[parts[0] if parts[0] != TEST else "" for parts in order] if named else None,
        test=np.array([parts[0] == TEST for parts in order]) if test else None,
        class_names=read_class_list(root),
        may_lack_labels=not labels,
        notes=_left_out(others),
    )
    return _source_of(root.resolve().name, records, [root / Path(*parts) for parts in order], options, seed)


def file_column(columns: Columns, options: DataOptions) -> str | None:
    """The column that names images: the one that is named, `file`, or one whose cells are images below the folder;
    none where the samples are texts."""
    if options.text is not None:
        return None
    if options.file is not None:
        if options.file not in columns.header:
            raise DataError(
                "FS302",
                f"{columns.file}: has no column '{options.file}'. {nearest(options.file, columns.header)} Name the "
                "right one with data.file",
            )
        return options.file
    if FILE in columns.header:
        return FILE
    root, about = columns.file.parent, {*ABOUT, options.label, options.client}
    return next((name for name in columns.header if name not in about and _are_images(columns.texts(name), root)), None)


def _are_images(names: list[str], root: Path) -> bool:
    """Whether all are called as images are, and the first one is there."""
    if not names or not all(Path(name).suffix.lower() in SUFFIXES for name in names):
        return False
    return _is_below(names[0]) and (root / names[0]).is_file()


def _is_below(name: str) -> bool:
    """Whether a path, as it is written, stays in the folder."""
    return not Path(name).is_absolute() and Path(os.path.normpath(name)).parts[:1] != ("..",)


def listed_file(root: Path, name: str, options: DataOptions, where: str) -> Path:
    """The file that a cell names. Where nobody named the column, a list leads nowhere else than below its folder."""
    if not name:
        raise DataError("FS302", f"{where} names no file. Fill it in, or drop the row")
    if options.file is None and not _is_below(name):
        raise DataError(
            "FS302",
            f"{where}: {name} leads out of {root}. Put the images below it; or, if the list is your own, name its "
            "column with data.file",
        )
    return Path(os.path.normpath(root / Path(name).expanduser()))


def read_listed(file: Path, columns: Columns, column: str, options: DataOptions, seed: int, labels: bool) -> Source:
    """The images that a column of a CSV file lists, relative to where it stands."""
    root = file.parent
    records = columns.records(options, read_class_list(root), labels)
    names = columns.texts(column)
    listed: dict[Path, int] = {}
    for row, name in enumerate(names):
        path = listed_file(root, name, options, records.where(row))
        if path in listed:
            raise DataError(
                "FS313", f"{records.where(row)}: {name} stands in {records.place(listed[path])} too. Drop one of them"
            )
        listed[path] = row
    files = list(listed)
    for row, path in enumerate(files):
        if not path.is_file():
            raise DataError("FS301", f"{records.where(row)}: {path}: no such file. Restore it, or drop the row")
    place = records.place
    described = replace(
        records,
        place=lambda row: f"{place(row)}, file {names[row]}",
        origins=Origins(len(names), lambda row: Path(names[row]).as_posix()),
    )
    name = root.resolve().name if file.stem == "manifest" else file.stem
    return _source_of(name, described, files, options, seed)


def has_clients(root: Path, labels: bool) -> bool:
    """Whether a folder of images is divided by client; where all have labels, the first image shows it."""
    if labels:
        found = next(_walk(root), None)
        return found is not None and len(found) == 3 and {entry.name for entry in _folders(root)} - {TEST} != {TRAIN}
    files = _image_files(root)[0]
    train = [parts for parts in files if parts[0] != TEST]
    return _named(train, _before_class(train, _known_classes(root, [p for p in files if p[0] == TEST]), labels))


def _named(train: list[tuple[str, ...]], before: int) -> bool:
    """Whether the folders before those of the classes are clients. A lone folder `train` is none."""
    return before == 1 and {parts[0] for parts in train} != {TRAIN}


def _known_classes(root: Path, test: list[tuple[str, ...]]) -> set[str]:
    """The classes that `classes.txt` or the test set names."""
    return {*(read_class_list(root) or ()), *(parts[1] for parts in test if len(parts) == 3)}


def _before_class(train: list[tuple[str, ...]], known: set[str], labels: bool) -> int:
    """How many folders stand before those of the classes: none, or one, which is the client's or `train`.

    Without `labels` images in folders of which none is called as a class is are the unlabelled ones of clients.
    """
    depths = Counter(map(len, train))
    if labels:
        return int(depths[3] > depths[2])
    folders = {parts[0] for parts in train}
    unlabelled = set(depths) == {2} and (folders == {TRAIN} or (bool(known) and not folders & known))
    return int(3 in depths or unlabelled)


def read_class_list(root: Path) -> tuple[str, ...] | None:
    """The classes in the order of `classes.txt`, one a line, where there is such a file."""
    file = root / CLASS_LIST
    if not file.is_file():
        return None
    try:
        text = read_limited(file, CLASS_LIST_GB).decode("utf-8")
    except UnicodeDecodeError as problem:
        raise DataError("FS302", f"{file}: cannot be read as text ({problem}). Save it as UTF-8") from None
    names = [line.strip() for line in text.splitlines() if line.strip()]
    counted = Counter(names)
    twice = next((name for name in names if counted[name] > 1), None)
    if twice is not None:
        raise DataError("FS313", f"{file}: '{twice}' stands there twice. Name each class once")
    return tuple(names)


def _source_of(name: str, records: Records, files: list[Path], options: DataOptions, seed: int) -> Source:
    class_names = check_records(records, options.max_classes)
    order = training_first(records)
    ordered = records.in_order(order)
    pictures = ImageFiles([files[i].absolute() for i in order], ordered.where, options.max_megapixels)
    store = picture_store(pictures, ordered, options)
    return to_source(name, ordered, store, class_names, test_fraction=options.test_fraction, seed=seed)


def _image_files(root: Path) -> tuple[list[tuple[str, ...]], list[str]]:
    """The parts of every image's path below the root, clients and classes in sorted order; and the other files."""
    images, others = [], []
    for parts, _, names in folders_below(root):
        for name in names:
            suffix = Path(name).suffix.lower()
            if suffix in SUFFIXES and not name.startswith("."):
                images.append((*parts, name))
            elif suffix not in BESIDE and not name.startswith("."):
                others.append(str(Path(*parts, name)))
    if not images:
        raise DataError(
            "FS301",
            f"{root}: holds no images. Put them into CLIENT/CLASS/ below it, or list them in {root / 'manifest.csv'}",
        )
    folders = sorted_names({part for parts in images for part in parts[:-1]})
    for name in folders:
        if name != name.encode(errors="replace").decode():
            raise DataError("FS302", f"{root}: the name of its folder {name!a} is not UTF-8. Rename it")
    place = {name: i for i, name in enumerate(folders)}
    return sorted(images, key=lambda parts: ([place[part] for part in parts[:-1]], parts[-1])), sorted(others)


def _left_out(others: list[str]) -> tuple[str, ...]:
    if not others:
        return ()
    return (f"{len(others)} files are no images by their names and are left out (the first is {others[0]})",)


def _walk(root: Path) -> Iterator[tuple[str, ...]]:
    """The first training images that are found, without looking at all of them."""
    for folder in _folders(root):
        if folder.name == TEST:
            continue
        for parts, _, names in folders_below(folder):
            yield from ((folder.name, *parts, name) for name in names if Path(name).suffix.lower() in SUFFIXES)


def _folders(root: Path) -> list[Path]:
    return sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _check_depth(root: Path, files: list[tuple[str, ...]], allowed: set[int], wanted: str) -> None:
    """All images stand as deep as most do; the error names one that does not."""
    depths = Counter(len(parts) for parts in files if len(parts) in allowed)
    usual = depths.most_common(1)[0][0] if depths else 0
    for parts in files:
        if len(parts) != usual:
            raise DataError(
                "FS302", f"{root}: {Path(*parts)} does not stand where it should. All images go by {wanted}"
            )


def _check_unlabelled(root: Path, train: list[tuple[str, ...]], before: int) -> None:
    """All images stand in the folder of a class or, without a label, beside these folders."""
    wanted = "CLIENT/CLASS/image or CLIENT/image" if before else "CLASS/image or image"
    for parts in train:
        if not before < len(parts) <= before + 2:
            raise DataError(
                "FS302", f"{root}: {Path(*parts)} does not stand where it should. All images go by {wanted}"
            )


def _refuse_empty_clients(root: Path, clients: set[str]) -> None:
    for folder in _folders(root):
        if folder.name != TEST and folder.name not in clients:
            raise DataError("FS307", f"{root}: client {folder.name} has no images. Add some, or remove the folder")
