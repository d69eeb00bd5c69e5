"""Data that hang or eat memory are refused at once, with the limit and the option that raises it."""

import gzip
import os
import socket
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedsieve.base.errors import ConfigError, DataError
from fedsieve.data.sources import DataOptions, load_source
from fedsieve.data.sources.classic import read_idx
from fedsieve.models.saved import SavedModels
from fedsieve.runs.inputs import Inputs
from fedsieve.settings.config import parse, read_settings

GIGA = 10**9


def read_samples(path, shape):
    """As `fedsieve predict` would for a model that takes this shape."""
    inputs = Inputs([path], SavedModels(path, {"shape": list(shape)}, {}))
    taken = list(inputs)
    if inputs.unread:
        raise inputs.unread[0]
    return taken


def refused(work, code, *says):
    with pytest.raises(DataError) as problem:
        work()
    assert problem.value.code == code, problem.value
    for text in says:
        assert text in str(problem.value)


def npz(path, **arrays):
    usual = {"x_train": np.zeros((4, 8), np.float32), "x_test": np.zeros((2, 8), np.float32)}
    np.savez(path, **usual | {"y_train": np.array([0, 1, 0, 1]), "y_test": np.array([0, 1])} | arrays)
    return str(path)


@pytest.mark.parametrize("label", [10**7, 10**15, 2**62])
def test_a_label_that_means_too_many_classes(tmp_path, label):
    data = npz(tmp_path / "x.npz", y_train=np.array([0, 1, label, 1]))
    refused(lambda: load_source(data), "FS320", "y_train row 2", "data.max_classes=10,000")
    data = npz(tmp_path / "x.npz", y_test=np.array([0, label]))
    refused(lambda: load_source(data), "FS320", "y_test row 1")


def test_the_limit_of_classes_can_be_raised(tmp_path):
    data = npz(tmp_path / "x.npz", y_train=np.array([0, 1, 20_000, 1]))
    assert load_source(data, DataOptions(max_classes=30_000)).n_classes == 20_001


def test_a_table_of_a_hundred_thousand_classes(tmp_path):
    rows = "".join(f"{row},{row / 7}\n" for row in range(100_000))
    (tmp_path / "x.csv").write_text(f"label,x\n{rows}")
    refused(lambda: load_source(str(tmp_path / "x.csv")), "FS320", "100,000 classes", "data.max_classes")
    (tmp_path / "x.csv").write_text("label,x\na,1\nb,2\n")
    (tmp_path / "classes.txt").write_text("".join(f"{row}\n" for row in range(100_000)))
    refused(lambda: load_source(str(tmp_path / "x.csv")), "FS320", "data.max_classes")


def header(shape, dtype="|u1"):
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


def bomb(path, size):
    """A file of a few megabytes that says, truly, to hold so many bytes."""
    archive = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
    with archive, archive.open("x_train.npy", "w", force_zip64=True) as file:
        file.write(header((size,)))
        for _ in range(size >> 24):
            file.write(b"\0" * (1 << 24))
    return str(path)


def test_a_zip_bomb(tmp_path):
    data = bomb(tmp_path / "x.npz", 1 << 27)
    refused(lambda: load_source(data, DataOptions(max_gb=0.1)), "FS320", "0.1 GB", "data.max_gb=0.1")
    with zipfile.ZipFile(data) as archive:  # the same, said of eight gigabytes
        member = archive.infolist()[0]
    content = bytearray((tmp_path / "x.npz").read_bytes())
    place = content.rindex(b"PK\x01\x02")
    assert member.file_size > 1 << 27
    content[place + 24 : place + 28] = struct.pack("<I", 0xF0000000)
    (tmp_path / "x.npz").write_bytes(bytes(content))
    refused(lambda: load_source(data, DataOptions(max_gb=2)), "FS320", "data.max_gb=2")


@pytest.mark.parametrize("name", ["x.npz", "x.npy"])
def test_a_header_that_claims_more_than_there_is(tmp_path, name):
    path = tmp_path / name
    for shape in ((10**12,), (10**12, 28, 28), (10**6, 10**6, 10**6)):
        if name == "x.npy":
            path.write_bytes(header(shape) + b"\0" * 100)
        else:
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("x_train.npy", header(shape) + b"\0" * 100)
            refused(lambda: load_source(str(path)), "FS320", "data.max_gb=4")
        refused(lambda: read_samples(path, (1, 28, 28)), "FS320", "data.max_gb=4")
    if name == "x.npz":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x_train.npy", header((10**8,)) + b"\0" * 100)
        refused(lambda: load_source(str(path)), "FS302", "does not fit into")


def test_an_idx_file_that_claims_more_than_there_is(tmp_path):
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(b"\0\0\x08\x03" + struct.pack(">3I", 2**32 - 1, 28, 28) + b"\0" * 50))
    refused(lambda: read_idx(path), "FS320", "data.max_gb=4")
    path.write_bytes(gzip.compress(b"\0\0\x08\x01" + struct.pack(">I", 4) + b"\0" * (1 << 24)))
    refused(lambda: read_idx(path), "FS302", "more values than its header says")


@pytest.fixture(params=["pipe", "socket", "device"])
def endless(request, tmp_path):
    """Makes a file that would be read for ever."""

    def make(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if request.param == "pipe":
            os.mkfifo(path)
        elif request.param == "device":
            path.symlink_to("/dev/zero")
        else:
            here = socket.socket(socket.AF_UNIX)
            os.chdir(path.parent)
            here.bind(path.name)
            here.close()
        return path

    before = Path.cwd()
    yield make
    os.chdir(before)


def test_what_is_no_regular_file_is_refused(tmp_path, endless):
    photos = tmp_path / "photos"
    for name in ("a/cat/1.png", "a/dog/1.png", "b/cat/1.png", "b/dog/1.png"):
        (photos / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8)).save(photos / name)
    load_source(str(photos), DataOptions(test_fraction=0.5))
    endless(photos / "b" / "dog" / "2.png")
    refused(lambda: load_source(str(photos)), "FS321", "2.png", "not a regular file")
    for name in ("x.npz", "x.csv", "x.npy"):
        path = endless(tmp_path / name)
        if name != "x.npy":
            refused(lambda path=path: load_source(str(path)), "FS321", name)
        refused(lambda path=path: read_samples(path, (1, 8, 8)), "FS321", name)
    with pytest.raises(ConfigError, match="is no regular file") as problem:
        read_settings(endless(tmp_path / "x.yaml"), [])
    assert problem.value.code == "FS003"


def test_a_hugging_face_folder_with_a_pipe(tmp_path):
    from datasets import Dataset

    folder = tmp_path / "saved"
    Dataset.from_dict({"label": ["a", "b"] * 5, "x": list(range(10))}).save_to_disk(str(folder))
    (folder / "state.json").unlink()
    os.mkfifo(folder / "state.json")
    refused(lambda: load_source(f"hf:{folder}"), "FS321", "state.json")


def test_folders_in_a_circle(tmp_path):
    (tmp_path / "a" / "cat").mkdir(parents=True)
    Image.new("L", (8, 8)).save(tmp_path / "a" / "cat" / "1.png")
    (tmp_path / "a" / "again").symlink_to(tmp_path)
    (tmp_path / "a" / "more").symlink_to(tmp_path / "a")
    refused(lambda: load_source(str(tmp_path)), "FS321", "leads back to a folder that it lies in")


@pytest.mark.filterwarnings("error")
def test_an_image_of_too_many_pixels(tmp_path):
    for name in ("a/1.png", "b/1.png", "b/2.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("1", (12_000, 9_000) if name == "b/2.png" else (8, 8)).save(tmp_path / name)
    refused(lambda: load_source(str(tmp_path), DataOptions(size=8)), "FS320", "2.png", "data.max_megapixels=90")
    raised = DataOptions(size=8, max_megapixels=200, test_fraction=0.5)
    assert load_source(str(tmp_path), raised).images.shape[1:3] == (8, 8)
    refused(lambda: read_samples(tmp_path / "b" / "2.png", (1, 8, 8)), "FS320", "12000 x 9000")


def test_a_table_that_is_one_line(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("label,x\na,1\n" + "b" * 3_000_000)
    refused(lambda: load_source(str(path), DataOptions(max_gb=0.2)), "FS320", "2,000,000 characters", "data.max_gb")
    path.write_text('label,x\na,"' + "1" * 200_000 + '"\n')
    refused(lambda: load_source(str(path)), "FS302", "field limit")
    with path.open("wb") as file:
        file.truncate(5 * GIGA)
    refused(lambda: load_source(str(path)), "FS320", "data.max_gb=4")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[" * 100_000, "levels deep"),
        ("a: " + "{b: " * 100_000, "levels deep"),
        ("\n".join(f"{'  ' * level}a:" for level in range(500)), "levels deep"),
        (
            "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9)),
            "values",
        ),
        ("a: " + "x" * (1 << 20), "bytes"),
    ],
    ids=["lists", "mappings", "indents", "aliases", "length"],
)
def test_settings_that_are_a_trap(tmp_path, text, says):
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ConfigError, match=says) as problem:
        read_settings(tmp_path / "x.yaml", [])
    assert problem.value.code == "FS003"


def test_a_value_that_is_a_trap_stays_text():
    assert parse("[" * 2000) == "[" * 2000
