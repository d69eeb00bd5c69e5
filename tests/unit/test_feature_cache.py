"""Features on disk: computed once, resumed after being cut off, mended when damaged, shared by processes."""

import json
import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from fedsieve.base.errors import ConfigError, DataError
from fedsieve.cli.app import app
from fedsieve.data.features import Encoder, Hog, Pixels, cache, features_of
from fedsieve.models import build_model

ROWS = 10


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(cache, "BATCH", 1)
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
    return sum(int(line) for line in log.read_text().split()) if log.exists() else 0


def rows_in(folder):
    (file,) = folder.glob("*.rows")
    return file


def index_in(folder):
    (file,) = folder.glob("*.index")
    return file


def test_features_are_computed_once_and_mapped(tmp_path, images, log):
    for _ in range(2):
        found = features_of(images, Counted(log), tmp_path)
        assert isinstance(found, np.memmap)
        assert found.dtype == np.float32
        assert np.array_equal(found, Pixels()(images))
    assert asked(log) == ROWS


def test_writing_to_the_features_leaves_the_file_alone(tmp_path, images):
    features_of(images, Pixels(), tmp_path)[:] = 7
    assert np.array_equal(features_of(images, Pixels(), tmp_path), Pixels()(images))


def test_other_images_and_other_maps_have_features_of_their_own(tmp_path, images):
    changed = images.copy()
    changed[-1, -1, -1, -1] ^= 1
    larger = np.random.default_rng(1).integers(0, 256, (ROWS, 16, 16, 3), np.uint8)
    turned = images.transpose(0, 2, 1, 3)
    for these, feature_map in [(images, Pixels()), (changed, Pixels()), (larger, Pixels()), (larger, Hog())]:
        assert np.array_equal(features_of(these, feature_map, tmp_path), feature_map(these))
    same_bytes = np.ascontiguousarray(turned).reshape(images.shape)
    assert np.array_equal(features_of(same_bytes, Pixels(), tmp_path), Pixels()(same_bytes))


def test_an_image_is_known_whatever_else_is_asked_for(tmp_path, images, log):
    features_of(images[:6], Counted(log), tmp_path)
    for places in ([7, 2, 5, 9], [3, 3, 7], [9, 8, 7]):
        found = features_of(images[places], Counted(log), tmp_path)
        assert np.array_equal(found, Pixels()(images[places]))
    assert asked(log) == 6 + 2 + 0 + 1


def test_the_same_image_twice_is_computed_once(tmp_path, images, log):
    twice = images[[0, 1, 0, 1]]
    assert np.array_equal(features_of(twice, Counted(log), tmp_path), Pixels()(twice))
    assert asked(log) == 2


def test_maps_always_get_batches_of_one_size(tmp_path, images, log, monkeypatch):
    monkeypatch.setattr(cache, "BATCH", 4)
    monkeypatch.setattr(cache, "CHUNK", 8)
    assert np.array_equal(features_of(images, Counted(log), tmp_path), Pixels()(images))
    assert log.read_text().split() == ["4", "4", "4"]


def test_features_of_a_net_do_not_depend_on_what_else_is_asked_for(tmp_path, monkeypatch):
    """To the last bit: in batches of one size a sample's numbers are its own."""
    monkeypatch.setattr(cache, "BATCH", 8)
    torch.manual_seed(0)
    encoder = Encoder(build_model("cnn4", (3, 32, 32), 10), (0.5,) * 3, (0.5,) * 3)
    images = np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), np.uint8)
    whole = features_of(images, encoder, tmp_path / "whole")
    order = np.random.default_rng(1).permutation(20)
    for size in (1, 3, 7):
        for start in range(0, 20, size):
            these = order[start : start + size]
            assert np.array_equal(features_of(images[these], encoder, tmp_path / f"by {size}"), whole[these])


@pytest.mark.parametrize("calls", [0, 1, 3, 7])
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
    kept = calls // 3 * 3
    assert asked(log) == ROWS + calls - kept, "no finished chunk is computed again"
    assert counts[:2] == [ROWS, kept]
    assert sum(counts[2:]) == ROWS - kept


def shorten(file):
    os.truncate(file, file.stat().st_size - 7)


def lengthen(file):
    with file.open("ab") as handle:
        handle.write(b"more")


def flip(file):
    content = bytearray(file.read_bytes())
    content[-30] ^= 1
    file.write_bytes(content)


def empty(file):
    file.write_bytes(b"")


@pytest.mark.parametrize("which", [rows_in, index_in])
@pytest.mark.parametrize(
    ("damage", "again"),
    [(shorten, 1), (lengthen, 0), (flip, 1), (empty, ROWS), (Path.unlink, ROWS)],
    ids=["shorter", "longer", "flipped", "empty", "gone"],
)
def test_what_was_damaged_is_computed_again(tmp_path, images, log, which, damage, again):
    features_of(images, Counted(log), tmp_path)
    log.unlink()
    damage(which(tmp_path))
    assert np.array_equal(features_of(images, Counted(log), tmp_path), Pixels()(images))
    assert asked(log) == again
    assert np.array_equal(features_of(images[::-1], Counted(log), tmp_path), Pixels()(images[::-1]))
    assert asked(log) == again, "mended for good"


def test_every_flipped_byte_is_found(tmp_path, images):
    few = images[:2]
    features_of(few, Pixels(), tmp_path)
    for file in (index_in(tmp_path), rows_in(tmp_path)):
        content = file.read_bytes()
        for place in range(len(content)):
            other = tmp_path / "flipped" / file.stem
            other.parent.mkdir(exist_ok=True)
            for suffix in (".rows", ".index"):
                other.with_suffix(suffix).write_bytes(file.with_suffix(suffix).read_bytes())
            spoilt = bytearray(content)
            spoilt[place] ^= 255
            other.with_suffix(file.suffix).write_bytes(spoilt)
            assert np.array_equal(features_of(few, Pixels(), other.parent), Pixels()(few)), (file.suffix, place)


def test_a_reader_keeps_its_features_while_others_add(tmp_path, images):
    before = features_of(images[:4], Pixels(), tmp_path)
    flip(index_in(tmp_path))
    features_of(images, Pixels(), tmp_path)
    assert np.array_equal(before, Pixels()(images[:4]))


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
    assert asked(log) == ROWS


def test_processes_at_once_add_to_the_same_files(tmp_path, log):
    images = np.random.default_rng(0).integers(0, 256, (200, 4, 5, 3), np.uint8)

    def work():
        for start in np.random.default_rng(os.getpid()).permutation(180)[:20]:
            these = images[start : start + 20]
            assert np.array_equal(features_of(these, Pixels(), tmp_path), Pixels()(these))

    assert in_processes(4, work) == [0] * 4


def test_a_process_that_dies_leaves_its_chunks_and_no_lock(tmp_path, images, log):
    class Fatal(Counted):
        def __call__(self, images):
            if not self.left:
                os._exit(9)
            return super().__call__(images)

    assert in_processes(1, lambda: features_of(images, Fatal(log, 7), tmp_path)) == [9]
    assert np.array_equal(features_of(images, Counted(log), tmp_path), Pixels()(images))
    assert asked(log) == 7 + ROWS - 6


def rows(n, d, dtype=np.float32):
    return np.ones((n, d), dtype)


@pytest.mark.parametrize(
    ("answers", "code"),
    [
        ([rows(2, 4)], "FS006"),
        ([rows(1, 4, np.float64)], "FS006"),
        ([np.ones((1, 4, 1), np.float32)], "FS006"),
        ([rows(1, 4), rows(1, 5)], "FS006"),
        ([rows(1, 4)] * 9 + [rows(1, 5)], "FS006"),
        ([rows(1, 4), rows(1, 4) * np.nan], "row 1.*FS304"),
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
    assert rows_in(tmp_path / "cache" / "features").stat().st_size == said["rows"] * said["features"] * 4


def test_the_command_says_what_it_wrote(command, tmp_path, tiny_file):
    out = tmp_path / "pixels.npy"
    result = command(tiny_file, "--map", "pixels", "--out", out, "--quiet")
    rows, width = np.load(out).shape
    assert result.stdout == f"{out}: {rows:,} rows of {width:,} pixels features\n"
    assert result.stderr == ""


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
