"""A method's file reads like its paper: short, with what it needs from the core in one import."""

import ast
from pathlib import Path
from statistics import median

import pytest

import fedsieve

ROOT = Path(fedsieve.__file__).parent
METHODS = [path for path in sorted((ROOT / "methods").glob("*.py")) if path.stem not in ("__init__", "compose")]
PARTS = sorted((ROOT / "parts").glob("*.py"))
LONGEST = 150
USUAL = 80


def lines(path):
    return len(path.read_text().splitlines())


@pytest.mark.parametrize("path", METHODS, ids=lambda path: path.stem)
def test_it_is_short(path):
    assert lines(path) <= LONGEST


def test_most_are_shorter():
    assert median(map(lines, METHODS)) < USUAL


@pytest.mark.parametrize("path", [*METHODS, *PARTS], ids=lambda path: path.stem)
def test_the_core_is_imported_in_one_line(path):
    tree = ast.walk(ast.parse(path.read_text()))
    found = [str(node.module) for node in tree if isinstance(node, ast.ImportFrom)]
    core = [module for module in found if module.startswith("fedsieve.core")]
    assert core in ([], ["fedsieve.core"])


@pytest.mark.parametrize("path", [*METHODS, *PARTS], ids=lambda path: path.stem)
def test_it_leaves_kinds_and_steps_to_the_core(path):
    """Payloads say what they hold, and `train_on` steps."""
    tree = list(ast.walk(ast.parse(path.read_text())))
    assert not [node for node in tree if isinstance(node, ast.Assert)]
    assert not [node for node in tree if isinstance(node, ast.Attribute) and node.attr == "backward"]
