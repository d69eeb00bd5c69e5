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
from fedsieve.data.sources import DataOptions, load_source
from fedsieve.models import build_model
from fedsieve.models.saved import SavedModels
from fedsieve.runs.inputs import Inputs
from fedsieve.runs.prediction import predict_files, predict_samples, read_saved

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
    np.save(tmp_path / "a.npy", samples)
    np.savez(tmp_path / "b.npz", x_test=samples, other=np.zeros(3))
    expected = predict_samples(run, samples)
    for name in ("a.npy", "b.npz"):
        found, unread = predict_files(run, [tmp_path / name])
        assert found["label"] == expected["label"]
        assert found["where"][:2] == [f"{tmp_path / name}:0", f"{tmp_path / name}:1"]
        assert not unread
    Image.fromarray(samples[0, :, :, 0]).save(tmp_path / "c.png")
    found, _ = predict_files(run, [tmp_path / "c.png"])
    assert found["probabilities"] == expected["probabilities"][:1]


def test_probabilities_are_those_of_all_classes(run, samples):
    found = predict_samples(run, samples)
    each = np.array(found["probabilities"])
    assert each.shape == (len(samples), 4)
    assert each.sum(1) == pytest.approx(1, abs=1e-5)
    assert each.argmax(1).tolist() == found["label"]
    assert each.max(1).tolist() == found["probability"]


def test_folders_several_images_and_lists(tmp_path, run, samples):
    """Images in the order of their paths; what cannot be read is named, and the others are predicted."""
    expected = predict_samples(run, samples[:4])["label"]
    (tmp_path / "new" / "deep").mkdir(parents=True)
    files = [
        tmp_path / "new" / "a.png",
        tmp_path / "new" / "b.png",
        *(tmp_path / "new" / "deep" / f"{i}.png" for i in "cd"),
    ]
    for file, image in zip(files, samples, strict=False):
        Image.fromarray(image[:, :, 0]).save(file)
    (tmp_path / "new" / "broken.png").write_bytes(b"nonsense")
    (tmp_path / "new" / "notes.txt").write_text("beside")
    found, unread = predict_files(run, [tmp_path / "new"])
    assert found["where"] == [str(file) for file in files]
    assert found["label"] == expected
    (line,) = unread
    assert "broken.png: cannot be read (not an image)" in line
    assert predict_files(run, files[::-1])[0]["label"] == expected[::-1]
    (tmp_path / "list.csv").write_text("scan;note\nnew/a.png;x\nnew/deep/c.png;y\n")
    found, _ = predict_files(run, [tmp_path / "list.csv"])
    assert found["where"] == [f"{tmp_path / 'list.csv'}:2 new/a.png", f"{tmp_path / 'list.csv'}:3 new/deep/c.png"]
    assert found["label"] == [expected[0], expected[2]]
    with pytest.warns(UserWarning, match=r"left out: .*broken\.png"):
        result = fedsieve.predict(run, tmp_path / "new")
    assert (result["label"], len(result["unread"])) == (expected, 1)


def test_images_are_read_as_those_of_the_training(tmp_path):
    """Scans of 12 bits and another shape: by the window and the fit that the model's card tells."""
    rng = np.random.default_rng(0)
    for k, name in enumerate(("a", "b")):
        (tmp_path / "scans" / name).mkdir(parents=True)
        for i in range(12):
            values = rng.integers(1000 * k, 1000 * k + 900, (20, 30)).astype(np.uint16)
            Image.fromarray(values).save(tmp_path / "scans" / name / f"{i}.png")
    keys = {"data.size": 10, "data.fit": "crop"}
    fedsieve.run(**KEYS, data=str(tmp_path / "scans"), out=str(tmp_path / "run"), **keys)
    source = load_source(str(tmp_path / "scans"), DataOptions(size=10, fit="crop"))
    found, _ = predict_files(tmp_path / "run", [tmp_path / "scans"])
    order = sorted(range(12), key=str)  # the folder is walked by name
    images = np.concatenate([source.images[:12][np.argsort(order)][np.arange(12)], source.images[12:]])
    assert set(map(str, found["probabilities"])) == set(
        map(str, predict_samples(tmp_path / "run", images)["probabilities"])
    )


def test_tables_are_read_as_those_of_the_training(tmp_path):
    rows = "".join(f"{20 + i},{'fm'[i % 2]},{'' if i == 3 else 100 + i},{'ab'[i % 2]}\n" for i in range(40))
    (tmp_path / "t.csv").write_text(f"age,sex,pressure,label\n{rows}")
    keys = {"model": "mlp", "data.categories": "auto", "data.missing": "mean"}
    fedsieve.run(**KEYS, data=str(tmp_path / "t.csv"), out=str(tmp_path / "run"), **keys)
    (tmp_path / "new.csv").write_text("name;pressure;sex;age\nx;;m;30\ny;101,5;f;31\n")
    found, _ = predict_files(tmp_path / "run", [tmp_path / "new.csv"])
    fill = read_saved(tmp_path / "run").reading.fill["pressure"]
    by_hand = predict_samples(tmp_path / "run", np.array([[30, 0, 1, fill], [31, 1, 0, 101.5]], np.float32))
    assert found["probabilities"] == by_hand["probabilities"]
    for text, code, says in (
        ("pressure,age\n1,2\n", "FS302", "no column 'sex'"),
        ("pressure,age,sex\n1,2,x\n", "FS303", "unknown category 'x'"),
    ):
        (tmp_path / "new.csv").write_text(text)
        with pytest.raises(DataError, match=says) as problem:
            predict_files(tmp_path / "run", [tmp_path / "new.csv"])
        assert problem.value.code == code
    with pytest.raises(DataError, match=r"takes rows of 4 numbers.*\[FS309\]"):
        predict_files(tmp_path / "run", [tmp_path])


def test_files_that_are_no_samples_are_named(tmp_path, run):
    with pytest.raises(DataError, match="no such file"):
        predict_files(run, [tmp_path / "none.npy"])
    for name in ("x.npy", "x.npz", "x.png"):
        (tmp_path / name).write_bytes(b"nonsense")
        with pytest.raises(DataError, match=name) as problem:
            predict_files(run, [tmp_path / name])
        assert problem.value.code == "FS302"
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty: holds no images.*\[FS301\]"):
        predict_files(run, [tmp_path / "empty"])


def test_a_model_of_rows_takes_no_picture_and_an_empty_archive_holds_nothing(tmp_path):
    def read(path):
        return list(Inputs([path], SavedModels(path, {"shape": [5]}, {})))

    Image.new("L", (3, 3)).save(tmp_path / "x.png")
    with pytest.raises(DataError, match=r"x\.png: the model takes rows of 5 numbers.*\[FS309\]"):
        read(tmp_path / "x.png")
    np.savez(tmp_path / "x.npz")
    with pytest.raises(DataError, match=r"x\.npz: not a readable array file \(it holds no array\).*\[FS302\]"):
        read(tmp_path / "x.npz")


def test_a_model_that_gives_no_number_is_named(run, samples, monkeypatch):
    """Weights are finite, yet their product overflows for one sample."""
    monkeypatch.setattr(
        torch.Tensor, "softmax", lambda logits, axis: logits.where(torch.arange(len(logits))[:, None] != 2, torch.nan)
    )
    with pytest.raises(DataError, match=r"gives no number for sample 2\..*\[FS304\]"):
        predict_samples(run, samples[:4])


def test_a_folder_without_a_model_says_what_it_is(tmp_path):
    with pytest.raises(
        ConfigError, match=r"is not the folder of a run: it has no config\.yaml\. Check the path"
    ) as problem:
        read_saved(tmp_path)
    assert problem.value.code == "FS007"
    assert "resume" not in problem.value.message
    (tmp_path / "config.yaml").write_text("method: fedavg\n")
    with pytest.raises(ConfigError, match=r"has no model\.safetensors\. Finish the run with `fedsieve resume"):
        read_saved(tmp_path)
    with pytest.raises(ConfigError, match="no such folder"):
        read_saved(tmp_path / "nowhere")


def test_a_group_that_is_not_there_is_refused(run, samples):
    with pytest.raises(ConfigError, match="group=5"):
        predict_samples(run, samples, group=5)


def test_a_run_without_a_common_model_has_none_to_predict_with(tmp_path, tiny_file, samples):
    fedsieve.run(**KEYS, data=str(tiny_file), out=str(tmp_path / "own"), method="local")
    with pytest.raises(ConfigError):
        predict_samples(tmp_path / "own", samples)


def test_a_list_without_images_and_a_table_of_another_width(tmp_path, run):
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match=r"no column 'file' that names images.*\[FS302\]"):
        predict_files(run, [tmp_path / "t.csv"])
    x, y = np.arange(60, dtype=np.float32).reshape(20, 3), np.arange(20) % 2
    np.savez(tmp_path / "t.npz", x_train=x, y_train=y, x_test=x[:4] + 0.5, y_test=y[:4])
    fedsieve.run(**KEYS, data=str(tmp_path / "t.npz"), model="mlp", out=str(tmp_path / "run"))
    with pytest.raises(DataError, match=r"has 2 columns, the model takes 3.*\[FS309\]"):
        predict_files(tmp_path / "run", [tmp_path / "t.csv"])


def test_a_run_that_trained_an_encoder_predicts_nothing(tmp_path, tiny_file, samples):
    fedsieve.run(**KEYS, data=str(tiny_file), method="simclr", out=str(tmp_path / "run"))
    with pytest.raises(ConfigError, match=r"trained no classifier.*--map .*model\.safetensors.*\[FS007\]"):
        predict_samples(tmp_path / "run", samples)
