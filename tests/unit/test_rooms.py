"""Packages lie in layers: what a module imports lies in its own package or in one below. See docs/architecture.md."""

import ast
import runpy
from pathlib import Path

import pytest

import fedsieve

ROOT = Path(fedsieve.__file__).parent
LAYERS = (
    "base",
    "models",
    "data",
    "estimate",
    "core",
    "parts",
    "methods",
    "evaluate",
    "report",
    "settings",
    "runtime",
    "runs",
    "flower",
    "testing",
    "review",
    "start",
    "api",
    "__init__",
    "cli",
    "__main__",
)
"""From the ground up."""
MODULES = sorted(ROOT.rglob("*.py"))


def room(dotted: str) -> str:
    """`fedsieve.core.part` lies in `core`."""
    return (*dotted.split("."), "__init__")[1]


def imported(path: Path) -> set[str]:
    """The rooms of all that a module imports, at its head, in its functions or for its types."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            from_top = node.module == "fedsieve"
            found |= {f"{node.module}.{alias.name}" if from_top else str(node.module) for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {room(name) if room(name) in LAYERS else "__init__" for name in found if name.split(".")[0] == "fedsieve"}


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_lead_downwards(path):
    height = LAYERS.index(room_of(path))
    above = {name for name in imported(path) if LAYERS.index(name) > height}
    assert not above, f"{room_of(path)} lies below {sorted(above)}"


def test_every_package_has_its_layer():
    assert {room_of(path) for path in MODULES} == set(LAYERS)


def test_the_page_shows_the_layers():
    page = (ROOT.parents[1] / "docs" / "architecture.md").read_text()
    shown = [line.split("`")[1].rstrip("/") for line in page.splitlines() if line.startswith("| `") and "/` |" in line]
    assert shown == [name for name in reversed(LAYERS) if (ROOT / name).is_dir()]


def test_the_picture_is_of_these_imports():
    drawn = runpy.run_path(str(ROOT.parents[1] / "tools" / "draw_rooms.py"))["drawing"]()
    assert (ROOT.parents[1] / "docs" / "images" / "rooms.svg").read_text() == drawn, "python tools/draw_rooms.py"
