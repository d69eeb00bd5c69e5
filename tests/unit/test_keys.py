"""The keys as types: the same as the settings, and what an editor or mypy makes of them."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_type_hints

import pytest

import fedsieve
from fedsieve.methods import METHODS, method_options
from fedsieve.runs.comparison import cells
from fedsieve.settings.config import FREE, PLACES, SECTIONS, Settings
from fedsieve.settings.keys import FreeKeys, Keys, OneOrMore, Sections, SeveralKeys

PATHS = ("data", "init", "out")
"""Keys that may also be a `Path`."""
CALLS = """
from typing import Any, Unpack
from fedsieve.settings.keys import FreeKeys, Keys, SeveralKeys

def run(*, quiet: bool = False, **settings: Unpack[Keys]) -> None: ...
def compare(**settings: Unpack[SeveralKeys]) -> None: ...
def resume(**changes: Unpack[FreeKeys]) -> None: ...

options: dict[str, Any] = {"noise.rate": 0.4}
run(method="fedprox", rounds=5, lr=1, fedprox={"mu": 0.1}, **options)
compare(method=["fedavg", "gce"], seed=range(3), norm=("average", "group"), out="here")
resume(workers=2)
run(rounds="five")
run(norm="none")
run(ruonds=5)
compare(out=["here", "there"])
resume(rounds=5)
"""


def test_each_key_is_typed_as_the_settings_declare_it() -> None:
    declared = get_type_hints(Settings)  # without their bounds
    typed, several = get_type_hints(Keys), get_type_hints(SeveralKeys)
    keys = set(declared) - {"nested"}
    sections = set(get_type_hints(Sections))
    assert set(typed) - sections == set(several) - sections == keys
    for key in keys:
        one = declared[key] | Path if key in PATHS else declared[key]
        assert typed[key] == one, key
        assert several[key] == (one if key in PLACES else OneOrMore.__getitem__(one)), key
    assert OneOrMore[int] == int | Sequence[int]


def test_free_keys_are_those_that_may_change() -> None:
    assert set(get_type_hints(FreeKeys)) == set(FREE)


def test_each_section_and_each_method_that_has_options_can_be_named() -> None:
    methods = {name for name in METHODS if name.isidentifier() and method_options(name)[name]}
    assert set(get_type_hints(Sections)) == methods | (set(SECTIONS) - set(get_type_hints(Settings)))


def test_what_is_wrong_is_seen_without_running_it(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "calls.py").write_text(CALLS)
    settings = ["--strict", "--follow-imports=silent", "--no-error-summary", "--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *settings, "calls.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = [line.partition(": error: ")[2] for line in done.stdout.splitlines() if ": error: " in line]
    wrong = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error: " in line}
    first = CALLS.split("\n").index('run(rounds="five")') + 1
    assert wrong == set(range(first, first + 5)), done.stdout + done.stderr
    assert "ruonds" in found[2]


@pytest.mark.parametrize(("name", "keys"), [("run", Keys), ("compare", SeveralKeys), ("resume", FreeKeys)])
def test_the_functions_take_them(name: str, keys: type) -> None:
    source = inspect.getsource(getattr(fedsieve, name))
    assert f": Unpack[{keys.__name__}]" in source


def test_help_names_what_may_change_when_a_run_is_resumed() -> None:
    assert all(f"`{key}`" in fedsieve.resume.__doc__ for key in FREE)


def test_sequences_and_paths_are_compared_one_by_one(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text("x,y\n" + "1,0\n2,1\n" * 20)
    files = [tmp_path / "a.csv", tmp_path / "b.csv"]
    found = cells({"data": files, "data.label": "y", "seed": range(2), "partition": "iid", "clients": 2})
    assert [(cell.config.top.data, cell.config.top.seed) for cell in found] == [
        (str(file), seed) for file in files for seed in (0, 1)
    ]
