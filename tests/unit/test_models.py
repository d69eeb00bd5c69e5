from __future__ import annotations

import subprocess
import sys
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedsieve.base.errors import ConfigError
from fedsieve.models import MODELS, build_model, options_of_model
from fedsieve.models.base import GlobalAverage
from fedsieve.models.heads import Projector
from fedsieve.models.norm import NORM_TYPES, NORMS, norm_layer

CIFAR = (3, 32, 32)
SMALL = ("cnn-lite", "cnn4", "fedds-mnist", "mlp")
"""Quick enough for tests that need many of them."""


def images(count: int, *shape: int) -> torch.Tensor:
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(3))


@cache
def built(name: str) -> nn.Module:
    """One model for the tests that only read it, since filling the large ones takes most of the time."""
    return build_model(name, CIFAR, 10)


def samples(name: str) -> torch.Tensor:
    """Images for `built(name)`; nets that end in a global average take quicker, smaller ones."""
    averaged = any(isinstance(layer, GlobalAverage) for layer in built(name).modules())
    return images(2, 3, 16, 16) if averaged else images(2, *CIFAR)


def parameters(model: nn.Module) -> int:
    return sum(value.numel() for value in model.parameters())


# Worked out by hand, layer by layer (a normalisation has two numbers a channel).
def basic(inputs: int, width: int) -> int:
    changed = inputs * width + 2 * width if inputs != width else 0
    return 9 * inputs * width + 9 * width * width + 4 * width + changed


def bottleneck(inputs: int, width: int) -> int:
    wide = 4 * width
    changed = inputs * wide + 2 * wide if inputs != wide else 0
    return inputs * width + 9 * width * width + width * wide + 4 * width + 2 * wide + changed


COUNTS = {
    "cnn-lite": 5 * 5 * 3 * 32 + 64 + 3 * 3 * 32 * 64 + 128 + 64 * 4 * 4 * 10 + 10,
    "cnn4": (9 * 3 * 64 + 64 + 128) + 3 * (9 * 64 * 64 + 64 + 128) + 256 * 10 + 10,
    "fedds-mnist": (25 * 3 * 10 + 10) + (25 * 10 * 20 + 20) + (20 * 5 * 5 * 50 + 50) + 510,
    "fedds-vgg": (
        9 * (3 * 64 + 64 * 64 + 64 * 128 + 128 * 128 + 128 * 256 + 256 * 256)
        + 2 * 2 * (64 + 128 + 256)
        + (4096 * 512 + 512)
        + (512 * 512 + 512)
        + 5130
    ),
    "resnet10": 27 * 64 + 128 + basic(64, 64) + basic(64, 128) + basic(128, 256) + basic(256, 512) + 5130,
    "resnet18": 11_173_962,
    "resnet34": 21_282_122,
    "resnet50": (
        27 * 64
        + 128
        + sum(bottleneck(64 * i, 64) for i in (1, 4, 4))
        + sum(bottleneck(64 * i, 128) for i in (4, 8, 8, 8))
        + sum(bottleneck(64 * i, 256) for i in (8, 16, 16, 16, 16, 16))
        + sum(bottleneck(64 * i, 512) for i in (16, 32, 32))
        + 2048 * 10
        + 10
    ),
    # 11,171,146 without the last normalisation of 512 channels
    "preact18": 11_171_146 + 2 * 512,
    # 3,504,872 with the head of 1,000 classes
    "mobilenetv2": 3_504_872 - (1280 * 1000 + 1000) + (1280 * 10 + 10),
    "linear": 3072 * 10 + 10,
    "mlp": (3072 * 256 + 256) + (256 * 128 + 128) + (128 * 10 + 10),
}


def test_every_model_has_a_count() -> None:
    assert set(COUNTS) == set(MODELS)
    assert COUNTS["cnn-lite"] == 31_274


@pytest.mark.parametrize("name", list(MODELS))
def test_counts_shapes_and_gradients(name: str) -> None:
    model = built(name).train()
    assert parameters(model) == COUNTS[name]

    features = model.features(samples(name))  # type: ignore[operator]  # every model has it
    assert features.shape == (2, model.feature_dim)
    logits = model.head(features)  # type: ignore[operator]
    assert logits.shape == (2, 10)
    (logits**2).sum().backward()
    without = [key for key, value in model.named_parameters() if value.grad is None]
    assert not without
    assert all(bool(value.grad.isfinite().all()) for value in model.parameters() if value.grad is not None)


@pytest.mark.parametrize("name", list(MODELS))
def test_logits_are_the_head_on_the_features_in_any_memory_format(name: str) -> None:
    model = built(name).eval()
    x = samples(name)
    with torch.no_grad():
        plain = model(x)
        again = model.head(model.features(x))  # type: ignore[operator]
        last = model.to(memory_format=torch.channels_last)(x.to(memory_format=torch.channels_last))
    assert torch.equal(plain, again)
    assert torch.allclose(plain, last, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", list(MODELS))
def test_state_has_float_values_in_body_and_head(name: str) -> None:
    state = built(name).state_dict()
    assert {key.split(".")[0] for key in state} == ({"head"} if name == "linear" else {"body", "head"})
    whole = {key for key, value in state.items() if not value.is_floating_point()}
    assert all(key.endswith("num_batches_tracked") for key in whole)


def test_saved_weights_keep_their_names() -> None:
    norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    assert list(built("cnn-lite").state_dict()) == [
        "body.0.weight",
        *(f"body.1.{name}" for name in norm),
        "body.4.weight",
        *(f"body.5.{name}" for name in norm),
        "head.weight",
        "head.bias",
    ]
    weights = [key for key, value in built("resnet18").state_dict().items() if value.ndim == 4]
    assert weights[:2] == ["body.stem.0.weight", "body.stages.0.0.residual.0.weight"]
    assert weights[5:8] == [f"body.stages.1.0.{part}.weight" for part in ("residual.0", "residual.3", "shortcut.0")]


@pytest.mark.parametrize("policy", list(NORMS))
@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("fedds-mnist", "linear", "mlp")])
def test_every_norm_policy(name: str, policy: str) -> None:
    with torch.device("meta"):
        model = build_model(name, CIFAR, 10, norm=policy)
    layers = [layer for layer in model.modules() if isinstance(layer, NORM_TYPES)]
    wanted = nn.GroupNorm if policy == "group" else nn.BatchNorm2d
    assert layers
    assert all(type(layer) is wanted for layer in layers)
    assert any(True for _ in model.buffers()) == (policy in ("average", "local"))
    assert parameters(model) == COUNTS[name]


@pytest.mark.parametrize("policy", list(NORMS))
def test_models_run_and_learn_under_every_norm_policy(policy: str) -> None:
    for name in ("cnn-lite", "cnn4", "resnet10"):
        model = build_model(name, (3, 16, 16), 10, norm=policy)
        model(images(4, 3, 16, 16)).square().sum().backward()
        assert all(value.grad is not None and value.grad.any() for value in model.parameters())


def test_group_norm_divides_the_channels_into_groups_of_two_or_more() -> None:
    groups = {channels: norm_layer("group")(channels).num_groups for channels in (1, 3, 10, 24, 32, 64, 144, 512)}
    assert groups == {1: 1, 3: 1, 10: 2, 24: 8, 32: 16, 64: 32, 144: 16, 512: 32}


def test_batch_policy_uses_the_batch_at_test_time_too() -> None:
    layer = norm_layer("batch")(1).eval()
    x = torch.tensor([1.0, 3.0]).view(2, 1, 1, 1)
    assert torch.allclose(layer(x).flatten(), torch.tensor([-1.0, 1.0]), atol=1e-4)


@pytest.mark.parametrize("name", ["cnn-lite", "cnn4", "fedds-mnist", "fedds-vgg", "resnet10", "mlp"])
def test_grey_images_of_28_pixels(name: str) -> None:
    assert build_model(name, (1, 28, 28), 7)(images(2, 1, 28, 28)).shape == (2, 7)


def test_fedds_mnist_has_the_320_of_the_authors() -> None:
    model = build_model("fedds-mnist", (1, 28, 28), 10)
    assert parameters(model) == (25 * 10 + 10) + (25 * 10 * 20 + 20) + (320 * 50 + 50) + 510


def test_images_need_not_be_square() -> None:
    model = build_model("cnn-lite", (3, 32, 16), 10)
    assert model.feature_dim == 64 * 4 * 2
    assert model(images(2, 3, 32, 16)).shape == (2, 10)


@pytest.mark.parametrize(("name", "side"), [("cnn-lite", 6), ("cnn4", 15), ("fedds-mnist", 15), ("fedds-vgg", 7)])
def test_too_small_images_are_refused_and_one_pixel_more_is_not(name: str, side: int) -> None:
    with pytest.raises(ConfigError, match=f"model={name}.*{side} x {side}") as caught:
        build_model(name, (1, side, side), 2)
    assert caught.value.code == "FS002"
    assert build_model(name, (1, side + 1, side + 1), 2)(images(2, 1, side + 1, side + 1)).shape == (2, 2)


def test_resnet_stems() -> None:
    def first(side: int, stem: str) -> nn.Conv2d:
        model = build_model("resnet10", (3, side, side), 10, options={"stem": stem})
        return model.get_submodule("body.stem.0")  # type: ignore[return-value]

    assert [first(side, "auto").kernel_size for side in (32, 64, 65)] == [(3, 3), (3, 3), (7, 7)]
    assert first(32, "imagenet").stride == (2, 2)
    assert first(224, "cifar").stride == (1, 1)


@pytest.mark.parametrize(
    ("name", "known"), [("resnet18", 11_689_512), ("resnet50", 25_557_032), ("mobilenetv2", 3_504_872)]
)
def test_known_counts_on_imagenet(name: str, known: int) -> None:
    with torch.device("meta"):
        assert parameters(build_model(name, (3, 224, 224), 1000)) == known


@pytest.mark.parametrize(("side", "left"), [(32, 4), (96, 3)])
@pytest.mark.parametrize(("name", "channels"), [("resnet10", 512), ("mobilenetv2", 1280)])
def test_image_size_before_the_global_average(name: str, channels: int, side: int, left: int) -> None:
    with torch.device("meta"):
        model = build_model(name, (3, side, side), 2)
        seen = []
        average = next(layer for layer in model.modules() if isinstance(layer, GlobalAverage))
        average.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape))
        model(torch.zeros(2, 3, side, side))
    assert seen == [(2, channels, left, left)]


def test_where_resnet50_halves_the_image() -> None:
    def strides(stride_on: str) -> list[tuple[int, ...]]:
        with torch.device("meta"):
            model = build_model("resnet50", CIFAR, 10, options={"stride_on": stride_on})
        block = model.get_submodule("body.stages.1.0.residual")
        return [layer.stride for layer in block.children() if isinstance(layer, nn.Conv2d)]

    assert strides("1x1") == [(2, 2), (1, 1), (1, 1)]
    assert strides("3x3") == [(1, 1), (2, 2), (1, 1)]


@pytest.mark.parametrize(
    ("name", "part", "channels", "least"),
    [
        ("resnet10", "body.stages.0.0", 64, 0.0),
        ("preact18", "body.stages.0.0", 64, -1.0),
        ("mobilenetv2", "body.5", 24, -1.0),
    ],
)
def test_residual_blocks_by_hand(name: str, part: str, channels: int, least: float) -> None:
    """With the weights at zero only the shortcut is left, under the ReLU that the original residual block ends with."""
    block = build_model(name, CIFAR, 2).eval().get_submodule(part)
    x = torch.linspace(-1, 1, channels).view(1, channels, 1, 1).expand(1, channels, 4, 4)
    for layer in block.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.zeros_(layer.weight)
    assert torch.allclose(block(x), x.clamp(min=least))


@pytest.mark.parametrize(
    ("name", "part"), [("resnet18", "body.stages.0.0.residual.0"), ("preact18", "body.stages.0.0.residual.0")]
)
def test_convolutions_start_with_he_variance(name: str, part: str) -> None:
    weight = built(name).get_submodule(part).weight
    assert isinstance(weight, nn.Parameter)
    assert float(weight.detach().std()) == pytest.approx((2 / (9 * 64)) ** 0.5, rel=0.05)


def test_mlp_by_hand_and_its_options() -> None:
    model = build_model("mlp", (2,), 2, options={"hidden": [1]})
    with torch.no_grad():
        for value, numbers in zip(model.parameters(), ([2.0, -1.0], [0.5], [1.0, 3.0], [0.0, 1.0]), strict=True):
            value.copy_(torch.tensor(numbers).view_as(value))
    x = torch.tensor([[1.0, 1.0], [0.0, 5.0]])
    assert torch.allclose(model(x), torch.tensor([[1.5, 5.5], [0.0, 1.0]]))
    assert model.features(x).tolist() == [[1.5], [0.0]]  # type: ignore[operator]

    assert parameters(build_model("mlp", (5,), 3, options={"hidden": []})) == 18
    assert set(options_of_model("mlp")) == {"hidden", "normalise"}


def test_mlp_normalises_like_batch_norm_on_rows() -> None:
    model = build_model("mlp", (4,), 2, options={"hidden": [6], "normalise": True})
    x = images(5, 4)
    rows = model.get_submodule("body.1")(x)
    assert torch.allclose(model.features(x), nn.BatchNorm1d(6)(rows).relu(), atol=1e-6)  # type: ignore[operator]
    assert build_model("mlp", (4,), 2, norm="group", options={"normalise": True})(x).shape == (5, 2)


def test_dropout_is_an_option_and_off_when_evaluating() -> None:
    x = images(4, *CIFAR)
    dropped = build_model("fedds-mnist", CIFAR, 10)
    assert not torch.equal(dropped(x), dropped(x))
    dropped.eval()
    assert torch.equal(dropped(x), dropped(x))
    kept = build_model("fedds-mnist", CIFAR, 10, options={"dropout": 0})
    assert torch.equal(kept(x), kept(x))


@pytest.mark.parametrize("name", SMALL)
def test_projector_stands_between_features_and_classifier(name: str) -> None:
    plain = build_model(name, CIFAR, 10)
    model = build_model(name, CIFAR, 10, heads=(Projector(),))
    d = plain.feature_dim
    assert isinstance(d, int)
    assert model.feature_dim == 256
    assert model.features(images(2, *CIFAR)).shape == (2, 256)  # type: ignore[operator]
    added = (d * d + d) + (d * 256 + 256) + (256 * 10 + 10) - (d * 10 + 10)
    assert parameters(model) == parameters(plain) + added
    model(images(2, *CIFAR)).sum().backward()
    assert all(value.grad is not None for value in model.parameters())


def test_projector_by_hand() -> None:
    model = build_model("mlp", (2,), 2, heads=(Projector(),), options={"hidden": []})
    first, second = model.get_submodule("projector.0"), model.get_submodule("projector.2")
    x = torch.tensor([[1.0, -2.0]])
    by_hand = (x @ first.weight.T + first.bias).clamp(min=0) @ second.weight.T + second.bias  # type: ignore[union-attr,operator]
    assert torch.allclose(model.features(x), by_hand)  # type: ignore[operator]


# One's own models


class Own(nn.Module):
    def __init__(self, shape: tuple[int, ...], classes: int, norm: object, width: int = 4) -> None:
        super().__init__()
        self.first = nn.Linear(shape[0], width)
        self.head = nn.Linear(width, classes)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x).relu()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x))


class Headless(nn.Module):
    def __init__(self, shape: tuple[int, ...], classes: int, norm: object) -> None:
        super().__init__()


class TakesNothing(nn.Module):
    def __init__(self) -> None:
        super().__init__()


def test_own_model_by_reference_with_options_and_heads() -> None:
    reference = f"{__name__}:Own"
    model = build_model(reference, (3,), 2, options={"width": "7"}, allow_code=True)
    assert model(images(5, 3)).shape == (5, 2)
    assert model.head.in_features == 7  # type: ignore[union-attr]
    with_head = build_model(reference, (3,), 2, heads=(Projector(),), allow_code=[reference])
    assert with_head(images(5, 3)).shape == (5, 2)


@pytest.mark.parametrize("wrong", ["Headless", "TakesNothing", "images", "missing"])
def test_wrong_own_models_are_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong) as caught:
        build_model(f"{__name__}:{wrong}", (3,), 2, allow_code=True)
    assert caught.value.code == "FS006"


@pytest.mark.parametrize(
    ("code", "says", "name", "shape", "more"),
    [
        ("FS004", "unknown model 'resnet81'. Did you mean 'resnet18'", "resnet81", CIFAR, {}),
        ("FS004", "unknown norm 'grup'. Did you mean 'group'", "cnn-lite", CIFAR, {"norm": "grup"}),
        ("FS002", "model=resnet18 needs images.*Take model=mlp", "resnet18", (30,), {}),
        ("FS001", "unknown key 'model.steam'. Did you mean 'stem'", "resnet18", CIFAR, {"options": {"steam": "cifar"}}),
        ("FS001", "'cnn-lite' has no options", "cnn-lite", CIFAR, {"options": {"shape": 3}}),
        ("FS002", "model.stem='big'", "resnet18", CIFAR, {"options": {"stem": "big"}}),
        ("FS002", "model.hidden", "mlp", (3,), {"options": {"hidden": [0]}}),
    ],
)
def test_errors(code: str, says: str, name: str, shape: tuple[int, ...], more: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        build_model(name, shape, 10, **more)  # type: ignore[arg-type]
    assert caught.value.code == code


def test_listing_the_models_does_not_load_torch() -> None:
    code = "import sys, fedsieve.models as m; assert len(m.MODELS) == 12; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}).returncode == 0


def test_summaries_are_one_line() -> None:
    assert all(entry.summary and "\n" not in entry.summary for entry in MODELS.values())


def normalised(x: torch.Tensor) -> torch.Tensor:
    """By the statistics of the batch; the layers still have their initial scale of 1."""
    mean, variance = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), unbiased=False, keepdim=True)
    return (x - mean) / (variance + 1e-5).sqrt()


def test_the_order_of_layers_in_cnn4_by_hand() -> None:
    """Convolution, normalisation, ReLU, pool: pooled before it, the normalisation would have other statistics."""
    model, x = build_model("cnn4", CIFAR, 10).train(), images(4, *CIFAR)
    convolutions = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    expected = x
    for convolution in convolutions:
        expected = F.max_pool2d(normalised(convolution(expected)).relu(), 2)
    assert torch.allclose(model.features(x), expected.flatten(1), atol=1e-4)


def test_the_order_of_layers_in_cnn_lite_by_hand() -> None:
    model, x = build_model("cnn-lite", CIFAR, 10).train(), images(4, *CIFAR)
    expected = x
    for convolution in [layer for layer in model.modules() if isinstance(layer, nn.Conv2d)]:
        expected = F.max_pool2d(normalised(convolution(expected)), 2).relu()
    assert torch.allclose(model.features(x), expected.flatten(1), atol=1e-4)
