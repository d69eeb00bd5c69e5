"""What is said of a folder that is there already: what it holds, and what may be done about it."""

import json

import pytest

from fedsieve.base.errors import ConfigError
from fedsieve.base.seal import seal
from fedsieve.runs.folder import check_free

RUN = {"config.yaml": "seed: 0\n"}
FINISHED = {"method": "fedavg", "rounds": 3, "test_accuracy": 0.5}


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"results.jsonl": ""}, "it holds a comparison. Go on with it by starting the same `fedsieve compare` again"),
        ({f"{i}.txt": "" for i in range(9)}, "it holds no run, but 0.txt, 1.txt"),
        (RUN, "an unfinished run. Go on with it by `fedsieve resume"),
        (RUN | {"summary.json": "{"}, "an unfinished run"),
        (RUN | {"summary.json": seal(FINISHED)}, r"a finished run \(fedavg, 3 rounds, test accuracy 0.5000\)"),
        (RUN | {"summary.json": seal(FINISHED | {"test_accuracy": None})}, r"a finished run \(fedavg, 3 rounds\)"),
        (RUN | {"summary.json": json.dumps("nothing")}, "an unfinished run"),
    ],
    ids=["comparison", "strange", "unfinished", "damaged", "finished", "untested", "unsealed"],
)
def test_what_is_there(tmp_path, files, said):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=said):
        check_free(tmp_path, overwrite=False)


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "out").write_text("mine")
    with pytest.raises(ConfigError, match=r"it is a file\. Choose another out="):
        check_free(tmp_path / "out", overwrite=False)
