"""Messages survive Flower's records, its serialisation included, bit for bit."""

import json

import pytest
import torch
from flwr.app import ConfigRecord, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto

from fedsieve.core.types import Answer, Down, Mail, Question, Up
from fedsieve.flower.briefing import Briefing
from fedsieve.flower.records import ARRAYS, NUMBERS, TREE, Packer, unpack

MAIL = Mail(1, 2, 3, 4, 5, 6, (7, 8))
MODEL = torch.tensor([0.1, -0.0, float("nan"), float("inf"), 1e-45])
MESSAGES = [
    Down(MAIL, (MODEL, MODEL), {"P": {"x": torch.eye(2), "n": 3, "f": 0.1, "b": True, "s": "text"}, "Q": {}}, 5),
    Up(1, 2, 3, 0, (MODEL,), {"P": {"x": torch.tensor(2), "half": torch.ones(3, dtype=torch.bfloat16)}}, 9, 0.1),
    Up(1, 2, 3, 0, None, {}, 9, 0.0, "no samples"),
    Question(MAIL, "P", "topic", {"tensor": 1, "map": 2, "message": 3}, None),
    Answer(3, {"a": torch.zeros(0, 2), "mask": torch.tensor([True, False]), "big": 2**53 + 1}, 4),
    (MAIL, (MODEL,), 40, None),
    {"error": "RunError", "code": "FS210", "message": "no"},
    torch.arange(5, dtype=torch.int32),
]


def same(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and _bits(a) == _bits(b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if hasattr(a, "__dataclass_fields__"):
        return type(a) is type(b) and same(dict(vars(a)), dict(vars(b)))
    return type(a) is type(b) and a == b


def _bits(tensor):
    return tensor.reshape(-1).view(torch.uint8).tolist()


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_messages_survive(message):
    sent = recorddict_from_proto(recorddict_to_proto(Packer().pack(message)))
    assert same(unpack(sent), message)


def test_each_kind_of_content_has_its_record():
    records = Packer().pack(MESSAGES[1])
    assert dict(records.metric_records[NUMBERS]) == {
        "client": 1,
        "round": 2,
        "n": 3,
        "group": 0,
        "version": 9,
        "loss": 0.1,
    }
    assert list(records.array_records[ARRAYS]) == ["0.float32", "1.int64", "2.bfloat16"]
    assert json.loads(records.config_records[TREE]["json"])["message"] == "Up"


def test_a_tensor_for_many_is_serialised_once():
    packer = Packer()
    first, second = (packer.pack(Up(k, 0, 1, 0, (MODEL,), {}, 0, 0.0)) for k in (0, 1))
    assert first.array_records[ARRAYS]["0.float32"].data is second.array_records[ARRAYS]["0.float32"].data


def test_numbers_cannot_smuggle_in_another_message():
    records = Packer().pack({"plain": 1})
    records[NUMBERS]["client"] = 3
    with pytest.raises(KeyError):
        unpack(records)


def test_briefings_survive():
    briefing = Briefing(
        {"method": "fedrn", "noise.map": {"1": 2}}, 3, "0" * 32, 4, ("a", "b"), (0.1,), (0.2,), ("clean",)
    )
    assert Briefing.of(briefing.to(RecordDict({"x": ConfigRecord({"y": 1})}))) == briefing
