"""The command line as people use it, on embedded and on tiny data."""

import csv
import json
import subprocess
import sys

import numpy as np
import pytest
import yaml
from PIL import Image

import fedsieve

QUICK = ["clients=3", "rounds=2", "epochs=1", "batch=10", "runtime=serial"]


def fedsieve_command(*arguments, cwd=None):
    command = [sys.executable, "-m", "fedsieve", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


@pytest.mark.parametrize("arguments", [["--help"], ["methods"], ["models"], ["run", "--help"], ["keys"]])
def test_help_and_lists_do_not_load_torch(arguments):
    code = f"import sys; from fedsieve.cli import main; sys.argv[1:] = {arguments}\n"
    code += "try: main()\nexcept SystemExit: pass\nassert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_a_run_on_embedded_data_leaves_every_file(tmp_path):
    settings = ["noise=symmetric", "noise.rates=ramp", "noise.high=0.8", "partition=dirichlet", "method=oracle"]
    done = fedsieve_command(
        "run", "clients=4", "rounds=2", "epochs=1", "validation=0.05", "server.unlabelled=100", *settings, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "round 2/2: accuracy" in done.stderr
    (folder,) = (tmp_path / "runs").glob("embedded-oracle-s0-??????")
    expected = "config.yaml federation.json truth.npz metrics.jsonl clients.jsonl labels.csv summary.json checkpoint"
    more = {"suspects.npz", "model.safetensors", "report.html"}
    assert {*expected.split()} | more == {path.name for path in folder.iterdir()}
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    keys = "round test_accuracy macro_f1 balanced_accuracy label_precision label_recall bytes_up bytes_down seconds"
    assert set(keys.split()) <= rows[0].keys()
    assert rows[1]["test_accuracy"] > 0.4, "it learns"
    assert rows[1]["validation_accuracy"] > 0.4
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["test_accuracy_last10"] == pytest.approx(np.mean([row["test_accuracy"] for row in rows]))
    assert summary["test_accuracy_best"] == max(row["test_accuracy"] for row in rows)
    with (folder / "labels.csv").open() as file:
        labels = list(csv.DictReader(file))
    assert list(labels[0]) == ["owner", "where", "given", "suggested", "score", "flagged", "method", "twin"]
    federation = json.loads((folder / "federation.json").read_text())
    assert len(labels) == sum(client["rows"] for client in federation["clients"]) == 8000 - 400 - 100
    wrong = sum(client["rows"] * client["noise_realised"] for client in federation["clients"])
    assert sum(row["flagged"] == "true" for row in labels) == pytest.approx(wrong, abs=0.5)
    final, mean = summary["test_accuracy"], summary["test_accuracy_last10"]
    said = f"test accuracy {final:.4f} at the end (the saved model), {mean:.4f} in the mean of the last 2 tests"
    assert said in done.stdout
    again = fedsieve_command("run", folder / "config.yaml", cwd=tmp_path)
    assert again.returncode == 2
    assert f"exists: a finished run (oracle, 2 rounds, test accuracy {final:.4f})" in again.stderr.splitlines()[-1]
    assert "FS005" in again.stderr


def test_compare_skips_what_is_finished_and_writes_tables(tmp_path, tiny_file):
    arguments = [
        "compare",
        *QUICK[:-1],
        f"data={tiny_file}",
        "method=fedavg,fedprox",
        "fedprox.mu=0.1",
        f"out={tmp_path}",
    ]
    first = fedsieve_command(*arguments, "seed=0,1")
    assert first.returncode == 0, first.stderr
    assert (tmp_path / "results.jsonl").read_text().count("\n") == 4
    for name in ("table.md", "table.csv", "table.tex", "report.html"):
        assert (tmp_path / name).stat().st_size > 100
    assert "| fedprox | 2 |" in first.stdout
    assert "±" in first.stdout
    second = fedsieve_command(*arguments, "seed=0,1,2")
    assert "6 runs, 4 finished before" in second.stderr
    assert (tmp_path / "results.jsonl").read_text().count("\n") == 6
    report = fedsieve_command("report", tmp_path, "--out", tmp_path / "page.html")
    assert report.returncode == 0, report.stderr
    assert "fedprox" in (tmp_path / "page.html").read_text()


def test_a_comparison_leaves_out_what_cannot_be(tmp_path, tiny_file):
    arguments = [*QUICK[:-1], f"data={tiny_file}", "method=fedavg,focus", f"out={tmp_path}"]
    done = fedsieve_command("compare", *arguments)
    assert done.returncode == 4
    assert "1 of 2 runs is missing: focus-" in done.stderr.splitlines()[-1]
    assert "FS112" in done.stderr
    assert "| fedavg | 1 |" in done.stdout
    for name in ("table.md", "table.tex", "report.html", "comparison.yaml"):
        assert (tmp_path / name).is_file()


def test_predict_from_files(tmp_path, tiny_file):
    folder = tmp_path / "run"
    assert fedsieve_command("run", *QUICK, f"data={tiny_file}", f"out={folder}", "method=moon").returncode == 0
    images = np.load(tiny_file)["x_test"]
    done = fedsieve_command("predict", folder, tiny_file, "--json")
    found = json.loads(done.stdout)
    assert found["label"] == fedsieve.predict(folder, images)["label"]
    written = fedsieve_command("predict", folder, tiny_file, "--out", tmp_path / "found.csv")
    assert written.returncode == 0, written.stderr
    assert len((tmp_path / "found.csv").read_text().splitlines()) == len(images) + 1
    wrong = tmp_path / "wrong.npy"
    np.save(wrong, np.zeros((2, 5, 5), np.uint8))
    assert "FS309" in fedsieve_command("predict", folder, wrong).stderr
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    Image.fromarray(images[0, :, :, 0]).save(pictures / "a.png")
    (pictures / "b.png").write_bytes(b"broken")
    mixed = fedsieve_command("predict", folder, pictures, "--probabilities")
    assert mixed.returncode == 3
    assert "left out: " in mixed.stderr
    assert "b.png: cannot be read" in mixed.stderr
    (row,) = csv.DictReader(mixed.stdout.splitlines())
    assert row["where"] == str(pictures / "a.png")
    assert sum(float(row[f"p({name})"]) for name in range(4)) == pytest.approx(1, abs=1e-5)
    assert "no run, but a.png, b.png" in fedsieve_command("run", *QUICK, f"data={tiny_file}", f"out={pictures}").stderr


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["rouns=3"], 2, "Did you mean 'rounds'?"),
        (["method=fedavgg"], 2, "Did you mean 'fedavg'?"),
        (["method=gce+mae"], 2, "two losses"),
        (["gce.q=2", "method=gce"], 2, "gce.q"),
        (["fedprox.nu=2", "method=fedprox"], 2, "Did you mean 'mu'?"),
        (["lr=fast"], 2, "lr='fast'"),
        (["model=resnet19"], 2, "resnet"),
        (["device=cuda:99"], 2, "device=auto"),
        (["data=missing.npz"], 3, "missing.npz"),
        (["clients=100000"], 3, "clients"),
        (["missing.yaml"], 2, "missing.yaml"),
    ],
)
def test_mistakes_are_named(tmp_path, arguments, status, says):
    done = fedsieve_command("run", *arguments, "rounds=1", "runtime=serial", cwd=tmp_path)
    assert done.returncode == status, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert says in last
    assert last.endswith("]")
    assert "Traceback" not in done.stderr


def test_a_file_and_arguments(tmp_path, tiny_file):
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump({"method": "gce", "gce": {"q": 0.5}, "rounds": 9, "data": str(tiny_file)}))
    done = fedsieve_command("run", file, *QUICK, f"out={tmp_path / 'run'}", "--quiet", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert json.loads(done.stdout)["rounds"] == 2
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert config["gce.q"] == 0.5
    assert config["partition"] == "iid"


def test_a_script_needs_no_main_guard(tmp_path, tiny_file):
    script = tmp_path / "script.py"
    script.write_text(
        "import fedsieve\n"
        f"result = fedsieve.run(data={str(tiny_file)!r}, clients=3, rounds=1, epochs=1, workers=2,\n"
        f"                      out={str(tmp_path / 'run')!r}, quiet=True)\n"
        "print('accuracy', result['test_accuracy'], len(result.to_frame()))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("accuracy")
    assert done.stdout.count("accuracy") == 1


def test_no_rounds_at_all(tmp_path, tiny_file):
    done = fedsieve_command("run", *QUICK, "rounds=0", f"data={tiny_file}", f"out={tmp_path / 'run'}")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "model.safetensors").exists()
