"""The files that authors publish, and `fedsieve data get`, against archives made here byte by byte."""

import gzip
import hashlib
import io
import struct
import tarfile
from dataclasses import replace

import numpy as np
import pytest
from scipy.io import savemat

from fedsieve.base.errors import ConfigError, DataError
from fedsieve.data import download
from fedsieve.data.sources import load_source
from fedsieve.data.sources.classic import read_idx

RNG = np.random.default_rng(3)
GREY = RNG.integers(0, 256, (7, 4, 3), np.uint8)
COLOUR = RNG.integers(0, 256, (12, 32, 32, 3), np.uint8)
DIGITS = np.array([5, 0, 4, 1, 9, 2, 1])


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSIEVE_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


def idx(array):
    head = bytes([0, 0, 8, array.ndim]) + b"".join(struct.pack(">I", length) for length in array.shape)
    return head + array.astype(np.uint8).tobytes()


def write_idx(folder, packed):
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "train-images-idx3-ubyte": GREY[:5],
        "train-labels-idx1-ubyte": DIGITS[:5],
        "t10k-images-idx3-ubyte": GREY[5:],
        "t10k-labels-idx1-ubyte": DIGITS[5:],
    }
    for name, array in content.items():
        raw = idx(array)
        (folder / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(raw) if packed else raw)


def cifar(images, *labels):
    """Label bytes, then the red, the green and the blue plane."""
    planes = [b"".join(image[:, :, c].tobytes() for c in range(3)) for image in images]
    return b"".join(bytes(marks) + plane for marks, plane in zip(zip(*labels, strict=True), planes, strict=True))


@pytest.mark.parametrize("packed", [False, True])
def test_idx_files_in_a_folder(tmp_path, packed):
    write_idx(tmp_path / "mnist", packed)
    source = load_source(str(tmp_path / "mnist"))
    assert np.array_equal(source.images[..., 0], GREY[:5])
    assert source.labels.tolist() == [5, 0, 4, 1, 9]
    assert np.array_equal(source.test_images[..., 0], GREY[5:])
    assert source.class_names == tuple("0123456789")
    assert source.trusted


def test_a_cut_idx_file(tmp_path):
    file = tmp_path / "train-images-idx3-ubyte"
    for length in (0, 3, 10, 40):
        file.write_bytes(idx(GREY)[:length])
        with pytest.raises(DataError) as caught:
            read_idx(file)
        assert caught.value.code == "FS302"
        assert str(file) in caught.value.message


def cifar10_files():
    files = {f"data_batch_{i + 1}.bin": cifar(COLOUR[2 * i : 2 * i + 2], [2 * i % 10, 9]) for i in range(5)}
    return files | {"test_batch.bin": cifar(COLOUR[10:], [3, 1])}


def test_cifar10_binary_files(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for name, raw in cifar10_files().items():
        (folder / name).write_bytes(raw)
    (folder / "batches.meta.txt").write_text("\n".join(f"name{i}" for i in range(10)) + "\n\n")
    source = load_source(str(folder))
    assert np.array_equal(source.images, COLOUR[:10])
    assert source.labels.tolist() == [0, 9, 2, 9, 4, 9, 6, 9, 8, 9]
    assert source.test_labels.tolist() == [3, 1]
    assert source.class_names[:2] == ("name0", "name1")
    (folder / "test_batch.bin").write_bytes(b"x" * 100)
    with pytest.raises(DataError) as caught:
        load_source(str(folder))
    assert caught.value.code == "FS302"


def test_cifar100_binary_files_give_the_fine_classes(tmp_path):
    (tmp_path / "train.bin").write_bytes(cifar(COLOUR[:3], [19, 0, 1], [99, 5, 7]))
    (tmp_path / "test.bin").write_bytes(cifar(COLOUR[3:5], [1, 2], [3, 4]))
    source = load_source(str(tmp_path))
    assert source.labels.tolist() == [99, 5, 7]
    assert np.array_equal(source.images, COLOUR[:3])


def test_pickled_cifar_is_not_opened(tmp_path):
    (tmp_path / "data_batch_1").write_bytes(b"cos\nsystem\n(S'touch broken'\ntR.")
    with pytest.raises(DataError) as caught:
        load_source(str(tmp_path))
    assert caught.value.code == "FS302"
    assert "pickles" in caught.value.message


def write_svhn(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name, part, y in (("train", COLOUR[:3], [10, 1, 9]), ("test", COLOUR[3:5], [2, 10])):
        savemat(folder / f"{name}_32x32.mat", {"X": part.transpose(1, 2, 3, 0), "y": np.array(y)[:, None]})


def test_svhn_calls_the_digit_0_ten(tmp_path):
    write_svhn(tmp_path / "svhn")
    source = load_source(str(tmp_path / "svhn"))
    assert np.array_equal(source.images, COLOUR[:3])
    assert source.labels.tolist() == [0, 1, 9]
    assert source.test_labels.tolist() == [2, 0]


def test_a_file_that_only_has_svhn_s_name(tmp_path):
    write_svhn(tmp_path / "svhn")
    savemat(tmp_path / "svhn" / "test_32x32.mat", {"X": np.zeros((2, 2))})
    with pytest.raises(DataError, match=r"test_32x32\.mat: not SVHN's file") as caught:
        load_source(str(tmp_path / "svhn"))
    assert caught.value.code == "FS302"


def tar(files):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, raw in files.items():
            member = tarfile.TarInfo(f"inner/{name}")
            member.size = len(raw)
            archive.addfile(member, io.BytesIO(raw))
    return packed.getvalue()


def place(cache, name):
    """The files of a data set as if they had been carried there, and their checksums."""
    folder = cache / "downloads" / name
    folder.mkdir(parents=True)
    if name in ("mnist", "fashion-mnist"):
        write_idx(folder, packed=True)
    elif name == "svhn":
        write_svhn(folder)
    elif name == "cifar10":
        (folder / "cifar-10-binary.tar.gz").write_bytes(tar(cifar10_files()))
    else:
        files = {
            "train.bin": cifar(COLOUR[:3], [19, 0, 1], [99, 5, 7]),
            "test.bin": cifar(COLOUR[3:5], [1, 2], [3, 4]),
            "fine_label_names.txt": "\n".join(f"fine{i}" for i in range(100)).encode(),
        }
        (folder / "cifar-100-binary.tar.gz").write_bytes(tar(files))
    return {file.name: hashlib.md5(file.read_bytes()).hexdigest() for file in folder.iterdir()}


@pytest.mark.parametrize("name", list(download.PUBLISHED))
def test_get_turns_published_files_into_arrays(name, cache, monkeypatch):
    sums = place(cache, name)
    assert set(sums) == set(download.PUBLISHED[name].files)
    monkeypatch.setitem(download.PUBLISHED, name, replace(download.PUBLISHED[name], files=sums))
    said = download.fetch(name)
    assert str(cache / f"{name}.npz") in said
    source = load_source(name)
    assert np.array_equal(
        source.images[..., :1], (GREY[:5, :, :, None] if "mnist" in name else COLOUR)[: len(source.images), ..., :1]
    )
    first = {"mnist": 5, "fashion-mnist": 5, "svhn": 0, "cifar10": 0, "cifar100": 99}
    assert source.labels[0] == first[name]
    if name == "cifar100":
        assert source.class_names[99] == "fine99"
    assert "already" in download.fetch(name)


def test_get_refuses_damaged_files(cache):
    place(cache, "mnist")
    with pytest.raises(DataError) as caught:
        download.fetch("mnist")
    assert caught.value.code == "FS310"
    assert "f68b3c2dcbeaaa9fbdd348bbdeb94873" in caught.value.message
    assert not (cache / "mnist.npz").exists()


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"no archive", "cannot be unpacked"),
        (tar({"data_batch_1.bin": b""}), "lacks data_batch_2.bin, data_batch_3.bin"),
    ],
)
def test_get_refuses_archives_of_something_else(cache, monkeypatch, raw, says):
    place(cache, "cifar10")
    (cache / "downloads" / "cifar10" / "cifar-10-binary.tar.gz").write_bytes(raw)
    sums = {"cifar-10-binary.tar.gz": hashlib.md5(raw).hexdigest()}
    monkeypatch.setitem(download.PUBLISHED, "cifar10", replace(download.PUBLISHED["cifar10"], files=sums))
    with pytest.raises(DataError, match=says) as caught:
        download.fetch("cifar10")
    assert caught.value.code == "FS302"
    assert not (cache / "cifar10.npz").exists()


def test_get_without_a_network_says_what_to_put_where(cache, monkeypatch):
    def nothing(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr(download, "urlopen", nothing)
    with pytest.raises(DataError) as caught:
        download.fetch("cifar10")
    assert caught.value.code == "FS312"
    assert "cifar-10-binary.tar.gz" in caught.value.message
    assert str(cache / "downloads" / "cifar10" / "cifar-10-binary.tar.gz") in caught.value.message
    assert list((cache / "downloads" / "cifar10").iterdir()) == []
    with pytest.raises(ConfigError) as caught:
        download.fetch("cifar11")
    assert caught.value.code == "FS004"
    assert "cifar10" in caught.value.message


def test_get_downloads_what_is_missing(cache, monkeypatch, capsys):
    sums = place(cache, "svhn")
    folder = cache / "downloads" / "svhn"
    raw = (folder / "test_32x32.mat").read_bytes()
    (folder / "test_32x32.mat").unlink()
    asked = []

    class Reply(io.BytesIO):
        headers = {"Content-Length": str(len(raw))}

    monkeypatch.setattr(download, "urlopen", lambda address, timeout: asked.append(address) or Reply(raw))
    monkeypatch.setitem(download.PUBLISHED, "svhn", replace(download.PUBLISHED["svhn"], files=sums))
    download.fetch("svhn")
    assert asked == ["http://ufldl.stanford.edu/housenumbers/test_32x32.mat"]
    assert (folder / "test_32x32.mat").read_bytes() == raw
    assert "downloading test_32x32.mat" in capsys.readouterr().err
