"""The notebooks of the documentation: all cells run, in a fresh process, and what they showed is in the files."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs").rglob("*.ipynb"))
TOOL = ROOT / "tools" / "run_notebook.py"


def executed(notebook, folder, *options):
    """In an empty folder, with the commands of this environment."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        [sys.executable, str(TOOL), str(notebook), *options],
        cwd=folder, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def cells(notebook):
    content = json.loads(notebook.read_text(encoding="utf-8"))
    assert (content["nbformat"], content["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in content["cells"]}) == len(content["cells"])
    return content["cells"]


def written(file, *sources):
    code = [
        {"cell_type": "code", "id": f"c{i}", "metadata": {}, "execution_count": None, "outputs": [], "source": [source]}
        for i, source in enumerate(sources)
    ]
    file.write_text(json.dumps({"cells": code, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    return file


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(notebook, tmp_path):
    done = executed(notebook, tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_its_cells_showed_is_in_the_file(notebook):
    code = [cell for cell in cells(notebook) if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert any("image/png" in output.get("data", {}) for cell in code for output in cell["outputs"])
    assert not any(output["output_type"] == "error" for cell in code for output in cell["outputs"])
    assert notebook.stat().st_size < 300_000
    shown = re.sub(r'"image/png": "[^"]*"', "", notebook.read_text(encoding="utf-8"))
    assert not re.search(r"(?<![\w./:~*)<-])/[a-z]+/[\w.-]+", shown), "a path of some machine"


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_links_resolve(notebook):
    text = "\n".join("".join(cell["source"]) for cell in cells(notebook) if cell["cell_type"] == "markdown")
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        assert (notebook.parent / link.partition("#")[0]).exists(), link


def test_values_prints_commands_and_figures_are_kept(tmp_path):
    notebook = written(
        tmp_path / "n.ipynb",
        "x = 6\nprint('six')\nx * 7",
        "!echo from the shell\ny = x",
        "import matplotlib.pyplot as plt\n_ = plt.plot([1, 2])",
        "import pandas as pd\npd.DataFrame({'a': [y]})",
    )
    done = executed(notebook, tmp_path, "--write")
    assert done.returncode == 0, done.stderr
    printed, shell, figure, frame = (cell["outputs"] for cell in cells(notebook))
    assert printed[0]["text"] == ["six\n"]
    assert printed[1]["data"] == {"text/plain": ["42"]}
    assert shell == [{"name": "stdout", "output_type": "stream", "text": ["from the shell\n"]}]
    assert list(figure[0]["data"]) == ["image/png"]
    assert "<td>6</td>" in "".join(frame[0]["data"]["text/html"])


@pytest.mark.parametrize("source", ["!exit 3", "1 / 0", "print('unfinished'", "from fedsieve import nothing"])
def test_a_cell_that_fails_fails_the_notebook(tmp_path, source):
    notebook = written(tmp_path / "n.ipynb", "x = 1", source)
    before = notebook.read_text()
    assert executed(notebook, tmp_path, "--write").returncode != 0
    assert notebook.read_text() == before


def test_there_are_notebooks():
    assert {path.stem for path in NOTEBOOKS} == {"audit-your-labels", "first-steps"}
