"""A hostile server: what a node of its own does with a briefing that asks for more than it should."""

import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from grid_here import app
from node_files import CLASSES, write_files

from fedsieve.base.errors import ConfigError, DataError, RunError
from fedsieve.core.types import Down, Mail
from fedsieve.flower import weights
from fedsieve.flower.briefing import RECORD, Briefing
from fedsieve.flower.identity import is_signed, sign
from fedsieve.flower.node import host_of, introduce, keep_public
from fedsieve.flower.records import Packer, unpack
from fedsieve.flower.vetting import AGREED, TAKEN, _takes_any_text, vet
from fedsieve.flower.weights import held_weights, keep_file, own_files
from fedsieve.methods import METHODS, method_options
from fedsieve.models import MODELS, options_of_model
from fedsieve.settings.config import resolve

RUN = "0123456789abcdef" * 2
PLAIN = {"method": "fedavg", "model": "cnn-lite", "rounds": 1}


@pytest.fixture
def node(tmp_path, monkeypatch):
    """The configuration of a node in a folder of its own, beside data that are not its."""
    write_files(tmp_path)
    (tmp_path / "trap.py").write_text('from pathlib import Path\nPath("sprung").touch()\ndef spring():\n    pass\n')
    monkeypatch.chdir(tmp_path)
    return {"data": str(tmp_path / "a.npz"), "state": str(tmp_path / "state"), "name": "a"}


def briefing(**settings):
    return Briefing({**PLAIN, **settings}, 0, RUN, 1, tuple(CLASSES), (0.5,), (0.25,), labelled=True)


def greeted(node, briefing_or_text):
    """The node's reply to a greeting, as the server opens it."""
    records = Packer().pack({"challenge": "c"})
    if isinstance(briefing_or_text, Briefing):
        briefing_or_text.to(records)
    else:
        records[RECORD] = ConfigRecord({"json": briefing_or_text})
    message = Message(records, 1, "query.greet")
    message.metadata.__dict__["_message_id"] = "m"
    return unpack(app(message, Context(1, 1, node, RecordDict(), {})).content)


@pytest.mark.parametrize("name", ["os:system", "subprocess:getoutput", "shutil:rmtree", "trap:spring"])
@pytest.mark.parametrize("key", ["method", "model"])
def test_a_message_runs_no_code(node, key, name):
    label = name.partition(":")[2]
    hostile = briefing(**{key: name}, **({f"{label}.command": "touch sprung"} if key == "method" else {}))
    assert greeted(node, hostile)["code"] == "FS010"
    with pytest.raises(ConfigError, match="FS010"):
        host_of(node, hostile)
    assert not Path("sprung").exists()


def test_own_code_needs_the_very_name_in_the_nodes_configuration(node):
    Path("listed.py").write_text(
        "from fedsieve.core.part import Method\n\ndef mine() -> Method:\n    return Method('mine')\n"
    )
    with pytest.raises(ConfigError, match="FS010"):
        vet({"method": "listed:mine"}, node | {"allow": "listed:other, listed"})
    assert vet({"method": "listed:mine"}, node | {"allow": "x:y, listed:mine"}).top.method == "listed:mine"


def test_texts_within_lists_and_tables_of_own_code_are_looked_at_too(node):
    Path("roomy.py").write_text(
        "from dataclasses import dataclass, field\nfrom typing import Any\n"
        "from fedsieve.core import Method, Part, Stage\n\n"
        "@dataclass(frozen=True, kw_only=True)\nclass Roomy(Part):\n"
        "    files: list[Any] = field(default_factory=list)\n\n"
        "def mine(part: Roomy) -> Method:\n    return Method('mine', (Stage(parts=(part,)),))\n"
    )
    trusted = node | {"allow": "roomy:mine, known.txt"}
    assert vet({"method": "roomy:mine", "mine.files": ["known.txt"]}, trusted).of("mine")["files"] == ["known.txt"]
    for hostile in (["known.txt", "/etc/passwd"], [{"known.txt": "/etc/passwd"}], [{"/etc/passwd": 1}]):
        with pytest.raises(ConfigError, match=r"=/etc/passwd: a node opens no file .*\[FS228\]"):
            vet({"method": "roomy:mine", "mine.files": hostile}, trusted)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "fedprox", "fedprox.nu": 1}, "unknown key 'fedprox.nu'. Did you mean 'mu'?"),
        ({"method": "fedprox", "fedprox.mu": {"a": 1}}, "unknown key 'fedprox.mu.a'"),
        ({"method": "local", "local.x": 1}, "'local' has no options"),
        ({"model": "mlp", "model.hiden": [2]}, "unknown key 'model.hiden'. Did you mean 'hidden'?"),
    ],
)
def test_a_key_that_a_node_does_not_know_is_named(node, settings, message):
    with pytest.raises(ConfigError) as problem:
        vet(settings, node)
    assert problem.value.code == "FS001"
    assert message in problem.value.message


def test_a_message_names_no_data_no_state_and_no_device(node, tmp_path):
    asked = briefing(data=str(tmp_path / "b.npz"), device="cuda:7", out="elsewhere", track="wandb", runtime="flower")
    told = greeted(node, asked)
    assert (told["name"], told["samples"]) == ("a", 40)
    host = host_of(node, asked)
    assert host.federation.data == "a"
    assert str(host.plan.device) == "cpu"
    assert host.states.folder == tmp_path / "state" / RUN


@pytest.mark.parametrize("field", ["states", "code", "allow", "path"])
def test_a_briefing_has_no_further_fields(node, field):
    content = json.loads(briefing().to(RecordDict())[RECORD]["json"]) | {field: "elsewhere"}
    assert greeted(node, json.dumps(content))["code"] == "FS224"


WRONG = [
    {"run": "../../elsewhere"}, {"run": RUN + "\n"}, {"run": 7}, {"client": -2}, {"client": 1.5}, {"client": True},
    {"clients": 10**12}, {"clients": "9"}, {"mean": ["x"]}, {"std": [0.0]}, {"std": [-1.0]}, {"class_names": [1]},
    {"class_names": ["x" * 1000]}, {"weights": {"init": "../../up"}}, {"weights": {"init": 7}}, {"weights": ["init"]},
    {"server": ["x"] * 100}, {"settings": []}, {"settings": {"a" * 999: 1}},
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_every_field_of_a_briefing_has_a_type_and_a_range(node, wrong):
    content = json.loads(briefing().to(RecordDict())[RECORD]["json"]) | wrong
    assert greeted(node, json.dumps(content))["code"] == "FS224"


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", "NaN", "{" * 10_000, '"' + "x" * 10_000 + '"', '{"settings": NaN}']
)
def test_what_is_no_briefing_is_refused(node, text):
    assert greeted(node, text)["code"] == "FS224"


@pytest.mark.parametrize(
    "value", ["elsewhere.safetensors", "~/x.safetensors", "hf:some/model", "/dev/zero", "../up.safetensors"]
)
def test_a_message_names_no_file_and_no_download(node, value):
    settings = {"method": "fb-nll", "fb-nll.features": value}
    with pytest.raises(ConfigError, match=r"fb-nll.features=.*\[FS228\]"):
        vet(settings, node)
    assert vet(settings, node | {"allow": value}).of("fb-nll")["features"] == value
    assert greeted(node, briefing(**settings))["code"] == "FS228"


@pytest.mark.parametrize("key", ["init", "fb-nll.features"])
def test_a_message_makes_a_node_read_no_path(node, tmp_path, monkeypatch, key):
    """Not even to compare it with a hash that the message names."""
    secret = tmp_path / "secret.safetensors"
    secret.write_bytes(b"secret")
    wanted = sha256(b"secret").hexdigest()
    asked = replace(briefing(method="fb-nll", **{key: str(secret)}), weights={key: wanted})
    opened = []
    monkeypatch.setattr(weights, "sha256_of", lambda file: opened.append(file) or wanted)
    assert held_weights(node, tmp_path / "state", asked) == {key: ""}
    with pytest.raises(RunError, match="FS232"):
        host_of(node, asked)
    with pytest.raises(ConfigError, match=rf"{key}=.*\[FS228\]"):
        vet(asked.settings, node)
    assert not opened
    assert own_files(node | {"allow": str(secret)}, tmp_path / "state", asked) == {key: str(secret)}


def test_a_message_names_no_download_to_compare(node, tmp_path):
    asked = replace(briefing(method="fb-nll", **{"fb-nll.features": "hf:a/b"}), weights={"fb-nll.features": "ab"})
    with pytest.raises(ConfigError, match="FS228"):
        held_weights(node, tmp_path / "state", asked)


def test_init_is_no_name_of_a_file_in_the_nodes_folder(node):
    """Names of feature maps are known, but `init` opens files only."""
    for name in ("hog", "resnet50", "weak"):
        with pytest.raises(ConfigError, match=r"init=.*\[FS228\]"):
            vet({"init": name}, node)


@pytest.mark.parametrize(
    ("content", "names", "code"),
    [
        (b"nothing", b"nothing", "FS302"),
        (b"nothing", b"another", "FS224"),
        (b"", b"", "FS302"),
    ],
    ids=["no model", "another hash", "empty"],
)
def test_a_file_that_is_sent_is_what_it_should_be(node, tmp_path, content, names, code):
    asked = replace(briefing(init="x.safetensors"), weights={"init": sha256(names).hexdigest()})
    sent = torch.tensor(list(content), dtype=torch.uint8)
    with pytest.raises((DataError, RunError), match=code):
        keep_file(tmp_path / "state", asked, "init", sent)
    for wrong in (sent.float(), sent[None], torch.tensor(1, dtype=torch.uint8)):
        with pytest.raises(RunError, match="FS224"):
            keep_file(tmp_path / "state", asked, "init", wrong)
    with pytest.raises(RunError, match="FS224"):
        keep_file(tmp_path / "state", asked, "ksim.features", sent)
    assert not list(tmp_path.rglob("state/encoders/*"))


@pytest.mark.parametrize("value", ["auto", "hog", "pixels", "resnet50", "efficientnet-lite0", "random", "random:7"])
def test_registered_maps_are_taken(node, value):
    assert vet({"method": "fb-nll", "fb-nll.features": value}, node).of("fb-nll")["features"] == value


def test_columns_are_the_nodes_own(node):
    config = vet({"data.label": "patient", "data.client": "ward", "data.size": 8}, node | {"label": "diagnosis"})
    assert (config.data().label, config.data().client, config.data().size) == ("diagnosis", "client", 8)


def test_decisions_are_the_owners_own(node):
    assert "corrections" not in vet({"data.corrections": "somebody/decisions.jsonl"}, node).of("data")
    assert vet({}, node | {"corrections": "mine.jsonl"}).data().corrections == "mine.jsonl"


def test_limits_are_the_nodes_own(node):
    with pytest.raises(DataError, match="FS320"):
        introduce(node | {"max_classes": 3}, briefing(), "c")
    assert introduce(node, briefing(**{"data.max_classes": 3}), "c").samples == 40


def test_every_text_that_an_option_takes_is_known_or_refused(node):
    """Options without fixed choices, of all methods and models: none takes a path from a message."""
    free = [
        (f"{name}.{key}", {"method": name}) for name in METHODS for key, o in method_options(name)[name].items()
        if _takes_any_text(o.type)
    ] + [
        (f"model.{key}", {"model": name}) for name in MODELS for key, o in options_of_model(name).items()
        if _takes_any_text(o.type)
    ]  # fmt: skip
    assert "fb-nll.features" in [key for key, _ in free]
    for key, settings in free:
        with pytest.raises(ConfigError, match="FS228"):
            vet({**settings, key: "somewhere/else"}, node)


def test_what_is_taken_from_a_message_is_written_down():
    """A new key is the server's own until somebody decides otherwise here."""
    every = resolve({}).flat().keys()
    assert every >= TAKEN
    assert not TAKEN & {"data", "out", "runtime", "workers", "device", "track", "overwrite", "clients"}
    assert not AGREED & {"label", "client", "in_memory", "limit", "test_fraction"}


def test_a_message_does_not_make_a_node_virtual(node, tmp_path):
    """Neither a partition in the node's configuration nor an empty name of the run does."""
    virtual = replace(briefing(data=str(tmp_path / "b.npz")), run="")
    with pytest.raises(RunError, match="FS224"):
        host_of(node | {"partition-id": 0}, virtual)
    assert introduce(node | {"partition-id": 0}, virtual, "c").samples == 40


def test_no_more_epochs_than_agreed(node):
    host = host_of(node, briefing(epochs=1))
    down = Down(Mail(0, 0, 0, 0, 0, 1, ()), host.plan.initial, {}, 10**9)
    assert host.train(0, down).loss > 0


def test_a_signature_is_of_one_key_and_one_question(tmp_path):
    key, signature = sign(tmp_path / "one", "question")
    again, _ = sign(tmp_path / "one", "other")
    other, forged = sign(tmp_path / "two", "question")
    assert key == again != other
    assert is_signed(key, signature, "question")
    assert not is_signed(key, signature, "other")
    assert not is_signed(key, forged, "question")
    for wrong in ("", "00", "zz", "0" * 64):
        assert not is_signed(wrong, signature, "question")
        assert not is_signed(key, wrong, "question")
    (tmp_path / "one" / "node.key").write_bytes(b"short")
    with pytest.raises(RunError, match="FS229"):
        sign(tmp_path / "one", "question")


def test_public_samples_are_like_the_nodes_own(node):
    asked = replace(briefing(method="rhfl"), server=("public",))
    for samples in (torch.zeros(3, 99, 99, 1, dtype=torch.uint8), torch.zeros(3, 12, 12, 1), torch.zeros(5)):
        keep_public(node, asked, samples)
        with pytest.raises(RunError, match="FS226"):
            host_of(node, asked)
    keep_public(node, asked, torch.from_numpy(np.load(node["data"])["x_train"][:3]))
    assert len(host_of(node, asked).federation.server["public"].rows) == 3
