"""MATLAB's files of version 5: as SciPy reads them, and a damaged one is a typed error."""

import random
import zlib
from contextlib import suppress

import numpy as np
import pytest
from scipy.io import loadmat, savemat

from fedsieve.base.errors import DataError
from fedsieve.data.sources.limits import check_bytes
from fedsieve.data.sources.mat_file import read_mat

RNG = np.random.default_rng(0)
ARRAYS = {
    "X": RNG.integers(0, 256, (4, 5, 3, 2), np.uint8),
    "y": np.array([[10], [1], [2]], np.uint8),
    "wide": RNG.normal(size=(3, 7)),
    "single": RNG.normal(size=(2, 2)).astype(np.float32),
    "a_longer_name": RNG.integers(-9, 9, (1, 3)).astype(np.int64),
    "signed": RNG.integers(-9, 9, (3, 1)).astype(np.int16),
    "small_in_a_wide_class": np.array([[1.0, 2.0]]),
}


def save(file, arrays=ARRAYS, **options):
    savemat(file, arrays, **options)
    return file


@pytest.mark.parametrize("packed", [False, True])
def test_arrays_are_those_of_scipy(tmp_path, packed):
    file = save(tmp_path / "x.mat", do_compression=packed)
    wanted, found = loadmat(file), read_mat(file, 1.0)
    assert list(found) == list(ARRAYS)
    for name, array in found.items():
        assert np.array_equal(array, wanted[name])
        assert array.dtype == wanted[name].dtype


def test_numbers_may_be_stored_in_fewer_bytes_and_in_the_other_order(tmp_path):
    def element(kind, body):
        return kind.to_bytes(4, "big") + len(body).to_bytes(4, "big") + body + bytes(-len(body) % 8)

    flags = (6).to_bytes(4, "big") + bytes(4)
    sides = (2).to_bytes(4, "big") + (3).to_bytes(4, "big")
    parts = element(6, flags) + element(5, sides) + element(1, b"a") + element(2, bytes([1, 2, 3, 4, 5, 6]))
    file = tmp_path / "x.mat"
    file.write_bytes(b"MATLAB 5.0".ljust(124) + b"\x01\x00MI" + element(14, parts))
    found = read_mat(file, 1.0)["a"]
    assert found.tolist() == [[1, 3, 5], [2, 4, 6]], "by hand: column by column"
    assert found.dtype == np.float64
    assert np.array_equal(loadmat(file)["a"], found)


def test_what_is_no_array_of_real_numbers_is_left_out(tmp_path):
    file = save(tmp_path / "x.mat", {"text": "abc", "many": {"a": 1.0}, "complex": np.array([[1j]]), "x": [[1.0]]})
    assert list(read_mat(file, 1.0)) == ["x"]


def test_more_than_the_limit_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    unpacked = []

    def noting(size, where, max_gb):
        unpacked.append(size)
        check_bytes(size, where, max_gb)

    monkeypatch.setattr("fedsieve.data.sources.mat_file.check_bytes", noting)
    file = save(tmp_path / "x.mat", {"x": np.zeros((1000, 100), np.uint8)}, do_compression=True)
    assert file.stat().st_size < 2000
    with pytest.raises(DataError, match=r"x\.mat: holds .* more than data\.max_gb"):
        read_mat(file, 5e-5)
    assert unpacked == [50_001], "of 100,000 and more"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda raw: raw[:40], "no MATLAB file"),
        (lambda raw: raw[:-40], "cut off"),
        (lambda raw: raw[:-5] + b"\xff\xff\xff\xff\xff", None),
        (lambda raw: raw[:160] + b"\xff\xff\xff\x7f" + raw[164:], "an array of shape"),
        (lambda raw: raw[:160] + b"\xff\xff\xff\xff" + raw[164:], "an array of shape"),
        (lambda raw: raw + b"\x02", "cut off"),
    ],
)
def test_damage_is_said(tmp_path, change, words):
    file = save(tmp_path / "x.mat", {"x": np.ones((3, 4))})
    file.write_bytes(change(file.read_bytes()))
    if words is None:
        assert read_mat(file, 1.0)["x"].shape == (3, 4)
    else:
        with pytest.raises(ValueError, match=words):
            read_mat(file, 1.0)


@pytest.mark.parametrize("packed", [False, True])
def test_no_damage_ends_the_process(tmp_path, packed):
    """SciPy's reader does not stand that."""
    chance, file = random.Random(0), tmp_path / "spoilt.mat"
    whole = save(tmp_path / "x.mat", do_compression=packed).read_bytes()
    for _ in range(400):
        place = chance.randrange(len(whole))
        flipped = bytearray(whole)
        flipped[place] ^= 1 << chance.randrange(8)
        lost = whole[:place] + whole[place + chance.randrange(1, 40) :]
        for content in (bytes(flipped), whole[:place], lost):
            file.write_bytes(content)
            with suppress(ValueError, zlib.error, DataError):
                read_mat(file, 1.0)
