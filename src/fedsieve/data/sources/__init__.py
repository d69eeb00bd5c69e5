"""Where samples come from: the embedded set, a file, a folder, a name in the cache folder, or Hugging Face."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from fedsieve.base.errors import DataError, FedSieveError
from fedsieve.data.sources.arrays import names_in, read_npz
from fedsieve.data.sources.base import DataOptions, Source, cache_folder, checked_images, refuse_options

__all__ = ["DataOptions", "Source", "cache_folder", "checked_images", "load_source", "names_clients", "takes_options"]

EMBEDDED = Path(__file__).parent.parent / "embedded" / "fashion-mnist-small.npz"
EMBEDDED_SHA256 = "84fec304642e2eef5a6564d4bc80b5d3bc038eee73aadf4cd26babbf6a92c778"
HUB = "hf:"
MANIFEST = "manifest.csv"
OF_IMAGES = ("size", "fit", "colour", "window", "test_fraction", "limit", "in_memory")
"""Options that pictures take."""
OF_TEXTS = ("text", "text_features", "test_fraction", "label", "client")
"""Options that texts take."""


def load_source(name: str, options: DataOptions = DataOptions(), seed: int = 0, *, labels: bool = True) -> Source:
    """The samples that `data=name` stands for. The seed chooses test rows where the data bring no test set.

    Without `labels` files and folders may leave them out.
    """
    try:
        return _source(name, options, seed, labels)
    except OSError as problem:  # what the readers themselves do not expect: a lost disk, no permission, no descriptor
        reason = problem.strerror or problem
        raise DataError("FS302", f"data={name}: cannot be read ({reason}: {problem.filename}). Mend that") from problem


def _source(name: str, options: DataOptions, seed: int, labels: bool) -> Source:
    if name == "embedded":
        refuse_options(options, "the embedded data")
        found = hashlib.sha256(EMBEDDED.read_bytes()).hexdigest()
        if found != EMBEDDED_SHA256:
            raise DataError(
                "FS310", f"{EMBEDDED}: the embedded data are damaged (sha256 {found[:12]}). Reinstall fedsieve"
            )
        return read_npz(EMBEDDED, name, own=False)
    if name.startswith(HUB):
        from fedsieve.data.sources.hub import read_hub

        allowed = ("label", "client", *OF_IMAGES) if options.text is None else OF_TEXTS
        refuse_options(options, name, allowed=allowed)
        return read_hub(name.removeprefix(HUB), options, seed)
    path = Path(name).expanduser()
    if path.suffix in (".npz", ".csv") or path.exists():
        return _read_path(path, options, seed, labels)
    cached = cache_folder() / f"{name}.npz"
    if cached.exists():
        refuse_options(options, str(cached))
        return read_npz(cached, name, options, own=False, labels=labels)
    there = sorted(p.stem for p in cache_folder().glob("*.npz"))
    raise DataError(
        "FS301",
        f"data={name}: no such file or folder, and no {cached}. In the cache folder: {', '.join(there) or 'nothing'}. "
        "Give a path, put the file there (`fedsieve data get`), or take data=embedded",
    )


def takes_options(name: str) -> bool:
    """Whether the options behind `data.` matter to these data; arrays are taken as they are."""
    path = Path(name).expanduser()
    return name.startswith(HUB) or path.suffix == ".csv" or path.is_dir()


@cache
def names_clients(name: str, options: DataOptions, labels: bool = True) -> bool:
    """Whether the data say to which client a row belongs; looks no further than it must, and never complains."""
    path = Path(name).expanduser()
    try:
        if name.startswith(HUB):
            from fedsieve.data.sources.hub import hub_has_clients

            return hub_has_clients(name.removeprefix(HUB), options)
        table = path / MANIFEST if path.is_dir() else path
        if table.suffix == ".csv" and table.is_file():
            from fedsieve.data.sources.csv_rows import read_header

            return options.client in read_header(table)
        if path.is_dir():
            from fedsieve.data.sources.files import has_clients

            return has_clients(path, labels)
        return path.is_file() and "client" in names_in(path)
    except (FedSieveError, OSError):
        return False  # reading the data will say what is wrong


def _read_path(path: Path, options: DataOptions, seed: int, labels: bool) -> Source:
    if path.is_dir():
        from fedsieve.data.sources.classic import published_files

        if (path / MANIFEST).is_file():
            return _read_csv(path / MANIFEST, options, seed, labels)
        if read := published_files(path):
            refuse_options(options, str(path))
            return read(options)
        from fedsieve.data.sources.files import read_folder

        refuse_options(options, f"the images in {path}", allowed=OF_IMAGES)
        return read_folder(path, options, seed, labels)
    if path.suffix == ".csv":
        return _read_csv(path, options, seed, labels)
    refuse_options(options, str(path), allowed=() if options.test_fraction else ("test_fraction",))
    return read_npz(path, path.stem, options, labels=labels)


def _read_csv(path: Path, options: DataOptions, seed: int, labels: bool) -> Source:
    """Texts if a column of them is named, images if it has a column that names some, a table otherwise."""
    from fedsieve.data.sources.csv_rows import read_columns, read_table
    from fedsieve.data.sources.files import file_column, read_class_list, read_listed

    columns = read_columns(path, options.max_gb)
    name = path.resolve().parent.name if path.name == MANIFEST else path.stem
    if options.text is not None:
        from fedsieve.data.sources.text_rows import read_texts

        refuse_options(options, f"the texts of {path}", allowed=OF_TEXTS)
        return read_texts(columns, options, read_class_list(path.parent), name, seed, labels)
    column = file_column(columns, options)
    if column is not None:
        refuse_options(options, f"the images of {path}", allowed=("file", "label", "client", *OF_IMAGES))
        return read_listed(path, columns, column, options, seed, labels)
    allowed = ("test_fraction", "label", "client", "categories", "missing")
    refuse_options(options, f"the table {path}", allowed=allowed)
    return read_table(columns, options, read_class_list(path.parent), name, seed, labels)
