"""Features on disk: computed once, resumed after being cut off, mended when damaged, shared by processes."""

import json
import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedsieve.cli import app
from fedsieve.data.features import Hog, Pixels, cache, features_of
from fedsieve.errors import ConfigError, DataError

ROWS = 10


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(cache, "CHUNK", 3)


@pytest.fixture
def images():
    return np.random.default_rng(0).integers(0, 256, (ROWS, 4, 5, 3), np.uint8)


class Counted:
    """Pixels that write down how many images they were asked for, and may stop after so many calls."""

    name, key = "counted", "counted"

    def __init__(self, log: Path, calls: int = 100, stop=KeyboardInterrupt) -> None:
        self.log, self.left, self.stop = log, calls, stop

    def __call__(self, images):
        if not self.left:
            raise self.stop
        self.left -= 1
        with self.log.open("a") as file:
            file.write(f"{len(images)}\n")
        return Pixels()(images)


class Given:
    """A map that answers with what it was made with."""

    name, key = "given", "given"

    def __init__(self, *answers) -> None:
        self.answers = list(answers)

    def __call__(self, images):
        return self.answers.pop(0)


@pytest.fixture
def log(tmp_path):
    return tmp_path / "log"


def asked(log):
    return [int(line) for line in log.read_text().split()] if log.exists() else []


def table_of(folder):
    (file,) = folder.glob("*.npy")
    return file


def test_features_are_computed_once_and_mapped(tmp_path, images, log):
    for _ in range(2):
        found = features_of(images, Counted(log), tmp_path)
        assert isinstance(found, np.memmap)
        assert found.dtype == np.float32
        assert np.array_equal(found, Pixels()(images))
    assert asked(log) == [3, 3, 3, 1]
    assert np.array_equal(np.load(table_of(tmp_path)), found), "the file is an ordinary .npy"


def test_writing_to_the_features_leaves_the_file_alone(tmp_path, images):
    features_of(images, Pixels(), tmp_path)[:] = 7
    assert np.array_equal(features_of(images, Pixels(), tmp_path), Pixels()(images))


def test_other_images_and_other_maps_have_tables_of_their_own(tmp_path, images):
    changed = images.copy()
    changed[-1, -1, -1, -1] ^= 1
    larger = np.random.default_rng(1).integers(0, 256, (ROWS, 16, 16, 3), np.uint8)
    for these, feature_map in [(images, Pixels()), (changed, Pixels()), (larger, Pixels()), (larger, Hog())]:
        assert np.array_equal(features_of(these, feature_map, tmp_path), feature_map(these))
    assert len(list(tmp_path.glob("*.npy"))) == 4


def test_huge_images_are_told_apart_by_a_sample(images, monkeypatch):
    many = np.repeat(images, 300, axis=0)
    whole = cache.table_key(many, Pixels())
    monkeypatch.setattr(cache, "HASHED_WHOLE", many.nbytes - 1)
    sampled = cache.table_key(many, Pixels())
    assert sampled != whole
    many[0] ^= 1
    assert cache.table_key(many, Pixels()) != sampled


@pytest.mark.parametrize("calls", [0, 1, 3])
def test_work_that_was_cut_off_goes_on(tmp_path, images, log, calls):
    with pytest.raises(KeyboardInterrupt):
        features_of(images, Counted(log, calls), tmp_path)
    counts = []

    class Progress:
        def __init__(self, what, total, done):
            counts.extend([total, done])

        def __enter__(self):
            return counts.append

        def __exit__(self, *_):
            pass

    found = features_of(images, Counted(log), tmp_path, Progress)
    assert np.array_equal(found, Pixels()(images))
    assert asked(log) == [3, 3, 3, 1], "no finished chunk is computed again"
    assert counts[:2] == [ROWS, 3 * calls]
    assert sum(counts[2:]) == ROWS - 3 * calls


def truncate(file):
    os.truncate(file, file.stat().st_size - 70)


def flip(file):
    content = bytearray(file.read_bytes())
    content[-100] ^= 1
    file.write_bytes(content)


def spoil_header(file):
    content = bytearray(file.read_bytes())
    content[10] ^= 1
    file.write_bytes(content)


def break_ledger(file):
    file.with_suffix(".json").write_text('{"torn')


@pytest.mark.parametrize(
    ("damage", "again"),
    [
        (truncate, [1]),
        (flip, [1]),
        (lambda file: file.open("ab").write(b"more"), []),
        (spoil_header, [3, 3, 3, 1]),
        (lambda file: file.write_bytes(b""), [3, 3, 3, 1]),
        (lambda file: file.unlink(), [3, 3, 3, 1]),
        (break_ledger, [3, 3, 3, 1]),
        (lambda file: file.with_suffix(".json").unlink(), [3, 3, 3, 1]),
    ],
    ids=["truncated", "flipped", "longer", "header", "empty", "gone", "ledger", "no ledger"],
)
def test_what_was_damaged_is_computed_again(tmp_path, images, log, damage, again):
    features_of(images, Counted(log), tmp_path)
    log.unlink()
    damage(table_of(tmp_path))
    assert np.array_equal(features_of(images, Counted(log), tmp_path), Pixels()(images))
    assert asked(log) == again


def test_a_reader_keeps_its_features_while_the_file_is_made_anew(tmp_path, images):
    before = features_of(images, Pixels(), tmp_path)
    break_ledger(table_of(tmp_path))
    features_of(images, Pixels(), tmp_path)
    assert np.array_equal(before, Pixels()(images))


def in_processes(count, work):
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=work) for _ in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    return [process.exitcode for process in processes]


def test_processes_at_once_share_the_work(tmp_path, images, log):
    def work():
        assert np.array_equal(features_of(images, Counted(log), tmp_path), Pixels()(images))

    assert in_processes(4, work) == [0] * 4
    assert asked(log) == [3, 3, 3, 1]


def test_a_process_that_dies_leaves_its_chunks_and_no_lock(tmp_path, images, log):
    class Fatal(Counted):
        def __call__(self, images):
            if not self.left:
                os._exit(9)
            return super().__call__(images)

    assert in_processes(1, lambda: features_of(images, Fatal(log, 2), tmp_path)) == [9]
    assert np.array_equal(features_of(images, Counted(log), tmp_path), Pixels()(images))
    assert asked(log) == [3, 3, 3, 1]


def rows(n, d, dtype=np.float32):
    return np.ones((n, d), dtype)


@pytest.mark.parametrize(
    ("answers", "code"),
    [
        ([rows(2, 4)], "FS006"),
        ([rows(3, 4, np.float64)], "FS006"),
        ([np.ones((3, 4, 1), np.float32)], "FS006"),
        ([rows(3, 4), rows(3, 5)], "FS006"),
        ([rows(3, 4), rows(3, 4) * np.nan], "FS304"),
    ],
)
def test_maps_that_break_their_promise_are_refused(tmp_path, images, answers, code):
    with pytest.raises((ConfigError, DataError), match=code) as caught:
        features_of(images, Given(*answers), tmp_path)
    assert "given" in str(caught.value)


def test_no_images_are_refused(tmp_path):
    with pytest.raises(DataError, match="FS309"):
        features_of(np.empty((0, 4, 4, 3), np.uint8), Pixels(), tmp_path)


@pytest.fixture
def command(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSIEVE_DATA", str(tmp_path / "cache"))

    def call(*words):
        return CliRunner().invoke(app, ["features", *map(str, words)])

    return call


@pytest.mark.parametrize("part", ["train", "test"])
def test_the_command_writes_a_file(command, tmp_path, tiny_file, part):
    out = tmp_path / "new" / "pixels.npy"
    result = command(tiny_file, "--map", "pixels", "--part", part, "--out", out, "--json")
    assert result.exit_code == 0, result.output
    with np.load(tiny_file) as data:
        stored = data[f"x_{part}"]
    assert np.array_equal(np.load(out), Pixels()(stored))
    said = json.loads(result.stdout)
    assert (said["rows"], said["features"], said["key"]) == (len(stored), 144, Pixels().key)
    assert f"pixels features: 0 of {len(stored)}" in result.stderr
    assert [path.name for path in out.parent.iterdir()] == ["pixels.npy"]
    assert len(list((tmp_path / "cache" / "features").glob("*.npy"))) == 1


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--map", "pixels", "--out", "f.npz"], "FS002"),
        (["--map", "pixels", "--size", "9", "--out", "f.npy"], "FS002"),
        (["--map", "hogg", "--out", "f.npy"], "FS004"),
        (["--map", "resnet50", "--out", "f.npy"], "FS301"),
        (["--map", "none.safetensors", "--out", "f.npy"], "FS301"),
        (["--map", "hog", "--out", "f.npy"], "FS309"),
    ],
)
def test_the_command_refuses(command, tiny_file, words, code):
    assert getattr(command(tiny_file, *words).exception, "code", None) == code


def test_an_interruption_says_how_to_go_on(command, tmp_path, tiny_file, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Pixels, "__call__", interrupted)
    problem = command(tiny_file, "--map", "pixels", "--out", tmp_path / "f.npy").exception
    assert problem.code == "FS216"
    assert problem.exit_code == 130
