"""Breaks one formula at a time and runs the tests of its method: a formula is tested if breaking it fails one of them.

    python tools/mutate.py            every mutant of tools/mutants.yaml
    python tools/mutate.py fedrn      those whose file or description holds the word
    python tools/mutate.py --list     their descriptions alone

Works in a temporary copy, never in the working tree. Golden values do not count: they say that a number has changed,
not that it was right. Exit code 1 if a mutant survives, or if the tests fail without any.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import yaml

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("src", "tests", "pyproject.toml", "docs", "experiments")
LONGEST = 600
"""Seconds after which the tests of a mutant are ended; one that runs for ever is found."""


class Mutant(NamedTuple):
    """One break."""

    file: str
    what: str
    """What is broken, in words."""
    old: str
    """Occurs exactly once in the file."""
    new: str
    tests: tuple[str, ...]
    """Those that must notice."""


def mutants() -> list[Mutant]:
    groups = yaml.safe_load(Path(__file__).with_name("mutants.yaml").read_text())
    return [
        Mutant(group["file"], one["what"], one["old"], one["new"], tuple(group["tests"]))
        for group in groups
        for one in group["mutants"]
    ]


def tested(folder: Path, tests: Sequence[str], longest: float | None) -> int:
    """What pytest returns: 0 if all tests pass, 1 if one fails or if they take longer than so many seconds."""
    alone = {"PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *tests]
    try:
        return subprocess.run(
            command, cwd=folder, env=os.environ | alone, capture_output=True, timeout=longest, check=False
        ).returncode
    except subprocess.TimeoutExpired:
        return 1


def outcome(folder: Path, mutant: Mutant) -> str:
    """`dies`, `SURVIVES`, or what went wrong."""
    file = folder / mutant.file
    text = file.read_text()
    if text.count(mutant.old) != 1:
        return f"ERROR: its text occurs {text.count(mutant.old)} times"
    file.write_text(text.replace(mutant.old, mutant.new))
    code = tested(folder, mutant.tests, LONGEST)
    file.write_text(text)
    return {0: "SURVIVES", 1: "dies"}.get(code, f"ERROR: pytest returned {code}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("word", nargs="?", default="", help="only mutants whose file or text holds it")
    parser.add_argument("--list", action="store_true", help="run nothing")
    options = parser.parse_args()
    chosen = [mutant for mutant in mutants() if options.word in f"{mutant.file} {mutant.what}"]
    if options.list:
        for mutant in chosen:
            print(f"{mutant.file}: {mutant.what}")
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for each in COPIED:
            copy = shutil.copytree if (ROOT / each).is_dir() else shutil.copy
            copy(ROOT / each, folder / each)
        everything = sorted({test for mutant in chosen for test in mutant.tests})
        if tested(folder, everything, None):
            print("the tests fail without any mutant: mend them first")
            return 1
        alive = 0
        for mutant in chosen:
            found = outcome(folder, mutant)
            alive += found != "dies"
            print(f"{found}: {mutant.file}: {mutant.what}", flush=True)
    print(f"{len(chosen) - alive} of {len(chosen)} mutants die")
    return int(alive > 0)


if __name__ == "__main__":
    sys.exit(main())
