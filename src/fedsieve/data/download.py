"""`fedsieve data get`: the published files of well-known data sets, checked and turned into NAME.npz."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.request import urlopen

import numpy as np

from fedsieve.base.errors import ConfigError, DataError, nearest
from fedsieve.data.sources.arrays import ARRAYS, CLASS_NAMES
from fedsieve.data.sources.base import cache_folder
from fedsieve.data.sources.classic import (
    CIFAR10_TRAIN,
    CIFAR100,
    SVHN,
    Arrays,
    cifar_arrays,
    cifar_records,
    read_idx_files,
    read_svhn,
)
from fedsieve.data.sources.counting import counting

BLOCK = 1 << 18
TIMEOUT = 30


@dataclass(frozen=True)
class Published:
    """A data set as its authors publish it."""

    address: str
    files: Mapping[str, str]
    """Name of each file, with the MD5 its authors give; it tells damage, not forgery."""
    read: Callable[[Path], Arrays]
    """The arrays, from the folder with the files."""


def fetch(name: str) -> str:
    """Download what is missing, check everything, write NAME.npz; returns what a person should know."""
    if name not in PUBLISHED:
        raise ConfigError("FS004", f"no data set '{name}' to download. {nearest(name, PUBLISHED)}")
    target = cache_folder() / f"{name}.npz"
    if target.exists():
        return f"{target} is there already; use it with data={name}"
    published = PUBLISHED[name]
    folder = cache_folder() / "downloads" / name
    folder.mkdir(parents=True, exist_ok=True)
    for file, md5 in published.files.items():
        if not (folder / file).is_file():
            _download(published.address + file, folder / file, name)
        _check(folder / file, md5)
    arrays = published.read(folder)
    names = CLASS_NAMES.get(name)
    arrays |= {"class_names": np.array(names)} if names and "class_names" not in arrays else {}
    partial = target.with_name(f".{name}.{os.getpid()}.npz")
    np.savez(partial, allow_pickle=False, **arrays)
    partial.replace(target)
    train, test = len(arrays["x_train"]), len(arrays["x_test"])
    digest = hashlib.sha256(b"".join(np.ascontiguousarray(arrays[key]).tobytes() for key in ARRAYS)).hexdigest()
    return f"{target}: {train:,} training and {test:,} test samples, sha256 of the arrays {digest}; use data={name}"


def _download(address: str, target: Path, name: str) -> None:
    partial = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with urlopen(address, timeout=TIMEOUT) as reply, partial.open("wb") as file:
            total = int(reply.headers.get("Content-Length") or 0)
            with counting(f"downloading {target.name}", total or 1) as advance:
                while block := reply.read(BLOCK):
                    file.write(block)
                    advance(len(block))
        partial.replace(target)
    except (OSError, HTTPException, ValueError) as problem:
        partial.unlink(missing_ok=True)
        raise DataError(
            "FS312",
            f"{address}: cannot be downloaded ({problem}). Get the file on another machine, put it at {target}, "
            f"and run `fedsieve data get {name}` again",
        ) from None


def _check(file: Path, md5: str) -> None:
    digest = hashlib.md5(usedforsecurity=False)
    with file.open("rb") as handle:
        while block := handle.read(BLOCK):
            digest.update(block)
    if digest.hexdigest() != md5:
        raise DataError(
            "FS310", f"{file}: has MD5 {digest.hexdigest()}, its authors give {md5}. Remove the file and get it again"
        )


def _cifar10(folder: Path) -> Arrays:
    inside = _members(folder / "cifar-10-binary.tar.gz", (*CIFAR10_TRAIN, "test_batch.bin"))
    parts = {name: cifar_records(raw, 1, name) for name, raw in inside.items()}
    return cifar_arrays([parts[name] for name in CIFAR10_TRAIN], parts["test_batch.bin"])


def _cifar100(folder: Path) -> Arrays:
    names = "fine_label_names.txt"
    inside = _members(folder / "cifar-100-binary.tar.gz", (*CIFAR100, names))
    train, test = (cifar_records(inside[name], 2, name) for name in CIFAR100)
    return cifar_arrays([train], test) | {"class_names": np.array(inside[names].decode().split())}


def _members(archive: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    """Files of a .tar.gz by their base names, read without unpacking anything to disk."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(archive.read_bytes())) as tar:
            for member in tar:
                base = Path(member.name).name
                content = tar.extractfile(member) if base in names else None
                if content is not None:
                    found[base] = content.read()
    except (tarfile.TarError, OSError, EOFError) as problem:
        raise DataError("FS302", f"{archive}: cannot be unpacked ({problem}). Remove it and get it again") from None
    missing = [name for name in names if name not in found]
    if missing:
        raise DataError("FS302", f"{archive}: lacks {', '.join(missing)}. Remove it and get it again")
    return found


PUBLISHED: dict[str, Published] = {
    "mnist": Published(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        {
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
        read_idx_files,
    ),
    "fashion-mnist": Published(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        {
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
        read_idx_files,
    ),
    "cifar10": Published(
        "https://www.cs.toronto.edu/~kriz/", {"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"}, _cifar10
    ),
    "cifar100": Published(
        "https://www.cs.toronto.edu/~kriz/", {"cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8"}, _cifar100
    ),
    "svhn": Published(
        "http://ufldl.stanford.edu/housenumbers/",
        dict(zip(SVHN, ("e26dedcc434d2e4c54c9b2d4a06d8373", "eb5a983be6a315427106f1b164d9cef3"), strict=True)),
        read_svhn,
    ),
}
