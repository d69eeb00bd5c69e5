"""Folders of images after the decisions: files are copied or linked, into the folder of their class."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from fedsieve.data.corrected.base import Outcome, Verdicts
from fedsieve.data.corrected.tables import rewrite
from fedsieve.data.sources import MANIFEST
from fedsieve.data.sources.base import DataOptions
from fedsieve.data.sources.csv_rows import read_columns
from fedsieve.data.sources.files import BESIDE, CLASS_LIST, SUFFIXES, TEST, read_class_list
from fedsieve.data.sources.limits import folders_below, regular
from fedsieve.data.sources.records import sorted_names


def correct_folder(root: Path, verdicts: Verdicts, out: Path, *, link: bool) -> Outcome:
    """CLIENT/CLASS/image or CLASS/image. Names of classes stay, also of one that loses all its images."""
    images, beside = _files(root)
    train = [parts for parts in images if parts[0] != TEST]
    classes = read_class_list(root) or sorted_names({parts[-2] for parts in images if len(parts) > 1})
    verdicts.check(("/".join(parts) for parts in train), classes)
    after = [parts[-2] if parts[0] == TEST else verdicts.after("/".join(parts), parts[-2]) for parts in images]
    stay = [(parts, label) for parts, label in zip(images, after, strict=True) if label is not None]
    place = _placing(link)
    for parts, label in sorted(stay, key=lambda one: one[0][-2] != one[1]):  # who stays keeps its name
        place(root.joinpath(*parts), _free(out.joinpath(*parts[:-2], label, parts[-1])))
    for parts in beside:
        place(root.joinpath(*parts), out.joinpath(*parts))
    if not (out / CLASS_LIST).exists():
        (out / CLASS_LIST).write_text("".join(f"{name}\n" for name in classes), encoding="utf-8")
    return Outcome(out, len(stay), verdicts.changed, verdicts.left_out)


def correct_listed_folder(root: Path, verdicts: Verdicts, out: Path, options: DataOptions, *, link: bool) -> Outcome:
    """A folder with a manifest: the manifest says the labels, all other files stay as they are."""
    outcome = rewrite(read_columns(root / MANIFEST, options.max_gb), verdicts, out / MANIFEST, options)
    images, beside = _files(root)
    place = _placing(link)
    for parts in [*images, *beside]:
        if parts != (MANIFEST,):
            place(root.joinpath(*parts), out.joinpath(*parts))
    return Outcome(out, outcome.rows, outcome.changed, outcome.left_out)


def _files(root: Path) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """Images, and what people keep beside them, as parts of their paths."""
    images, beside = [], []
    for parts, _, names in folders_below(root):
        for name in names:
            suffix = Path(name).suffix.lower()
            if suffix in SUFFIXES and not name.startswith("."):
                images.append((*parts, name))
            elif suffix in BESIDE:
                beside.append((*parts, name))
    return images, beside


def _placing(link: bool) -> Callable[[Path, Path], None]:
    def place(source: Path, target: Path) -> None:
        regular(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        if link:
            target.symlink_to(os.path.realpath(source))
        else:
            shutil.copy2(source, target)

    return place


def _free(target: Path) -> Path:
    """The same name, or with a number where the class has an image of that name already."""
    chosen, number = target, 2
    while chosen.exists() or chosen.is_symlink():
        chosen = target.with_stem(f"{target.stem}-{number}")
        number += 1
    return chosen
