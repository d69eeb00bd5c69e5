"""A network's numbers as one flat vector."""

import pytest
import torch

from fedsieve.base.errors import CompositionError
from fedsieve.core.layout import Layout, pack, unpack_
from fedsieve.core.net import Net
from fedsieve.models import build_model

SHAPE = (3, 16, 16)


@pytest.fixture(scope="module", params=["cnn-lite", "resnet18"])
def module(request):
    return build_model(request.param, SHAPE, 5)


@pytest.fixture(scope="module")
def lite():
    return Layout.of(build_model("cnn-lite", SHAPE, 5))


def numbers(count):
    return torch.rand(count, generator=torch.Generator().manual_seed(1))


def names(layout, *patterns):
    return [entry.name for entry in layout.select(patterns)]


def test_flat_and_named_are_inverse(module):
    layout = Layout.of(module)
    vector = numbers(layout.size)
    named = layout.named(vector)
    assert torch.equal(layout.flat(named), vector)
    floats = {name: tensor for name, tensor in module.state_dict().items() if tensor.is_floating_point()}
    again = layout.named(layout.flat(floats))
    assert again.keys() == floats.keys()
    assert all(torch.equal(again[name], floats[name]) and again[name].is_contiguous() for name in floats)


def test_parameters_come_first_then_float_buffers(module):
    layout = Layout.of(module)
    parameters = [name for name, _ in module.named_parameters()]
    assert [entry.name for entry in layout.entries][: len(parameters)] == parameters
    assert layout.trainable == sum(p.numel() for p in module.parameters())
    assert [e.start for e in layout.entries] == [0, *(e.stop for e in layout.entries)][:-1]
    assert layout.size == layout.trainable + sum(b.numel() for b in module.buffers() if b.is_floating_point())


def test_integer_buffers_are_in_no_vector(module):
    counters = [name for name, b in module.named_buffers() if not b.is_floating_point()]
    assert counters
    assert not set(counters) & {entry.name for entry in Layout.of(module).entries}


def test_weights_and_gradients_are_views_and_convolutions_channels_last():
    net = Net(build_model("cnn-lite", SHAPE, 5))
    before = net.vector.clone()
    for name, parameter in net.module.named_parameters():
        assert parameter.untyped_storage().data_ptr() == net.vector.untyped_storage().data_ptr(), name
        assert parameter.grad.untyped_storage().data_ptr() == net.grad.untyped_storage().data_ptr(), name
    convolution = net.module.body[4].weight
    assert convolution.is_contiguous(memory_format=torch.channels_last)
    assert not convolution.is_contiguous()
    with torch.no_grad():
        convolution[3, 2, 1, 0] += 1
    entry = next(e for e in net.layout.entries if e.name == "body.4.weight")
    into, height, width = 32, 3, 3
    place = entry.start + ((3 * height + 1) * width + 0) * into + 2
    assert (net.vector != before).nonzero().flatten().tolist() == [place]


def test_a_net_computes_what_the_plain_module_computes():
    module = build_model("cnn-lite", SHAPE, 5).eval()
    x = torch.rand(4, *SHAPE, generator=torch.Generator().manual_seed(2))
    expected = module(x).detach()
    assert torch.allclose(Net(module).module(x), expected, atol=1e-6)


def test_patterns_choose_entries(lite):
    everything = [entry.name for entry in lite.entries]
    norm = [name for name in everything if name.startswith(("body.1.", "body.5."))]
    head = ["head.weight", "head.bias"]
    assert names(lite, "*") == everything
    assert names(lite) == []
    assert names(lite, "head") == head
    assert names(lite, "head.bias") == ["head.bias"]
    assert names(lite, "*.bias") == ["body.1.bias", "body.5.bias", "head.bias"]
    assert names(lite, "@norm") == norm
    assert names(lite, "*", "-@norm") == [name for name in everything if name not in norm]
    assert names(lite, "*", "-head") == [name for name in everything if name not in head]
    assert names(lite, "*", "-head", "head.bias")[-5:] == ["head.bias", *everything[-4:]]
    assert names(lite, "body.1") == [name for name in norm if name.startswith("body.1.")], "a prefix ends at a dot"


def test_an_unknown_section_is_named(lite):
    for pattern in ("hed", "-hed"):
        with pytest.raises(CompositionError, match=r"no section 'hed'\. Did you mean 'head'") as problem:
            lite.select(("*", pattern))
        assert problem.value.code == "FS116"
    assert Layout.of(torch.nn.Linear(2, 2)).select(("*", "-@norm")), "a model without norm layers is fine"


def test_adjacent_entries_are_joined(lite):
    assert lite.slices(("*",)) == [slice(0, lite.size)]
    assert lite.slices(("*",), trainable_only=True) == [slice(0, lite.trainable)]
    assert len(lite.slices(("*", "-body.4"))) == 2
    assert lite.count(("*", "-@norm")) + lite.count(("@norm",)) == lite.size
    assert lite.count(("@norm",), trainable_only=True) == 2 * (32 + 64)


@pytest.mark.parametrize("patterns", [("*",), ("head",), ("*", "-@norm"), ()])
def test_pack_and_unpack_are_inverse(lite, patterns):
    slices, source = lite.slices(patterns), numbers(lite.size)
    packed = pack(source, slices)
    assert len(packed) == lite.count(patterns)
    target = unpack_(torch.zeros(lite.size), slices, packed)
    inside = torch.zeros(lite.size, dtype=torch.bool)
    for part in slices:
        inside[part] = True
    assert torch.equal(target, torch.where(inside, source, 0.0))
    packed.zero_()
    assert source.min() >= 0
    assert torch.equal(source, numbers(lite.size)), "what is packed is a copy"
