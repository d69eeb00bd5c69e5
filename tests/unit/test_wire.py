"""Messages as plain data, tensors in shared memory, and streams of randomness."""

import json
import os

import numpy as np
import pytest
import torch

from fedsieve.base.rng import numpy_rng, stream, torch_rng
from fedsieve.core.types import Answer, Down, Mail, Question, Up
from fedsieve.runtime.arena import ALIGNMENT, Arena
from fedsieve.runtime.crew import unnamed_file
from fedsieve.runtime.wire import decode, encode

MAIL = Mail(1, 2, 3, 4, 5, 6, (7, 8))
MODEL = torch.arange(4.0)
MESSAGES = [
    MAIL,
    Down(MAIL, (MODEL, MODEL), {"P": {"x": torch.eye(2), "n": 3, "f": 0.1, "b": True, "s": "text"}, "Q": {}}, 5),
    Up(1, 2, 3, 0, (MODEL,), {"P": {"x": torch.tensor(2)}}, 9, 0.25),
    Up(1, 2, 3, 0, None, {}, 9, 0.0, "no samples"),
    Question(MAIL, "P", "topic", {"tensor": 1, "map": 2, "message": 3}, None),
    Answer(3, {"a": torch.zeros(0, 2)}, 4),
]


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b) and a.dtype == b.dtype
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, tuple) and not hasattr(a, "_fields"):
        return len(a) == len(b) and all(map(same, a, b))
    if hasattr(a, "__dataclass_fields__"):
        return type(a) is type(b) and same(dict(vars(a)), dict(vars(b)))
    return type(a) is type(b) and a == b


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_messages_survive_json(message):
    tensors = []
    tree = json.loads(json.dumps(encode(message, tensors)))
    assert same(decode(tree, tensors), message)


def test_numbers_keep_every_digit():
    for value in (0.1, 1e-300, 2**53 + 1, float("inf"), -0.0):
        assert repr(decode(json.loads(json.dumps(encode(value, []))), [])) == repr(value)


@pytest.mark.parametrize(
    "value", [object(), {"x": {1, 2}}, (b"bytes",), np.zeros(2)], ids=["object", "set", "bytes", "array"]
)
def test_only_plain_data_travels(value):
    with pytest.raises(TypeError, match="cannot travel; payloads hold tensors, numbers, text and truth values"):
        encode(value, [])


@pytest.fixture
def fd():
    number = unnamed_file()
    yield number
    os.close(number)


TENSORS = [
    torch.arange(7, dtype=torch.int64),
    torch.randn(3, 5, generator=torch.Generator().manual_seed(0)).t(),
    torch.tensor(2.5),
    torch.tensor([True, False, True]),
    torch.empty(0, 4),
    torch.arange(9, dtype=torch.uint8),
    torch.ones(3, dtype=torch.bfloat16),
]


def test_another_reader_sees_the_same_tensors(fd):
    writer = Arena(fd)
    refs = [json.loads(json.dumps(writer.place(tensor))) for tensor in TENSORS]
    reader = Arena(fd)
    for ref, tensor in zip(refs, TENSORS, strict=True):
        assert ref[0] % ALIGNMENT == 0
        found = reader.view(ref)
        assert torch.equal(found, tensor)
        assert found.dtype == tensor.dtype


def test_the_very_same_tensor_is_placed_once(fd):
    arena = Arena(fd)
    assert arena.place(TENSORS[0]) == arena.place(TENSORS[0])
    assert arena.place(TENSORS[0].clone()) != arena.place(TENSORS[0])


def test_views_stay_valid_when_the_memory_grows(fd):
    writer, reader = Arena(fd), Arena(fd)
    small = torch.arange(5.0)
    early = reader.view(writer.place(small))
    large = torch.ones(1 << 19)
    late = reader.view(writer.place(large))
    assert torch.equal(early, small)
    assert torch.equal(late, large)


def test_after_a_reset_the_memory_is_used_again(fd):
    arena = Arena(fd)
    first = arena.place(torch.ones(4))
    arena.reset()
    second = arena.place(torch.zeros(4))
    assert first[0] == second[0] == 0
    assert arena.view(second).tolist() == [0.0] * 4


# Randomness


def test_a_stream_is_named_by_its_key_and_its_types():
    assert stream(0, "a", 1) == stream(0, "a", 1)
    keys = [(0,), (0, 0), ("0",), (0, "0"), ("0", 0), ("a", "b"), ("ab",), (1, 2), (12,), (-1,), ()]
    numbers = [stream(*key) for key in keys]
    assert len(set(numbers)) == len(numbers)
    assert all(0 <= number < 2**63 for number in numbers)


def test_streams_are_fixed_for_ever():
    """A change here changes every result ever published with a seed."""
    assert stream(0, "federation", "partition") == 6481554517673881005
    assert numpy_rng(0, "x").integers(0, 1000, 3).tolist() == [861, 348, 467]
    assert torch.randint(0, 1000, (3,), generator=torch_rng(0, "x")).tolist() == [151, 385, 938]


def test_neighbouring_streams_are_unrelated():
    draws = np.array([numpy_rng(0, client, "order").standard_normal(200) for client in range(20)])
    correlation = np.corrcoef(draws)[np.triu_indices(20, 1)]
    assert np.abs(correlation).max() < 0.35  # five standard deviations of 190 pairs


def test_the_global_generators_are_left_alone():
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002  # that is the point
    torch.rand(3, generator=torch_rng(0))
    numpy_rng(0).random(3)
    assert torch.equal(before, torch.get_rng_state())
    assert np.array_equal(numpy_before, np.random.get_state()[1])  # noqa: NPY002
