"""A run through the front door in one process, its saved model, and predictions by it."""

import json
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import fedsieve
from fedsieve.api import Result
from fedsieve.base.errors import ConfigError, DataError
from fedsieve.models import build_model
from fedsieve.models.saved import SavedModels
from fedsieve.runs.prediction import predict_samples, read_new, read_samples

KEYS = {"clients": 2, "rounds": 1, "epochs": 1, "runtime": "serial", "quiet": True}


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny_file):
    """The folder of a run with a model that has normalisation layers."""
    folder = tmp_path_factory.mktemp("runs") / "own"
    fedsieve.run(**KEYS, data=str(tiny_file), out=str(folder))
    return folder


@pytest.fixture(scope="module")
def samples(tiny_file):
    with np.load(tiny_file) as file:
        return file["x_test"]


def test_batch_counters_stay_whole_numbers_at_zero(run):
    tensors = load_file(run / "model.safetensors")
    counters = {name: tensor for name, tensor in tensors.items() if name.endswith("num_batches_tracked")}
    assert len(counters) == 2
    for tensor in counters.values():
        assert tensor.dtype == torch.int64
        assert int(tensor) == 0
    running = tensors["body.1.running_mean"]
    assert running.dtype == torch.float32
    assert bool((running != 0).any()), "float statistics are averaged like weights"


def test_the_file_loads_into_the_plain_model(run):
    model = build_model("cnn-lite", (1, 12, 12), 4)
    assert model.load_state_dict(load_file(run / "model.safetensors"), strict=True)


def test_predictions_are_the_models(run, samples):
    found = predict_samples(run, samples)
    federation = json.loads((run / "federation.json").read_text())
    mean, std = federation["mean"][0], federation["std"][0]
    model = build_model("cnn-lite", (1, 12, 12), 4).eval()
    model.load_state_dict(load_file(run / "model.safetensors"))
    x = (torch.from_numpy(samples).permute(0, 3, 1, 2).float() / 255 - mean) / std
    probabilities = model(x).softmax(1).detach()
    assert found["label"] == probabilities.argmax(1).tolist()
    assert found["probability"] == pytest.approx(probabilities.max(1).values.tolist(), abs=1e-4)
    assert found["name"] == [federation["class_names"][label] for label in found["label"]]
    accuracy = np.mean(np.array(found["label"]) == np.arange(len(samples)) % 4)
    assert json.loads((run / "summary.json").read_text())["test_accuracy"] == pytest.approx(accuracy)


def test_the_python_side_gives_rows(run, samples):
    result = fedsieve.predict(run, samples[:3])
    assert [row["label"] for row in result["rows"]] == predict_samples(run, samples[:3])["label"]
    assert len(result.to_frame()) == 3


def test_a_frame_without_pandas_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match="pip install pandas") as problem:
        Result(rows=[]).to_frame()
    assert problem.value.code == "FS008"


@pytest.mark.parametrize("shape", [(3, 12, 12, 3), (3, 10, 12, 1), (3, 12)])
def test_samples_of_another_shape_are_refused(run, shape):
    kind = np.uint8 if len(shape) == 4 else np.float32
    with pytest.raises(DataError, match=r"the model was trained on \(12, 12, 1\). Convert them") as problem:
        predict_samples(run, np.zeros(shape, kind))
    assert problem.value.code == "FS309"


def test_samples_of_another_kind_are_refused(run):
    with pytest.raises(DataError, match=r"the samples holds? int64"):
        predict_samples(run, np.zeros((3, 12, 12, 1), np.int64))


def test_samples_are_read_from_arrays_and_pictures(tmp_path, run, samples):
    shape = SavedModels.read(run / "model.safetensors").shape
    assert shape == (1, 12, 12)
    np.save(tmp_path / "a.npy", samples)
    np.savez(tmp_path / "b.npz", x_test=samples, other=np.zeros(3))
    for name in ("a.npy", "b.npz"):
        assert np.array_equal(read_samples(tmp_path / name, shape), samples)
    Image.fromarray(samples[0, :, :, 0]).save(tmp_path / "c.png")
    assert np.array_equal(read_samples(tmp_path / "c.png", shape)[0], samples[0, :, :, 0])
    assert (
        predict_samples(run, read_samples(tmp_path / "c.png", shape))["label"]
        == predict_samples(run, samples[:1])["label"]
    )


def test_files_that_are_no_samples_are_named(tmp_path, run):
    shape = SavedModels.read(run / "model.safetensors").shape
    with pytest.raises(DataError, match="no such file"):
        read_samples(tmp_path / "none.npy", shape)
    for name in ("x.npy", "x.npz", "x.png"):
        (tmp_path / name).write_bytes(b"nonsense")
        with pytest.raises(DataError, match=name) as problem:
            read_samples(tmp_path / name, shape)
        assert problem.value.code == "FS302"


def test_a_model_of_rows_takes_no_picture_and_an_empty_archive_holds_nothing(tmp_path):
    Image.new("L", (3, 3)).save(tmp_path / "x.png")
    with pytest.raises(DataError, match=r"x\.png: the model takes rows of 5 numbers.*\[FS309\]"):
        read_samples(tmp_path / "x.png", (5,))
    np.savez(tmp_path / "x.npz")
    with pytest.raises(DataError, match=r"x\.npz: not a readable array file \(it holds no array\).*\[FS302\]"):
        read_samples(tmp_path / "x.npz", (5,))


def test_a_model_that_gives_no_number_is_named(run, samples, monkeypatch):
    """Weights are finite, yet their product overflows for one sample."""
    monkeypatch.setattr(
        torch.Tensor, "softmax", lambda logits, axis: logits.where(torch.arange(len(logits))[:, None] != 2, torch.nan)
    )
    with pytest.raises(DataError, match=r"gives no number for sample 2\..*\[FS304\]"):
        predict_samples(run, samples[:4])


def test_a_folder_without_a_model_says_how_to_get_one(tmp_path):
    with pytest.raises(ConfigError, match=r"has no model\.safetensors\. Finish the run") as problem:
        read_new("x.npy", tmp_path)
    assert problem.value.code == "FS007"


def test_a_group_that_is_not_there_is_refused(run, samples):
    with pytest.raises(ConfigError, match="group=5"):
        predict_samples(run, samples, group=5)


def test_a_run_without_a_common_model_has_none_to_predict_with(tmp_path, tiny_file, samples):
    fedsieve.run(**KEYS, data=str(tiny_file), out=str(tmp_path / "own"), method="local")
    with pytest.raises(ConfigError):
        predict_samples(tmp_path / "own", samples)
