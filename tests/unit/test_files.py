"""Files are either whole or not there, and every flipped byte is noticed."""

import errno
import json
import os
from pathlib import Path

import pytest
import torch

from fedsieve.base.disk import append_bytes
from fedsieve.base.files import (
    Damaged,
    private_folder,
    read_json,
    read_tensors,
    write_bytes,
    write_json,
    write_tensors,
)
from fedsieve.core.client_states import ClientStates

CONTENT = {"a": [1, 2.5, None, True], "b": {"c": "häh"}}
TENSORS = {
    "x": torch.arange(6.0).view(2, 3),
    "mask": torch.tensor([True, False]),
    "n": torch.tensor(7),
    "none": torch.empty(0, 3),
}


def test_json_round_trip(tmp_path):
    write_json(tmp_path / "x.json", CONTENT)
    assert read_json(tmp_path / "x.json") == CONTENT


def test_tensor_round_trip(tmp_path):
    write_tensors(tmp_path / "deep" / "x.safetensors", TENSORS | {"t": TENSORS["x"].t()})
    found = read_tensors(tmp_path / "deep" / "x.safetensors")
    assert found.keys() == {*TENSORS, "t"}
    for name, tensor in (TENSORS | {"t": TENSORS["x"].t()}).items():
        assert torch.equal(found[name], tensor)
        assert found[name].dtype == tensor.dtype


@pytest.mark.parametrize("kind", ["json", "tensors"])
@pytest.mark.parametrize("change", [0x01, 0x80, 0xFF], ids=hex)
def test_every_flipped_byte_is_noticed(tmp_path, kind, change):
    path = tmp_path / "x"
    write, read, content = {
        "json": (write_json, read_json, CONTENT),
        "tensors": (write_tensors, read_tensors, TENSORS),
    }[kind]
    write(path, content)
    whole = path.read_bytes()
    for place in range(len(whole)):
        broken = bytearray(whole)
        broken[place] ^= change
        path.write_bytes(bytes(broken))
        with pytest.raises(Damaged):
            read(path)


@pytest.mark.parametrize("kind", ["json", "tensors"])
def test_every_truncation_is_noticed(tmp_path, kind):
    path = tmp_path / "x"
    if kind == "json":
        write_json(path, CONTENT)
    else:
        write_tensors(path, TENSORS)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(Damaged):
            (read_json if kind == "json" else read_tensors)(path)


@pytest.mark.parametrize("content", [b"[]", b"3", b"null", b'{"sha256": 1}', b'{"content": 1, "sha256": "x"}'])
def test_other_json_is_damaged(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(Damaged):
        read_json(tmp_path / "x")


def test_a_file_without_checksum_is_damaged(tmp_path):
    from safetensors.torch import save

    (tmp_path / "x").write_bytes(save(TENSORS))
    with pytest.raises(Damaged):
        read_tensors(tmp_path / "x")


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_crash_while_writing_leaves_the_old_file(tmp_path, monkeypatch, step):
    path = tmp_path / "x"
    write_bytes(path, b"old")

    def crash(*_):
        raise OSError("no power")

    if step == "fsync":
        monkeypatch.setattr("fedsieve.base.disk.os.fsync", crash)
    else:
        monkeypatch.setattr(Path, "replace", crash)
    with pytest.raises(OSError, match="no power"):
        write_bytes(path, b"new")
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize("write", [write_bytes, append_bytes])
def test_a_full_disk_is_told_with_the_name_of_the_file(tmp_path, monkeypatch, write):
    path = tmp_path / "x"
    write_bytes(path, b"old")

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("fedsieve.base.disk.os.fsync", full)
    with pytest.raises(OSError, match="No space left") as problem:
        write(path, b"new")
    assert (problem.value.errno, problem.value.filename) == (errno.ENOSPC, str(path))
    assert list(tmp_path.iterdir()) == [path], "nothing half written stays"


@pytest.mark.parametrize("read", [read_json, read_tensors])
def test_a_missing_file_and_a_link_are_told(tmp_path, read):
    with pytest.raises(Damaged, match="x is missing"):
        read(tmp_path / "x")
    (tmp_path / "link").symlink_to(tmp_path / "x")
    with pytest.raises(Damaged, match="link is a link, which no run writes"):
        read(tmp_path / "link")


def test_a_file_appears_only_when_it_is_whole(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr("fedsieve.base.disk.os.fsync", lambda fd: seen.append((tmp_path / "x").exists()))
    write_bytes(tmp_path / "x", b"new")
    assert seen == [False, True], "content first, then the folder"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_no_pickle_and_nothing_but_json(tmp_path):
    with pytest.raises(TypeError):
        write_json(tmp_path / "x", {"a": object()})
    write_json(tmp_path / "y", CONTENT)
    assert json.loads((tmp_path / "y").read_text())["content"] == CONTENT


def mode(path):
    return oct(path.stat().st_mode & 0o777)


@pytest.fixture(params=[0o000, 0o022, 0o277], ids=oct)
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_private_folders_and_files_are_their_owners_alone(tmp_path, umask):
    os.umask(0o022)
    (tmp_path / "open").mkdir(mode=0o777)
    os.umask(umask)
    assert mode(private_folder(tmp_path / "new")) == "0o700"
    assert mode(private_folder(tmp_path / "open")) == "0o700", "one that was open before is closed"
    if umask != 0o277:
        assert mode(private_folder(tmp_path / "deep" / "er")) == "0o700"
        write_bytes(tmp_path / "key", b"secret", private=True)
        write_tensors(tmp_path / "tensors", TENSORS)
        write_json(tmp_path / "json", CONTENT)
        assert [mode(tmp_path / name) for name in ("key", "tensors", "json")] == ["0o600"] * 3
        write_bytes(tmp_path / "page", b"public")
        assert mode(tmp_path / "page") == oct(0o666 & ~umask)


def test_a_private_file_is_never_open_for_a_moment(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr("fedsieve.base.disk.os.fsync", lambda fd: seen.append(oct(os.fstat(fd).st_mode & 0o777)))
    write_bytes(tmp_path / "key", b"secret", private=True)
    assert seen[0] == "0o600"


def test_states_of_clients_are_private(tmp_path):
    states = ClientStates(tmp_path / "states")
    states.save(3, 1, {"x": torch.ones(2)}, set())
    assert mode(states.folder) == "0o700"
    assert mode(states.path(3, 1)) == "0o600"


def test_a_link_that_lies_in_wait_is_not_followed(tmp_path):
    (tmp_path / "victim").write_bytes(b"mine")
    (tmp_path / f".x.{os.getpid()}.tmp").symlink_to(tmp_path / "victim")
    write_bytes(tmp_path / "x", b"new")
    assert (tmp_path / "victim").read_bytes() == b"mine"
    assert (tmp_path / "x").read_bytes() == b"new"
    assert not (tmp_path / "x").is_symlink()
