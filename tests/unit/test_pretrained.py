"""ResNets that others trained, from files: as encoders, and as what a federation's model starts from."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional as F

import fedsieve
from fedsieve.base.errors import ConfigError, DataError, RunError
from fedsieve.data.features import feature_map
from fedsieve.models import build_model
from fedsieve.models.initial import FirstWeights
from fedsieve.models.pretrained import Pretrained
from fedsieve.models.saved import SavedModels, to_bytes
from fedsieve.models.weights import MOST_BYTES, Weights
from fedsieve.report.progress import Progress
from fedsieve.runs.results import write_results
from fedsieve.settings.config import resolve
from fedsieve.settings.planning import config_of, plan_of
from fedsieve.settings.weights import file_hashes
from fedsieve.start import resume, run
from fedsieve.testing import tiny_federation

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def images_of(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def torchvision_state(depths=(1, 1, 1, 1), bottleneck=False, stem=7, channels=3):
    """Random tensors under torchvision's names."""
    generator = torch.Generator().manual_seed(0)
    state = {}

    def layer(conv, norm, inputs, outputs, size):
        scale = (2 / (inputs * size * size)) ** 0.5
        state[f"{conv}.weight"] = torch.randn(outputs, inputs, size, size, generator=generator) * scale
        for name, low, high in (("weight", 0.5, 1.5), ("bias", -0.1, 0.1), ("running_mean", -0.1, 0.1)):
            state[f"{norm}.{name}"] = torch.empty(outputs).uniform_(low, high, generator=generator)
        state[f"{norm}.running_var"] = torch.empty(outputs).uniform_(0.5, 1.5, generator=generator)
        state[f"{norm}.num_batches_tracked"] = torch.tensor(9)

    layer("conv1", "bn1", channels, 64, stem)
    inputs = 64
    for stage, depth in enumerate(depths):
        width = 64 * 2**stage
        outputs = 4 * width if bottleneck else width
        for block in range(depth):
            at = f"layer{stage + 1}.{block}"
            shapes = [(inputs, width, 1), (width, width, 3), (width, outputs, 1)] if bottleneck else [
                (inputs, width, 3), (width, width, 3)
            ]  # fmt: skip
            for place, shape in enumerate(shapes, start=1):
                layer(f"{at}.conv{place}", f"{at}.bn{place}", *shape)
            if block == 0 and (stage or inputs != outputs):
                layer(f"{at}.downsample.0", f"{at}.downsample.1", inputs, outputs, 1)
            inputs = outputs
    return state


def torchvision_features(state, x):
    """What torchvision computes, written down with its own names: the stride is in the 3 x 3 convolution."""

    def layer(x, conv, norm, stride=1):
        weight = state[f"{conv}.weight"]
        x = F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)
        named = [state[f"{norm}.{name}"] for name in ("running_mean", "running_var", "weight", "bias")]
        return F.batch_norm(x, *named)

    stem = state["conv1.weight"].shape[-1]
    x = F.relu(layer(x, "conv1", "bn1", 2 if stem == 7 else 1))
    x = F.max_pool2d(x, 3, 2, 1) if stem == 7 else x
    for stage in range(1, 5):
        block = 0
        while f"layer{stage}.{block}.conv1.weight" in state:
            at, stride, out = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1, x
            for place in (1, 2, 3):
                if f"{at}.conv{place}.weight" in state:
                    halves = stride if (place == 2) == (f"{at}.conv3.weight" in state) and place < 3 else 1
                    out = layer(F.relu(out) if place > 1 else out, f"{at}.conv{place}", f"{at}.bn{place}", halves)
            side = f"{at}.downsample"
            x = F.relu(out + (layer(x, f"{side}.0", f"{side}.1", stride) if f"{side}.0.weight" in state else x))
            block += 1
    return x.mean(dim=(2, 3))


def write(file, state, prefix="", metadata=None, **more):
    named = {f"{prefix}{name}": tensor for name, tensor in state.items()} | more
    save_file({name: tensor.contiguous() for name, tensor in named.items()}, file, metadata)
    return file


@pytest.fixture(scope="module")
def small():
    return torchvision_state()


def standardised(images, size, mean=MEAN, std=STD):
    x = torch.from_numpy(images).permute(0, 3, 1, 2).double() / 255
    x = (x - torch.tensor(mean, dtype=torch.float64).view(-1, 1, 1)) / torch.tensor(std).view(-1, 1, 1)
    return F.interpolate(x, (size, size), mode="bilinear").float()


@pytest.mark.parametrize("prefix", ["", "module.", "encoder.", "module.backbone.", "model.encoder_q."])
def test_a_resnet_under_torchvisions_names(tmp_path, small, prefix):
    """SimCLR's projection, a classifier, and whatever else stands on the net are left out."""
    beside = {"projector.0.weight": torch.ones(3, 3), f"{prefix}fc.weight": torch.ones(2, 512)}
    file, images = write(tmp_path / "simclr.safetensors", small, prefix, **beside), images_of(2, 32, 32, 3)
    found = feature_map(str(file), 48)(images)
    assert found.shape == (2, 512)
    assert found == pytest.approx(torchvision_features(small, standardised(images, 48)).numpy(), rel=1e-3, abs=1e-4)
    assert feature_map(str(file)).key == feature_map(str(file)).key != feature_map(str(file), 48).key


def test_resnet50_has_its_stride_where_torchvision_has_it(tmp_path):
    state = {
        name: tensor.half() if tensor.is_floating_point() else tensor
        for name, tensor in torchvision_state((3, 4, 6, 3), bottleneck=True).items()
    }
    file, images = write(tmp_path / "simclr.safetensors", state, "module."), images_of(1, 32, 32, 3)
    exact = {name: tensor.float() for name, tensor in state.items()}
    expected = torchvision_features(exact, standardised(images, 64)).numpy()
    found = feature_map(str(file), 64)(images)
    assert found.shape == (1, 2048)
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-3 * float(expected.std()))


def test_the_file_may_say_what_images_it_takes(tmp_path):
    """SimCLR's own nets were trained on pixels from 0 to 1."""
    state = torchvision_state(stem=3)
    said = {"mean": "[0, 0, 0]", "std": "[1, 1, 1]", "size": "32", "format": "pt"}
    file, images = write(tmp_path / "own.safetensors", state, metadata=said), images_of(2, 40, 40, 3)
    found = feature_map(str(file))(images)
    resized = F.interpolate(
        torch.from_numpy(images).permute(0, 3, 1, 2) / 255, (32, 32), mode="bilinear", antialias=True
    )
    assert found == pytest.approx(torchvision_features(state, resized).numpy(), rel=1e-3, abs=1e-4)
    grey = write(tmp_path / "grey.safetensors", torchvision_state(channels=1), metadata={"mean": "[0]", "std": "[1]"})
    assert feature_map(str(grey), 32)(images[..., :1]).shape == (2, 512)


def without(name):
    return lambda state: state.pop(name)


def with_(name, tensor):
    return lambda state: state.update({name: tensor})


NORM = "layer1.0.bn1.running_var"
WRONG = {
    r"body.stages.2.0.residual.0.weight of resnet10 is missing": without("layer3.0.conv1.weight"),
    r"body.stem.1.bias is torch.float32 of shape \(63,\), in resnet10 float of shape \(64,\)": with_(
        "bn1.bias", torch.ones(63)
    ),
    r"body.stages.0.0.residual.1.running_var is torch.int64": with_(NORM, torch.ones(64, dtype=torch.int64)),
    r"body.stages.0.0.residual.1.running_var is torch.float64": with_(NORM, torch.ones(64, dtype=torch.float64)),
    r"body.stem.1.extra is torch.float32 of shape \(1,\), in resnet10 float of shape None": with_(
        "bn1.extra", torch.ones(1)
    ),
    r"layer1.0.se.weight belongs to no ResNet": with_("layer1.0.se.weight", torch.ones(1)),
    r"layer belongs to no ResNet": with_("layer", torch.ones(1)),
    r"its stages have 2, 1, 1, 1 blocks": with_("layer1.1.conv1.weight", torch.ones(1)),
    r"2 times": lambda state: state.update({f"other.{name}": tensor.clone() for name, tensor in list(state.items())}),
    r"0 times": without("conv1.weight"),
    r"body.stem.0.weight is torch.float32 of shape \(\)": with_("conv1.weight", torch.tensor(1.0)),
}


@pytest.mark.parametrize("message", WRONG)
def test_the_first_tensor_that_does_not_fit_is_named(tmp_path, small, message):
    state = {name: tensor.clone() for name, tensor in small.items()}
    WRONG[message](state)
    with pytest.raises(DataError, match=rf"{message}.*\[FS302\]"):
        feature_map(str(write(tmp_path / "wrong.safetensors", state)))


def test_numbers_that_are_none_are_refused(tmp_path, small):
    state = small | {NORM: torch.full((64,), torch.nan)}
    with pytest.raises(DataError, match=r"body.stages.0.0.residual.1.running_var holds NaN.*\[FS304\]"):
        feature_map(str(write(tmp_path / "wrong.safetensors", state)))


@pytest.mark.parametrize(
    "said",
    [{"mean": "[0, 0]"}, {"std": "[0, 1, 1]"}, {"size": "0"}, {"size": "1e9"}, {"mean": "[NaN, 0, 0]"}, {"mean": "{"}],
    ids=str,
)
def test_what_a_file_says_of_images_has_a_range(tmp_path, small, said):
    with pytest.raises(DataError, match=r"metadata .*\[FS302\]"):
        feature_map(str(write(tmp_path / "wrong.safetensors", small, metadata=said)))


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    file = tmp_path / "large.safetensors"
    with file.open("wb") as content:
        content.truncate(MOST_BYTES + 1)  # takes no room on disk
    with pytest.raises(DataError, match="FS320"):
        feature_map(str(file))


# A net that never learnt


def test_a_random_net_is_the_same_everywhere_and_learns_nothing():
    images = images_of(3, 16, 16, 3)
    one, again, other = feature_map("random"), feature_map("random"), feature_map("random:1")
    torch.manual_seed(5)
    assert one.key == again.key == feature_map("random:0").key != other.key
    assert np.array_equal(one(images), again(images))
    assert one(images).shape == (3, 512)
    assert not np.allclose(one(images), other(images))
    assert one(images_of(1, 9, 40, 1)).shape == (1, 512), "images as they are, grey ones too"
    assert feature_map("random", 24)(images).shape == (3, 512)
    before = torch.random.get_rng_state()
    feature_map("random:3")
    assert torch.equal(torch.random.get_rng_state(), before), "nobody's draws are shifted"


@pytest.mark.parametrize("name", ["random:", "random:x", "random:-1", "random:²", "random:1234567890", "randomly"])
def test_seeds_are_numbers(name):
    with pytest.raises(ConfigError, match="FS004"):
        feature_map(name)


# First weights

RUN = {"clients": 2, "rounds": 2, "epochs": 1, "quiet": True, "workers": 1}


@pytest.fixture(scope="module")
def source(tmp_path_factory, tiny_file):
    """The model of a run, whose projector and classifier are nobody else's business."""
    folder = tmp_path_factory.mktemp("source") / "run"
    fedsieve.run(**RUN, data=str(tiny_file), method="moon", runtime="serial", out=str(folder))
    return folder / "model.safetensors"


def plan(source, **settings):
    return plan_of(config_of({"clients": 4, "init": str(source), **settings}), tiny_federation())


def entries(plan):
    return {name: tensor for name, tensor in plan.build(0).state_dict().items() if tensor.is_floating_point()}


def tiny_run_file(folder, **settings):
    """A model of a run on the tiny federation, with a head in line."""
    federation = tiny_federation()
    made = plan_of(config_of({"clients": 4, "method": "moon", "seed": 9, **settings}), federation)
    card = {
        "model": settings.get("model", "cnn-lite"), "options": {}, "norm": "average", "method": "moon",
        "heads": [{"kind": "projector", "hidden": None, "times": 1, "width": 256, "layers": 2, "norm": "none"}],
        "several": False, "shared": True, "class_names": list("abcd"), "mean": [0.5], "std": [0.5],
        "shape": list(federation.sample_shape),
    }  # fmt: skip
    file = folder / "model.safetensors"
    file.write_bytes(to_bytes(made.build(0).state_dict(), card))
    return file


@pytest.mark.parametrize("method", ["fedavg", "moon"])
def test_the_encoder_is_loaded_and_what_stands_on_it_stays_new(tmp_path, method):
    file = tiny_run_file(tmp_path)
    saved = {name.removeprefix("encoder."): t for name, t in SavedModels.read(file).weights().items()}
    started = entries(plan(file, method=method))
    drawn = entries(plan_of(config_of({"clients": 4, "method": method}), tiny_federation()))
    inside = [name for name in started if name.removeprefix("encoder.").startswith("body.")]
    assert inside
    for name in started:
        if name in inside:
            assert torch.equal(started[name], saved[name.removeprefix("encoder.")])
        else:
            assert torch.equal(started[name], drawn[name]), f"{name} is drawn from its own stream"


def test_an_encoder_of_others_is_loaded(tmp_path):
    file = write(
        tmp_path / "simclr.safetensors",
        torchvision_state(channels=1),
        "encoder.",
        metadata={"mean": "[0]", "std": "[1]"},
    )
    started = entries(plan(file, model="resnet10", **{"model.stem": "imagenet"}))
    for name, tensor in Pretrained.of(Weights.read(file)).tensors.items():
        assert torch.equal(started[name], tensor)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "mobilenetv2"}, r"body.0.weight is torch.float32 of shape \(32, 1, 5, 5\) in the file"),
        ({"model": "resnet10"}, r"body.stem.0.weight is missing in the file"),
        ({"norm": "group"}, r"body.1.running_mean is torch.float32 of shape \(32,\) in the file, missing in the model"),
    ],
    ids=["shape", "name", "norm"],
)
def test_another_architecture_is_refused(tmp_path, settings, message):
    with pytest.raises(ConfigError, match=rf"init=.*: {message}.*\[FS011\]"):
        plan(tiny_run_file(tmp_path), **settings).build(0)


def test_an_encoder_that_halves_elsewhere_is_refused():
    with torch.device("meta"):
        model = build_model("resnet50", (3, 64, 64), 4, options={"stem": "imagenet"})
    body = {n: t for n, t in model.state_dict().items() if n.startswith("body.") and t.is_floating_point()}
    first = FirstWeights(Path("x.safetensors"), body, {"stride_on": "3x3"})
    with pytest.raises(ConfigError, match=r"model.stride_on is 3x3 there, 1x1 here.*\[FS011\]"):
        first.into(model, {"stride_on": "1x1"})
    assert first.into(model, {"stride_on": "3x3"}) is model


def test_no_file_and_none_of_a_model(tmp_path):
    with pytest.raises(DataError, match="FS301"):
        plan(tmp_path / "none.safetensors")
    (tmp_path / "none.safetensors").write_bytes(b"nothing")
    with pytest.raises(DataError, match="FS302"):
        plan(tmp_path / "none.safetensors")


def interrupted(monkeypatch, folder, **settings):
    """A run that is cut off after its first round."""

    def stop(self, row):
        if row["round"] == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Progress, "round", stop)
        with pytest.raises(KeyboardInterrupt):
            fedsieve.run(**RUN, **settings, runtime="serial", out=str(folder))
    return folder


def test_runtimes_and_resuming_give_the_same_bytes(tmp_path, source, tiny_file, monkeypatch):
    settings = {"data": str(tiny_file), "init": str(source), "seed": 3}
    for runtime in ("serial", "pool"):
        fedsieve.run(**RUN, **settings, runtime=runtime, out=str(tmp_path / runtime))
    resume(interrupted(monkeypatch, tmp_path / "resumed", **settings), Progress())
    made = {(tmp_path / name / "model.safetensors").read_bytes() for name in ("serial", "pool", "resumed")}
    assert len(made) == 1
    recorded = json.loads((tmp_path / "serial" / "federation.json").read_text())["weights"]
    assert recorded == {"init": hashlib.sha256(source.read_bytes()).hexdigest()}


@pytest.mark.parametrize("key", ["init", "ksim.features"])
def test_a_file_that_changed_is_noticed_when_the_run_is_resumed(tmp_path, source, tiny_file, key, monkeypatch):
    file, method = tmp_path / "first.safetensors", "ksim" if "." in key else "fedavg"
    file.write_bytes(source.read_bytes())
    folder = interrupted(monkeypatch, tmp_path / "run", data=str(tiny_file), method=method, **{key: str(file)})
    weights = Weights.read(file)
    save_file({name: t.clone() for name, t in weights.tensors.items()}, file, {**weights.metadata, "format": "pt"})
    with pytest.raises(RunError, match=rf"the file of {key} changed since the run began \(sha256 \w{{12}}, now.*FS232"):
        resume(folder, Progress())


def test_a_file_that_is_gone_is_named_when_the_run_begins():
    with pytest.raises(DataError, match=r"none\.safetensors: no such file\. Give the model\.safetensors of a run"):
        file_hashes(resolve({"init": "none.safetensors"}))


def test_data_that_changed_are_noticed_when_the_run_is_resumed(tmp_path, tiny_file, monkeypatch):
    with np.load(tiny_file) as file:
        held = dict(file)
    data = tmp_path / "data.npz"
    np.savez(data, **held)
    folder = interrupted(monkeypatch, tmp_path / "run", data=str(data))
    np.savez(data, **held | {"y_train": (held["y_train"] + 1) % 4})
    with pytest.raises(RunError, match=r"data changed since the run began \(federation \w{12}, now \w{12}\).*FS214"):
        resume(folder, Progress())


def test_a_run_is_resumed_as_it_was_and_where_it_is(tmp_path, tiny_file, monkeypatch):
    folder = interrupted(monkeypatch, tmp_path / "run", data=str(tiny_file))
    with pytest.raises(ConfigError, match=r"'rounds' cannot change when a run is resumed.*\[FS001\]"):
        resume(folder, Progress(), {"rounds": 9})
    with pytest.raises(ConfigError, match=r"is not the folder of a run: it has no config\.yaml.*\[FS007\]"):
        resume(tmp_path, Progress())


def test_features_that_collapsed_are_told_at_the_end(tmp_path, tiny_file, monkeypatch):
    notes = []
    monkeypatch.setattr(
        "fedsieve.runs.session.write_results", lambda *known: write_results(*known) | {"collapsed": True}
    )
    monkeypatch.setattr(Progress, "note", lambda self, text: notes.append(text))
    settings = {key: RUN[key] for key in ("clients", "rounds", "epochs")}
    run(settings | {"data": str(tiny_file), "runtime": "serial", "out": str(tmp_path / "run")}, Progress())
    assert notes[-1].startswith("the features collapsed: they are as good as the same for all samples")
