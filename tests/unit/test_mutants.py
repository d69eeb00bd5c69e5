"""The list of mutants stays true: each breaks a text that is there, once, and names tests that exist."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("mutate", ROOT / "tools" / "mutate.py")
mutate = importlib.util.module_from_spec(spec)
spec.loader.exec_module(mutate)
MUTANTS = mutate.mutants()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{Path(mutant.file).stem}-{mutant.what}")
def test_its_text_occurs_once_and_is_changed(mutant):
    text = (ROOT / mutant.file).read_text()
    assert text.count(mutant.old) == 1
    compile(text.replace(mutant.old, mutant.new), mutant.file, "exec")
    assert mutant.new != mutant.old
    assert all((ROOT / test).is_file() and "golden" not in test for test in mutant.tests)


def test_no_two_are_the_same():
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in MUTANTS}) == len(MUTANTS)


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A project of one formula, its test and one mutant."""
    for folder in ("src/own", "tests", "docs", "experiments"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "src/own/__init__.py").write_text("def double(x):\n    return 2 * x\n")
    monkeypatch.setattr(mutate, "ROOT", tmp_path)

    def run(test, new="return 3 * x"):
        (tmp_path / "tests/test_own.py").write_text(f"from own import double\n\n\ndef test_it():\n    assert {test}\n")
        only = mutate.Mutant("src/own/__init__.py", "own", "return 2 * x", new, ("tests/test_own.py",))
        monkeypatch.setattr(mutate, "mutants", lambda: [only])
        monkeypatch.setattr("sys.argv", ["mutate.py"])
        return mutate.main()

    return run


@pytest.mark.parametrize(
    ("test", "code", "said"),
    [
        ("double(1) == 2", 0, "dies: src/own/__init__.py: own\n1 of 1 mutants die"),
        ("double(0) == 0", 1, "SURVIVES: src/own/__init__.py: own\n0 of 1 mutants die"),
        ("double(1) == 5", 1, "the tests fail without any mutant"),
    ],
)
def test_survivors_are_found(tree, capsys, test, code, said):
    assert tree(test) == code
    assert said in capsys.readouterr().out


def test_the_working_tree_is_left_alone(tree, tmp_path):
    tree("double(1) == 2")
    assert (tmp_path / "src/own/__init__.py").read_text() == "def double(x):\n    return 2 * x\n"
