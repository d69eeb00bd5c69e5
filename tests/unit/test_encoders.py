"""Frozen nets as feature maps: own modules, the model of a run, Hugging Face models, ImageNet's ResNet-50."""

import json
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

import fedsieve
from fedsieve.base.errors import ConfigError, DataError
from fedsieve.core.net import Net
from fedsieve.data.features import Encoder, feature_map, hub, saved_model
from fedsieve.data.features.keras_resnet import DEPTHS, NEW, OLD, imagenet_resnet50, keras_weights
from fedsieve.models import build_model
from fedsieve.models.saved import to_bytes

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


def images_of(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def standardised(images, mean=MEAN, std=STD):
    x = torch.from_numpy(images).permute(0, 3, 1, 2).double() / 255
    return (x - torch.tensor(mean, dtype=torch.float64).view(-1, 1, 1)) / torch.tensor(std).view(-1, 1, 1)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return build_model("cnn-lite", (3, 16, 16), 4)


def test_features_of_a_model_in_evaluation_mode(model):
    images = images_of(60, 16, 16, 3)
    model.train()
    model.body[1].eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = Encoder(model, MEAN, STD)(images)
    assert found.dtype == np.float32
    assert model.training
    assert not model.body[1].training, "what was frozen stays frozen"
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    model.eval()
    expected = model.features(standardised(images).float()).detach()
    assert found == pytest.approx(expected.numpy(), abs=1e-4)


def test_a_net_in_training_is_taken_as_it_is_now(model):
    net, images = Net(model), images_of(5, 16, 16, 3)
    encoder = Encoder(net.module, MEAN, STD)
    before, key = encoder(images), encoder.key
    net.load(net.vector * 0.5)
    assert encoder.key != key
    assert not np.array_equal(encoder(images), before)


def test_a_module_without_features_is_called_itself():
    images = images_of(3, 4, 4, 3)
    found = Encoder(nn.Flatten(), MEAN, STD)(images)
    assert found == pytest.approx(standardised(images).flatten(1).numpy(), abs=1e-5)


def test_tables_go_into_nets_of_tables():
    table = np.array([[1.0, 2.0], [3.0, 6.0]], np.float32)
    assert Encoder(nn.Identity(), (1.0, 2.0), (1.0, 2.0))(table) == pytest.approx(np.array([[0, 0], [2, 2]]))


def test_grey_images_are_repeated_for_a_net_of_colours():
    images = images_of(2, 4, 4, 1)
    colour = np.repeat(images, 3, axis=-1)
    encoder = Encoder(nn.Flatten(), MEAN, STD)
    assert np.array_equal(encoder(images), encoder(colour))
    with pytest.raises(DataError, match="FS309"):
        Encoder(nn.Flatten(), (0.5,), (0.5,))(colour)


@pytest.mark.parametrize(("size", "bilinear"), [((9, 12), True), ((3, 2), False)])
def test_images_are_brought_to_size(size, bilinear):
    images = images_of(2, 5, 6, 3)
    found = Encoder(nn.Flatten(), MEAN, STD, size=size)(images)
    expected = F.interpolate(standardised(images), size, mode="bilinear", antialias=not bilinear).flatten(1)
    assert found == pytest.approx(expected.numpy(), abs=1e-4)


def test_the_key_tells_weights_settings_and_kinds_apart(model):
    torch.manual_seed(0)
    again = build_model("cnn-lite", (3, 16, 16), 4)
    assert Encoder(model, MEAN, STD).key == Encoder(again, MEAN, STD, name="another name").key
    others = [
        Encoder(model, MEAN, MEAN),
        Encoder(model, STD, STD),
        Encoder(model, MEAN, STD, size=(8, 8)),
        Encoder(model, MEAN, STD, size=(8, 8), interpolation="bicubic"),
        Encoder(nn.Flatten(), MEAN, STD),
        Encoder(nn.Flatten(2), MEAN, STD),
    ]
    assert len({encoder.key for encoder in [*others, Encoder(model, MEAN, STD)]}) == 7
    with torch.no_grad():
        model.head.bias[0] += 1e-3
    assert Encoder(model, MEAN, STD).key != Encoder(again, MEAN, STD).key


def test_maps_of_features_are_refused():
    with pytest.raises(ConfigError, match="FS006"):
        Encoder(nn.Identity(), MEAN, STD)(images_of(2, 4, 4, 3))
    with pytest.raises(DataError, match="FS302"):
        Encoder(nn.Identity(), MEAN, STD)(np.zeros((2, 4, 4, 3), np.float32))


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny_file):
    folder = tmp_path_factory.mktemp("runs") / "own"
    settings = {"clients": 2, "rounds": 1, "epochs": 1, "runtime": "serial", "quiet": True}
    fedsieve.run(**settings, data=str(tiny_file), out=str(folder))
    return folder


def test_the_model_of_a_run(run, tiny_file):
    with np.load(tiny_file) as file:
        images = file["x_test"][..., None] if file["x_test"].ndim == 3 else file["x_test"]
    encoder = feature_map(str(run / "model.safetensors"))
    rows = encoder(images)
    found = fedsieve.predict(run, images)
    head = encoder._module.head  # type: ignore[attr-defined]  # an Encoder
    assert (rows @ head.weight.detach().numpy().T + head.bias.detach().numpy()).argmax(1).tolist() == found["label"]
    larger = images.repeat(2, axis=1).repeat(2, axis=2)
    assert encoder(larger).shape == rows.shape, "other sizes are brought to the model's"
    with pytest.raises(ConfigError, match="FS002"):
        feature_map(str(run / "model.safetensors"), size=96)


CARD = {
    "model": "cnn-lite",
    "options": {},
    "norm": "average",
    "heads": [],
    "method": "fedavg",
    "several": True,
    "shared": True,
    "class_names": list("abcd"),
    "mean": MEAN,
    "std": STD,
    "shape": [3, 16, 16],
}


def save(path, weights, **card):
    path.write_bytes(to_bytes(weights, CARD | card))
    return path


def test_of_several_models_the_first_is_taken(tmp_path, model):
    other = build_model("cnn-lite", (3, 16, 16), 4)
    named = {f"group1.net0.{name}": value for name, value in other.state_dict().items()}
    named |= {f"group0.net0.{name}": value for name, value in model.state_dict().items()}
    images = images_of(3, 16, 16, 3)
    assert np.array_equal(
        saved_model(save(tmp_path / "m.safetensors", named))(images), Encoder(model, MEAN, STD)(images)
    )


def test_files_that_hold_no_whole_model_are_refused(tmp_path, model):
    weights = model.state_dict()
    file = tmp_path / "m.safetensors"
    with pytest.raises(ConfigError, match="has no such group"):
        saved_model(save(file, weights))  # said to hold several
    with pytest.raises(DataError, match="FS302"):
        saved_model(save(file, dict(list(weights.items())[1:]), several=False))
    with pytest.raises(ConfigError, match="FS007"):
        saved_model(save(file, weights, several=False, shared=False))
    save_file({"weight": torch.ones(2)}, file)
    with pytest.raises(DataError, match="FS302"):
        saved_model(file)
    file.write_bytes(b"nothing")
    with pytest.raises(DataError, match="FS302"):
        saved_model(file)


# Hugging Face


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers")


def save_hub(folder, model, **processor):
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(
        json.dumps({"image_mean": MEAN, "image_std": STD, "size": {"height": 16, "width": 16}} | processor)
    )
    return f"hf:{folder}"


def tiny_vit(transformers, kind="ViTModel"):
    torch.manual_seed(0)
    size = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return getattr(transformers, kind)(transformers.ViTConfig(image_size=16, patch_size=8, **size)).eval()


def tiny_resnet(transformers):
    torch.manual_seed(0)
    shape = {"embedding_size": 4, "hidden_sizes": [4, 6], "depths": [1, 1], "layer_type": "basic"}
    return transformers.ResNetModel(transformers.ResNetConfig(**shape)).eval()


def test_a_vision_transformer_gives_its_pooled_output(tmp_path, transformers):
    model, images = tiny_vit(transformers), images_of(3, 16, 16, 3)
    found = feature_map(save_hub(tmp_path, model))(images)
    expected = model(standardised(images).float()).pooler_output.detach()
    assert found == pytest.approx(expected.numpy(), abs=1e-5)


def test_pooling_that_was_never_learnt_is_not_used(tmp_path, transformers):
    """A classifier's file has no pooling layer; one with random weights would give other features at every start."""
    model, images = tiny_vit(transformers, "ViTForImageClassification"), images_of(3, 16, 16, 3)
    name = save_hub(tmp_path, model)
    found = feature_map(name)(images)
    expected = model.vit(standardised(images).float()).last_hidden_state[:, 0].detach()
    assert found == pytest.approx(expected.numpy(), abs=1e-5)
    assert feature_map(name).key == feature_map(name).key


def test_the_shortest_edge_is_the_size_where_nothing_is_cropped(tmp_path, transformers):
    model, images = tiny_resnet(transformers), images_of(2, 16, 16, 3)
    found = feature_map(save_hub(tmp_path, model, size={"shortest_edge": 20}))
    assert np.array_equal(found(images), feature_map(f"hf:{tmp_path}", 20)(images))
    assert not np.array_equal(found(images), feature_map(f"hf:{tmp_path}", 24)(images))


def test_dino_gives_its_first_token(tmp_path, transformers):
    """DINO's transformers are saved without a layer that pools."""
    torch.manual_seed(0)
    size = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.ViTConfig(image_size=16, patch_size=4, **size)
    model, images = transformers.ViTModel(config, add_pooling_layer=False).eval(), images_of(3, 16, 16, 3)
    found = feature_map(save_hub(tmp_path, model))(images)
    expected = model(standardised(images).float()).last_hidden_state[:, 0].detach()
    assert found == pytest.approx(expected.numpy(), abs=1e-5)


@pytest.mark.parametrize("side", [None, 24])
def test_a_residual_net_at_a_size_of_choice(tmp_path, transformers, side):
    model, images = tiny_resnet(transformers), images_of(3, 16, 16, 3)
    crop = {"do_center_crop": True, "crop_size": 20, "size": {"shortest_edge": 28}, "resample": 3}
    found = feature_map(save_hub(tmp_path, model, **crop), side)(images)
    resized = F.interpolate(standardised(images), (side or 20,) * 2, mode="bicubic")
    expected = model(resized.float()).pooler_output.flatten(1).detach()
    assert found.shape == (3, 6)
    assert found == pytest.approx(expected.numpy(), abs=1e-4)


@pytest.mark.parametrize(
    ("processor", "expected"),
    [
        ({"do_normalize": False}, lambda pixels: pixels / 255),
        ({"do_normalize": False, "do_rescale": False}, lambda pixels: pixels),
        ({"rescale_factor": 1 / 127.5, "image_mean": [1] * 3, "image_std": [2] * 3}, lambda p: (p / 127.5 - 1) / 2),
    ],
)
def test_pixels_are_scaled_as_the_processor_says(tmp_path, transformers, processor, expected):
    model, images = tiny_resnet(transformers), images_of(2, 16, 16, 3)
    found = feature_map(save_hub(tmp_path, model, **processor))(images)
    x = expected(torch.from_numpy(images).permute(0, 3, 1, 2).float())
    assert found == pytest.approx(model(x).pooler_output.flatten(1).detach().numpy(), rel=1e-3, abs=1e-4)


def test_hub_models_that_cannot_be_used_are_refused(tmp_path, transformers, monkeypatch):
    text = transformers.BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    with pytest.raises(DataError, match=r"does not take images.*FS302"):
        feature_map(save_hub(tmp_path / "text", transformers.BertModel(text)))
    with pytest.raises(DataError, match=r"names no size.*FS302"):
        feature_map(save_hub(tmp_path / "size", tiny_resnet(transformers), size={}))
    half = tiny_resnet(transformers)
    name = save_hub(tmp_path / "half", half)
    lacking = {
        name: value for name, value in half.state_dict().items() if name != "embedder.embedder.convolution.weight"
    }
    save_file(lacking, tmp_path / "half" / "model.safetensors", {"format": "pt"})
    with pytest.raises(DataError, match=r"lacks embedder\.embedder\.convolution\.weight.*FS302"):
        feature_map(name)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="FS302"):
        feature_map(f"hf:{tmp_path / 'empty'}")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match=r"fedsieve\[hf\].*FS008"):
        feature_map("hf:any/model")


# ResNet-50 in Keras's layout


def keras_names(naming):
    """(kernel's layer, layer of statistics, input channels, output channels, size) in the order of the net."""
    yield (*naming.stem, 3, 64, 7)
    inputs = 64
    for stage, depth in enumerate(DEPTHS):
        width = 64 * 2**stage
        for number in range(depth):
            shapes = [(inputs, width, 1), (width, width, 3), (width, 4 * width, 1), (inputs, 4 * width, 1)]
            for branch, shape in zip(naming.branches, shapes if number == 0 else shapes[:3], strict=False):
                name = naming.block.format(stage=stage + 2, letter="abcdef"[number], number=number + 1, branch=branch)
                yield (name, name.replace(*naming.normalisation), *shape)
            inputs = 4 * width


def keras_arrays(naming):
    rng = np.random.default_rng(0)

    def normal(*shape, scale=1.0):
        return rng.standard_normal(shape, np.float32) * np.float32(scale)

    arrays = {}
    for kernel, statistics, inputs, outputs, size in keras_names(naming):
        arrays[f"{kernel}/kernel"] = normal(size, size, inputs, outputs, scale=(2 / (inputs * size * size)) ** 0.5)
        arrays[f"{kernel}/bias"] = normal(outputs, scale=0.1)
        variance = np.abs(normal(outputs, scale=0.01)) + np.float32(0.001)  # so small that epsilon matters
        arrays[f"{statistics}/gamma"] = np.sqrt(variance) * (0.5 + 0.1 * normal(outputs))
        arrays[f"{statistics}/beta"] = normal(outputs, scale=0.1)
        arrays[f"{statistics}/moving_mean"] = normal(outputs, scale=0.1)
        arrays[f"{statistics}/moving_variance"] = variance
    arrays[f"{naming.head}/kernel"] = normal(2048, 1000, scale=0.02)
    arrays[f"{naming.head}/bias"] = normal(1000, scale=0.1)
    return arrays


def keras_features(arrays, naming, images):
    """What Keras computes, written down with its own arrays: BGR less the mean, biases, its epsilon, its strides."""
    x = torch.from_numpy(images[..., ::-1].astype(np.float32) - np.array([103.939, 116.779, 123.68], np.float32))
    tensors = {name: torch.from_numpy(value) for name, value in arrays.items()}

    def layer(x, kernel, statistics, stride=1):
        weight = tensors[f"{kernel}/kernel"].permute(3, 2, 0, 1)
        x = F.conv2d(x, weight, tensors[f"{kernel}/bias"], stride, weight.shape[-1] // 2)
        mean, variance, gamma, beta = (
            tensors[f"{statistics}/{name}"] for name in ("moving_mean", "moving_variance", "gamma", "beta")
        )
        return F.batch_norm(x, mean, variance, gamma, beta, eps=naming.epsilon)

    names = [(kernel, statistics) for kernel, statistics, *_ in keras_names(naming)]
    x = F.relu(layer(x.permute(0, 3, 1, 2), *names.pop(0), stride=2))
    x = F.max_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 2)
    for stage, depth in enumerate(DEPTHS):
        for number in range(depth):
            stride = 2 if stage and not number else 1
            out = F.relu(layer(x, *names.pop(0), stride=stride))
            out = layer(F.relu(layer(out, *names.pop(0))), *names.pop(0))
            x = F.relu(out + (x if number else layer(x, *names.pop(0), stride=stride)))
    return x.mean(dim=(2, 3))


@pytest.mark.parametrize("naming", [OLD, NEW], ids=["first names", "present names"])
def test_resnet50_computes_what_keras_computes(naming):
    arrays, images = keras_arrays(naming), images_of(1, 32, 32, 3)
    found = imagenet_resnet50(arrays, 32)(images)
    expected = keras_features(arrays, naming, images).numpy()
    assert found.shape == (1, 2048)
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-3 * float(expected.std()))


def test_resnet50_is_found_in_the_cache_folder_or_missed(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSIEVE_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"resnet50\.npz: no such file.*FS301"):
        feature_map("resnet50")
    (tmp_path / "resnet50.npz").write_bytes(b"nothing")
    with pytest.raises(DataError, match="FS302"):
        feature_map("resnet50")


def test_weights_of_another_net_are_refused(tmp_path):
    np.savez(tmp_path / "other.npz", **{"weights:0": np.ones(3, np.float32)})
    with pytest.raises(DataError, match=r"lacks 'conv1_conv/kernel'.*FS302"):
        imagenet_resnet50(keras_weights(tmp_path / "other.npz"))


def test_weights_of_another_shape_are_refused():
    arrays = keras_arrays(NEW)
    arrays[f"{NEW.stem[0]}/kernel"] = np.ones((5, 5, 3, 64), np.float32)
    with pytest.raises(DataError, match=r"is not a ResNet-50 \(.*size mismatch.*FS302"):
        imagenet_resnet50(arrays)


@pytest.mark.parametrize(("name", "code"), [("hogg", "FS004"), ("", "FS004")])
def test_unknown_maps_are_refused(name, code):
    with pytest.raises(ConfigError, match=code):
        feature_map(name)


@pytest.mark.parametrize(("name", "size"), [("hog", 96), ("pixels", 96), ("resnet50", 0)])
def test_sizes_without_effect_are_refused(name, size):
    with pytest.raises(ConfigError, match="FS002"):
        feature_map(name, size)


def test_where_no_hub_answers_an_encoder_is_looked_for_on_this_machine_alone(monkeypatch):
    quiet = []
    monkeypatch.setattr(hub, "hub_answers", lambda: False)
    monkeypatch.setattr(hub, "stay_offline", lambda: quiet.append(monkeypatch.setenv("HF_HUB_OFFLINE", "1")))
    with pytest.raises((ConfigError, DataError), match="nobody/nothing"):
        feature_map("hf:nobody/nothing")
    assert quiet
